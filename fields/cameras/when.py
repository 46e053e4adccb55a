"""When and where files were recorded, as columns of their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets.kinds.base import KINDS
from fields.cameras.clock import TIME_AND_PLACE, Clock
from learners.inference.predictions import Prediction
from learners.predictions.rows import Feature

if TYPE_CHECKING:
    import pandas as pd

    from datasets.items.items import Items


def when_and_where(
    table: Items, rows: pd.DataFrame, predictions: Sequence[Prediction]
) -> pd.DataFrame:
    """Columns of time and place for the predictions of some rows of a table; none where GPS times are asked for."""
    import pandas as pd  # which an answer of a model does without

    from fields.cameras.steps import clock_of

    kind = KINDS[table.kind]
    if kind.gps:
        return pd.DataFrame(index=rows.index)
    clock = clock_of(table)
    found = pd.DataFrame(
        [
            clock.cells(one.part, readable=kind.opened and not one.reason.crashed)
            for one in predictions
        ],
        columns=[*TIME_AND_PLACE],
    )
    for name in ("time", "deployment"):  # of the data's own table
        found[name] = found[name].where(found[name].ne(""), rows[name])
    return found


class WhenAndWhere(Feature):
    """Time (ISO 8601; of a window or event that of its start), place and deployment; "" and NaN are unknown."""

    columns = TIME_AND_PLACE

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def values(self, row: Prediction) -> dict[str, Any]:
        return self.clock.cells(row.part, readable=not row.reason.crashed)

    def place(self, row: Prediction) -> str:
        return str(self.values(row)["deployment"] or "")

    def remarks(self) -> Sequence[str]:
        return self.clock.remarks()
