"""Columns that fields add to the predictions of files that were recorded somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datasets.core.registry import Registry
from learners.cli.commands import PredictSettings
from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature

if TYPE_CHECKING:
    import pandas as pd

    from datasets.items.items import Items


@dataclass(frozen=True)
class Columns:
    """What a field adds.

    Attributes
    ----------
    flags : settings of a call of ``learners.predict`` that they depend on.
    of_call : gives them for the rows of a call.
    of_items : gives them for the predictions of some rows of the items of a run, with the index of these rows.
    """

    name: str
    flags: tuple[str, ...]
    of_call: Callable[[PredictSettings], Feature]
    of_items: Callable[[Items, pd.DataFrame, Sequence[Prediction]], pd.DataFrame]


#: Columns that fields add.
COLUMNS: Registry[Columns] = Registry("learners.predictions.columns")
