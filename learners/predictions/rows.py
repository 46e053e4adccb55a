"""Rows of a prediction: one per file, unless a feature merges or divides them; and what features add to a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from datasets.audio.decode import probe
from datasets.core.errors import BadFile
from datasets.spectrograms.settings import SpectrogramSettings
from learners.inference.predictions import Prediction
from learners.predictions.provenance import Provenance
from learners.rule.reasons import FAILURES, Why


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

    def summary(self) -> str:
        """Sentences on the rows; "" where they are those of files."""
        return ""


class Windows(Merge):
    """A row for each window of a long recording, or for each box of a picture."""

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        return prediction.windows or (prediction,)


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

    def find(self, feature: type[T]) -> T | None:
        """The feature of a type; None without one."""
        return next((one for one in self.features if isinstance(one, feature)), None)

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        """Rows of one prediction."""
        return self.merge.rows(prediction)


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
