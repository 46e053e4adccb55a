"""Folders with one folder per class, or with ``train``, ``valid`` and others, each of which is such a folder.

A run on a wrong folder looks like any other, so what the folder suggests is said: a table of labels in it, class folders
one level below, or that it is the folder of one class.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from datasets.core.address import nameless_in, plain_name
from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.scanning import (
    LINK_LOOP,
    SYSTEM,
    files_below,
    is_link_loop,
    is_user_file,
)
from datasets.items.columns import SPLIT_NAMES, TEXT_COLUMNS
from datasets.kinds.base import find_kind, kind_of
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_source
from datasets.sources.beside import Below
from datasets.sources.naming import column_named, label_column, path_column
from datasets.sources.table import read_rows
from datasets.tables.cells import ENDINGS, read_cells

log = logging.getLogger(__name__)

#: Endings of files that may have the labels, beside those of tables.
_OTHER_TABLES = (".csv.gz", ".tsv.gz", ".json", ".jsonl", ".xml", ".ddb")


def read_folder(folder: Path, options: ReadOptions) -> Rows:
    """Files of the class folders, or with a label for all files, those of the kind in the folder and below."""
    if not options.label:
        return scan_class_folders(folder, learned=options.learned)
    files, rejected = files_below(folder)  # other kinds of file, such as notes, are ignored
    matching = [file for file in files if kind_of(file) == options.kind]
    return Rows(pd.DataFrame({"path": pd.Series(matching, dtype=str)}), rejected)


def scan_class_folders(root: Path, *, learned: bool) -> Rows:
    """Files of the class folders in a folder, or in its split folders.

    ``learned`` : the rows are for training; warns if the folder seems to be the wrong source.
    """
    rows: list[dict[str, str]] = []
    splits, rejected = _split_folders(root)
    class_files: dict[Path, list[str]] = {}
    for folder, split in splits.items():
        hidden = [one for one in sorted(folder.iterdir()) if one.is_dir() and not is_user_file(one)]
        rejected += [Rejected(str(one), SYSTEM) for one in hidden]
        rejected += nameless_in(folder)
        for entry in _entries(folder):
            if is_link_loop(entry):
                rejected.append(Rejected(str(entry), LINK_LOOP))
            elif not entry.is_dir():
                rejected += _beside_class_folders(entry, learned=learned)
            elif not entry.name.strip():
                rejected.append(Rejected(str(entry), "a folder with an empty name is no class"))
            else:
                files, bad = files_below(entry)
                if learned and not files and not bad:
                    log.warning(
                        "--data %s: class folder %s has no files", folder, quoted(plain_name(entry))
                    )
                rows += [
                    {"path": file, "label": plain_name(entry), "split": split} for file in files
                ]
                rejected += bad
                class_files[entry] = files
    if not rows:
        raise _no_class_folder(root)
    if learned:
        _warn_of_nested_classes(root, class_files)
    return Rows(pd.DataFrame(rows), rejected)


def _split_folders(root: Path) -> tuple[dict[Path, str], list[Rejected]]:
    """Split of each split folder, and the folders beside them; the folder itself, of no split, if it has none."""
    splits = {f: SPLIT_NAMES.get(f.name.lower(), "") for f in _entries(root) if f.is_dir()}
    if "train" not in splits.values() or not {"valid", "test"} & {*splits.values()}:
        return {root: ""}, []
    reason = "not read, because it is not one of the split folders"
    rejected = [Rejected(str(folder), reason) for folder, split in splits.items() if not split]
    return {folder: split for folder, split in splits.items() if split}, rejected


def _beside_class_folders(file: Path, *, learned: bool) -> list[Rejected]:
    """The file, rejected unless it is a table of labels; warns if it should be the source instead of the folder."""
    columns, is_table = _columns(file), file.suffix.lower() in ENDINGS
    if learned and (columns or (not is_table and _is_claimed(file))):
        grouping = sorted({*columns} & {"group", "split", "fold"})
        lost = ", and files are split at random and not by its " + " and ".join(grouping)
        log.warning(
            "%s is not read, because --data names its folder; the folder names are the labels%s. To use it: --data %s%s",
            file, lost if grouping else "", file, " --cv fold" if "fold" in grouping else "",
            extra={
                "on_page": f"{file} is not read, because you named its folder; the folder names are the labels"
                f"{lost if grouping else ''}. To use it, name it instead of the folder"
            },
        )  # fmt: skip
    if columns:
        return []
    reason = "not in a class folder"
    if learned and is_table:
        try:
            read_rows(file)
        except SecondhandError as error:
            reason += f", and not read as a table of labels: {error}"
    return [Rejected(str(file), reason)]


def _is_claimed(file: Path) -> bool:
    return any(source.claims(file, ReadOptions()) for source in SOURCES.ours().values())


def _columns(file: Path) -> list[str]:
    """The columns of a table of labels, path and label among them; none of another file."""
    if file.suffix.lower() not in ENDINGS:
        return []
    try:
        cells = read_cells(file)
        files = path_column(file, cells, ReadOptions(), Below(file.parent))
        if files and label_column(file, cells, ReadOptions(), files):
            named = [name for name in TEXT_COLUMNS if column_named(file, cells, name)]
            return ["path", "label", *named]
    except SecondhandError:
        pass
    return []


def _no_class_folder(root: Path) -> SecondhandError:
    """Error for a folder without class folders; it suggests a table in it before the folder above."""
    files = [entry for entry in _entries(root) if entry.is_file()]
    above = root.absolute().parent
    kinds = set(filter(None, map(find_kind, files)))
    # Files of text may be strain.
    no_text = any(".txt" not in kind.suffixes for kind in kinds)
    endings = (*ENDINGS, *_OTHER_TABLES, *([".txt"] if no_text else []))
    tables = [file for file in files if file.name.lower().endswith(endings)]
    tables = sorted(tables, key=lambda file: not _columns(file))
    one_class = any(
        file.parent != root.absolute() and is_user_file(file.parent) and find_kind(file) in kinds
        for file in above.glob("*/*")
    )
    if tables:
        try:
            read_source(str(tables[0]), ReadOptions(learned=False))
            remedy = f"Name the table in it: --data {tables[0]}"
        except SecondhandError as error:
            remedy = f"Are the labels in {tables[0].name}? {error}"
            if one_class:
                remedy += f". If {root.name} is one class, name the folder above it: --data {above}"
    elif one_class:
        remedy = f"It looks like the folder of one class. Name the folder above it: --data {above}"
    else:
        remedy = "Put the files of each class into a folder of their own, or name a CSV file with the columns path,label"
        if any(kind.gps for kind in kinds):
            remedy += ", or name a table of triggers, and the strain with --strain"
    return SecondhandError(f"--data {root}: no class folder with files in it. {remedy}")


def _warn_of_nested_classes(root: Path, class_files: Mapping[Path, Sequence[str]]) -> None:
    """Warn if several folders in ``root``, or all of them, seem to hold class folders themselves.

    Files that are not of the most common kind do not count. ``class_files`` : the files of each class folder.
    """
    kinds = {file: kind_of(file) for files in class_files.values() for file in files}
    counts = Counter(filter(None, kinds.values()))
    common = max(counts, key=lambda kind: counts[kind], default="")
    nested: dict[Path, set[str]] = {}
    folders = 0  # that hold files of this kind
    for folder, files in class_files.items():
        below = [f[len(str(folder)) + 1 :] for f in files if kinds[f] == common]
        names = {path.rpartition(os.sep)[0].partition(os.sep)[0] for path in below}
        folders += bool(names)
        if "" not in names and len(names) > 1:
            nested[folder] = names
    if not nested or len(nested) < min(2, folders):
        return
    first = max(nested, key=lambda folder: len(nested[folder]))
    classes = sorted(nested[first])
    log.warning(
        "--data %s: the class folders %s contain no files themselves, only folders, so that all files below one "
        "of them are one class. If the classes are %s: --data %s",
        root,
        ", ".join(quoted(plain_name(folder)) for folder in list(nested)[:5]),
        ", ".join([*map(quoted, classes[:3]), *(["…"] if len(classes) > 3 else [])]),
        first,
    )


def _entries(folder: Path) -> list[Path]:
    return sorted(filter(is_user_file, folder.iterdir()))


SOURCES.add(
    Source(
        name="folder",
        order=85,
        claims=lambda path, options: path.is_dir(),
        read=read_folder,
        reads="a folder with one folder per class",
    )
)
