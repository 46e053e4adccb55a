"""A table of labels by people, which fine-tuning reads: corrections of predictions, and labels of a pool; and what can be
said of a file."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.files import write_beside
from datasets.core.part import PART_COLUMNS
from datasets.items.labels import (
    NOTHING,
    UNKNOWN,
    clean_label,
    is_nothing,
    join_labels,
    label_error,
    parse_names,
    spelling_key,
    written_names,
)
from datasets.tables.cells import csv_bytes, csv_text, read_csv
from learners.files.lock import acquire_lock

if TYPE_CHECKING:
    from learners.inference.predictor import Predictor

#: Cells of a row by their columns.
Row = Mapping[str, str]


@dataclass(frozen=True)
class Choices:
    """What can be said of a file for a model: a class, a new one, or `UNKNOWN`.

    Attributes
    ----------
    several : any number of labels.
    empties : also `NOTHING`: the model has several labels, or a background class that it learns from.
    """

    classes: Sequence[str] = ()
    several: bool = False
    empties: bool = False

    @classmethod
    def of(cls, predictor: Predictor) -> Choices:
        rule, classes = predictor.rule, predictor.classes
        several = not rule.exclusive
        is_class = any(map(is_nothing, classes))
        return cls(classes, several, several or (rule.calibrator.background and not is_class))

    @property
    def others(self) -> list[str]:
        """What can be said beside the classes."""
        return [UNKNOWN, *([NOTHING] if self.empties else [])]

    def check(self, label: object, known: Iterable[str] = ()) -> str:
        """What was chosen, or written, as training reads it: cleaned, and in the spelling of a class or of a ``known`` label
        that differs in case or spaces only, because training refuses a table with both.

        Parameters
        ----------
        label : a label, or a list of them.

        Raises
        ------
        SecondhandError : nothing is said, something else contradicts it, or training would refuse a label.
        """
        spelling = [*self.classes, *known]
        if not self.several:
            return self._one(check_label(label, spelling), spelling)
        given = label if isinstance(label, list | tuple) else [label or ""]
        names = [n for text in given for n in self._written(str(text or ""), spelling)]
        checked = {check_label(name, spelling) for name in names}
        checked = {NOTHING if is_nothing(name) else name for name in checked}
        if not checked:
            raise SecondhandError(f"There is no label. Choose one or several, or {NOTHING}.")
        for alone in {UNKNOWN, NOTHING} & checked if len(checked) > 1 else ():
            raise SecondhandError(
                f"It cannot be {alone} and have another label. Choose one of the two."
            )
        return join_labels(checked)

    def _one(self, label: str, spelling: Sequence[str]) -> str:
        if self.empties and is_nothing(label):
            return NOTHING
        if label not in spelling and len(written_names(label)) > 1:
            raise SecondhandError(
                f"{quoted(label)} are several labels, and a file gets one here. Write the one that counts most."
            )
        return label

    @staticmethod
    def _written(text: str, spelling: Sequence[str]) -> list[str]:
        return [text] if text in spelling else written_names(text)


class Labels:
    """A table of labels; the later of two labels of an item counts.

    Parameters
    ----------
    file : CSV with path and label, in an existing folder.
    columns : of a new table; missing ones are added to an existing table.
    item : columns that name an item: its file, and the span, moment or box.
    keeps_rows : rows stay where they are, and without a label where it is removed.
    """

    def __init__(
        self,
        file: Path,
        columns: Sequence[str],
        item: Sequence[str] = ("path", *PART_COLUMNS),
        *,
        keeps_rows: bool = False,
    ) -> None:
        self.file, self.columns, self._item, self._keeps_rows = file, columns, item, keeps_rows
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock for one writer at a time, also across pages that share a folder.

        Raises
        ------
        SecondhandError : the disk is full, or what is written in the context cannot be written.
        """
        try:
            with self._lock, ExitStack() as stack:
                # Windows and some network file systems have no such locks: one page for each folder there.
                with suppress(OSError):
                    descriptor = os.open(self.file.parent, os.O_RDONLY)
                    stack.callback(os.close, descriptor)
                    acquire_lock(descriptor, inherited=True, wait=True)
                yield
        except OSError as error:
            raise SecondhandError(
                f"It could not be saved in {self.file.name}: {error.strerror or error}. Tell the owner of this page."
            ) from None

    def save(self, rows: Sequence[Row], label: object, choices: Choices = Choices()) -> str:
        """Give items a label, which is returned as it is spelt in the table. Within `alone`.

        Raises
        ------
        SecondhandError : as `Choices.check`, with the labels of other items, and `rows`.
        """
        items = {self.item(row) for row in rows}
        others = (row["label"] for row in self.rows() if self.item(row) not in items)
        if choices.several:
            others = (name for label in others for name in parse_names(label))
        given = choices.check(label, others)
        now = {"label": given, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        self._replace(rows, [{**row, **now} for row in rows])
        return given

    def remove(self, rows: Sequence[Row]) -> None:
        """Remove the labels of items. Within `alone`."""
        self._replace(rows, [{**row, "label": ""} for row in rows] if self._keeps_rows else [])

    def _replace(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        table = self._read()
        before: list[Any] = table.to_dict("records")
        if self._keeps_rows:
            by_item = {self.item(row): row for row in new}
            after = [by_item.get(self.item(row), row) for row in before]
        else:
            items = {self.item(row) for row in rows}
            after = [*(row for row in before if self.item(row) not in items), *new]
        parts = [name for name in PART_COLUMNS if any(name in row for row in new)]
        columns = list(dict.fromkeys([*table, *self.columns, *parts]))
        text = csv_text(pd.DataFrame(after, columns=columns).fillna(""))
        write_beside(self.file, csv_bytes(text))

    def item(self, row: Row) -> str:
        """What tells the item of a row from others."""
        return "\n".join(row.get(name, "") for name in self._item)

    def rows(self) -> list[Row]:
        """The rows, oldest first. SecondhandError if the table is another one."""
        rows: list[Any] = self._read().to_dict("records")
        return rows

    def counts(self, model: str = "") -> Counter[str]:
        """Number of labels by the ``model`` that they are for, else by that of each row. Empty if the table is another
        one."""
        with suppress(SecondhandError):
            return Counter(model or row.get("model", "") for row in self.rows() if row["label"])
        return Counter()

    def _read(self) -> pd.DataFrame:
        """The table, with columns added by others."""
        if not self.file.exists():
            return pd.DataFrame(columns=[*self.columns])
        try:
            cells = read_csv(self.file)
        except BadFile as error:
            raise SecondhandError(f"{self.file.name}: {error.reason}; move it elsewhere") from None
        if not {"path", "label"} <= {*cells}:
            raise SecondhandError(
                f"{self.file.name}: not a table with path and label; move it elsewhere"
            )
        return cells


def check_label(label: object, known: Iterable[str] = ()) -> str:
    """A label, cleaned as training cleans it, and spelt as the first of the ``known`` ones that differs in case or
    spaces only: training refuses a table with both.

    Raises
    ------
    SecondhandError : training would refuse it.
    """
    plain = clean_label(str(label or ""))
    if not plain:
        raise SecondhandError("The label is empty. Choose a class, or write one.")
    if fault := label_error(plain):
        raise SecondhandError(f"The label {quoted(plain)} {fault}. Write another one.")
    key = spelling_key(plain)
    return next((name for name in known if spelling_key(name) == key), plain)
