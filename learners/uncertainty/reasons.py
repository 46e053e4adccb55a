"""Why an answer is "unknown", or why there is none."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """All the reasons there are."""

    ACCEPTED = ""
    AMBIGUOUS = "ambiguous"
    UNLIKE = "unlike training data"
    UNUSUAL = "unusual"  # sure of its class, but among the known files that are most like strangers
    BACKGROUND = "background"  # learnt as none of the classes, and likelier than each of them
    OTHER_CLASS = "other class"  # likelier one that cannot be here (--classes) than any that can
    NO_SIGNAL = "no signal"
    BAD_FILE = "bad file"
    NO_MOMENT = "no such moment"  # a good file, asked about a moment or span that it does not hold


#: Of these the detail says more: the file could not be asked about.
UNANSWERED = (Why.BAD_FILE, Why.NO_MOMENT)


class Reason(str):
    """A `Why` and, where a file could not be asked about, its ``detail``.

    As text it is what tables, JSON and pages have of it, as "bad file: empty file". Nobody takes
    that text apart: both parts are there.
    """

    why: Why
    detail: str

    def __new__(cls, why: Why = Why.ACCEPTED, detail: str = "") -> Reason:
        made = super().__new__(cls, f"{why}: {detail}" if why in UNANSWERED else why)
        made.why, made.detail = why, detail
        return made

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        # Pickled as it was made: predictions come from the workers of a cluster.
        return self.why, self.detail

    @property
    def unanswered(self) -> bool:
        """Neither a class nor "unknown": the file is bad, or does not hold that moment."""
        return self.why in UNANSWERED


AMBIGUOUS, UNLIKE, UNUSUAL, BACKGROUND, OTHER_CLASS = map(
    Reason, (Why.AMBIGUOUS, Why.UNLIKE, Why.UNUSUAL, Why.BACKGROUND, Why.OTHER_CLASS)
)
