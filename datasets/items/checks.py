"""Removes unreadable files and copies from the item table, and applies corrected labels."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from datasets.core.address import is_address, local
from datasets.core.errors import BadFile, Copy, Rejected, SecondhandError, counted, quoted
from datasets.core.file_state import FileState, QuickState
from datasets.core.part import PART_COLUMNS, part_text
from datasets.core.processes import check_files_isolated, cores
from datasets.items.labels import JOIN, UNKNOWN, clean_label
from datasets.kinds.base import KINDS, Kind, PictureInfo

if TYPE_CHECKING:
    from datasets.kinds.lookup import Lookup

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Why a row of a table of predictions is left out: the normal case, of which nobody needs to be warned.
NOT_CORRECTED = "labelled by a model and not corrected"
#: Columns that a table of predictions has beside path and label: the best class and the reason of a refusal.
PREDICTION_COLUMNS = ("best", "reason")
#: Columns of the table of corrections: file, span or moment, old label, new label, and the file of the
#: row that corrects it.
CORRECTION_COLUMNS = ("path", "span", "before", "label", "by")
#: Rows of two sources are the same span, moment or box if all their times agree to this many seconds, and their
#: boxes to this fraction of the picture; programs may round them when they save a table.
SAME_TIME = 1e-3
#: Columns that a table of clusters has beside path and label.
CLUSTER_COLUMNS = ("cluster", "p_value")
#: Columns of a table of labels that people gave on a page, and the name that its ``time`` gets: when the label was
#: given, not when the file was recorded.
PAGE_COLUMNS, LABELLED = ("predicted", "model", "time"), "labelled"
#: Columns of the tables that are written for people to fill in: labels of a page, files to label next, clusters, and the
#: files of an audit. A row without a label there is not labelled yet.
SHEETS = (PAGE_COLUMNS, ("score", "why", "guess"), CLUSTER_COLUMNS, ("guess", "stratum", "drawn"))
#: Their columns of what the model answered.
GUESSES = ("guess", "predicted", "best", "answer")
_SHOWN = 5


def usable_rows(
    frame: pd.DataFrame,
    kind: str,
    picture_info: dict[str, PictureInfo],
    *,
    check: bool = True,
    lookup: Lookup | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Drop rows whose file is of another kind or, with ``check``, is missing, empty or unreadable.

    A file is looked at as its `Kind` says; an item that is not opened need only be in the ``lookup``.

    ``picture_info`` : filled with the information about each picture, by path. ``settings`` : as of `Kind.look`.
    """
    of = KINDS[kind]
    if not of.opened and lookup is not None:
        return lookup.usable_rows(frame)
    paths = [str(path) for path in frame["path"].unique()]
    matching = [path for path in paths if of.owns(path)]
    results: dict[str, Rejected | PictureInfo | None] = {
        path: Rejected(path, f"not a {kind} by its ending") for path in paths
    }
    if not check:
        results |= dict.fromkeys(matching)
    else:
        # What is missing at the end of a recording changes no span before it.
        limits = frame.reindex(columns=["start", "end"])
        whole = set(frame["path"][limits.isna().any(axis=1)])
        # Of pictures none, so that little is sent to the processes with each few files.
        in_spans = frozenset(matching) - whole
        # A damaged file may crash its decoder; that rejects the file and does not end the run.
        checks = check_files_isolated(
            partial(_check, kind=of, in_spans=in_spans, settings=dict(settings)), matching
        )
        results |= zip(matching, checks, strict=True)
    bad = [result for result in results.values() if isinstance(result, Rejected)]
    picture_info |= {
        path: result for path, result in results.items() if isinstance(result, PictureInfo)
    }
    left_out = frame["path"].isin([file.path for file in bad])
    return frame.loc[~left_out].reset_index(drop=True), bad


def _check(
    path: str, kind: Kind, in_spans: Collection[str], settings: Mapping[str, Any]
) -> PictureInfo | None:
    """What a kind's look at a file gives. ``in_spans`` : recordings of which only spans are used, so that they may be cut off."""
    _check_exists(path)
    return kind.look(path, path not in in_spans, settings)


def _check_exists(path: str) -> None:
    if is_address(path):
        if QuickState.read(path).size == 0:
            raise BadFile(path, "empty file")
        return
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(path, "there is no such file") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise BadFile(path, f"cannot be accessed ({error})") from None
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for its writer for ever.
        raise BadFile(path, "not a file, but a folder, a pipe or a device")
    if status.st_size == 0:
        raise BadFile(path, "empty file")
    if not os.access(path, os.R_OK):
        raise BadFile(path, "is not readable: check its permissions")


