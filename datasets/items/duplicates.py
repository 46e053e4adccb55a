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
#: Number of similarities, of pairs and of correlations in memory at once.
_SIMILARITIES, _PAIRS, _CORRELATIONS = 2**20, 4096, 1024
#: The nearest files are compared first: up to these ranks, one after the other.
_RANKS = (1, 3, 7, NEIGHBOURS)
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
    correlate by at least `duplicate_threshold`, learnt from `SAMPLE` files of all labels. Equal thumbnails are one
    picture. A cluster with more than half of a class is ungrouped, because the class could not be split otherwise. The
    result is deterministic. A file needs 2.5 kB beside its thumbnail; of more than `CELLED` pictures, the nearest are searched in
    cells, in a time that grows nearly as their number.

    Parameters
    ----------
    thumbnails : uint8 [rows, side, side], from `thumbnails_of`.
    files : [rows], file number of each row, from 0; pictures of one file are not compared.
    labels : [rows].
    """
    from threadpoolctl import threadpool_limits  # here, so that not every command reads it

    visible = np.flatnonzero(np.ptp(thumbnails, axis=(1, 2)))
    n_files = int(files.max(initial=-1)) + 1
    with threadpool_limits(1):  # BLAS: the threads of the search have a core each
        threshold = _learn_threshold(thumbnails, files, labels, visible)
        of_file = _linked(thumbnails, files, visible, n_files, threshold)
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
    # A sixth of the time of NumPy's, which transforms one row at a time.
    from scipy.fft import rfft2

    values = thumbnails.astype(np.float32)
    values -= values.mean(axis=(1, 2), keepdims=True)  # exact: a multiple of 1 / 1024
    norms = np.sqrt(np.einsum("nij,nij->n", values, values))
    values /= np.maximum(norms, 1e-6)[:, None, None]
    return rfft2(values)


def _lowest_frequencies(
    thumbnails: NDArray[np.uint8], rows: NDArray[np.int64]
) -> NDArray[np.complexfloating]:
    """The lowest frequencies of the spectra of rows, complex64 [n, 66], row by row."""
    lowest = np.empty((len(rows), 2 * LOWEST - 1, LOWEST), np.complex64)
    vertical = [*range(LOWEST), *range(1 - LOWEST, 0)]

    def of(block: slice) -> None:
        lowest[block] = _spectra(thumbnails[rows[block]])[:, vertical, :LOWEST]

    with ThreadPoolExecutor() as pool:
        [*pool.map(of, _blocks(len(rows), _CORRELATIONS))]
    return lowest.reshape(len(rows), (2 * LOWEST - 1) * LOWEST)


def _linked(
    thumbnails: NDArray[np.uint8],
    files: NDArray[np.int64],
    visible: NDArray[np.int64],
    n_files: int,
    threshold: float,
) -> NDArray[np.integer]:
    """Component of each file in the graph of near-duplicates, which has edges between ``visible`` rows.

    Pairs of files that others connect are not compared: of a burst, most pairs.
    """
    equal = visible[_first_equal(thumbnails, visible)]
    copies, rows = visible[equal != visible], visible[equal == visible]
    originals = equal[equal != visible]
    # A picture correlates with itself, but for rounding: asked once for all copies of it.
    copied, of_copy = np.unique(originals, return_inverse=True)
    alike = (_pair_correlations(thumbnails, copied, copied) >= threshold)[of_copy]
    first, second = files[originals[alike]], files[copies[alike]]
    lowest = _lowest_frequencies(thumbnails, rows)
    near = _nearest_rows(_unit_magnitudes(lowest), files[rows])
    others = _norms_of_others(lowest)
    component, before = components(first, second, n_files), 0
    for rank in _RANKS:
        one, other = _pairs(near[:, before:rank], component[files[rows]])
        alike = _may_correlate(lowest, others, one, other, threshold)
        one, other = rows[one[alike]], rows[other[alike]]
        alike = _pair_correlations(thumbnails, one, other) >= threshold
        first = np.concatenate([first, files[one[alike]]])
        second = np.concatenate([second, files[other[alike]]])
        component, before = components(first, second, n_files), rank
    return component


def _first_equal(thumbnails: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each of the rows the number of the first that equals it; mostly its own."""
    words = thumbnails.reshape(len(thumbnails), THUMBNAIL**2).view(np.uint64)
    weights = np.random.default_rng(0).integers(1, 2**63, words.shape[1], np.uint64)
    hashes = np.empty(len(rows), np.uint64)
    for block in _blocks(len(rows), _PAIRS):
        hashes[block] = words[rows[block]] @ weights
    _, first, of_row = np.unique(hashes, return_index=True, return_inverse=True)
    found, numbers = first[of_row], np.arange(len(rows))
    later = np.flatnonzero(found != numbers)
    for block in _blocks(len(later), _PAIRS):
        some = later[block]
        differ = (words[rows[some]] != words[rows[found[some]]]).any(axis=1)  # with an equal hash
        found[some[differ]] = some[differ]
    return found


