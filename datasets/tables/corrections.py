"""Labels said anew: of several for one file the last counts, and a model's own answers are none."""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable

import pandas as pd

from datasets.errors import Rejected, SecondhandError
from datasets.tables.checks import ANSWERS, TIME_COLUMNS, UNKNOWN, clean_label, contents

log = logging.getLogger(__name__)

#: What a table of corrections has: a file, its label before and now, and the file that says so.
COLUMNS = ("path", "before", "label", "by")
_SHOWN = 5


def by_hand(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Of a table of answers, as ``learners.predict`` and the runs write them, the rows whose label
    somebody has changed; of another table all.

    Trained on what it answered itself, a model would be as sure of its mistakes. The parts of the
    run that it comes from are not taken either; a moment of strain is what it was judged at.

    Raises
    ------
    SecondhandError : no label was changed.
    """
    if not {*ANSWERS} <= {*frame.columns}:
        return frame, []
    answered = frame["best"].where(frame["reason"].eq(""), UNKNOWN).map(clean_label)
    own = frame["label"].map(clean_label).eq(answered)
    if "branch" in frame:  # answered by a node above the classes: the reason says why by no class
        own |= frame["label"].ne(frame["best"]) & pd.Series(
            [f"[{json.dumps(label, ensure_ascii=False)}," in way
             for label, way in zip(frame["label"], frame["branch"].astype(str), strict=True)],
            frame.index, dtype=bool,
        )  # fmt: skip
    if own.all():
        raise SecondhandError(
            f"--data {source}: answers of a model, and no label was corrected; change the column "
            "label, or delete the column best to take all answers for labels"
        )
    left = [
        Rejected(path, "labelled by the model itself, and not corrected")
        for path in frame["path"][own]
    ]
    frame = frame.loc[~own].drop(columns=["split"], errors="ignore")
    if "at" in frame and "gps" not in frame:
        frame = frame.assign(gps=frame["at"])
    return frame, left


def corrected(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[Rejected]]:
    """One label for each content (of signals: at one time) that has rows in several sources, or
    several rows of one path: the last one said. The first source's row stays, with its split and
    group.

    Parameters
    ----------
    frame : item table with the column ``source``, a number: a source of a larger one speaks later.

    Returns
    -------
    The table without ``source``; the labels that were replaced, as `COLUMNS`; and the rows of later
    sources, which are left out as copies.
    """
    source, frame = frame["source"], frame.drop(columns="source")
    made: list[tuple[str, str, str, str]] = []
    copies: dict[Hashable, Rejected] = {}
    several = source.nunique() > 1
    content = contents(frame["path"]) if several else frame["path"]
    keyed = frame.assign(content=content)
    key = ["content", *TIME_COLUMNS]
    for _, rows in keyed.loc[keyed.duplicated(key, keep=False)].groupby(
        key, sort=False, dropna=False
    ):
        if source[rows.index].nunique() == 1 and rows["label"].nunique() == 1:
            continue
        said = rows.loc[source[rows.index].eq(source[rows.index].max())]
        if said["path"].nunique() > 1 and said["label"].nunique() > 1:
            continue  # two files, and nobody knows which of them is right
        kept = rows.loc[source[rows.index].eq(source[rows.index].min())]
        if kept["path"].nunique() == 1:
            kept = kept.iloc[:1]
        last, first = said.iloc[-1], kept.iloc[0]
        frame.loc[kept.index, "label"] = last["label"]
        for row, path in rows["path"].drop(kept.index).items():
            what = "named already" if path == first["path"] else f"a copy of {first['path']}"
            copies[row] = Rejected(path, what)
        if first["label"] != last["label"]:
            made.append((first["path"], first["label"], last["label"], last["path"]))
    if made:
        shown = "; ".join(f"{path}: {was!r}, now {now!r}" for path, was, now, _ in made[:_SHOWN])
        more = f"; … and {len(made) - _SHOWN} more" if len(made) > _SHOWN else ""
        log.info("%d labels are corrected, the last one said counts: %s%s", len(made), shown, more)
    left = frame.drop(index=[*copies]).reset_index(drop=True)
    return left, pd.DataFrame(made, columns=list(COLUMNS)), list(copies.values())