def content_keys(
    frame: pd.DataFrame,
    lookup: Lookup | None = None,
    states: Mapping[str, FileState] = MappingProxyType({}),
) -> pd.Series:
    """A key for each row that is equal for files of equal bytes; the path of an unreadable file.

    With a ``lookup`` it is equal for equal inputs. ``states`` : those of files that have been opened already.
    """
    if lookup:
        return lookup.content_keys(frame)
    unique = list(frame["path"].unique())
    sizes = {path: state.size for path in unique if (state := states.get(path))}
    sizes |= _of_each(_size, [path for path in unique if path not in sizes])
    # Files of different size are no copies: only the others are read.
    shared_sizes = {n for n, count in Counter(sizes.values()).items() if n and count > 1}
    same_size = [path for path in unique if sizes[path] in shared_sizes]
    # Recordings of one length have one size: whole files are read only if parts of them are equal, too. No parts
    # of a file at an address are known.
    whole = {sizes[path] for path in same_size if is_address(path)}
    in_parts = [path for path in same_size if sizes[path] not in whole]
    contents = {path: state.content for path in in_parts if (state := states.get(path))}
    contents |= _of_each(_content, [path for path in in_parts if path not in contents])
    shared = {content for content, count in Counter(contents.values()).items() if count > 1}
    alike = [path for path in same_size if path not in contents or contents[path] in shared]
    digests = _of_each(_digest, alike)
    return frame["path"].map(lambda path: digests.get(path, path))


