"""Calls that predict files which were recorded somewhere, of which fields know more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from learners.calls.files import FileCall
from learners.predictions.columns import COLUMNS
from learners.predictions.rows import Feature


class RecordedCall(FileCall):
    """Its rows have the columns that fields add (`learners.predictions.columns`), and it takes their flags."""

    @classmethod
    def taken(cls) -> Sequence[str]:
        return [*super().taken(), *chain(*(one.flags for one in COLUMNS.values()))]

    @cached_property
    def added(self) -> Sequence[Feature]:
        """The columns of fields."""
        return [one.of_call(self.settings) for one in COLUMNS.values()]

    def features(self) -> Sequence[Feature]:
        return self.added