def _pairs(
    near: NDArray[np.int32], component: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of each row and those near it, if they are of different components; each pair occurs once."""
    n, numbers = len(near), [np.empty(0, np.int64)]
    for others in near.T:
        row = np.flatnonzero((others >= 0) & (component[others] != component))
        other = others[row].astype(np.int64)
        numbers.append(np.minimum(row, other) * n + np.maximum(row, other))
    return np.divmod(np.unique(np.concatenate(numbers)), max(1, n))


def _unit_magnitudes(frequencies: NDArray[np.complexfloating]) -> NDArray[np.floating]:
    """Magnitudes of each row, with norm 1."""
    magnitudes = np.abs(frequencies)
    for block in _blocks(len(magnitudes), _PAIRS):
        norms = np.linalg.norm(magnitudes[block], axis=1, keepdims=True)
        magnitudes[block] /= np.maximum(norms, 1e-9)
    return magnitudes


def _nearest_rows(magnitudes: NDArray[np.floating], files: NDArray[np.int64]) -> NDArray[np.int32]:
    """The rows of other files that are nearest to each row [n, k], the nearest first; -1 for none."""
    n = len(magnitudes)
    k = min(NEIGHBOURS, max(0, n - 1))
    similar, near = np.full((n, k), -1, np.float32), np.full((n, k), -1, np.int32)
    several = len(np.unique(files)) < n  # rows of a file

    def compare(rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        of_others = magnitudes[others]
        for block in _blocks(len(rows), max(1, _SIMILARITIES // max(1, len(others)))):
            of_block = rows[block]
            found = magnitudes[of_block] @ of_others.T
            if several:
                found[files[of_block, None] == files[others]] = -1
            else:
                itself = np.minimum(np.searchsorted(others, of_block), len(others) - 1)
                here = np.flatnonzero(others[itself] == of_block)
                found[here, itself[here]] = -1
            best, numbers = similar[of_block], near[of_block]
            if (best == -1).all():
                nearest = _largest(found, k)
                best[:, : nearest.shape[1]] = np.take_along_axis(found, nearest, 1)
                numbers[:, : nearest.shape[1]] = others[nearest]
            else:
                _take_larger(best, numbers, found, others)
            similar[of_block], near[of_block] = best, numbers

    if k and n <= CELLED:
        compare(np.arange(n), np.arange(n))
    elif k:
        cells = _nearest_cells(magnitudes)
        inside = _members(cells[:, 0])
        with ThreadPoolExecutor() as pool:
            # Each row is in one cell of a rank: threads write to different rows.
            for of_rank in cells.T:
                rows = {c: of_cell for c, of_cell in _members(of_rank).items() if c in inside}
                [*pool.map(compare, rows.values(), [inside[c] for c in rows])]
    order = np.argsort(-similar, axis=1, kind="stable")
    near[similar == -1] = -1
    return np.take_along_axis(near, order, 1)


def _take_larger(
    best: NDArray[np.floating],
    numbers: NDArray[np.int32],
    found: NDArray[np.floating],
    others: NDArray[np.int64],
) -> None:
    """Put the values of ``found`` [n, m] that are larger than the least of ``best`` [n, k] into its place, and their
    ``others`` [m] into ``numbers``.
    """
    least = best.min(axis=1)
    row, column = np.divmod(np.flatnonzero(found > least[:, None]), found.shape[1])
    # Of each row one value at a time: the first, then the second …
    turn = np.arange(len(row)) - np.searchsorted(row, row)
    order = np.argsort(turn, kind="stable")
    for of_turn in np.split(order, np.cumsum(np.bincount(turn))[:-1]) if len(row) else []:
        rows, columns = row[of_turn], column[of_turn]
        values, place = found[rows, columns], best[rows].argmin(axis=1)
        larger = values > best[rows, place]
        rows, place = rows[larger], place[larger]
        best[rows, place], numbers[rows, place] = values[larger], others[columns[larger]]


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


def _parts_of_frequencies() -> NDArray[np.float32]:
    """Of each of the lowest frequencies, what its square adds to the square of a picture of norm 1."""
    # All but the first of a row stand for two frequencies of a picture, whose squares sum to its size.
    parts_of = np.where(np.arange(LOWEST), 2, 1) / THUMBNAIL**2
    return np.tile(parts_of, 2 * LOWEST - 1).astype(np.float32)


def _norms_of_others(lowest: NDArray[np.complexfloating]) -> NDArray[np.floating]:
    """Norm of all but the lowest frequencies of each picture."""
    parts_of, norms = _parts_of_frequencies(), np.empty(len(lowest), np.float32)
    for block in _blocks(len(lowest), _PAIRS):
        norms[block] = np.sqrt(np.maximum(0, 1 - np.abs(lowest[block]) ** 2 @ parts_of))
    return norms


def _may_correlate(
    lowest: NDArray[np.complexfloating],
    others: NDArray[np.floating],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    least: float,
) -> NDArray[np.bool_]:
    """Which pairs can correlate by ``least``: their lowest frequencies do, if all ``others`` agree.

    That takes a tenth of the time of a correlation. By the inequality of Cauchy and Schwarz, the other frequencies
    add at most the product of their norms.
    """
    parts_of = _parts_of_frequencies()
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
    thumbnails: NDArray[np.uint8],
    files: NDArray[np.int64],
    labels: NDArray[np.str_],
    visible: NDArray[np.int64],
) -> float:
    files, labels = files[visible], labels[visible]
    shuffled = np.random.default_rng(0).permutation(len(labels))
    each = max(4, SAMPLE // max(1, len(np.unique(labels))))
    table = pd.DataFrame({"row": shuffled, "label": labels[shuffled]})
    some = table.groupby("label").head(each).sort_values("label", kind="stable").head(SAMPLE)
    rows = some["row"].to_numpy()
    pairs = np.triu(files[rows, None] != files[rows], 1)
    same_label = labels[rows, None] == labels[rows]
    some_thumbnails = thumbnails[visible[rows]]
    correlations = correlation(some_thumbnails, some_thumbnails)
    return duplicate_threshold(correlations[pairs & ~same_label], correlations[pairs & same_label])


def _pair_correlations(
    thumbnails: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.float64]:
    def of(pairs: slice) -> NDArray[np.floating]:
        rows, of_pairs = np.unique([first[pairs], second[pairs]], return_inverse=True)
        one, other = _spectra(thumbnails[rows])[of_pairs]
        return _largest_correlation(one.conj() * other)

    with ThreadPoolExecutor() as pool:
        parts = [*pool.map(of, _blocks(len(first), _CORRELATIONS))]
    return np.concatenate([np.empty(0), *parts])


def _largest_correlation(spectra: NDArray[np.complexfloating]) -> NDArray[np.float64]:
    """The largest correlation of each cross spectrum [n, side, side // 2 + 1]."""
    from scipy.fft import ifft, irfft

    near = np.arange(-SHIFT, SHIFT + 1)  # of a shift that is not near, nothing is computed
    columns = ifft(spectra, axis=1)[:, near]
    return irfft(columns, THUMBNAIL, axis=2)[:, :, near].max(axis=(1, 2))


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, n, size)]