def drop_copies(
    frame: pd.DataFrame,
    known_items: pd.DataFrame | None = None,
    lookup: Lookup | None = None,
    *,
    several_labels: bool = False,
    states: Mapping[str, FileState] = MappingProxyType({}),
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Keep one row per content; a copy in training is kept before one in another split.

    Copies are files of equal bytes, or with a ``lookup`` items of equal inputs. Copies of ``known_items`` are
    dropped, too. Rows of one content with different labels contradict each other and are dropped, unless they may
    have ``several_labels``: then those of one file stay, as the events of several classes in one span do. ``states`` are as in
    `content_keys`.
    """
    rank = frame["split"].map({"train": 0, "": 1, "valid": 2, "calibration": 3, "test": 4})
    frames = [frame.assign(row=range(len(frame)), rank=rank)]
    if known_items is not None:
        frames.insert(0, known_items.assign(row=-1, rank=-1))
    rows_of_both = pd.concat(frames, ignore_index=True)
    rows_of_both["content"] = content_keys(rows_of_both, lookup, states)
    if several_labels:
        of_one_file = rows_of_both.groupby("content")["path"].transform("nunique").eq(1)
        rows_of_both.loc[of_one_file, "content"] += JOIN + rows_of_both["label"]
    rows_of_both = rows_of_both.sort_values("rank", kind="stable")
    # Two windows of one recording, or two triggers in one strain file, are two items.
    key = ["content", *PART_COLUMNS]
    drop: dict[int, Rejected] = {}
    for _, rows in rows_of_both.loc[rows_of_both.duplicated(key, keep=False)].groupby(
        key, sort=False, dropna=False
    ):
        labels = sorted(set(rows["label"])) if known_items is None else []
        first = rows.iloc[0].to_dict()
        for row, path, split in zip(rows["row"], rows["path"], rows["split"], strict=True):
            if len(labels) > 1:
                other_path = next((f" (also {p})" for p in rows["path"] if p != path), "")
                label_list = " and ".join(map(repr, labels))
                what = part_text(first) or "the same content"
                drop[row] = Rejected(path, f"{what} is labelled {label_list}{other_path}")
            elif row not in (-1, first["row"]):
                is_same = path == first["path"]
                reason = "listed twice" if is_same else f"a copy of {first['path']}"
                if split != first["split"]:
                    where = "the other time" if is_same else "which is"
                    reason += f", {where} in {first['split']}"
                drop[row] = Copy(path, reason)
    return frame.drop(index=frame.index[[*drop]]).reset_index(drop=True), list(drop.values())


def drop_contradictions(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Rejected]]:
    """Drop the rows of one item with different labels, which a table may have for events of several classes."""
    several = frame.duplicated(["path", *PART_COLUMNS], keep=False)
    return frame.loc[~several], drop_copies(frame.loc[several])[1]


def _size(path: str) -> int:
    try:
        if is_address(path):
            return QuickState.read(path).size
        status = os.stat(path)
    except (OSError, ValueError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _of_each(function: Callable[[str], T], paths: Sequence[str]) -> dict[str, T]:
    """What a function gives for each file, in threads; a future for each file would take longer than its size."""
    chunks = [paths[first : first + 64] for first in range(0, len(paths), 64)]
    with ThreadPoolExecutor(cores()) as pool:
        found = pool.map(lambda chunk: [function(path) for path in chunk], chunks)
        return dict(zip(paths, (one for chunk in found for one in chunk), strict=True))


def _content(path: str) -> tuple[int, str]:
    """Size of a file and a digest of parts of it; its path instead of a digest if it cannot be read."""
    state = FileState.read(path)
    return (0, path) if state is None else state.content


def _digest(path: str) -> str:
    try:
        with open(local(path), "rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except (OSError, BadFile):
        return path


def corrected_by_hand(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of a table of predictions whose label was changed by hand; all rows of another table.

    A model that is trained on its own predictions becomes sure of its mistakes. The splits of the run
    that wrote the table are dropped, and the column ``at`` becomes the GPS time of strain.

    Raises
    ------
    SecondhandError : no label was changed.
    """
    if not {*PREDICTION_COLUMNS} <= {*frame.columns}:
        return frame, []
    predicted_label = frame["best"].where(frame["reason"].eq(""), UNKNOWN).map(clean_label)
    predicted = frame["label"].map(clean_label).eq(predicted_label)
    if "branch" in frame:
        # A group above the classes was predicted; the reason says why no class was.
        predicted |= frame["label"].ne(frame["best"]) & pd.Series(
            [f"[{json.dumps(label, ensure_ascii=False)}," in way
             for label, way in zip(frame["label"], frame["branch"].astype(str), strict=True)],
            frame.index, dtype=bool,
        )  # fmt: skip
    if predicted.all():
        raise SecondhandError(
            f"--data {source}: these are predictions of a model, and no label was corrected. Correct the "
            "column label, or delete the column reason to use all predictions as labels"
        )
    rejected = [Rejected(path, NOT_CORRECTED) for path in frame["path"][predicted]]
    log.info(
        "%s: %s used, %d unchanged left out",
        source, counted(sum(~predicted), "corrected row"), sum(predicted),
    )  # fmt: skip
    frame = frame.loc[~predicted].drop(columns=["split"], errors="ignore")
    if "at" in frame and "gps" not in frame:
        frame = frame.assign(gps=frame["at"])
    return frame, rejected


def is_sheet(frame: pd.DataFrame) -> bool:
    """Whether a table is one of `SHEETS`."""
    columns = {str(name).strip().lower() for name in frame}
    return any({*names} <= columns for names in SHEETS)


def name_clusters(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """A table of clusters in which an empty label is the first label of its cluster; any other table as it is."""
    if not {*CLUSTER_COLUMNS} <= {*frame.columns}:
        return frame
    written = frame["label"].where(frame["label"].ne(""))
    names = written.groupby(frame["cluster"].where(frame["cluster"].ne(""))).first().dropna()
    labels = written.fillna(frame["cluster"].map(names)).fillna("")
    for cluster, name in zip(names.index.astype(str), names, strict=True):
        files = int((frame["cluster"].eq(cluster) & labels.eq(name)).sum())
        log.info("%s: cluster %s is %s, %d files", source, cluster, quoted(name), files)
    return frame.assign(label=labels)


def apply_corrections(
    frame: pd.DataFrame, lookup: Lookup | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, list[Rejected]]:
    """Give each content its latest label if several sources have it: that of the last source, or of tables that
    people label on a page (`LABELLED`) the newest.

    Signals must also agree in their times, to `SAME_TIME`. The row of the first source stays, with its
    times, split and group. Rows of later sources at other times of a file become items of their own and
    are logged.

    Parameters
    ----------
    frame : item table with an integer column ``source``; larger numbers are later sources. A column `LABELLED` is
        removed.
    lookup : as in `drop_copies`.

    Returns
    -------
    The table without ``source``; the replaced labels (`CORRECTION_COLUMNS`); and the rejected rows of
    later sources.
    """
    source = frame["source"].to_numpy()
    labelled = pd.to_datetime(
        frame.get(LABELLED, pd.Series("", frame.index)), utc=True, format="ISO8601", errors="coerce"
    ).to_numpy()
    frame = frame.drop(columns=["source", LABELLED], errors="ignore")
    corrections: list[tuple[str, ...]] = []
    copies: dict[int, Rejected] = {}
    if len(set(source)) < 2:
        return frame, pd.DataFrame(columns=[*CORRECTION_COLUMNS]), []
    keyed = frame[[*PART_COLUMNS]].astype(float)
    keyed["content"] = content_keys(frame, lookup)
    keyed[[*PART_COLUMNS]], apart = _match_times(keyed, source)
    if apart:
        separate_rows = frame.iloc[apart].to_dict("records")
        descriptions = [f"{row['path']}, {part_text(row) or 'all of it'}" for row in separate_rows]
        log.warning(
            "%s of later sources with times that no earlier item of the file has (within %g s) added as new "
            "items: %s. If they should correct a label, check their times",
            counted(len(descriptions), "row"), SAME_TIME, _first_few(descriptions),
        )  # fmt: skip
    numbers = keyed.groupby(["content", *PART_COLUMNS], sort=False, dropna=False).ngroup()
    items = pd.Series(range(len(frame))).groupby(numbers.to_numpy()).agg(list)
    paths, labels = frame["path"].tolist(), frame["label"].tolist()
    times = frame[[*PART_COLUMNS]].to_dict("records")
    for rows in items:
        sources = {source[row] for row in rows}
        if len(sources) == 1:
            continue
        newest = max(rows, key=lambda row: source[row])
        timed = [row for row in rows if labelled[row] == labelled[row]]
        if newest in timed:
            newest = max(timed, key=lambda row: (labelled[row], source[row]))
        last = [row for row in rows if source[row] == source[newest]]
        if len({paths[row] for row in last}) > 1 and len({labels[row] for row in last}) > 1:
            continue  # two files of one source disagree: neither is known to be right
        first_rows = [row for row in rows if source[row] == min(sources)]
        if len({paths[row] for row in first_rows}) == 1:
            first_rows = first_rows[:1]
        path, before, label = paths[first_rows[0]], labels[first_rows[0]], labels[last[-1]]
        for row in rows:
            if row in first_rows:
                labels[row] = label
            else:
                reason = "listed twice" if paths[row] == path else f"a copy of {path}"
                copies[row] = Copy(paths[row], reason)
        if before != label:
            corrections.append(
                (path, part_text(times[first_rows[0]]), before, label, paths[last[-1]])
            )
    frame["label"] = labels
    if corrections:
        texts = [
            f"{path}{', ' if span else ''}{span}: {was!r}, now {now!r}"
            for path, span, was, now, _ in corrections
        ]
        log.info("Corrected labels (the last source counts): %d: %s", len(texts), _first_few(texts))
    remaining = frame.drop(index=frame.index[[*copies]]).reset_index(drop=True)
    replaced = pd.DataFrame(corrections, columns=[*CORRECTION_COLUMNS])
    return remaining, replaced, [*copies.values()]


def _match_times(keyed: pd.DataFrame, source: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Times and boxes of all rows, float [rows, 7], and the rows that match no item of an earlier source.

    A later source's times are replaced by those of the nearest earlier item within `SAME_TIME`. The
    unmatched rows are those of files that earlier sources have at other times only.
    """
    from scipy.spatial import KDTree

    times, apart = keyed[[*PART_COLUMNS]].to_numpy(copy=True), list[int]()
    files = pd.factorize(keyed["content"])[0]
    # Rows of two files, or one with a time and one without, are far apart.
    points = np.column_stack([files, np.nan_to_num(times, nan=-1e12)])
    for number in np.unique(source)[1:]:
        earlier, rows = np.flatnonzero(source < number), np.flatnonzero(source == number)
        distances, nearest = KDTree(points[earlier]).query(
            points[rows], p=np.inf, distance_upper_bound=2 * SAME_TIME
        )
        near = distances <= SAME_TIME
        for values in (times, points):
            values[rows[near]] = values[earlier[nearest[near]]]
        apart += rows[~near & np.isin(files[rows], files[earlier])].tolist()
    return times, sorted(apart)


def _first_few(texts: Sequence[str]) -> str:
    """The first few texts, and the number of the others."""
    more = f"; … and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
