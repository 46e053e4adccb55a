"""What keeps an item out of the table: unreadable files, copies, labels that cannot be meant."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from datasets.core.errors import BadFile, Rejected, SecondhandError, shown
from datasets.core.processes import cores, look_apart, look_at

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from datasets.images import Taken

log = logging.getLogger(__name__)

#: Times, and the kinds of file that have them: a photo's "gps" is a place.
TIME_COLUMNS = {"start": ("sound", "strain"), "end": ("sound", "strain"), "gps": ("strain",)}
MAX_LABEL = 200
#: Files that a class needs: one to learn from, one to check.
FEWEST = 2
#: What a table of answers has beside path and label: what the model thought, and why it refused.
ANSWERS = ("best", "reason")
#: Between several labels of one item; before one of which it is not known whether it is there.
JOIN, NOT_KNOWN = "|", "?"
UNKNOWN = "unknown"  # reserved, however it is cased, for what a model is not to know


class Look(NamedTuple):
    """What the one opening of a picture file shows beside that it can be read."""

    thumbnail: NDArray[np.float32]
    taken: Taken | None


def usable(
    frame: pd.DataFrame,
    kind: str,
    endings: tuple[str, ...],
    check: Callable[[str], None] | None,
    looks: dict[str, Look] | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Without the files that are missing, empty, of another kind or unreadable.

    ``looks`` : takes up, by their paths, the looks at pictures that are checked without ``check``.
    """
    paths = [str(path) for path in frame["path"].unique()]
    named = [path for path in paths if path.lower().endswith(endings)]
    if check is None and kind in _DECODED:
        # A decoder is fed with whatever lies there: its death costs that file, not the run.
        found = look_apart(_DECODED[kind], named)
    else:
        found = look_at(check or _check_exists, named)
    results: dict[str, Rejected | Look | None] = {
        path: Rejected(path, f"not a {kind} by its ending") for path in paths
    }
    results |= zip(named, found, strict=True)
    bad = [result for result in results.values() if isinstance(result, Rejected)]
    if looks is not None:
        looks |= {path: result for path, result in results.items() if isinstance(result, Look)}
    left_out = frame["path"].isin([file.path for file in bad])
    return frame.loc[~left_out].reset_index(drop=True), bad


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


def _check_picture(path: str) -> Look:
    """Decode all of it: a JPEG cut in the middle looks whole until then."""
    from datasets.images import open_picture, taken
    from datasets.items.duplicates import THUMBNAIL, thumbnail

    _check_exists(path)
    times: list[Taken | None] = []
    # At 1/8 of the size the entropy coding, where damage shows, is still read to its end.
    picture = open_picture(
        path, at_least=2 * THUMBNAIL, header=lambda opened: times.append(taken(opened))
    )
    return Look(thumbnail(picture), *times)


def _check_sound(path: str) -> None:
    """Read the header; what is wrong behind it shows when the file is drawn."""
    from datasets import audio

    _check_exists(path)
    audio.probe(path)


_DECODED: dict[str, Callable[[str], Look | None]] = {
    "picture": _check_picture,
    "sound": _check_sound,
}


def without_copies(
    frame: pd.DataFrame, strangers_to: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, list[Rejected]]:
    """One row for each content. Copies are told by their bytes; training keeps its own first.

    No copy of an item that the rows are ``strangers_to`` is left, either.
    """
    import pandas as pd

    rank = frame["split"].map({"train": 0, "": 1, "valid": 2, "calibration": 3, "test": 4})
    parts = [frame.assign(row=range(len(frame)), rank=rank)]
    if strangers_to is not None:
        parts.insert(0, strangers_to.assign(row=-1, rank=-1))
    both = pd.concat(parts, ignore_index=True)
    both["content"] = contents(both["path"])
    both = both.sort_values("rank", kind="stable")
    # Two windows of one recording, or two triggers in one strain file, are two items.
    key = ["content", *TIME_COLUMNS]
    drop: dict[int, Rejected] = {}
    for _, rows in both.loc[both.duplicated(key, keep=False)].groupby(
        key, sort=False, dropna=False
    ):
        labels = sorted(set(rows["label"])) if strangers_to is None else []
        first = rows.iloc[0]
        for row, path, split in zip(rows["row"], rows["path"], rows["split"], strict=True):
            if len(labels) > 1:
                other = next((f" (also {p})" for p in rows["path"] if p != path), "")
                named = " and ".join(map(repr, labels))
                drop[row] = Rejected(path, f"the same content is labelled {named}{other}")
            elif row not in (-1, first["row"]):
                where = f", which is in {first['split']}" if split != first["split"] else ""
                what = "named already" if path == first["path"] else f"a copy of {first['path']}"
                drop[row] = Rejected(path, f"{what}{where}")
    return frame.drop(index=frame.index[[*drop]]).reset_index(drop=True), list(drop.values())


def contents(paths: pd.Series) -> pd.Series:
    """What is equal for files of equal bytes; of a file that cannot be read its path."""
    unique = list(paths.unique())
    with ThreadPoolExecutor(cores()) as pool:
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


