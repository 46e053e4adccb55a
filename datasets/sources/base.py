"""What a source of items is, and the registry of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.address import as_path, ask_again
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out
from datasets.core.registry import Registry
from datasets.core.scanning import walk
from datasets.core.shipped import (
    needed_for_columns,
    needed_for_files,
    needed_to_open,
    needed_to_read,
)
from datasets.items.labels import MULTI

if TYPE_CHECKING:
    import pandas as pd

    from datasets.items.settings import DataSettings
    from datasets.kinds.lookup import Lookup


#: Files of a folder that are looked at to tell what it is of.
FIRST = 100
#: Columns of the row, or line, in which a label is stated, and of the file with it, if that is not the source itself.
ROW, TABLE = "row", "table"


class Rows(NamedTuple):
    """What a source holds.

    Attributes
    ----------
    frame : path and label of each item, and any other column of `datasets.items.columns`, as text or numbers. The
        index of a table is the row number in its file minus 2. For messages there may be `ROW` and `TABLE`.
    rejected : files and rows that were left out, and why.
    note : origin of the data or labels, such as "SIMULATED sounds"; "" without one.
    learnable : False for data that are only for prediction, so that the numbers of classes and files are not checked.
    """

    frame: pd.DataFrame
    rejected: list[Rejected]
    note: str = ""
    learnable: bool = True


class Fetched(NamedTuple):
    """What was downloaded: its folder, and a line on each of its files."""

    folder: Path
    lines: Sequence[str]


@dataclass(frozen=True)
class ReadOptions:
    """How the sources of a call are read.

    Attributes
    ----------
    kind : kind of the files, a key of `datasets.kinds.base.KINDS`, or "auto".
    learned : the items are for training. Otherwise they are for evaluation: labels are used as they are, one class,
        or one file of a class, is enough, and a span may have a row for each of several classes.
    label : label of all items, instead of those of the source, which may then have none.
    path_column : name of the column of files in a table; None for ``path`` or another usual name.
    label_column : name of the column of labels; None for the usual names of the format. Of several sources, and in a
        ``warm_start``, tables without it use the column label.
    labels : for multi-label items, "multi" if the column of labels holds names joined by ``|``, or the names of the
        0/1 columns, one per class, as text with commas or a list. None: one label per item.
    warm_start : the label column may be inherited from the model that the run continues from.
    alone : no other source of the call may have the labels.
    lookup : takes what a source holds instead of files, such as embeddings; None if there can be none.
    settings : the settings of the call by name, from which a format takes its own.
    """

    kind: str = "auto"
    learned: bool = True
    label: str = ""
    path_column: str | None = None
    label_column: str | None = None
    labels: str | Sequence[str] | None = None
    warm_start: bool = False
    alone: bool = True
    lookup: Lookup | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def multi_label(self) -> bool:
        """Whether an item may have several labels."""
        return self.labels is not None

    @property
    def class_columns(self) -> Sequence[str]:
        """Names of the 0/1 columns, one per class; empty if there is one column of labels."""
        if self.labels is None or self.labels == MULTI:
            return ()
        return self.labels.split(",") if isinstance(self.labels, str) else self.labels


@dataclass(frozen=True, kw_only=True)
class Source:
    """A format of labelled files, or a set of them.

    Attributes
    ----------
    order : sources are asked in this order, and the first that claims a path reads it.
    claims : whether it reads what ``--data`` names, a file, a folder or a name, by its name and beginning.
    read : reads it. Raises SecondhandError if there is no usable item.
    reads : how it recognises what it reads, for the message about a file that no source claims.
    endings : of the files, in small letters, whose message says so; empty for all.
    names : names that it reads and that are no paths.
    has_multi_label : whether items of this path may have several labels.
    several_labels : those of its ``names`` whose items have, so that nobody need say so.
    check : raises SecondhandError if the settings of a call do not suit its paths.
    fetch : downloads what a name stands for; None for a name that is not its own. Of sources that are for `datasets.catalog`.
    note : what it downloads: licence and citation.
    several : a set is often several such files, as one for each camera: of these, one that cannot be read is listed, and
        the others are used.
    """

    name: str
    order: int
    claims: Callable[[Path, ReadOptions], bool]
    read: Callable[[Path, ReadOptions], Rows]
    reads: str = ""
    endings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    has_multi_label: Callable[[Path], bool] = lambda path: False
    several_labels: tuple[str, ...] = ()
    check: Callable[[Sequence[Path], ReadOptions], None] = lambda paths, options: None
    several: bool = False
    fetch: Callable[[str], Fetched | None] = lambda name: None
    note: str = ""


SOURCES: Registry[Source] = Registry("datasets.sources")


def in_order() -> Iterator[Source]:
    """All sources in their order, ours before those of other packages, which are looked up last."""
    for group in SOURCES.in_turn():
        yield from sorted(group, key=attrgetter("order"))


def is_multi_label(data: DataSettings) -> bool:
    """Whether an item may have several labels: the settings say so, or a set that they name does."""
    return data.labels is not None or any(
        name in source.several_labels for source in SOURCES.ours().values() for name in data.sources
    )


def find_source(name: str, options: ReadOptions) -> Source:
    """The source that reads what ``--data`` names.

    Raises
    ------
    SecondhandError : there is none.
    """
    path = as_path(name)
    if missing := _left_out(path):
        raise SecondhandError(f"--data {name}: {missing}")
    found = next((source for source in in_order() if source.claims(path, options)), None)
    if found is not None:
        return found
    if reason := needed_to_open(name):
        raise SecondhandError(f"--data {name} {reason}")
    if not path.exists():
        names = ", ".join(one for source in in_order() for one in source.names)
        raise SecondhandError(
            f"--data {name}: there is no such folder or file. Names of data without a file are {names}{needed_to_read(name)}"
        )
    formats = [
        one.reads
        for one in in_order()
        if one.reads and path.name.lower().endswith(one.endings or ("",))
    ]
    raise SecondhandError(
        f"{name}: neither {', nor '.join(formats)}. Write other formats into a CSV file with the "
        f"columns path,label{needed_to_read(name)}"
    )


def _left_out(path: Path) -> str:
    """Sentence on the field that a file, or a folder of such files, needs and that is not here; "" if nothing is missing."""
    if path.is_dir():
        return needed_for_files(islice(walk(path, []), FIRST))
    return needed_for_files([path.name]) or needed_for_columns(_columns(path))


def _columns(path: Path) -> Iterator[str]:
    """Names of the columns of a table; it is opened when the first is asked for."""
    from datasets.tables.cells import column_names

    name = path.name.lower()
    if name.endswith((".csv", ".tsv")) and path.is_file():
        yield from column_names(path)
    elif name.endswith((".parquet", ".pq")) and path.is_file():
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema

        with suppress(ArrowException, OSError):  # reading it as a table says what is wrong
            yield from read_schema(path).names


def read_source(name: str, options: ReadOptions) -> Rows:
    """Read what ``--data`` names by the source that claims it.

    Raises
    ------
    SecondhandError : no source does, or it has no usable item.
    """
    ask_again(name)  # a notebook reads again what has been replaced
    path, source = as_path(name), find_source(name, options)
    if options.multi_label and not source.has_multi_label(path):
        raise SecondhandError(
            f"--labels with --data {name}: multi-label items need a table (CSV, TSV or Parquet). Name one, or "
            "leave --labels out"
        )
    rows = source.read(path, options)
    if (
        not rows.note
        and path.exists()
        and any(name in one.names for one in SOURCES.ours().values())
    ):
        what = "folder" if path.is_dir() else "file"
        return rows._replace(note=f"the local {what} {name}, not the public set of this name")
    return rows


def read_each(data: Path, files: Mapping[Path, str], read: Callable[[Path], Rows]) -> Rows:
    """Rows of the files of a format, of which those that cannot be read are rejected.

    Parameters
    ----------
    files : the split of each, which counts if there are several; "" for none.

    Raises
    ------
    SecondhandError : ``data``, which stands for them, has no file that can be read.
    """
    import pandas as pd

    if len(files) == 1:
        return read(*files)
    several = len({*files.values()}) > 1
    frames, rejected, notes = list["pd.DataFrame"](), list[Rejected](), list[str]()
    for file, split in files.items():
        try:
            rows = read(file)
        except SecondhandError as error:
            reason = error.reason if isinstance(error, BadFile) else str(error)
            rejected.append(Rejected(str(file), reason))
            continue
        frames.append(rows.frame.assign(split=split) if several and split else rows.frame)
        rejected += rows.rejected
        notes += [rows.note] * bool(rows.note)
    if not frames:
        raise SecondhandError(f"--data {data}: no labelled item{first_left_out(rejected)}")
    return Rows(pd.concat(frames, ignore_index=True).fillna(""), rejected, "; ".join(notes))
