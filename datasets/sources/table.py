"""Tables of labels: CSV, TSV, Parquet, those of spreadsheets, or text that a spreadsheet saved."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd

from datasets.audio.band import BAND_COLUMNS
from datasets.core.errors import (
    Rejected,
    SecondhandError,
    first_left_out,
    quoted,
)
from datasets.core.part import PART_COLUMNS
from datasets.core.recorded import SEQUENCES
from datasets.core.shipped import needed_for
from datasets.items.checks import (
    CLUSTER_COLUMNS,
    GUESSES,
    LABELLED,
    PAGE_COLUMNS,
    PREDICTION_COLUMNS,
    is_sheet,
    name_clusters,
)
from datasets.items.columns import CONFIDENCE, TEXT_COLUMNS, normalise_splits
from datasets.items.labels import (
    JOIN,
    MULTI,
    NOT_KNOWN,
    join_labels,
    joined_by,
    written_names,
)
from datasets.kinds.base import find_kind
from datasets.sources.base import ROW, SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below
from datasets.sources.naming import (
    ONE_HOT,
    PATHS,
    are_known,
    are_recordings,
    column_named,
    headerless,
    label_column,
    one_hot_columns,
    one_hot_labels,
    path_column,
    placed,
    plain,
    span_columns,
)
from datasets.tables.cells import (
    ENDINGS,
    TEXTS,
    column_names,
    read_cells,
    read_csv,
    with_points,
)

log = logging.getLogger(__name__)

#: A list of texts in quotes, and of numbers, with commas or spaces between them.
_WORD = re.compile(r"""'([^']*)'|"([^"]*)"|(\d+)""")
_LIST = re.compile(rf"\[((?:{_WORD.pattern})[\s,]*)*\]")


def read_rows(
    path: Path,
    options: ReadOptions = ReadOptions(),  # noqa: B008 (it is frozen)
    *,
    cells: pd.DataFrame | None = None,
    resolve: bool = True,
    are_files: bool = True,
) -> Rows:
    """Rows of a table file with absolute paths, and the rejected rows without a path or label.

    All cells are text, including times. The index is the row number in the file minus 2.

    ``cells`` : content of the file, if it has been read already.
    ``resolve`` : make paths absolute; otherwise they stay as written.
    ``are_files`` : the items are files, and not only called after some.
    """
    cells = _cells(path) if cells is None else cells
    sheet = is_sheet(cells)
    if sheet and options.class_columns and not {*options.class_columns} & {*cells}:
        options = replace(options, labels=MULTI)
    if options.class_columns:
        cells = _from_columns(path, cells, options.class_columns)
        options = replace(options, label_column=None)
    below = Below(path.parent, options.kind)
    column_of = item_columns(path, cells, options, below)
    frame = pd.DataFrame({name: cells[column] for name, column in column_of.items() if column})
    if options.label:
        frame["label"] = options.label
    elif "label" not in frame and not options.label_column:
        known = [*filter(None, column_of.values())]
        if (labels := one_hot_labels(path, cells.drop(columns=known))) is not None:
            frame["label"] = labels
    if not {"path", "label"} <= {*frame}:
        raise _no_column(path, cells, column_of, options, below)
    for name in frame.columns.drop("path"):
        frame[name] = frame[name].str.normalize("NFC").str.strip()
    frame["label"] = _of_lists(frame["label"])
    frame = name_clusters(frame, path.name)
    if sheet:
        guesses = {guess for name in GUESSES if name in cells for guess in cells[name]}
        frame["label"] = _filled_in(path, frame["label"], options, guesses)
    no_path = frame["path"].str.strip().eq("")
    rejected = [Rejected(f"{path}, row {row + 2}", "no path") for row in frame.index[no_path]]
    joined = options.multi_label and not sheet
    no_label = ~no_path & frame["label"].eq(NOT_KNOWN if joined else "")
    reason = "not labelled yet" if sheet else "all labels are empty" if joined else "no label"
    rejected += [
        Rejected(str(frame.at[row, "path"]), f"{reason} (row {row + 2} of {path.name})")
        for row in frame.index[no_label]
    ]
    frame = frame.loc[~no_path & ~no_label]
    if resolve:
        frame, several = _with_files(path, frame, below, needed=are_files)
        rejected += several
    if frame.empty:
        first = first_left_out(rejected, "row")
        raise SecondhandError(f"{path}: no row has both a path and a label{first}")
    return Rows(normalise_splits(frame, path), rejected)


def _cells(path: Path) -> pd.DataFrame:
    """The table; names are given to the columns of one without a header."""
    names = headerless(column_names(path)) if path.name.lower().endswith(TEXTS) else []
    if not names:
        return read_cells(path)
    log.info("%s: it has no header. Its columns are read as %s", path, ", ".join(names))
    cells = read_csv(path, names=names)
    cells.index -= 1  # the first row is line 1
    return cells


