"""Finds classes of sound that the length of their clips alone tells from the others.

A clip shorter than the window is filled up, so that its length is visible: where the clips of a class were cut in their own
way, a network may learn the cut.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from datasets.audio.decode import probe
from datasets.core.errors import BadFile
from datasets.items.facts import Lengths
from datasets.spectrograms.settings import sample_evenly

#: Most files whose headers are read.
FILES = 2000
#: Least files of a class, and nearest lengths that are asked.
LEAST, NEIGHBOURS = 10, 5
#: F1 of a class, and of the way from naming it always to naming it right, from which its length is said to tell it.
F1, GAIN = 0.8, 0.5


def telling_lengths(frame: pd.DataFrame, window: float) -> Lengths:
    """The classes that are named by the lengths of clips alone.

    Each file is named by the `NEIGHBOURS` files with the nearest length that are not in its fold.

    Parameters
    ----------
    frame : training items; those that are parts of recordings, or have several labels, are left out.
    window : s; the lengths of longer clips are not visible.
    """
    whole = frame.loc[frame["start"].isna() & frame["end"].isna()]
    whole = whole.loc[whole["path"].isin(sample_evenly(whole["path"], FILES))]
    measured = pd.DataFrame(
        {
            "label": whole["label"],
            "seconds": [_seconds(str(path), window) for path in whole["path"]],
        }
    ).dropna()
    measured = measured.loc[measured["label"].map(measured["label"].value_counts()).ge(LEAST)]
    labels, seconds = measured["label"], measured["seconds"].to_numpy(float)
    if labels.nunique() < 2 or np.ptp(seconds) < 0.01 * window:
        return Lengths()
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    names = np.unique(labels)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    named = cross_val_predict(
        KNeighborsClassifier(NEIGHBOURS), seconds[:, None], labels.to_numpy(), cv=folds
    )
    f1 = f1_score(labels, named, labels=names, average=None, zero_division=0)
    share = labels.value_counts(normalize=True)[names].to_numpy()
    always = 2 * share / (1 + share)  # F1 of naming every file so
    tells = (f1 >= F1) & (f1 - always >= GAIN * (1 - always))
    medians = pd.Series(seconds).groupby(labels.to_numpy()).median()
    return Lengths(
        tuple((str(name), float(medians[name])) for name in names[tells]),
        float(np.median(seconds)),
    )


def _seconds(path: str, window: float) -> float:
    """Visible length of a clip; NaN for a file that cannot be read."""
    try:
        return min(probe(path).duration, window)
    except BadFile:
        return math.nan
