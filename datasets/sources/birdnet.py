"""What BirdNET writes for a span in which it has found nothing."""

from __future__ import annotations

import pandas as pd

from datasets.core.errors import Rejected
from datasets.items.labels import JOIN, UNKNOWN

#: Why spans with the label of `is_nocall` are left out of training.
NOCALL = (
    "nocall: BirdNET has found nothing here, which is no class. If nothing is there, name such recordings with "
    "--background"
)


def is_nocall(label: str) -> bool:
    """Whether a label is BirdNET's for a span in which it has found nothing, however it is written."""
    return "".join(filter(str.isalnum, label)).casefold() == "nocall"


def without_nocall(
    frame: pd.DataFrame, *, learned: bool, multi_label: bool
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Remove BirdNET's label of spans in which it has found nothing (`is_nocall`) from rows of spans.

    What is left without a label is learnt as no class of a multi-label item, and otherwise rejected; in an evaluation it
    is `UNKNOWN`. A whole file with this label is one of a class of the user's.
    """
    timed = [name for name in ("start", "end") if name in frame and "label" in frame]
    spans = frame.loc[frame[timed].replace("", float("nan")).notna().any(axis=1)]
    if spans.empty:
        return frame, []
    names = spans["label"].map(lambda label: label.split(JOIN))
    names = names[[any(map(is_nocall, words)) for words in names]]
    if names.empty:
        return frame, []
    nothing = frame.index.isin(names.index)
    kept = names.map(lambda words: JOIN.join(w for w in words if not is_nocall(w)))
    frame = frame.assign(label=frame["label"].where(~nothing, kept))
    bare = nothing & frame["label"].eq("") & (not multi_label)
    if not learned:
        return frame.assign(label=frame["label"].mask(bare, UNKNOWN)), []
    return frame.loc[~bare], [Rejected(str(path), NOCALL) for path in frame.loc[bare, "path"]]
