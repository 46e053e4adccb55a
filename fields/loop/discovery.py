"""Finds files of classes that a model does not know: which files these are, and which of them belong together.

Single files: a conformal p-value (arXiv:2104.08279) for each, and the procedure of Benjamini and Hochberg over all.
Clusters: HDBSCAN on the features of the refused files together with the training files, which keep refused files of
known classes with their class. Frames of one scene count as one file (`join_scenes`): a burst of a known animal that looks
odd once would otherwise look like many odd files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.errors import SecondhandError
from datasets.items.labels import UNKNOWN
from datasets.items.splits import components
from fields.loop.teaching import Pool
from learners.inference.predictions import Floats, Prediction
from learners.predictions.together import shown_together
from learners.rule.base import AnyRule
from learners.rule.numbers.arrays import Groups, Ints
from learners.rule.reasons import BACKGROUND
from learners.rule.scores.base import normalise
from learners.rule.thresholds import effective_counts, group_sums

#: Smallest number of files in a cluster, the default of scikit-learn.
SMALLEST = 5
#: A file is far from the known classes if its p-value is at most this.
FAR = 0.05
#: Probability that a cluster of known classes is called new, over all clusters of a call.
ERROR = 0.05


class Found(NamedTuple):
    """A refused file, or a window of a recording.

    Attributes
    ----------
    prediction : what the model said.
    p_value : fraction of known files that are at least as unlike the training files, in (0, 1].
    new : whether it is one of the files of unknown classes, at the false discovery rate of the call.
    """

    prediction: Prediction
    p_value: float
    new: bool


@dataclass(frozen=True)
class Cluster:
    """Refused files that are alike, the most typical first.

    Attributes
    ----------
    rows : the files.
    groups : number of groups of the files: scenes, recordings or bursts.
    far : number of files with a p-value of at most `FAR`.
    known_far : number of files that would be as far if they were refused files of known classes.
    new : whether there are too many far files for a known class (binomial test at `ERROR`, divided by the number of
        clusters; files of a group count as fewer, `effective_counts`).
    """

    rows: list[Found]
    groups: int
    far: int
    known_far: float
    new: bool


@dataclass(frozen=True)
class Discoveries:
    """Result of `discover`.

    Attributes
    ----------
    clusters : those with the most far files first.
    others : refused files in no cluster, by p-value.
    judged : number of files or windows that were compared with the calibration files.
    calibration : number of calibration files, of which a group counts as one.
    """

    clusters: list[Cluster]
    others: list[Found]
    judged: int
    calibration: int

    @property
    def rows(self) -> list[Found]:
        """All refused files."""
        return [row for cluster in self.clusters for row in cluster.rows] + self.others


def discover(pool: Pool, *, fdr: float = 0.1) -> Discoveries:
    """The refused files of a pool, which of them are of unknown classes, and clusters of them.

    Files of a background class are left out: the model knows them.

    Parameters
    ----------
    fdr : largest expected fraction of known files among the files called new, in (0, 1).

    Raises
    ------
    SecondhandError : the model has several labels per file, no training features or no
        calibration scores.
    """
    rule = pool.predictor.rule
    find_discoveries(rule, [], np.empty((0, 0), np.float32), fdr)  # raises at once
    predictions: list[Prediction] = []
    refused: list[Floats] = []
    for window in pool:
        if window.prediction.reason != BACKGROUND:
            predictions.append(window.prediction.with_more(windows=()))
            if window.prediction.label == UNKNOWN:
                assert window.features is not None
                # Copied, because a view would keep the features of its whole batch in memory.
                refused.append(window.features.copy())
    features = np.stack(refused) if refused else np.empty((0, 0), np.float32)
    paths = [one.path for one in predictions if one.label == UNKNOWN]
    together = np.unique(paths, return_inverse=True)[1]  # windows of one recording
    names = [*dict.fromkeys(paths)]
    events = shown_together(names, pool.predictor.kind)
    if event_of := {names[n]: k for k, event in enumerate(events) for n in event}:
        together = np.array([event_of[path] for path in paths], np.int64)
    return find_discoveries(rule, predictions, features, fdr, together)


def find_discoveries(
    rule: AnyRule,
    predictions: Sequence[Prediction],
    features: Floats,
    fdr: float,
    together: Groups = None,
) -> Discoveries:
    """`discover` for files that are predicted already.

    ``features`` [r, d] are those of the r refused files; ``together`` [r] numbers those that are known to be of one
    recording or burst. Files of one scene (`join_scenes`) belong together as well.
    """
    calibration = rule.known_scores
    p = calibration.p(np.array([prediction.known for prediction in predictions]))
    new = benjamini_hochberg(p, fdr)
    found = [
        Found(prediction, float(p[row]), bool(new[row]))
        for row, prediction in enumerate(predictions)
        if prediction.label == UNKNOWN
    ]
    reference = rule.distance.reference
    if reference is None:
        raise SecondhandError(
            "the model stores no features of its training files, which separate clusters of known classes. Train it again"
        )
    scenes = join_scenes(features, max(rule.distance.copy, _usual_distance(reference)))
    clusters_rows = find_clusters(features, reference, scenes) if found else []
    units = scenes
    if together is not None and len(scenes):
        first = scenes.max() + 1
        units = components(scenes, first + together, first + 1 + together.max())[scenes].astype(int)
    refused = 1 - rule.terms.threshold.coverage
    clusters = [
        _cluster([found[i] for i in rows], units[rows], refused, len(clusters_rows))
        for rows in clusters_rows
    ]
    clusters.sort(key=lambda cluster: (-cluster.new, -cluster.far, -len(cluster.rows)))
    clustered = {i for rows in clusters_rows for i in rows}
    others = [row for i, row in enumerate(found) if i not in clustered]
    others.sort(key=lambda row: row.p_value)
    return Discoveries(clusters, others, len(predictions), calibration.groups)


def benjamini_hochberg(p: ArrayLike, fdr: float) -> NDArray[np.bool_]:
    """Whether each hypothesis is rejected, [n], so that the expected fraction of false rejections is at most ``fdr``.

    The k smallest p-values, for the largest k for which the k-th is at most k fdr / n. This holds for conformal
    p-values with common calibration files, which depend positively on each other (arXiv:2104.08279, theorem 2).
    """
    values = np.asarray(p, float)
    ordered = np.sort(values)
    passed = np.flatnonzero(ordered <= fdr * np.arange(1, len(values) + 1) / max(1, len(values)))
    return np.asarray(values <= (ordered[passed[-1]] if len(passed) else 0))


def fewest_discoveries(files: int, calibration: int, fdr: float) -> int:
    """Smallest number of discoveries that is possible: no p-value is below 1 / (``calibration`` + 1)."""
    return math.ceil(files / (fdr * (calibration + 1)) - 1e-9)


def calibration_needed(files: int, new: int, fdr: float) -> int:
    """Number of calibration files with which ``new`` of ``files`` files can be discovered."""
    return math.ceil(files / (fdr * new) - 1 - 1e-9)


def join_scenes(features: Floats, apart: float) -> Ints:
    """Number of the scene of each row of ``features`` [n, d], so that a burst or a copied file is one scene.

    Rows of length 1 whose mean distance is at most ``apart`` are joined (average linkage). Files of different scenes are
    rarely as close if this is the usual distance of a training file to its nearest neighbour, or the distance within
    which a file counts as a copy of a training file.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.neighbors import radius_neighbors_graph

    if not len(features):
        return np.empty(0, np.int64)
    x = normalise(features)
    first, second = radius_neighbors_graph(x, apart).nonzero()
    parts = components(first, second, len(x))
    scenes = np.zeros(len(x), np.int64)
    for rows in np.split(np.argsort(parts, kind="stable"), np.cumsum(np.bincount(parts))[:-1]):
        number = np.ones(1, np.int64)
        if len(rows) > 1:
            number = fcluster(linkage(x[rows], "average"), apart, "distance")
        scenes[rows] = scenes.max() + number
    return scenes - 1


