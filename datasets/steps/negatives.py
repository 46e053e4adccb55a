"""The step that makes the background one of the classes to train on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.items.settings import ClassSettings
from datasets.steps.base import Asked
from datasets.steps.rendering import Rows


def train_on_background(items: Items, asked: Asked) -> Items:
    """Add the background to the rows to train on.

    Raises
    ------
    SecondhandError : none of it is left for training.
    """
    rows, source = items.fact(Rows), asked.of(ClassSettings).background
    if not (source or len(rows.background)):
        return items
    taught = _as_one_class(rows, source, asked.seed)
    known = pd.concat([rows.known, taught], ignore_index=True)
    if "place" in known:
        alone = known["place"].max() + 1 + np.arange(len(known))
        place = known["place"].fillna(pd.Series(alone, known.index)).astype(int)
        known = known.assign(place=place)
    return items.knowing(rows._replace(known=known))


def _as_one_class(rows: Rows, source: str | None, seed: int) -> pd.DataFrame:
    """Background files for training: all of its train split, and of its valid split at most as many as a
    class has there on average, because validation selects the epoch."""
    of_split = rows.background["split"]
    trained, valid = (rows.background.loc[of_split.eq(name)] for name in ("train", "valid"))
    if trained.empty:
        where = f"--background {source}" if source else "--labelled-completely"
        raise SecondhandError(
            f"{where}: no training item without a call is left. Add files; the list of files left out says why"
        )
    known = rows.known
    most = max(1, known["split"].eq("valid").sum() // known["label"].nunique())
    return pd.concat([trained, valid.sample(min(most, len(valid)), random_state=seed)])
