"""Which held-out items deserve a second look: wrong labels, near-duplicates, the hardest files.

Only held-out items are looked at: of what a network has trained on, it has learnt the wrong labels
too. Nothing here is proof; a person decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.items import correlation, duplicate_threshold, thumbnails_of
from datasets.spectrograms import Source, source_of
from learners.evaluation.figures import ScoredItems
from learners.evaluation.held_out import Evaluation
from learners.model import Bundle
from learners.uncertainty import SAME, normalise

if TYPE_CHECKING:
    from PIL import Image

#: Calibrated probability of its own label, above which no label is suspected; and of another
#: class, below which none is suggested.
LOW, HIGH = 0.05, 0.5
#: Pairs nearest by features whose pictures are compared.
CANDIDATES = 100

TWINS = ("row", "train_path", "train_label", "similarity", "correlation",
         "train_start", "train_end", "train_gps")  # fmt: skip


def hardest_items(evaluation: Evaluation, scored: ScoredItems, n: int = 20) -> pd.DataFrame:
    """The known items whose own label has the least calibrated probability, the hardest first.

    Returns
    -------
    Columns ``row`` (among the predictions), path, truth, best, ``own`` (the label's probability),
    probability (of best) and reason.
    """
    return _beside(evaluation, scored, scored.labels >= 0).head(n).reset_index(drop=True)


def label_suspects(
    evaluation: Evaluation, scored: ScoredItems, classes: Sequence[str]
) -> pd.DataFrame:
    """Held-out items whose label may be wrong, by confident learning (1911.00068).

    An item is *confidently* of a class where that class's probability is at least its mean over the
    items that carry its label (the paper's equation 2; calibrated probabilities here). Suspects are
    confidently of another class, the likeliest of those, while their own label has at most `LOW`;
    and at least `HIGH` is asked of the other class, for a model that is sure of nothing.

    Returns
    -------
    The columns of `hardest_items`, with ``suggested`` and ``suggested_probability``; the widest margin
    between the two probabilities first.
    """
    known = scored.where(scored.labels >= 0)
    n, p = len(known.rows), known.after
    usual = np.full(len(classes), np.inf)
    for c in np.unique(known.labels):
        usual[c] = p[known.labels == c, c].mean()
    confident = np.where(p >= usual, p, -1.0)
    suggested = confident.argmax(axis=1) if n else np.empty(0, int)
    own = p[np.arange(n), known.labels]
    suspect = (suggested != known.labels) & (own <= LOW)
    suspect &= confident[np.arange(n), suggested] >= HIGH
    rows = _beside(evaluation, known, suspect, order=False)
    chosen = np.flatnonzero(suspect)
    rows["suggested"] = [classes[c] for c in suggested[chosen]]
    rows["suggested_probability"] = p[chosen, suggested[chosen]]
    margin = rows["own"] - rows["suggested_probability"]
    return rows.iloc[np.argsort(margin.to_numpy(), kind="stable")].reset_index(drop=True)


def is_copy(evaluation: Evaluation, bundle: Bundle, scored: ScoredItems) -> NDArray[np.bool_]:
    """For each judged item whether its features are those of a training item, but for rounding.

    All false where the model carries no features of its training items.
    """
    nearest, _ = _nearest(evaluation, bundle, scored)
    return nearest >= SAME


def near_duplicates(
    evaluation: Evaluation,
    bundle: Bundle,
    scored: ScoredItems,
    trained: pd.DataFrame,
    draw: Callable[[Source], Image.Image],
) -> pd.DataFrame:
    """Held-out items that look like a training item: copies, bursts, crops, other encodings.

    The network's features find each item's nearest training item; the nearest `CANDIDATES` of these
    pairs are then compared as grey thumbnails, by their correlation at the best shift. How alike is
    too alike is learnt from the same pictures in other pairs (`duplicate_threshold`).

    Parameters
    ----------
    trained : the rows behind the model's reference features, in their order
        (`learners.evaluation.held_out.reference_rows`).
    draw : an item's picture; raises SecondhandError where there is none.

    Returns
    -------
    Columns `TWINS`, the likest first; ``row`` is the place among the predictions.
    """
    similarity, index = _nearest(evaluation, bundle, scored)
    reference = bundle.decider.distance.reference
    # Another number of rows: a training file went bad since.
    if reference is None or len(reference) != len(trained) or not len(similarity):
        return pd.DataFrame(columns=list(TWINS))
    chosen = np.argsort(-similarity, kind="stable")[:CANDIDATES]
    held = evaluation.predictions.iloc[scored.rows[chosen]]
    nearest = trained.iloc[index[chosen]]
    sources = [source_of(row) for rows in (held, nearest) for row in rows.to_dict("records")]
    n = len(chosen)
    thumbnails = thumbnails_of(sources, draw)
    alike = correlation(thumbnails[:n], thumbnails[n:])
    kin = held["truth"].to_numpy(str)[:, None] == nearest["label"].to_numpy(str)
    enough = duplicate_threshold(alike[~kin], alike[kin & ~np.eye(n, dtype=bool)])
    pairs = pd.DataFrame(
        {
            "row": scored.rows[chosen],
            "train_path": nearest["path"].to_numpy(),
            "train_label": nearest["label"].to_numpy(),
            "similarity": similarity[chosen],
            "correlation": alike.diagonal(),
            **{f"train_{name}": nearest[name].to_numpy() for name in ("start", "end", "gps")},
        }
    )
    found = pairs.loc[pairs["correlation"] >= enough]
    return found.sort_values("correlation", ascending=False, kind="stable").reset_index(drop=True)


def _beside(
    evaluation: Evaluation, scored: ScoredItems, mask: NDArray[np.bool_], *, order: bool = True
) -> pd.DataFrame:
    """Predictions beside the calibrated probability of their own label."""
    chosen = np.flatnonzero(mask)
    columns = ["path", "truth", "best", "probability", "reason"]
    rows = evaluation.predictions.iloc[scored.rows[chosen]][columns].reset_index(drop=True)
    rows.insert(0, "row", scored.rows[chosen])
    rows.insert(4, "own", scored.after[chosen, scored.labels[chosen]])
    return rows.sort_values("own", kind="stable") if order else rows


def _nearest(
    evaluation: Evaluation, bundle: Bundle, scored: ScoredItems
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Cosine similarity of each judged item to the nearest training item, and which that is."""
    n = len(scored.rows)
    reference = bundle.decider.distance.reference
    if reference is None or not n or evaluation.features.shape[1] != reference.shape[1]:
        return np.full(n, -1, np.float32), np.zeros(n, np.int64)
    similar = normalise(evaluation.features[scored.rows]) @ reference.T
    return similar.max(axis=1), similar.argmax(axis=1)
