"""Several labels an item: ``Bird|Rain``, or a column a class with 1, 0 and nothing.

In the item table they are one text: the names sorted, with ``|`` between them, and behind a ``?``
those of which nobody knows whether they are there. No name at all is an item that shows none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.errors import SecondhandError, shown
from datasets.items.checks import (
    ANSWERS,
    JOIN,
    NOT_KNOWN,
    UNKNOWN,
    clean_label,
    names_of,
    parts_of,
)

if TYPE_CHECKING:
    import pandas as pd

#: What ``--labels`` is for the first of the two forms.
MANY = "many"
_CELLS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0}


def targets_of(label: str, classes: Sequence[str]) -> list[float]:
    """Of each class 1 where it is there, 0 where not, NaN where that is not known."""
    parts = {*parts_of(label)}
    return [
        1.0 if name in parts else float("nan") if NOT_KNOWN + name in parts else 0.0
        for name in classes
    ]


def joined(names: Iterable[str], not_known: Iterable[str] = ()) -> str:
    """The label of an item that shows these."""
    return JOIN.join([*sorted({*names}), *sorted(NOT_KNOWN + name for name in {*not_known})])


def canonical(label: str) -> str:
    """A label as a person wrote it in the form that it has in the item table."""
    parts = [part.strip() for part in label.split(JOIN)]
    there = {clean_label(part) for part in parts if part and not part.startswith(NOT_KNOWN)}
    if UNKNOWN in there and len(there) > 1:
        raise SecondhandError(
            f"label {shown(label)}: {UNKNOWN} stands for what is none of the classes, so alone"
        )
    open_ = {clean_label(part[1:]) for part in parts if part.startswith(NOT_KNOWN)}
    return joined(there, open_ - there - {""})


def counted(labels: Iterable[str]) -> str:
    """How many items show each label, and how many none of them; in words."""
    counts = Counter(name for label in labels for name in names_of(label) or ["none of them"])
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def from_columns(path: Path, cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The table with a column ``label``, made of a column a class: 1, 0, or nothing for not known.

    A row of which nothing is known has the label ``?``.

    Raises
    ------
    SecondhandError : a column is missing or has no 1, a cell is none of these, or a name holds what
        joins them.
    """
    columns = {}
    for name in names:
        if JOIN in name or name.startswith(NOT_KNOWN):
            raise SecondhandError(
                f"--labels: the class name {shown(name)} holds {JOIN} or {NOT_KNOWN}"
            )
        if name not in cells:
            there = ", ".join(map(shown, cells.columns[:20]))
            raise SecondhandError(f"{path}: no column {name!r} of --labels; it has {there}")
        text = cells[name].str.strip().str.lower()
        for row in cells.index[~text.isin([*_CELLS, ""])][:1]:
            raise SecondhandError(
                f"{path}: {name} is {shown(cells.at[row, name])} in row {row + 2}; 1, 0 or empty is meant"
            )
        columns[name] = text.map(_CELLS)
    labels = [
        joined(
            [name for name, value in zip(names, row, strict=True) if value == 1],
            [name for name, value in zip(names, row, strict=True) if value != value],
        )
        if any(value == value for value in row)
        else NOT_KNOWN
        for row in zip(*columns.values(), strict=True)
    ]
    return cells.assign(label=labels)


def check_source(source: str) -> None:
    """Raise SecondhandError for what has one label an item by its nature."""
    from datasets.annotations import is_annotated

    if source != "demo:scenes" and (not Path(source).is_file() or is_annotated(Path(source))):
        raise SecondhandError(
            f"--labels with --data {source}: several labels an item stand in a table (CSV, TSV, Parquet)"
        )


def check_said(frame: pd.DataFrame, source: str, *, learned: bool) -> None:
    """Raise SecondhandError where two rows say different labels of one thing: they belong in one; and
    for a model's answers that are to be ``learned``: which of several labels somebody has changed does
    not show."""
    if learned and {*ANSWERS} <= {*frame.columns}:
        raise SecondhandError(
            f"--data {source}: answers of a model; look at each label, and delete the columns "
            f"{' and '.join(ANSWERS)} to take them all for labels"
        )
    keys = [name for name in ("path", "start", "end", "gps") if name in frame]
    for _, rows in frame.loc[frame.duplicated(keys, keep=False)].groupby(keys, dropna=False):
        if rows["label"].nunique() > 1:
            one, other = rows["label"].unique()[:2]
            raise SecondhandError(
                f"{source}: {rows['path'].iloc[0]} is there twice, as {one!r} and as {other!r}: "
                f"write its labels into one row, with {JOIN} between them"
            )
