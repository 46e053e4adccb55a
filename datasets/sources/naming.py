"""Finds the columns of a table of labels under the names that people and programs give them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from datasets.audio.band import BAND_COLUMNS
from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.part import PART_COLUMNS
from datasets.items.columns import SPLIT_NAMES, TEXT_COLUMNS
from datasets.kinds.base import find_kind
from datasets.sources.base import ReadOptions
from datasets.sources.beside import Below, Found
from datasets.tables.cells import MISSING, with_points

log = logging.getLogger(__name__)

#: Names of the columns of files and of labels where a table has no ``path`` or ``label``, without spaces, lines and
#: capitals; the first that fits counts. A ``class`` beside a species is one of the taxonomy's.
PATHS = (
    "filepath", "imagepath", "imgpath", "audiopath", "filename", "file", "imagefile", "imagename", "image", "img",
    "audiofile", "audio", "wavfile", "soundfile", "recordingname", "recording", "slicefilename", "fname", "photo",
    "audiofilename", "soundfiles", "imageindex", "relativepath", "mediafilename",
    "imageid", "imgid", "recordingid", "itemid", "segmentid", "fileid", "idcode", "mlcatalognumber", "id", "name",
)  # fmt: skip
LABELS = (
    "labels", "primarylabel", "species", "speciesname", "commonname", "comname", "scientificname", "sciname", "class",
    "classname", "category", "categoryname", "eventlabel", "eventlabels", "scenelabel", "annotation", "tag", "tags", "findinglabels",
    "breed", "diagnosis", "dx", "target", "speciesid", "classid", "categoryid",
)  # fmt: skip
#: Words for start and end in the names of columns, which may add a unit: "Start (s)", start_time, startSec, onset_s,
#: "Begin Time (s)" (BirdNET-Analyzer, opensoundscape, DCASE, AudioSet, crowsetta, Raven).
_SPANS = (
    ("start", "end"), ("start", "stop"), ("begin", "end"), ("begin", "stop"), ("onset", "offset"), ("tmin", "tmax"),
)  # fmt: skip
_UNITS = {"time", "s", "sec", "secs", "second", "seconds"}
#: Words in the name of a column of times in a file.
_TIME_WORDS = {
    "start", "begin", "end", "stop", "onset", "offset", "duration", "tmin", "tmax", "tstart", "tend",
}  # fmt: skip
#: Values of a cell in a table with one column per class.
ONE_HOT = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0}
_NUMBER = re.compile(r"[+-]?\d*[.,]?\d+")
_LOOKED_AT = 100


def plain(name: object) -> str:
    """The letters and digits of a name, in small letters: ``File Name`` is ``filename``."""
    return "".join(filter(str.isalnum, str(name))).casefold()


def column_named(path: Path, cells: pd.DataFrame, name: str) -> str | None:
    """Find a column by name, else one that differs only in case and spaces; None if there is none."""
    alike = [column for column in cells.columns if str(column).strip("# ").lower() == name.lower()]
    matches = [column for column in alike if column == name] or alike
    if len(matches) > 1:
        raise SecondhandError(
            f"{path}: {' and '.join(map(quoted, matches))} could both be the column {name!r}. Rename one of them"
        )
    return matches[0] if matches else None


def path_column(path: Path, cells: pd.DataFrame, options: ReadOptions, below: Below) -> str | None:
    """The column that names the files: the one of the options, else ``path``, else the first known name that does."""
    if options.path_column and (named := column_named(path, cells, options.path_column)):
        return named
    if options.path_column and options.alone and not (options.warm_start or options.label):
        return None
    if named := column_named(path, cells, "path"):
        return named
    for is_file in (find_kind, below.find):  # an id may be that of anything
        for column in _known(cells, PATHS):
            texts = cells[column].str.strip()
            if any(map(is_file, texts[texts.ne("")].head(_LOOKED_AT))):
                return column
    return None


def label_column(
    path: Path, cells: pd.DataFrame, options: ReadOptions, taken: str | None
) -> str | None:
    """The column of labels: that of the options, else ``label``, else the first known name with any cell filled.

    ``taken`` : the column of the files.
    """
    usual = column_named(path, cells, "label")
    if name := options.label_column:
        named = column_named(path, cells, name)
        if named or usual is None or not (options.warm_start or not options.alone):
            return named
        log.info("%s has no column %r: its column %s is used", path.name, name, usual)
        return usual
    others = (one for one in _known(cells, LABELS) if one != taken and cells[one].ne("").any())
    return usual or next(others, None)


def _known(cells: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Columns of these plain names, in their order."""
    columns = [column for column in map(str, cells.columns) if plain(column) in names]
    return sorted(columns, key=lambda column: names.index(plain(column)))


