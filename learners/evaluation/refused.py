"""How many of the held-out files of a run are refused, by groups."""

from __future__ import annotations

import pandas as pd

from learners.evaluation.calibration_metrics import units_of
from learners.evaluation.held_out import Evaluation
from learners.rule.refused import FILE, Shares, Usual, counts

#: Parts that the network has not seen, and that did not choose its epoch.
PARTS = ("test", "calibration")


def usually_refused(evaluation: Evaluation) -> Usual | None:
    """The refused files of known classes in `PARTS`; None where there are none, or where the items are spans of longer files:
    a prediction of such a file shows other windows of it."""
    rows = evaluation.predictions
    held_out = rows.loc[rows["split"].isin(PARTS)]
    if held_out.empty or held_out["start"].notna().any():
        return None
    units = units_of(held_out)
    by = pd.Series(range(len(held_out)) if units is None else units, held_out.index)
    whys = held_out["reason"].map(lambda reason: reason.why)
    return Usual.of(FILE, Shares.of(counts(of_group) for _, of_group in whys.groupby(by)))
