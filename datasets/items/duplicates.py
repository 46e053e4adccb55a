"""Finds near-duplicate pictures, so that a split keeps them together.

Bursts, resized or re-encoded copies and crops on both sides of a split make a network look better than it
is. They are found by comparing pixels, not by a network's features: features describe the content, so all
apples would be similar, and the split must not depend on the backbone, its precision or the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.images.thumbnail import THUMBNAIL, thumbnail
from datasets.items.splits import components

if TYPE_CHECKING:
    from PIL import Image

#: Largest shift between thumbnails (pixels), and least correlation of near-duplicates.
SHIFT, ALIKE = 5, 0.7
#: Standard deviations from the usual pair of one label to a near-duplicate.
FAR = 5
#: Number of files that each file is compared with, and of files from which the threshold is learnt.
NEIGHBOURS, SAMPLE = 16, 200
#: Number of similarities and of pairs in memory at once.
_SIMILARITIES, _PAIRS = 2**22, 4096


class Clusters(NamedTuple):
    """Clusters of near-duplicates in a table.

    ``number`` : int64 [rows], cluster of each row, from 0; -1 for none.
    ``sizes`` : number of files in each cluster, at least two.
    ``ungrouped`` : sizes of the clusters that are not kept together, because each holds more than half of
        a class.
    """

    number: NDArray[np.int64]
    sizes: list[int]
    ungrouped: list[int]


def find_clusters(
    thumbnails: NDArray[np.uint8], files: NDArray[np.int64], labels: NDArray[np.str_]
) -> Clusters:
    """Clusters of files with near-duplicate pictures, directly or through other files.

    Each picture is compared with its `NEIGHBOURS` nearest ones by the magnitudes of the lowest
    frequencies of their thumbnails, which do not change with a shift. Pairs are near-duplicates if they
    correlate by at least `duplicate_threshold`, learnt from `SAMPLE` files of all labels. A cluster with
    more than half of a class is ungrouped, because the class could not be split otherwise. The result
    is deterministic; n files need 2 kB each and 66 n² multiplications.

    Parameters
    ----------
    thumbnails : uint8 [rows, side, side], from `thumbnails_of`.
    files : [rows], file number of each row, from 0; pictures of one file are not compared.
    labels : [rows].
    """
    visible = np.flatnonzero(np.ptp(thumbnails, axis=(1, 2)))
    n_files = int(files.max(initial=-1)) + 1
    seen = thumbnails if len(visible) == len(thumbnails) else thumbnails[visible]  # no copy
    first, second = _candidates(seen, files[visible])
    first, second = visible[first], visible[second]
    threshold = _learn_threshold(seen, files[visible], labels[visible])
    alike = _pair_correlations(thumbnails, first, second) >= threshold
    of_file = components(files[first[alike]], files[second[alike]], n_files)
    size = pd.Series(files).groupby(of_file[files]).nunique()
    ungrouped = _majority_clusters(of_file[files], files, labels) & set(size.index[size > 1])
    clusters = [c for c in size.index[size > 1] if c not in ungrouped]
    renumbered = np.full(len(size), -1)
    renumbered[clusters] = np.arange(len(clusters))
    return Clusters(
        renumbered[of_file[files]],
        [int(size[c]) for c in clusters],
        [int(size[c]) for c in sorted(ungrouped)],
    )


def sessions_with_duplicates(
    sessions: NDArray[np.int64], clusters: NDArray[np.int64], labels: NDArray[np.str_]
) -> NDArray[np.int64]:
    """Capture sessions extended by the near-duplicates of their files; sessions that share one are merged.

    A merged session with more than half of a class is ungrouped, because the class could not be split.

    Parameters
    ----------
    sessions, clusters : [files], session and cluster of each file; -1 for none.
    labels : [files].

    Returns
    -------
    int64 [files], session of each file, from 0; -1 for none or an ungrouped one.
    """
    n, first = len(labels), int(sessions.max(initial=-1)) + 1
    keys = np.concatenate([sessions, np.where(clusters < 0, -1, clusters + first)])
    present, size = keys >= 0, n + first + int(clusters.max(initial=-1)) + 1
    component = components(np.tile(np.arange(n), 2)[present], n + keys[present], size)[:n]
    ungrouped = list(_majority_clusters(component, np.arange(n), labels))
    in_session = np.isin(component, component[sessions >= 0]) & ~np.isin(component, ungrouped)
    numbers = np.full(n, -1, dtype=np.int64)
    numbers[in_session] = pd.factorize(component[in_session])[0]
    return numbers


def _majority_clusters(
    clusters: NDArray[np.integer], files: NDArray[np.integer], labels: NDArray[np.str_]
) -> set[int]:
    """Clusters that hold more than half of the files of a label."""
    table = pd.DataFrame({"file": files, "cluster": clusters, "label": labels})
    table = table.drop_duplicates(["file", "label"])
    in_cluster = table.groupby(["cluster", "label"])["file"].transform("size")
    in_class = table.groupby("label")["file"].transform("size")
    return set(table.loc[2 * in_cluster > in_class, "cluster"])


def thumbnails_of(
    sources: Sequence[Part], open_item: Callable[[Part], Image.Image]
) -> NDArray[np.uint8]:
    """Grey thumbnail of each item, uint8 [n, side, side]; zeros for items without a picture.

    ``open_item`` : returns the picture of an item, or raises SecondhandError.
    """

    def look(source: Part) -> NDArray[np.uint8]:
        try:
            return thumbnail(open_item(source))
        except SecondhandError:
            return np.zeros((THUMBNAIL, THUMBNAIL), np.uint8)

    with ThreadPoolExecutor(2) as pool:
        return np.array([*pool.map(look, sources)]).reshape(-1, THUMBNAIL, THUMBNAIL)


def correlation(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Largest correlation [n, m] of thumbnails over cyclic shifts of up to `SHIFT` pixels."""
    spectra = _spectra(b)
    rows = [_largest_correlation(spectrum.conj() * spectra) for spectrum in _spectra(a)]
    return np.array(rows).reshape(len(a), len(b))