def _usual_distance(reference: Floats) -> float:
    """Median distance of the training files to the nearest other one."""
    from sklearn.neighbors import NearestNeighbors

    if len(reference) < 2:
        return 0.0
    near, _ = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(reference).kneighbors()
    return float(np.median(near))


def find_clusters(features: Floats, reference: Floats, scenes: Ints) -> list[list[int]]:
    """Rows of ``features`` [n, d] in each cluster, the most typical first.

    HDBSCAN (Campello et al. 2013) with the leaves of its tree, on the means of ``scenes`` [n], rows of length 1, together
    with the training files ``reference`` [m, d]. A cluster with as many training files as scenes is one of a known
    class and is left out. A scene in no cluster is one by itself if it has enough files.
    """
    from sklearn.cluster import HDBSCAN

    means = normalise(group_sums(normalise(features), scenes).astype(np.float32))
    x = np.vstack([means, reference])
    if len(x) < SMALLEST:
        return []
    fitted = HDBSCAN(min_cluster_size=SMALLEST, cluster_selection_method="leaf", copy=True).fit(x)
    ours, groups = fitted.labels_[: len(means)], []
    for label in range(fitted.labels_.max() + 1):
        if 2 * (ours == label).sum() > (fitted.labels_ == label).sum():
            rows = np.flatnonzero(ours[scenes] == label)
            typical = np.argsort(-fitted.probabilities_[scenes[rows]], kind="stable")
            groups.append([int(row) for row in rows[typical]])
    sizes = np.bincount(scenes)
    alone = np.flatnonzero((ours < 0) & (sizes >= SMALLEST))
    return groups + [np.flatnonzero(scenes == scene).tolist() for scene in alone]


def _cluster(rows: list[Found], units: Ints, refused_share: float, clusters: int) -> Cluster:
    """The cluster of these files.

    A refused file of a known class is far with a probability of at most `FAR` divided by ``refused_share``, the
    fraction of calibration files that the model refuses.
    """
    from scipy.special import betainc

    is_far = np.array([row.p_value <= FAR for row in rows])
    # NaN where the share is not known: nothing is called new
    share = min(1.0, FAR / refused_share) if refused_share > 0 else 1.0
    far, n = effective_counts(is_far, units)
    chance = float(betainc(far, n - far + 1, share)) if far else 1.0  # P(at least far of n)
    return Cluster(
        rows,
        len(np.unique(units)),
        int(is_far.sum()),
        share * len(rows),
        chance <= ERROR / clusters,
    )
