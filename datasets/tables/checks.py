"""What keeps an item out of the table: unreadable files, copies, labels that cannot be meant."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd

from datasets.errors import BadFile, Rejected, SecondhandError, shown
from datasets.processes import CRASHED, in_parallel
from datasets.tables.labels import UNKNOWN, alike

#: Times, and the kinds of file that have them: a photo's "gps" is a place.
TIME_COLUMNS = {"start": ("sound", "strain"), "end": ("sound", "strain"), "gps": ("strain",)}
MAX_LABEL = 200
_CHUNK = 32  # files that a worker looks at before it reports


def usable(
    frame: pd.DataFrame,
    kind: str,
    endings: tuple[str, ...],
    check: Callable[[str], None] | None,
    workers: int,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Without the files that are missing, empty, of another kind or unreadable."""
    paths = [str(path) for path in frame["path"].unique()]
    named = [path for path in paths if path.lower().endswith(endings)]
    reasons = dict.fromkeys(paths, f"not a {kind} by its ending")
    if check is not None:
        reasons |= zip(named, _reasons(check, named), strict=True)
    elif kind not in _DECODED:
        reasons |= zip(named, _reasons(_check_exists, named), strict=True)
    else:
        # A decoder is fed with whatever lies there: its death costs that file, not the run.
        task = partial(_reasons, _DECODED[kind])
        chunks = [named[first : first + _CHUNK] for first in range(0, len(named), _CHUNK)]
        for number, answers in in_parallel(task, chunks, max(1, workers), CRASHED):
            reasons |= zip(chunks[number], answers, strict=True)
    found = frame["path"].map(reasons)
    bad = [Rejected(path, why) for path, why in reasons.items() if why]
    return frame.loc[found.eq("")].reset_index(drop=True), bad


def _reasons(check: Callable[[str], None], paths: list[str]) -> list[str]:
    """What is wrong with each file, "" where nothing is."""
    found = []
    for path in paths:
        try:
            check(path)
            found.append("")
        except BadFile as error:
            found.append(error.reason)
    return found


def _check_exists(path: str) -> None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadFile(path, "there is no such file") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise BadFile(path, f"cannot be looked up ({error})") from None
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for its writer for ever.
        raise BadFile(path, "not a file, but a folder, a pipe or a device")
    if status.st_size == 0:
        raise BadFile(path, "empty file")
    if not os.access(path, os.R_OK):
        raise BadFile(path, "may not be read: check its permissions")


def _check_picture(path: str) -> None:
    """Decode all of it: a JPEG cut in the middle looks whole until then."""
    from datasets.pictures import open_picture

    _check_exists(path)
    # At 1/8 of the size the entropy coding, where damage shows, is still read to its end.
    open_picture(path, at_least=1)


def _check_sound(path: str) -> None:
    """Read the header; what is wrong behind it shows when the file is drawn."""
    from datasets import sound

    _check_exists(path)
    sound.probe(path)


_DECODED = {"picture": _check_picture, "sound": _check_sound}


def without_copies(frame: pd.DataFrame, workers: int) -> tuple[pd.DataFrame, list[Rejected]]:
    """One row for each content. Copies are told by their bytes; training keeps its own first."""
    content = contents(frame["path"], workers)
    order = frame["split"].map({"train": 0, "": 1, "valid": 2, "calibration": 3, "test": 4})
    ranked = frame.assign(content=content).loc[order.sort_values(kind="stable").index]
    # Two windows of one recording, or two triggers in one strain file, are two items.
    key = ["content", *TIME_COLUMNS]
    again = ranked.loc[ranked.duplicated(key, keep=False)]
    drop: dict[int, Rejected] = {}
    for _, rows in again.groupby(key, sort=False, dropna=False):
        labels = sorted(set(rows["label"]))
        first = rows.index[0]
        first_path, first_split = str(rows["path"].iloc[0]), str(rows["split"].iloc[0])
        for index, path, split in zip(rows.index, rows["path"], rows["split"], strict=True):
            if len(labels) > 1:
                other = next((p for p in rows["path"] if p != path), path)
                named = " and ".join(map(repr, labels))
                drop[index] = Rejected(path, f"the same content is labelled {named} (also {other})")
            elif index != first:
                kept = f"a copy of {first_path}"
                if split != first_split:
                    kept += f", which is in {first_split}"
                drop[index] = Rejected(path, kept)
    return frame.drop(index=list(drop)).reset_index(drop=True), list(drop.values())


def contents(paths: pd.Series, workers: int) -> pd.Series:
    """What is equal for files of equal bytes; of a file that cannot be read its path."""
    unique = list(paths.unique())
    with ThreadPoolExecutor(max(1, workers)) as pool:
        sizes = dict(zip(unique, pool.map(_size, unique, chunksize=64), strict=True))
        # Files of different size are no copies: only the others are read.
        often = {size for size, count in Counter(sizes.values()).items() if size and count > 1}
        twins = [path for path in unique if sizes[path] in often]
        digests = dict(zip(twins, pool.map(_digest, twins, chunksize=16), strict=True))
    return paths.map(lambda path: digests.get(path, path))


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError:
        return path


def check_classes(
    frame: pd.DataFrame, source: str, rejected: Sequence[Rejected], *, learned: bool = True
) -> None:
    """Raise SecondhandError for labels that cannot be meant.

    With ``learned`` also for fewer than two classes and for classes of one file.
    """
    counts = Counter(frame["label"])
    same = {UNKNOWN: [UNKNOWN]}
    for label in counts:
        same.setdefault(alike(label), []).append(label)
        if len(label) > MAX_LABEL or not label.isprintable():
            raise SecondhandError(
                f"{source}: label {shown(label)} is longer than {MAX_LABEL} characters or not printable: "
                "rename it"
            )
    twins = next((labels for labels in same.values() if len(labels) > 1), None)
    if twins:
        sizes = {label: f"{counts[label]} files" for label in twins} | {UNKNOWN: "reserved"}
        named = " and ".join(f"{shown(label)} ({sizes[label]})" for label in sorted(twins))
        raise SecondhandError(
            f"{source}: the labels {named} differ only in case or spaces: merge or rename them"
        )
    if not learned:
        return
    left = ""
    if rejected:
        left = f". {len(rejected)} file(s) left out, the first: {': '.join(rejected[0])}"
    if len(counts) < 2:
        there = f"only the class {next(iter(counts))!r}" if counts else "no usable file"
        raise SecondhandError(f"{source}: {there}, and at least two classes are needed{left}")
    lonely = sorted(label for label, count in counts.items() if count < 2)
    if lonely:
        only = frame.loc[frame["label"].eq(lonely[0]), "path"].iloc[0]
        raise SecondhandError(
            f"{source}: the class {shown(lonely[0])} has one usable file, {only}"
            + (f" (and so have {len(lonely) - 1} more classes)" if len(lonely) > 1 else "")
            + "; each class needs two at least, one to learn from and one to check: add files or "
            f"take the class out{left}"
        )
