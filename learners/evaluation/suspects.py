"""Finds held-out items to check: suspected labels, near-duplicates of training items, the hardest files.

Only held-out items are searched, because a network also learns the wrong labels it is trained on. The user decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core.part import PART_COLUMNS, Part
from datasets.items.duplicates import correlation, duplicate_threshold, thumbnails_of
from learners.evaluation.figures import ScoredItems
from learners.evaluation.held_out import Evaluation
from learners.model.bundle import Bundle
from learners.rule.distance import SAME

if TYPE_CHECKING:
    from PIL import Image

#: A label is suspected up to this calibrated probability; another class is suggested from this one on.
LOW, HIGH = 0.05, 0.5
#: Number of pairs, nearest by features, whose pictures are compared.
CANDIDATES = 100

DUPLICATE_COLUMNS = ("row", "train_path", "train_label", "similarity", "correlation",
         *(f"train_{name}" for name in PART_COLUMNS))  # fmt: skip


def hardest_items(evaluation: Evaluation, scored: ScoredItems, n: int = 20) -> pd.DataFrame:
    """The ``n`` known items whose label has the lowest calibrated probability, lowest first.

    Returns
    -------
    Columns ``row`` (in the predictions), path, truth, best, ``label_probability``, probability (of
    best) and reason.
    """
    return _beside(evaluation, scored, scored.labels >= 0).head(n).reset_index(drop=True)


def label_suspects(
    evaluation: Evaluation, scored: ScoredItems, classes: Sequence[str]
) -> pd.DataFrame:
    """Held-out items whose label may be wrong, by confident learning (arXiv:1911.00068).

    An item is *confidently* of a class if that class's calibrated probability is at least its mean over the
    items with that label (equation 2). Suspects are confidently of another class, which has at least `HIGH`, and
    their own label has at most `LOW`.

    Returns
    -------
    The columns of `hardest_items`, with ``suggested`` and ``suggested_probability``; largest difference first.
    """
    known = scored.where(scored.labels >= 0)
    n, p = len(known.rows), known.after
    thresholds = np.full(len(classes), np.inf)
    for c in np.unique(known.labels):
        thresholds[c] = p[known.labels == c, c].mean()
    confident = np.where(p >= thresholds, p, -1.0)
    suggested = confident.argmax(axis=1) if n else np.empty(0, int)
    p_label = p[np.arange(n), known.labels]
    suspect = (suggested != known.labels) & (p_label <= LOW)
    suspect &= confident[np.arange(n), suggested] >= HIGH
    rows = _beside(evaluation, known, suspect, order=False)
    chosen = np.flatnonzero(suspect)
    rows["suggested"] = [classes[c] for c in suggested[chosen]]
    rows["suggested_probability"] = p[chosen, suggested[chosen]]
    margin = rows["label_probability"] - rows["suggested_probability"]
    return rows.iloc[np.argsort(margin.to_numpy(), kind="stable")].reset_index(drop=True)


def is_copy(evaluation: Evaluation, bundle: Bundle, scored: ScoredItems) -> NDArray[np.bool_]:
    """bool [n] whether each scored item has the features of a training item (up to rounding); false without features."""
    nearest, _ = _nearest(evaluation, bundle, scored)
    return nearest >= SAME


def near_duplicates(
    evaluation: Evaluation,
    bundle: Bundle,
    scored: ScoredItems,
    trained: pd.DataFrame,
    draw: Callable[[Part], Image.Image],
) -> pd.DataFrame:
    """Held-out items that look like a training item: copies, bursts, crops, other encodings.

    Features find each item's nearest training item; the nearest `CANDIDATES` pairs are compared as grey
    thumbnails, by their correlation at the best shift. `alike_enough` sets the limit from other pairs of the same
    pictures.

    Parameters
    ----------
    trained : rows of the model's reference features, in their order
        (`learners.evaluation.held_out.reference_rows`).
    draw : renders an item; raises SecondhandError where it cannot.

    Returns
    -------
    The columns of the table, most similar first; ``row`` is the index in the predictions.
    """
    similarity, index = _nearest(evaluation, bundle, scored)
    reference = bundle.rule.distance.reference
    # The numbers of rows differ if a training file has become unreadable.
    if reference is None or len(reference) != len(trained) or not len(similarity):
        return pd.DataFrame(columns=list(DUPLICATE_COLUMNS))
    chosen = np.argsort(-similarity, kind="stable")[:CANDIDATES]
    held_out = evaluation.predictions.iloc[scored.rows[chosen]]
    nearest = trained.iloc[index[chosen]]
    # NaN where there are no such columns.
    parts = nearest.reindex(columns=[*PART_COLUMNS]).add_prefix("train_")
    shown = [Part.from_row(row) for rows in (held_out, nearest) for row in rows.to_dict("records")]
    n = len(chosen)
    thumbnails = thumbnails_of(shown, draw)
    alike = correlation(thumbnails[:n], thumbnails[n:])
    kin = held_out["truth"].to_numpy(str)[:, None] == nearest["label"].to_numpy(str)
    enough = duplicate_threshold(alike[~kin], alike[kin & ~np.eye(n, dtype=bool)])
    pairs = pd.DataFrame(
        {
            "row": scored.rows[chosen],
            "train_path": nearest["path"].to_numpy(),
            "train_label": nearest["label"].to_numpy(),
            "similarity": similarity[chosen],
            "correlation": alike.diagonal(),
            **{name: part.to_numpy() for name, part in parts.items()},
        }
    )
    duplicates = pairs.loc[pairs["correlation"] >= enough]
    duplicates = duplicates.sort_values("correlation", ascending=False, kind="stable")
    return duplicates.reset_index(drop=True)


def _beside(
    evaluation: Evaluation, scored: ScoredItems, mask: NDArray[np.bool_], *, order: bool = True
) -> pd.DataFrame:
    """Predictions with the calibrated probability of the item's label."""
    chosen = np.flatnonzero(mask)
    columns = ["path", "truth", "best", "probability", "reason"]
    rows = evaluation.predictions.iloc[scored.rows[chosen]][columns].reset_index(drop=True)
    rows.insert(0, "row", scored.rows[chosen])
    rows.insert(4, "label_probability", scored.after[chosen, scored.labels[chosen]])
    return rows.sort_values("label_probability", kind="stable") if order else rows


def _nearest(
    evaluation: Evaluation, bundle: Bundle, scored: ScoredItems
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Cosine similarity of each scored item to the nearest training item, and that item's index."""
    n, knn = len(scored.rows), bundle.rule.distance.knn
    if knn is None or not n or evaluation.features.shape[1] != knn.reference.shape[1]:
        return np.full(n, -1, np.float32), np.zeros(n, np.int64)
    features = evaluation.features_of(scored.rows)
    if evaluation.folds is None or evaluation.of_reference is None:
        return knn.nearest(features)
    # A file that also teaches is compared with those outside its fold.
    similarity, index = np.full(n, -1, np.float32), np.zeros(n, np.int64)
    folds = evaluation.folds[scored.rows]
    for fold in np.unique(folds):
        own = folds == fold
        of_fold = evaluation.rules[int(fold)].distance.knn if fold in evaluation.rules else knn
        assert of_fold is not None
        others = np.arange(len(knn.reference))
        if of_fold is not knn:
            outside = np.flatnonzero(evaluation.of_reference != fold)
            others = evaluation.by_body.get(int(fold), outside)
        if len(others) != len(of_fold.reference):  # a training file has become unreadable
            continue
        similarity[own], nearest = of_fold.nearest(features[own])
        index[own] = others[nearest]
    return similarity, index
