"""What a run's figures rest on, in words: a random split flatters, a site never seen does not."""

from __future__ import annotations

import pandas as pd

from datasets.items.replay import is_replayed
from datasets.items.settings import DataSettings
from datasets.items.table import ItemTable

LESS = "expect less elsewhere"


def basis_of(table: ItemTable, whole: pd.DataFrame, data: DataSettings) -> str:
    """What comes after "the figures rest on".

    Parameters
    ----------
    table : split already.
    whole : its rows as the data have them, before.
    data : ``cv`` without a ``fold`` asks for all folds together.
    """
    old = is_replayed(whole)
    if old.any():
        new = basis_of(table, whole.loc[~old], data) if (~old).any() else "nothing else"
        return f"the parts of the run that it goes on from, and for new items on {new}"
    frame, given = table.frame, set(whole["split"]) - {""}
    if data.cv is not None:
        folds = frame["fold"].loc[frame["fold"].ne("")].nunique()
        kind = "group" if str(data.cv) == "group" else "fold"
        which = f"{kind} {data.fold} of {folds}" if data.fold is not None else f"{folds} {kind}s"
        if kind == "group":
            return f"{which}, of {'which' if data.fold is not None else 'each'} nothing was learnt"
        if str(data.cv) == "fold":
            return f"{which}, which the data name"
        return _drawn(table, f"{which}, drawn at random")
    if data.fold is not None:
        folds = whole["fold"].loc[whole["fold"].ne("")].nunique()
        beside = ", beside the test part that they name" if "test" in given else ""
        return f"fold {data.fold} of {folds}, which the data name{beside}"
    if {"valid", "calibration"} & given:
        return f"the parts that the data name ({', '.join(sorted(given))})"
    if "test" in given:
        return _drawn(
            table, "the test part that the data name, and for the others on a random split"
        )
    return _drawn(table, f"a random split of {len(table.classes)} classes")


def _drawn(table: ItemTable, how: str) -> str:
    """With what was kept together; where no groups were named, photos of the next shop are harder."""
    said = [how]
    if table.groups:
        said.append(f"of {table.groups} groups none is both learnt from and held out")
    for what, found in (
        ("near-duplicates", table.near_duplicates),
        ("photos of one visit", table.visits),
    ):
        if found and found[0].isdecimal():
            said.append(f"{what} kept together: {found}")
        elif found and found != "none found":
            said.append(f"{what}: {found}")
    return "; ".join([*said, *([] if table.groups else [LESS])])