def clean_label(label: str) -> str:
    """The label that is meant by a folder's name or a cell: one rule for all that bring labels.

    A label is text as it stands: "nan", "None" and "NA" are labels like others, only an empty cell is
    none. It is normalised (Unicode NFC, so that an "é" of one sign or of two is the same) and has no
    spaces at its ends.

    Examples
    --------
    >>> clean_label(" Blue tit "), clean_label("nan"), clean_label("Unknown")
    ('Blue tit', 'nan', 'unknown')
    """
    label = unicodedata.normalize("NFC", label).strip()
    return UNKNOWN if label.casefold() == UNKNOWN else label


def fault_of(label: str, *, many: bool = False) -> str:
    """Why a text cannot be the name of a class, as "it …"; "" where it can: one rule for all that take or
    give labels. It is one that `clean_label` gave.

    ``many`` : an item may have several labels, with `JOIN` between them.
    """
    if not label:
        return "is empty"
    if len(label) > MAX_LABEL:
        return f"has {len(label):,} characters, and {MAX_LABEL} are the most"
    if not label.isprintable():
        return "has a line break or another sign that cannot be printed"
    if JOIN in label and not many:
        return f"holds {JOIN}, which stands between several labels of one item"
    return ""


def parts_of(label: str) -> list[str]:
    """The names in a label, those that are not known with their ``?``; [""] of none."""
    return [part for part in label.split(JOIN) if part] or [""]


def names_of(label: str) -> list[str]:
    """The names that are there."""
    return [name for name in parts_of(label) if name and not name.startswith(NOT_KNOWN)]


def alike(label: str) -> str:
    """Equal for labels that differ in case or spaces alone: nobody means two classes by them."""
    return unicodedata.normalize("NFC", "".join(label.split()).casefold())


def check_classes(
    frame: pd.DataFrame, source: str, *, learned: bool = True, many: bool = False
) -> None:
    """Raise SecondhandError for labels that cannot be meant; with ``learned`` also for those that join
    several. Of ``many`` labels an item, each is looked at."""
    counts = Counter(name for names in _names(frame, many) for name in names)
    same = {UNKNOWN: [UNKNOWN]}
    for label in counts:
        same.setdefault(alike(label), []).append(label)
        if fault := fault_of(label, many=many or not learned):
            also = ", or give --labels many" if not fault_of(label, many=True) else ""
            raise SecondhandError(f"{source}: the label {shown(label)} {fault}: rename it{also}")
    twins = next((labels for labels in same.values() if len(labels) > 1), None)
    if twins:
        sizes = {label: f"{counts[label]} files" for label in twins} | {UNKNOWN: "reserved"}
        named = " and ".join(f"{shown(label)} ({sizes[label]})" for label in sorted(twins))
        raise SecondhandError(
            f"{source}: the labels {named} differ only in case or spaces: merge or rename them"
        )


def learnable(
    frame: pd.DataFrame, source: str, rejected: Sequence[Rejected], *, many: bool = False
) -> tuple[pd.DataFrame, list[Rejected]]:
    """The items of classes that have enough files, the index kept, and those of the others, of which a
    warning tells. Of ``many`` labels an item, it keeps its other ones.

    ``rejected`` is what was left out before, to be named in the error.

    Raises
    ------
    SecondhandError : fewer than two classes remain.
    """
    of_rows = _names(frame, many)
    counts = Counter(name for names in of_rows for name in names)
    small = sorted(label for label, count in counts.items() if count < FEWEST)
    if len(counts) - len(small) < 2:
        there = [f"the class {label!r}" for label in counts if label not in small]
        there += [f"{shown(label)} with {_too_few(counts[label])}" for label in small[:3]]
        left = f". {len(rejected)} file(s) left out" if rejected else ""
        first = f", the first: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(
            f"{source}: {'only ' + ', '.join(there) if there else 'no usable file'}, and at least two "
            "classes are needed; --data takes several sources, and --from goes on with a model and its "
            f"own items{left}{first}"
        )
    if not small:
        return frame, []
    named = ", ".join(f"{shown(label)} ({_too_few(counts[label])})" for label in small[:5])
    more = f" and {len(small) - 5} more" if len(small) > 5 else ""
    log.warning(
        "%s: not learnt for now: %s%s. Label more files of them, and train again",
        source,
        named,
        more,
    )
    if many:
        kept = [
            JOIN.join(part for part in parts_of(label) if part.removeprefix(NOT_KNOWN) not in small)
            for label in frame["label"]
        ]
        return frame.assign(label=kept), []
    bad = frame["label"].isin(small)
    return frame.loc[~bad], [
        Rejected(path, f"its class {shown(label)} has {_too_few(counts[label])}")
        for path, label in zip(frame["path"][bad], frame["label"][bad], strict=True)
    ]


def _names(frame: pd.DataFrame, many: bool) -> list[list[str]]:
    return [names_of(label) if many else [label] for label in frame["label"]]


def _too_few(count: int) -> str:
    files = f"{count} usable file{'s' * (count > 1)}"
    return f"{files}; a class needs {FEWEST}, one to learn from and one to check"