def duplicate_threshold(
    different_label: NDArray[np.float64], same_label: NDArray[np.float64]
) -> float:
    """Least correlation of near-duplicates, from the correlations of pairs with different and equal labels."""
    limits = [ALIKE]
    if len(different_label):
        limits.append((1 + float(np.quantile(different_label, 0.999))) / 2)
    if len(same_label):
        # Fisher's transform makes the spread independent of the correlation; the median is robust against
        # duplicates among these pairs.
        z = np.arctanh(np.clip(same_label, -0.9999, 0.9999))
        spread = 1.4826 * np.median(np.abs(z - np.median(z)))
        limits.append(min(0.999, float(np.tanh(np.median(z) + FAR * spread))))
    return max(limits)


def _spectra(thumbnails: NDArray[np.uint8]) -> NDArray[np.complexfloating]:
    """Spectra [n, side, side // 2 + 1] of grey values with mean 0 and norm 1; zeros for a picture of one colour."""
    values = thumbnails.astype(np.float64)
    values -= values.mean(axis=(1, 2), keepdims=True)
    values /= np.maximum(np.linalg.norm(values, axis=(1, 2), keepdims=True), 1e-6)
    return np.fft.rfft2(values.astype(np.float32))


def _candidates(
    thumbnails: NDArray[np.uint8], files: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of each row and its nearest rows of other files; each pair occurs once."""
    n = len(thumbnails)
    lowest = np.empty((n, 66), np.float32)
    for rows in _blocks(n, _PAIRS):
        magnitude = np.abs(_spectra(thumbnails[rows]))
        lowest[rows] = magnitude[:, [*range(6), *range(-5, 0)], :6].reshape(-1, 66)
    lowest /= np.maximum(np.linalg.norm(lowest, axis=1, keepdims=True), 1e-9)
    k = min(NEIGHBOURS, n - 1)
    pairs = [np.empty(0, np.int64)]  # each as one number
    for rows in _blocks(n, max(1, _SIMILARITIES // max(1, n))) if k > 0 else ():
        similar = lowest[rows] @ lowest.T
        similar[files[rows, None] == files] = -1
        near = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        of_block = np.repeat(np.arange(n)[rows], k), near.ravel()
        numbers = np.minimum(*of_block) * n + np.maximum(*of_block)
        pairs.append(numbers[files[of_block[0]] != files[of_block[1]]])
    return np.divmod(np.unique(np.concatenate(pairs)), n)


def _learn_threshold(
    thumbnails: NDArray[np.uint8], files: NDArray[np.int64], labels: NDArray[np.str_]
) -> float:
    shuffled = np.random.default_rng(0).permutation(len(labels))
    each = max(4, SAMPLE // max(1, len(np.unique(labels))))
    table = pd.DataFrame({"row": shuffled, "label": labels[shuffled]})
    some = table.groupby("label").head(each).sort_values("label", kind="stable").head(SAMPLE)
    rows = some["row"].to_numpy()
    pairs = np.triu(files[rows, None] != files[rows], 1)
    same_label = labels[rows, None] == labels[rows]
    correlations = correlation(thumbnails[rows], thumbnails[rows])
    return duplicate_threshold(correlations[pairs & ~same_label], correlations[pairs & same_label])


def _pair_correlations(
    thumbnails: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.float64]:
    out = np.empty(len(first))
    for pairs in _blocks(len(first), _PAIRS):
        first_spectra, second_spectra = (
            _spectra(thumbnails[rows[pairs]]) for rows in (first, second)
        )
        out[pairs] = _largest_correlation(first_spectra.conj() * second_spectra)
    return out


def _largest_correlation(spectra: NDArray[np.complexfloating]) -> NDArray[np.float64]:
    """The largest correlation of each cross spectrum [n, side, side // 2 + 1]."""
    shifted = np.fft.irfft2(spectra, s=(THUMBNAIL, THUMBNAIL))
    near = np.roll(shifted, (SHIFT, SHIFT), axis=(1, 2))[:, : 2 * SHIFT + 1, : 2 * SHIFT + 1]
    return near.max(axis=(1, 2))


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]