def _of_lists(labels: pd.Series) -> pd.Series:
    """Labels of which each cell is a list, as JSON or Python writes it, with `JOIN` between the names; others as they are."""
    lists = {label: _LIST.fullmatch(label) for label in labels.unique() if label}
    if not lists or not all(lists.values()):
        return labels
    words = {text: [m[1] or m[2] or m[3] for m in _WORD.finditer(text)] for text in lists}
    for text in words:
        with suppress(ValueError):
            words[text] = [*map(str, json.loads(text))]
    return labels.replace(to_replace={text: JOIN.join(names) for text, names in words.items()})


def _filled_in(
    path: Path, labels: pd.Series, options: ReadOptions, guesses: Collection[str]
) -> pd.Series:
    """Labels of a table that people fill in, with `JOIN` between several names.

    ``guesses`` : of the model, which are one name each where an item has one.

    Raises
    ------
    SecondhandError : a cell has several names, but an item is to have one; names the row.
    """
    names = {label: written_names(label) for label in labels.unique()}
    if options.multi_label:
        return labels.map({label: JOIN.join(each) for label, each in names.items()})
    several = [name for name in names if len(names[name]) > 1 and name not in guesses]
    for row in labels.index[labels.isin(several)][:1] if options.learned else ():
        raise SecondhandError(
            f"{path}, row {row + 2}: {quoted(labels[row])} are several labels, but an item has one here. Write the one that "
            "counts most, or leave the cell empty; for several, train with --labels multi"
        )
    return labels


