"""What was refused, with its best guess: a listing to check by eye or ear, beside the answers, in which it stays unknown."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from datasets.core.errors import counted
from datasets.items.labels import UNKNOWN
from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature, Merge, label_list
from learners.rule.reasons import REFUSALS

#: Largest number of rows; of more, the most probable.
MOST = 100_000


class Candidates(Merge):
    """The refused ones among the rows of another merge, the most probable first.

    The label of each is "unknown", and `Merge.named` its best guess. What shows nothing of the classes (background, silence,
    bad files) is no candidate. Neighbouring windows with one best guess are one row where those of one answer are.

    Parameters
    ----------
    merge : makes the rows.
    by_file : the rows of a file stay together, for formats with a table or entry for each.
    """

    def __init__(self, merge: Merge, *, by_file: bool = False) -> None:
        self.merge, self.by_file = merge, by_file
        self.labels = Counter[str]()

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        found = list[Prediction]()
        for prediction in self.merge(predictions):
            rows = self._of(prediction)
            self.labels.update(row.best for row in rows)
            found += [prediction.with_more(windows=(*rows,))] if self.by_file and rows else rows
            if len(found) > 2 * MOST and not self.by_file:
                found = heapq.nlargest(MOST, found, attrgetter("probability"))
        key = _most_probable if self.by_file else attrgetter("probability")
        yield from sorted(found, key=key, reverse=True)

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        return prediction.windows if self.by_file else (prediction,)

    def named(self, row: Prediction) -> str:
        return row.best

    def summary(self) -> str:
        number = self.labels.total()
        return f"{counted(number, 'candidate')}, refused{label_list(self.labels)}"

    def _of(self, prediction: Prediction) -> list[Prediction]:
        windows = tuple(map(_guessed, prediction.windows))
        rows = self.merge.rows(_guessed(prediction).with_more(windows=windows))
        refused = [
            row._replace(label=UNKNOWN).with_more(windows=())
            for row in rows
            if row.label != UNKNOWN and row.reason.why in REFUSALS
        ]
        return sorted(refused, key=attrgetter("probability"), reverse=True)


class Unreviewed(Feature):
    """Says of each row that nobody has reviewed it."""

    columns = ("review",)

    def values(self, row: Prediction) -> dict[str, Any]:
        return {"review": "unreviewed"}


def _guessed(prediction: Prediction) -> Prediction:
    """A refused prediction with its best guess as label; "unknown" for any other."""
    is_refused = prediction.label == UNKNOWN and prediction.reason.why in REFUSALS
    return prediction._replace(label=prediction.best if is_refused else UNKNOWN)


def _most_probable(prediction: Prediction) -> float:
    return prediction.windows[0].probability
