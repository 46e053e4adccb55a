"""Embeddings that another network has computed, in files or in one folder of files per class.

Their labels may be in the same files, or in a table among the other sources of the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pandas as pd

from datasets.core.address import as_path
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.scanning import files_below, walk
from datasets.items.columns import with_parts
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import Kind, find_kind
from datasets.kinds.lookup import Lookup
from datasets.sources.base import FIRST, SOURCES, ReadOptions, Rows, Source
from datasets.sources.folder import scan_class_folders
from datasets.sources.naming import column_named
from datasets.sources.table import read_rows
from fields.embeddings.reading import has_embeddings, read_embeddings
from fields.embeddings.vectors import Vectors

#: The kind of the items.
KIND = "embedding"
#: What a file of embeddings is, for messages.
NEEDED = (
    "a Parquet file needs the columns path and embedding (a list of numbers), an NPZ file the arrays path and "
    "embedding [n, width]"
)


def add_embeddings(
    files: Iterable[str], lookup: Lookup, *, resolve: bool = False
) -> list[Rejected]:
    """Add the embeddings of files, labelled or not, to those of a ``lookup``; return the files that cannot be read.

    Parameters
    ----------
    resolve : make the items' paths absolute, by the place of the file. Otherwise they stay as written.

    Raises
    ------
    SecondhandError : a file holds embeddings of another network, or no file can be read.
    """
    rejected = []
    for file in files:
        try:
            if not has_embeddings(as_path(file)):
                raise BadFile(file, f"holds no embeddings: {NEEDED}")
            _read_file(as_path(file), ReadOptions(label=UNKNOWN), lookup, resolve=resolve)
        except BadFile as error:
            rejected.append(Rejected(file, error.reason))
    if not lookup:
        raise SecondhandError(f"{rejected[0]}. No other file with embeddings was named")
    return rejected


def _read(path: Path, options: ReadOptions) -> Rows:
    """Labelled items; all embeddings are added to those of the options."""
    assert options.lookup is not None
    return (_read_folder if path.is_dir() else _read_file)(path, options, options.lookup)


def _read_file(path: Path, options: ReadOptions, lookup: Lookup, *, resolve: bool = True) -> Rows:
    """Labelled rows of a file. Rows without a label are rejected if no other source may have their labels."""
    content = read_embeddings(path)
    cells = content.cells
    if "gps" not in cells and "at" in cells:  # as `secondhand search --embeddings` writes it
        cells = cells.rename(columns={"at": "gps"})
    every = ReadOptions(label=UNKNOWN)
    rows, rejected, *_ = read_rows(path, every, cells=cells, resolve=resolve, are_files=False)
    rows, short = with_parts(rows, KIND, str(path))
    assert isinstance(lookup, Vectors)
    rows, unusable = lookup.add(path, content, rows)
    rejected += short + unusable
    if options.label:
        return Rows(rows, rejected)
    names = (options.label_column or "label", "label")
    if not options.class_columns and not any(column_named(path, cells, name) for name in names):
        if options.alone:
            raise SecondhandError(
                f"{path}: no column {names[0]!r}, so its embeddings have no labels. Add the column, or name a table with "
                f"the columns path,label as well: --data {path} labels.csv"
            )
        return Rows(rows.iloc[:0], rejected)
    labelled, unlabelled, *_ = read_rows(path, options, cells=cells, are_files=False)
    listed = {item.path for item in (rejected if options.alone else unlabelled)}
    rejected += [item for item in unlabelled if item.path not in listed]
    return Rows(labelled.loc[labelled.index.intersection(rows.index)], rejected)


def _read_folder(folder: Path, options: ReadOptions, lookup: Lookup) -> Rows:
    """Rows of the files of embeddings in a folder, labelled by class folder unless the options name a label."""
    if options.label:
        files, rejected = files_below(folder)
        listed = pd.DataFrame({"path": files, "label": options.label, "split": ""})
    else:
        listed, rejected = scan_class_folders(folder, learned=False)[:2]
    frames = []
    for file, name, split in listed[["path", "label", "split"]].itertuples(index=False):
        if not _holds_embeddings(find_kind(file)):
            rejected.append(Rejected(file, "holds no embeddings"))
            continue
        try:
            rows, bad = _read_file(as_path(file), replace(options, label=name), lookup)[:2]
        except BadFile as error:
            rejected.append(Rejected(file, error.reason))
            continue
        frames.append(rows.assign(label=name, split=split))
        rejected += bad
    if not frames:
        raise SecondhandError(f"--data {folder}: no file of embeddings in it can be read")
    return Rows(pd.concat(frames, ignore_index=True), rejected)


def _claims(path: Path, options: ReadOptions) -> bool:
    if options.lookup is None or not path.exists():
        return False
    return has_embeddings(path) or (path.is_dir() and _is_of_embeddings(path))


def _is_of_embeddings(folder: Path) -> bool:
    """Whether the first files of a folder hold embeddings."""
    first = islice(filter(None, map(find_kind, walk(folder, []))), FIRST)
    return any(_holds_embeddings(kind) for kind, _ in Counter(first).most_common(1))


def _holds_embeddings(kind: Kind | None) -> bool:
    return kind is not None and not kind.opened


def _check(paths: Sequence[Path], options: ReadOptions) -> None:
    if options.kind == KIND and not any(_claims(path, options) for path in paths):
        names = " + ".join(map(str, paths))
        raise SecondhandError(f"--data {names}: no embeddings in it: {NEEDED}")


SOURCES.add(
    Source(
        name="embeddings",
        order=20,
        claims=_claims,
        read=_read,
        check=_check,
        has_multi_label=lambda path: path.is_file(),
    )
)
