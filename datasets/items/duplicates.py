"""Finds near-duplicate pictures, so that a split keeps them together.

Bursts, resized or re-encoded copies and crops on both sides of a split make a network look better than it
is. They are found by comparing pixels, not by a network's features: features describe the content, so all
apples would be similar, and the split must not depend on the backbone, its precision or the device.
"""

from __future__ import annotations

import math
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
#: More files than `CELLED` are compared with those of their `PROBES` nearest cells, of about `CELL` files each.
CELLED, CELL, PROBES = 20_000, 1000, 8
#: Passes of the search for the centres of cells, and files of each cell from which they are found.
ROUNDS, PER_CELL = 5, 30
#: Number of similarities and of pairs in memory at once.
_SIMILARITIES, _PAIRS = 2**22, 4096
#: The lowest frequencies of a spectrum, which hold most of a picture: up to `LOWEST` - 1 along each axis.
LOWEST = 6


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
    is deterministic. Files need 3 kB each; of more than `CELLED` files, the nearest are searched in cells, in a
    time that grows nearly as their number.

    Parameters
    ----------
    thumbnails : uint8 [rows, side, side], from `thumbnails_of`.
    files : [rows], file number of each row, from 0; pictures of one file are not compared.
    labels : [rows].
    """
    visible = np.flatnonzero(np.ptp(thumbnails, axis=(1, 2)))
    n_files = int(files.max(initial=-1)) + 1
    seen = thumbnails if len(visible) == len(thumbnails) else thumbnails[visible]  # no copy
    lowest = _lowest_frequencies(seen)
    first, second = _candidates(np.abs(lowest), files[visible])
    threshold = _learn_threshold(seen, files[visible], labels[visible])
    alike = _may_correlate(lowest, first, second, threshold)
    first, second = first[alike], second[alike]
    alike = _pair_correlations(seen, first, second) >= threshold
    first, second = visible[first[alike]], visible[second[alike]]
    of_file = components(files[first], files[second], n_files)
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
    values = thumbnails.astype(np.float32)
    values -= values.mean(axis=(1, 2), keepdims=True)  # exact: a multiple of 1 / 1024
    norms = np.sqrt(np.einsum("nij,nij->n", values, values))
    values /= np.maximum(norms, 1e-6)[:, None, None]
    return np.fft.rfft2(values)


def _lowest_frequencies(thumbnails: NDArray[np.uint8]) -> NDArray[np.complexfloating]:
    """The lowest frequencies of each spectrum, complex64 [n, 66], row by row."""
    lowest = np.empty((len(thumbnails), 2 * LOWEST - 1, LOWEST), np.complex64)
    vertical = [*range(LOWEST), *range(1 - LOWEST, 0)]
    for rows in _blocks(len(thumbnails), _PAIRS):
        lowest[rows] = _spectra(thumbnails[rows])[:, vertical, :LOWEST]
    return lowest.reshape(len(thumbnails), -1)


def _candidates(
    magnitudes: NDArray[np.floating], files: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of each row and its nearest rows of other files; each pair occurs once."""
    n = len(magnitudes)
    k = min(NEIGHBOURS, n - 1)
    if k < 1:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    magnitudes = magnitudes / np.maximum(np.linalg.norm(magnitudes, axis=1, keepdims=True), 1e-9)
    similar, near = np.full((n, k), -1, np.float32), np.zeros((n, k), np.int64)

    def compare(rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        for block in _blocks(len(rows), max(1, _SIMILARITIES // max(1, len(others)))):
            of_block = rows[block]
            found = magnitudes[of_block] @ magnitudes[others].T
            found[files[of_block, None] == files[others]] = -1
            nearest = _largest(found, k)
            found = np.take_along_axis(found, nearest, 1)
            both = np.concatenate([similar[of_block], found], axis=1)
            numbers = np.concatenate([near[of_block], others[nearest]], axis=1)
            best = _largest(both, k)
            similar[of_block] = np.take_along_axis(both, best, 1)
            near[of_block] = np.take_along_axis(numbers, best, 1)

    if n <= CELLED:
        compare(np.arange(n), np.arange(n))
    else:
        cells = _nearest_cells(magnitudes)
        inside = _members(cells[:, 0])
        empty = np.empty(0, np.int64)
        with ThreadPoolExecutor() as pool:
            # Each row is in one cell of a rank: threads write to different rows.
            for of_rank in cells.T:
                rows = _members(of_rank)
                [*pool.map(compare, rows.values(), [inside.get(c, empty) for c in rows])]
    of_row, real = np.repeat(np.arange(n), k).reshape(n, k), similar > -1
    numbers = np.minimum(of_row, near) * n + np.maximum(of_row, near)
    return np.divmod(np.unique(numbers[real]), n)


def _largest(values: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """Columns of the ``k`` largest values of each row; of all, if there are fewer."""
    k = min(k, values.shape[1])
    return (
        np.argpartition(-values, k - 1, axis=1)[:, :k]
        if k
        else np.empty((len(values), 0), np.int64)
    )


def _members(numbers: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The rows of each number."""
    order = np.argsort(numbers, kind="stable")
    found, first = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))


def _nearest_cells(points: NDArray[np.floating]) -> NDArray[np.int64]:
    """The `PROBES` cells whose centres, found by k-means, are nearest to each point [n, d], nearest first."""
    random, cells = np.random.default_rng(0), math.ceil(len(points) / CELL)
    some = points[random.permutation(len(points))[: PER_CELL * cells]]
    centres = some[:cells]
    for _ in range(ROUNDS):
        of_point = _nearest(some, centres, 1)[:, 0]
        sums = np.zeros_like(centres)
        np.add.at(sums, of_point, some)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-9), centres)
    return _nearest(points, centres, min(PROBES, cells))


def _nearest(
    points: NDArray[np.floating], centres: NDArray[np.floating], k: int
) -> NDArray[np.int64]:
    """Numbers [n, k] of the centres nearest to each point, nearest first."""

    def of(block: slice) -> NDArray[np.int64]:
        similar = points[block] @ centres.T
        near = _largest(similar, k)
        order = np.argsort(-np.take_along_axis(similar, near, 1), axis=1, kind="stable")
        return np.take_along_axis(near, order, 1)

    with ThreadPoolExecutor() as pool:
        blocks = _blocks(len(points), max(1, _SIMILARITIES // len(centres)))
        return np.concatenate([*pool.map(of, blocks)])


def _may_correlate(
    lowest: NDArray[np.complexfloating],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    least: float,
) -> NDArray[np.bool_]:
    """Which pairs can correlate by ``least``: their lowest frequencies do, if all others agree.

    That takes a tenth of the time of a correlation. By the inequality of Cauchy and Schwarz, the other frequencies
    add at most the product of their norms.
    """
    # All but the first of a row stand for two frequencies of a picture, whose squares sum to its size.
    parts_of = np.where(np.arange(LOWEST), 2, 1) / THUMBNAIL**2
    parts_of = np.tile(parts_of, 2 * LOWEST - 1).astype(np.float32)
    others = np.sqrt(np.maximum(0, 1 - np.abs(lowest) ** 2 @ parts_of))
    shifts = np.arange(-SHIFT, SHIFT + 1)
    vertical, horizontal = np.array([*range(LOWEST), *range(1 - LOWEST, 0)]), np.arange(LOWEST)
    turns = (
        vertical[:, None, None, None] * shifts[:, None]
        + horizontal[None, :, None, None] * shifts[None, :]
    ).reshape(lowest.shape[1], -1)  # [frequencies, shifts]
    phases = parts_of[:, None] * np.exp(2j * np.pi * turns / THUMBNAIL)
    waves = np.concatenate([phases.real, -phases.imag]).astype(np.float32)

    def of(pairs: slice) -> NDArray[np.bool_]:
        one, other = first[pairs], second[pairs]
        product = lowest[one].conj() * lowest[other]
        together = np.concatenate([product.real, product.imag], axis=1) @ waves
        return together.max(axis=1) + others[one] * others[other] >= least - 1e-3

    with ThreadPoolExecutor() as pool:
        parts = [*pool.map(of, _blocks(len(first), _PAIRS))]
    return np.concatenate([np.empty(0, bool), *parts])


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
    def of(pairs: slice) -> NDArray[np.floating]:
        rows, of_pairs = np.unique([first[pairs], second[pairs]], return_inverse=True)
        one, other = _spectra(thumbnails[rows])[of_pairs]
        return _largest_correlation(one.conj() * other)

    with ThreadPoolExecutor() as pool:
        parts = [*pool.map(of, _blocks(len(first), _PAIRS))]
    return np.concatenate([np.empty(0), *parts])


def _largest_correlation(spectra: NDArray[np.complexfloating]) -> NDArray[np.float64]:
    """The largest correlation of each cross spectrum [n, side, side // 2 + 1]."""
    shifted = np.fft.irfft2(spectra, s=(THUMBNAIL, THUMBNAIL))
    near = np.roll(shifted, (SHIFT, SHIFT), axis=(1, 2))[:, : 2 * SHIFT + 1, : 2 * SHIFT + 1]
    return near.max(axis=(1, 2))


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]