def _with_files(
    path: Path, frame: pd.DataFrame, below: Below, *, needed: bool
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows with the paths of the files that they name, and those whose file may be one of several.

    ``needed`` : the items are files, and not only called after some.
    """
    found = below.locate(frame["path"].unique(), path.parent)
    if not needed:
        found = {
            cell: one._replace(files=()) if one.unclear else one for cell, one in found.items()
        }
    moved = [cell for cell, one in found.items() if one.moved]
    if moved:
        log.info(
            "%s: files found by their names below its folder: %d, such as %s for %s",
            path, len(moved), found[moved[0]].path, quoted(moved[0]),
        )  # fmt: skip
    files, several = placed(path, frame["path"], found)
    return frame.loc[files.index].assign(path=files), several


def read_table(path: Path, options: ReadOptions) -> Rows:
    """As `read_rows`, with one name or, if an item may have several, `JOIN` between them."""
    rows = with_names(path, read_rows(path, options), options)
    return rows._replace(frame=rows.frame.assign(**{ROW: rows.frame.index + 2}))


def with_names(path: Path, rows: Rows, options: ReadOptions) -> Rows:
    """Rows whose several labels have `JOIN` between them.

    Raises
    ------
    SecondhandError : the cells hold several names, but an item is to have one.
    """
    labels = rows.frame["label"]
    checked = options.multi_label or (
        options.learned and not {*PREDICTION_COLUMNS} <= {*rows.frame}
    )
    if (
        options.label
        or options.class_columns
        or not checked
        or labels.str.contains(JOIN, regex=False).any()
    ):
        return rows
    separator, example = joined_by(labels, several=options.multi_label)
    if not separator:
        return rows
    if not options.multi_label:
        raise SecondhandError(
            f"{path}: the labels look like several names in a cell, such as {quoted(example)}, and each combination would be a "
            "class. If a file has several labels, add --labels multi. If such a label is one class, write it as "
            f"{quoted('_'.join(example.replace(separator, ' ').split()))}"
        )
    log.info("%s: labels such as %s are read as several names", path, quoted(example))
    return rows._replace(
        frame=rows.frame.assign(label=labels.str.replace(separator, JOIN, regex=False))
    )


def item_columns(
    path: Path, cells: pd.DataFrame, options: ReadOptions, below: Below
) -> dict[str, str | None]:
    """The column of each of the item table's, None for those that the table has not.

    A line says which are read under other names.
    """
    names = (
        *TEXT_COLUMNS,
        *PART_COLUMNS,
        *BAND_COLUMNS,
        CONFIDENCE,
        *PREDICTION_COLUMNS,
        *CLUSTER_COLUMNS,
        "at",
        "branch",
    )
    column_of = {name: column_named(path, cells, name) for name in names}
    sequences = (column_named(path, cells, name) for name in SEQUENCES)
    column_of["sequence"] = next(filter(None, sequences), None)
    column_of["path"] = path_column(path, cells, options, below)
    column_of["label"] = label_column(path, cells, options, column_of["path"])
    paths = cells[column_of["path"]].unique() if column_of["path"] else ()
    if not (column_of["start"] and column_of["end"]) and are_recordings(paths, below):
        column_of |= span_columns(path, cells)
    if all(column_named(path, cells, name) for name in PAGE_COLUMNS):
        column_of |= {LABELLED: column_of["time"], "time": None}
    usual = {name: column_of[name] for name in ("path", "label")}
    if other := [f"{quoted(c)} as {n}" for n, c in usual.items() if c and c.strip().lower() != n]:
        log.info(
            "%s: its columns are read so: %s. Choose others with --path-column and --label-column",
            path, ", ".join(other),
        )  # fmt: skip
    return column_of


def _no_column(
    path: Path,
    cells: pd.DataFrame,
    column_of: Mapping[str, str | None],
    options: ReadOptions,
    below: Below,
) -> SecondhandError:
    """Error for a table without a column of files or of labels, with the columns that may be the missing ones."""
    named = {"path": options.path_column, "label": options.label_column}
    missing = [
        name for name in named if not column_of[name] and not (name == "label" and options.label)
    ]
    first = {str(name): cells[name][cells[name].ne("")].head(1) for name in cells}
    sentences = []
    if any(find_kind(str(name)) for name in cells):
        sentences += ["Its first line names a file: write a header such as path,label above it"]
    elif "path" in missing:
        files = [
            quoted(name) for name, cell in first.items()
            if any(find_kind(text) or below.find(text) for text in cell)
        ]  # fmt: skip
        like = f"If {' or '.join(files[:3])} names the files, add --path-column and its name"
        sentences += [
            like if files else f"For a table of triggers, add --strain{needed_for('--strain')}"
        ]
        sentences += [
            f"No file in {path.parent} or below is called {quoted(cell.iat[0])}, as {quoted(name)} says"
            for name, cell in first.items() if len(cell) and plain(name) in PATHS and not files
        ][:1]  # fmt: skip
    if "label" in missing:
        classes = [name for name in one_hot_columns(cells) if name != column_of["path"]]
        if len(classes) > 1:
            flag = f"--labels {','.join(classes)[:300]}"
            sentences += [
                f"If {quoted(classes[0])} and others are classes, with 1 and 0, add {flag}"
            ]
        others = {*column_of.values(), *(classes if len(classes) > 1 else ())}
        few = max(2, len(cells) // 2)
        repeated = [quoted(n) for n in cells if n not in others and 1 < cells[n].nunique() <= few]
        like = f", such as {' or '.join(repeated[:3])}," if repeated else ""
        sentences += [f"If another column{like} holds the labels, add --label-column and its name"]
    lack = " and no column ".join(repr(named[name] or name) for name in missing)
    return SecondhandError(
        f"{path}: no column {lack}. It has {', '.join(map(quoted, cells.columns[:20])) or 'none'}, but needs path,label"
        f"[,group][,split][,fold][,start][,end][,gps][,x][,y][,width][,height]. {'. '.join(sentences)}"
    )


def _from_columns(path: Path, cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Build the column ``label`` from one column per class: 1, 0, or empty for unknown.

    A row with only empty cells gets the label ``?``.

    Raises
    ------
    SecondhandError : a column is missing, a cell has another value, or a class name contains the separator.
    """
    columns = {}
    for name in names:
        if JOIN in name or name.startswith(NOT_KNOWN):
            raise SecondhandError(
                f"--labels: the class name {quoted(name)} contains {JOIN} or begins with {NOT_KNOWN}. Rename the "
                "column"
            )
        if name not in cells:
            existing = ", ".join(map(quoted, cells.columns[:20]))
            raise SecondhandError(f"{path}: no column {name!r} of --labels. It has {existing}")
        text = with_points(cells[name]).str.strip().str.lower()
        for row in cells.index[~text.isin([*ONE_HOT, ""])][:1]:
            raise SecondhandError(
                f"{path}, row {row + 2}: {name} is {quoted(cells.at[row, name])} (must be 1, 0 or empty)"
            )
        columns[name] = text.map(ONE_HOT)
    labels = [
        join_labels(
            [name for name, value in zip(names, row, strict=True) if value == 1],
            [name for name, value in zip(names, row, strict=True) if value != value],
        )
        if any(value == value for value in row)
        else NOT_KNOWN
        for row in zip(*columns.values(), strict=True)
    ]
    return cells.assign(label=labels)


def _claims(path: Path, options: ReadOptions) -> bool:
    name = path.name.lower()
    if name.endswith(".txt"):  # a spreadsheet saves "Unicode text" under this ending, too
        names = column_names(path) if path.is_file() else []
        return are_known(names) or bool(headerless(names))
    return name.endswith(_ENDINGS) and path.is_file()


_ENDINGS = (*ENDINGS, ".csv.gz", ".tsv.gz", ".npz")
SOURCES.add(
    Source(
        name="table",
        order=80,
        claims=_claims,
        read=read_table,
        reads=f"a table with the columns path,label, whose name ends in {', '.join(ENDINGS)}",
        has_multi_label=lambda path: path.is_file(),
    )
)
