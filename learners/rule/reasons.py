"""Why a file gets no answer."""

from __future__ import annotations

from enum import StrEnum

from datasets.core.processes import CRASHED


class Why(StrEnum):
    """All reasons for a refusal."""

    ACCEPTED = ""
    AMBIGUOUS = "ambiguous"
    OUT_OF_DISTRIBUTION = "out of distribution"
    UNUSUAL = "unusual"  # probable enough, but its overall score is below that of most known files
    BACKGROUND = "background"  # the background class is more probable than every other class
    OTHER_CLASS = "other class"  # probably a class that --classes excludes
    NO_SIGNAL = "no signal"
    BLANK = "blank"  # a picture in which the detector found nothing
    NOT_ANIMAL = "not an animal"  # a box of another category of the detector, such as a person
    BAD_FILE = "bad file"
    NO_MOMENT = "no such moment"  # a readable file that does not cover this moment or span


#: What a file is refused for that shows one of the classes, but not as the training files do, or none of them.
REFUSALS = (Why.AMBIGUOUS, Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL)
#: Reasons with a detail: no prediction was possible.
FAILURES = (Why.BAD_FILE, Why.NO_MOMENT)


class Reason(str):
    """A `Why`, with a ``detail`` if the file could not be read or the box is not of an animal.

    Tables, JSON and pages show its text, for example "bad file: empty file". Use ``why`` and ``detail`` instead of
    parsing the text.
    """

    why: Why
    detail: str

    def __new__(cls, why: Why = Why.ACCEPTED, detail: str = "") -> Reason:
        reason = super().__new__(cls, f"{why}: {detail}" if detail or why in FAILURES else why)
        reason.why, reason.detail = why, detail
        return reason

    @classmethod
    def parse(cls, text: str) -> Reason:
        """The reason with this text; raises ValueError if none has it."""
        why, _, detail = text.partition(": ")
        return cls(Why(why), detail)

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        # For pickling: the workers of a cluster send predictions.
        return self.why, self.detail

    @property
    def failed(self) -> bool:
        """Whether there is no prediction, not even "unknown": the file is bad or does not cover the moment."""
        return self.why in FAILURES

    @property
    def crashed(self) -> bool:
        """Whether the file crashed the process that read it, so that no other should open it."""
        return self.detail == CRASHED


ACCEPTED = Reason()
AMBIGUOUS, OUT_OF_DISTRIBUTION, UNUSUAL, BACKGROUND, OTHER_CLASS = map(
    Reason, (Why.AMBIGUOUS, Why.OUT_OF_DISTRIBUTION, Why.UNUSUAL, Why.BACKGROUND, Why.OTHER_CLASS)
)
