"""Answers as rows of text: CSV and JSON lines for programs, a table for people."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from datasets.errors import one_line
from datasets.tables import JOIN, UNKNOWN
from learners.answers.shape import Shape
from learners.files import jsonable
from learners.prediction import Prediction, cell


def write_csv(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
    """A header, and a row each."""
    writer = csv.writer(stream, lineterminator="\n")
    # Windows are rows of their own.
    columns = [name for name in Prediction._fields if name not in ("windows", *shape.hidden)]
    writer.writerow(columns)
    for answer in answers:
        for row in shape.rows(answer):
            writer.writerow([cell(getattr(row, name)) for name in columns])


def write_jsonl(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
    """An object a line; None for what is no number."""
    for answer in answers:
        for row in shape.rows(answer):
            line = json.dumps(_as_json(row, shape.hidden), ensure_ascii=False)
            stream.write(f"{line}\n")


def _as_json(row: Prediction, hidden: Sequence[str]) -> dict[str, object]:
    known = row._asdict() | {"windows": [_as_json(window, hidden) for window in row.windows]}
    return {name: jsonable(value) for name, value in known.items() if name not in hidden}


def write_table(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
    """Aligned columns, each row as it comes; coloured where the stream is a terminal that has colours
    and NO_COLOR is not set."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    width = min(40, max(map(len, [UNKNOWN, *shape.classes])))
    for answer in answers:
        for row in shape.rows(answer):
            unknown = row.label == UNKNOWN
            style = "red" if row.reason.unanswered else "yellow" if unknown else "green"
            span = "" if row.start != row.start else f"{row.start:9.2f} to{row.end:9.2f} s  "
            sure = "" if row.sure != row.sure else f"{row.sure:.0%}"
            if JOIN in row.label and row.label != row.best:  # each by itself, in the names' order
                names = row.label.split(JOIN)
                sure = JOIN.join(f"{p:.0%}" for name, p in sorted(row.top) if name in names)
            why = f"  ({row.reason}{f'; {row.best}?' if row.best else ''})" if unknown else ""
            console.print(
                Text(f"{row.label:{width}}", style), Text(f"{sure:>4}", "bold"),
                Text(f" {span}"), Text(one_line(row.path)), Text(one_line(why), "dim"), sep=" ",
            )  # fmt: skip
