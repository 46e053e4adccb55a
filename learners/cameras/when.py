"""When and where files were recorded, as columns of their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets.cameras.clock import TIME_AND_PLACE, Clock
from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature


class WhenAndWhere(Feature):
    """Time (ISO 8601; of a window or event that of its start), place and deployment; "" and NaN are unknown."""

    columns = TIME_AND_PLACE

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def values(self, row: Prediction) -> dict[str, Any]:
        return self.clock.cells(row.part, readable=not row.reason.crashed)

    def remarks(self) -> Sequence[str]:
        return self.clock.remarks()
