"""Notices that a call, a place or a recording is refused far more often than what the model was calibrated with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from learners.inference.predictions import Prediction
from learners.rule.base import PROBABILITY, AnyRule
from learners.rule.reasons import Why
from learners.rule.refused import CHANCE, WINDOW, Shares, Usual, chance_of, counts, found

if TYPE_CHECKING:
    from learners.model.bundle import Bundle

#: What is refused: all that was predicted, what was recorded at a place, or a recording.
CALL, PLACE, RECORDING = "call", "place", "recording"
#: Largest numbers of places and recordings that are tested, so that each can be found.
MOST = 50


class Refused(NamedTuple):
    """A call, place or recording that is refused far more often.

    Attributes
    ----------
    what, name : `CALL` and "", `PLACE` and its name, or `RECORDING` and its file.
    refused, judged : number of refused files or windows, and of all that are answered or refused.
    usual : share of those that the model was calibrated with.
    unit, usual_unit : what is counted here, and of the calibration: "file" or "window".
    """

    what: str
    name: str
    refused: int
    judged: int
    usual: float
    unit: str
    usual_unit: str

    @property
    def share(self) -> float:
        return self.refused / self.judged


def usual_of(bundle: Bundle, rule: AnyRule) -> Usual | None:
    """What a model usually refuses, to compare with what this ``rule`` refuses; None if it stores nothing, or the rule may
    refuse more than its own: under a looser one it refuses less, and a notice is only rarer.
    """
    own = bundle.rule
    is_same = rule is own or rule.to_json() == own.to_json()
    before, after = own.terms, rule.terms
    is_looser = (
        own.exclusive
        and PROBABILITY == before.on == after.on
        and not after.score
        and after.threshold.value <= before.threshold.value
    )
    if not (is_same or is_looser) or rule.possible is not None:
        return None
    return Usual.read(bundle.metrics)


class RefusedCount:
    """Counts what is refused of predictions as they pass, and knows afterwards what is `found`.

    Parameters
    ----------
    place : where a file was recorded; "" if that is not known.
    pages : whether windows are pages of pictures, or boxes in them, each of which is what a held-out file shows.
    """

    def __init__(
        self, usual: Usual, place: Callable[[Prediction], str], *, pages: bool = False
    ) -> None:
        self.usual, self.place, self.pages = usual, place, pages
        # By place the counts of each file.
        self._of = defaultdict[str, dict[str, tuple[int, int]]](dict)
        self._unit = usual.unit

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        in_windows = self.usual.unit == WINDOW
        for prediction in predictions:
            yield prediction
            if prediction.reason.why is Why.BAD_FILE:
                continue
            # The boxes of a picture are judged one by one, too, and the windows of a stretch of continuous strain.
            boxes = any(one.part.box is not None for one in prediction.windows)
            stretch = prediction.part.start is not None and bool(prediction.windows)
            each = in_windows or boxes or stretch or self.pages
            shown = (each and prediction.windows) or (prediction,)
            if stretch:
                self._unit = WINDOW
            refused, judged = counts(one.reason.why for one in shown)
            if judged and self.pages and not boxes:
                # Pages of a stack resemble each other: it counts once, as most of them are.
                refused, judged = int(2 * refused > judged), 1
            files = self._of[self.place(prediction)]
            before = files.get(prediction.path, (0, 0))
            files[prediction.path] = (before[0] + refused, before[1] + judged)

    def found(self) -> list[Refused]:
        """What is refused far more often: the call, then places, then recordings elsewhere."""
        places = {name: [*files.values()] for name, files in self._of.items()}
        recordings = {
            path: [counts] for files in self._of.values() for path, counts in files.items()
        }
        whole = [one for files in places.values() for one in files]
        several = len(places) > 1
        notices = self._tested(CALL, {"": whole}, CHANCE / 2 if several else 3 * CHANCE / 4)
        if several:
            notices += self._tested(PLACE, places, CHANCE / 4)
        if self.usual.unit == WINDOW and len(recordings) > 1:
            named = {one.name for one in notices}
            of_file = {path: place for place, files in self._of.items() for path in files}
            each = self._tested(RECORDING, recordings, CHANCE / 4)
            notices += [one for one in each if of_file[one.name] not in named] * (not notices)
        return notices

    def _tested(
        self, what: str, groups: dict[str, list[tuple[int, int]]], chance: float
    ) -> list[Refused]:
        if len(groups) > MOST:
            largest = sorted(groups, key=lambda name: -sum(n for _, n in groups[name]))[:MOST]
            groups = {name: groups[name] for name in largest}
        usual, grouped = self.usual.shares, self.usual.unit == WINDOW
        here = {name: Shares.of(each) for name, each in groups.items()}
        chances = [chance_of(one, usual, grouped=grouped) for one in here.values()]
        names = [*here]
        return [
            Refused(
                what,
                names[n],
                int(here[names[n]].refused.sum()),
                int(here[names[n]].judged.sum()),
                usual.value,
                self._unit,
                self.usual.unit,
            )
            for n in found(chances, chance)
        ]