def headerless(first: Sequence[str]) -> list[str]:
    """Names of the columns of a table without a header, by the cells of its first line, of which one names a file.

    They are those of the lists of DCASE (file, scene, recording; file, start, end, event), of ImageNet (file, class) and
    of Google's AutoML (split, file, class). Empty if it is no such table.
    """
    kinds = {n: kind for n, cell in enumerate(first) if (kind := find_kind(cell))}
    if len(kinds) != 1 or len(first) < 2:
        return []
    ((file, kind),) = kinds.items()
    names = {file: "path"}
    names |= {n: "split" for n, cell in enumerate(first) if cell.lower() in SPLIT_NAMES}
    numbers = [n for n, cell in enumerate(first) if _NUMBER.fullmatch(cell.strip())]
    columns = ["label", "group"] if kind.recordings else ["label"]
    free = [n for n in range(len(first)) if n not in names]
    free.sort(key=lambda n: (n in numbers, n < file))  # a name behind the file comes first
    if kind.recordings and len(numbers) == 2 and numbers[1] == numbers[0] + 1 < len(first) - 1:
        columns, free = ["start", "end", "label"], [*numbers, numbers[1] + 1]
    elif len(numbers) > 1 or len(free) > len(columns):  # a box, or several labels
        return []
    names |= dict(zip(free, columns, strict=False))
    if "label" not in names.values():
        return []
    return [names.get(n, f"column {n + 1}") for n in range(len(first))]


def are_known(columns: Iterable[object]) -> bool:
    """Whether the names of a table's columns are those of a table of labels."""
    names = {*map(plain, columns)}
    return bool(names & {"path", *PATHS}) and bool(names & {"label", *LABELS})


def one_hot_columns(cells: pd.DataFrame) -> list[str]:
    """Columns that may be classes, with 1, 0 or nothing in each row."""
    taken = (*TEXT_COLUMNS, *PART_COLUMNS, *BAND_COLUMNS)
    return [
        name for name in map(str, cells)
        if name.strip().lower() not in taken
        and not _TIME_WORDS & _words(name)
        and set() < {*cells[name].str.strip().str.lower()} - {""} <= ONE_HOT.keys()
    ]  # fmt: skip


def one_hot_labels(path: Path, cells: pd.DataFrame) -> pd.Series | None:
    """The label of each row of a table with one column per class, if each row has exactly one; otherwise None.

    Two columns among others are no classes: they may as well be an answer and its opposite.
    """
    classes = one_hot_columns(cells)
    if len(classes) < min(3, max(2, len(cells.columns))):
        return None
    values = cells[classes].apply(lambda column: column.str.strip().str.lower().map(ONE_HOT).eq(1))
    if not values.sum(axis=1).eq(1).all():
        return None
    log.info(
        "%s: the columns %s are read as classes, because each row has a 1 in exactly one of them",
        path, ", ".join(classes)[:300],
    )  # fmt: skip
    return values.idxmax(axis=1)


def time_columns(names: Iterable[object]) -> list[str]:
    """Names of columns that look like times in a file, such as ``offset_ms`` or ``BeginTime``."""
    return [name for name in map(str, names) if _TIME_WORDS & _words(name)]


def _words(name: object) -> set[str]:
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()
    text = re.sub(r"\bt[ _](min|max)\b", r"t\1", text)
    text = re.sub(r"\b(start|begin|end|stop)time\b", r"\1", text)
    return {*re.findall(r"[^\W_]+", text)}


def are_recordings(names: Iterable[str], below: Below) -> bool:
    """Whether one of these cells names a recording."""
    kinds = (find_kind(name) or find_kind([*below.find(name), ""][0]) for name in names)
    return any(kind and kind.recordings for kind in kinds)


def span_columns(path: Path, cells: pd.DataFrame) -> dict[str, str | None]:
    """Columns of start and end of a table of recordings under another program's names.

    A warning names columns that only look like times.
    """
    for words in _SPANS:
        start, end = (
            min((n for n in map(str, cells) if _words(n) - _UNITS == {word}), key=len, default="")
            for word in words
        )
        if start and end:
            columns = [cells[name].mask(cells[name].isin(MISSING), "") for name in (start, end)]
            if all(
                (pd.to_numeric(with_points(c), errors="coerce").notna() | c.eq("")).all()
                for c in columns
            ):
                log.info("%s: the columns %s and %s are read as start and end", path, start, end)
                return {"start": start, "end": end}
    times = time_columns(cells.columns.drop(["start", "end"], errors="ignore"))
    whole = (
        set() if column_named(path, cells, "start") else {"duration"}
    )  # which a whole file has, too
    if {name.strip().lower() for name in times} - whole:
        log.warning(
            "%s: columns that look like times in the recordings are not read: %s. If each row is a part of its "
            "recording, call them start and end (seconds; the end is start plus duration)", path,
            ", ".join(map(quoted, times)),
        )  # fmt: skip
    return {}


def placed(
    path: Path, names: pd.Series, found: Mapping[str, Found]
) -> tuple[pd.Series, list[Rejected]]:
    """The file of each row of a table, or where it would be; rows of which it is unclear are rejected."""
    unclear = names.map({name: one.unclear for name, one in found.items()}).astype(bool)
    rejected = [
        Rejected(name, f"{found[name].reason} (row {row + 2} of {path.name})")
        for row, name in zip(names.index[unclear], names[unclear], strict=True)
    ]
    return names[~unclear].map({name: one.path for name, one in found.items()}), rejected
