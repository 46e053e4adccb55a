"""Rows of a prediction: one per file, unless a feature merges or divides them; and what features add to a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from datasets.audio.decode import probe
from datasets.core.address import split
from datasets.core.errors import BadFile, counted, printable_line
from datasets.items.labels import UNKNOWN, split_labels
from datasets.spectrograms.settings import SpectrogramSettings
from learners.inference.predictions import Prediction
from learners.predictions.provenance import Provenance
from learners.rule.reasons import FAILURES, Why

#: Largest number of labels whose rows are counted by name in a sentence.
MOST_LABELS = 12


class Feature:
    """What a row says beyond its prediction; this one adds nothing.

    Attributes
    ----------
    columns : names of its columns.
    """

    columns: Sequence[str] = ()

    def values(self, row: Prediction) -> dict[str, Any]:
        """The cells of a row, in the order of ``columns``."""
        return {}

    def place(self, row: Prediction) -> str:
        """Where the file of a row was recorded, as the user calls it; "" if unknown."""
        return ""

    def remarks(self) -> Sequence[str]:
        """Sentences for the user, once all rows are written."""
        return ()


class Merge(Feature):
    """The rows that predictions become; here one for each file.

    Attributes
    ----------
    unused : fields of `Prediction` that its rows leave empty.
    """

    unused: ClassVar[tuple[str, ...]] = ()

    def __call__(self, predictions: Iterable[Prediction]) -> Iterable[Prediction]:
        """The predictions of files, or of several files as one."""
        return predictions

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        """Rows of one prediction that ``__call__`` has yielded."""
        return (prediction,)

    def named(self, row: Prediction) -> str:
        """The class that a row stands for in formats that have classes alone; "" for one that is left out of them."""
        return "" if row.label == UNKNOWN else row.label

    def summary(self) -> str:
        """Sentences on the rows; "" where they are those of files."""
        return ""


@dataclass
class Windows(Merge):
    """A row for each window of a long recording, or for each box of a picture; and their counts.

    Attributes
    ----------
    unit : what has the pieces; "" if it is not counted.
    piece : what a row is.
    whys : number of rows by reason; `Why.ACCEPTED` for accepted ones, `Why.BLANK` for pictures without a piece.
    labels : number of rows with each class or label.
    units : number of readable files.
    """

    unit: str = "file"
    piece: str = "window"
    whys: Counter[Why] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    units: int = 0

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        rows = prediction.windows or (prediction,)
        read = [row for row in rows if not row.reason.failed]
        self.whys.update(row.reason.why for row in read)
        named = (row.label for row in read if row.label != UNKNOWN)
        self.labels.update(name for label in named for name in split_labels(label))
        self.units += not prediction.reason.failed
        return rows

    def summary(self) -> str:
        empty = self.whys[Why.BLANK]
        whys = self.whys - Counter({Why.BLANK: empty})
        unknown, reasons = refusals(whys)
        of = f" in {counted(self.units, self.unit)}" if self.unit else ""
        text = (
            f"{counted(whys.total(), self.piece)}{of}: {whys.total() - unknown} answered"
            f"{label_list(self.labels)}, {unknown} unknown{reasons}"
        )
        return f"{text}. {counted(empty, self.unit)} without {self.piece}" if empty else text


T = TypeVar("T", bound=Feature)


class RowSettings(NamedTuple):
    """Which rows and fields of predictions are written.

    Attributes
    ----------
    merge : makes rows of predictions.
    features : what adds columns to the rows.
    top : number of classes listed per row.
    lists_top : also in the table for the terminal.
    hidden : fields of `Prediction` that are left out.
    names : files and folders of the call; tables in a folder are named relative to them.
    spectrogram : settings of the model's spectrograms; None for photos.
    classes : classes of the model, for the width of a column.
    exclusive : one class per row; else several labels, separated by ``|``.
    provenance : model, thresholds and call; None if they are not recorded.
    """

    merge: Merge = Merge()
    features: Sequence[Feature] = ()
    top: int = 3
    lists_top: bool = False
    hidden: Sequence[str] = ()
    names: Sequence[str] = ()
    spectrogram: SpectrogramSettings | None = None
    classes: Sequence[str] = ()
    exclusive: bool = True
    provenance: Provenance | None = None

    @property
    def more_columns(self) -> tuple[str, ...]:
        """Names of the columns of `more`."""
        return tuple(name for one in (self.merge, *self.features) for name in one.columns)

    def more(self, row: Prediction) -> dict[str, Any]:
        """What a row says beyond its prediction: "" and NaN are unknown."""
        values: dict[str, Any] = {}
        for one in (self.merge, *self.features):
            values |= one.values(row)
        return values

    def place(self, row: Prediction) -> str:
        """Where the file of a row was recorded: what a feature knows of it, else its folder."""
        known = (one.place(row) for one in self.features)
        return next(filter(None, known), None) or split(row.path)[0]

    def find(self, feature: type[T]) -> T | None:
        """The feature of a type; None without one."""
        return next((one for one in self.features if isinstance(one, feature)), None)

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        """Rows of one prediction."""
        return self.merge.rows(prediction)


def label_list(labels: Counter[str]) -> str:
    """In brackets how many rows have each label, the most frequent first; "" without any."""
    listed = [f"{printable_line(name)} {n}" for name, n in labels.most_common(MOST_LABELS)]
    more = [f"{len(labels) - MOST_LABELS} more"] if len(labels) > MOST_LABELS else []
    return f" ({', '.join([*listed, *more])})" if listed else ""


def refusals(whys: Counter[Why]) -> tuple[int, str]:
    """Number of refused files or windows, and in brackets how many for each reason, the most frequent first."""
    refused = [(why, n) for why, n in whys.most_common() if why not in (Why.ACCEPTED, *FAILURES)]
    reasons = ", ".join(f"{n} {why}" for why, n in refused)
    return sum(n for _, n in refused), f" ({reasons})" if reasons else ""


def with_full_span(prediction: Prediction) -> Prediction:
    """Add start and end (seconds) to the prediction of a whole recording, unless it has been deleted."""
    if prediction.part.start is not None or prediction.reason.failed:
        return prediction
    try:
        part = prediction.part._replace(start=0.0, end=probe(prediction.path).duration)
        return prediction._replace(part=part)
    except BadFile:
        return prediction
