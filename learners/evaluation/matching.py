"""Matches the labels of files from elsewhere to the classes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.items.facts import Stated
from datasets.items.items import Items
from datasets.items.labels import (
    MULTI,
    UNKNOWN,
    join_labels,
    parse_names,
    spelling_key,
    split_labels,
)
from datasets.tables.cells import read_cells


def label_columns(table: Path, label_column: str | None, classes: Sequence[str]) -> str | list[str]:
    """The label columns of a table for a multi-label model (``labels`` of `datasets.sources.base.ReadOptions`): those named
    after the ``classes``, unless the table has one column for all labels.
    """
    columns: list[str] = []
    with suppress(SecondhandError):  # of another format, which is read as one column
        columns = [*read_cells(table).columns] if table.is_file() else []
    class_columns = [name for name in classes if name in columns]
    has_labels = (label_column or "label") in columns
    return class_columns if class_columns and not has_labels else MULTI


def match_classes(
    table: Items, classes: Sequence[str], groups: Sequence[str]
) -> tuple[Items, list[str]]:
    """The items with those whose label is not a class of the model among the unknown ones, and sentences on them.

    Parameters
    ----------
    groups : names above the classes, which no file may have as its label.

    Raises
    ------
    SecondhandError : no label is a class, one resembles a class, or one is a group.
    """
    labels = table.frame["label"]
    is_group = labels.isin(groups)
    for path, label in table.frame.loc[is_group, ["path", "label"]].to_numpy()[:1]:
        raise SecondhandError(
            f"{path}: the label {label!r} is a group above the model's classes. Give the class as label, or leave "
            "such files out"
        )
    is_other = ~labels.isin(classes)
    names = sorted(labels[is_other].unique())
    near = {spelling_key(name): name for name in classes}
    for name in names:
        if (similar := near.get(spelling_key(name))) is not None:
            stated = table.get(Stated)
            where = stated.where.get(name, table.source) if stated else table.source
            raise SecondhandError(
                f"{where}: the label {name!r} is not a class of the model, which has {similar!r}. Rename the folder or "
                "the label"
            )
    if len(names) and is_other.all():
        raise SecondhandError(
            f"None of the labels ({_some(names)}) is a class of the model ({_some(classes)}). Rename them, or give "
            "files of known classes as --data and these as --unknown; or, if the files have no labels, add --no-labels"
        )
    if not names:
        return table, []
    ood = table.frame.loc[is_other].assign(label=UNKNOWN)
    table = replace(
        table,
        frame=table.frame.loc[~is_other].reset_index(drop=True),
        unknown_items=pd.concat([table.unknown_items, ood], ignore_index=True),
    )
    labels_text = f"{len(names)} labels are not classes"
    if len(names) == 1:
        labels_text = "1 label is not a class"
    files_text = "1 file counts" if len(ood) == 1 else f"{len(ood)} files count"
    return table, [f"{labels_text} of the model ({_some(names)}); {files_text} as unknown classes"]


def match_labels(
    table: Items, classes: Sequence[str], columns: str | Sequence[str]
) -> tuple[Items, list[str]]:
    """The items without labels that a multi-label model does not know; those without one of the ``columns`` become unknown.

    Sentences on what is left out are the second value; raises SecondhandError if no label is one of the model's.
    """
    labels = table.frame["label"]
    used_labels = {name for label in labels for name in parse_names(label)}
    foreign = ", ".join(map(repr, sorted(used_labels - {*classes})[:10]))
    if used_labels and not used_labels & {*classes}:
        raise SecondhandError(
            f"None of the labels ({foreign}) is a label of the model ({', '.join(classes)[:300]}). Rename them"
        )
    missing = [] if columns == MULTI else sorted({*classes} - {*columns})

    def matched(label: str) -> str:
        unknown = [part[1:] for part in split_labels(label) if part.startswith("?")]
        return join_labels({*parse_names(label)} & {*classes}, [*unknown, *missing])

    table = replace(table, frame=table.frame.assign(label=labels.map(matched)))
    lines = [f"Labels that the model does not know are ignored: {foreign}"] if foreign else []
    if missing:
        lines.append(
            f"Labels without a column in the table are not evaluated: {', '.join(missing)}"
        )
    return table, lines


def _some(names: Sequence[str]) -> str:
    """The first ten names in a sentence."""
    rest = f", … and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + rest
