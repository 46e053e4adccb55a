"""Predictions as rows of text: CSV and JSON lines for programs, a table for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from datasets.core.cells import write_rows
from datasets.core.errors import one_line
from datasets.items import JOIN, UNKNOWN
from learners.files import jsonable
from learners.inference import Prediction, cell
from learners.predictions.events import Events

#: How a terminal is told (ECMA-48, SGR).
_BOLD, _DIM, _RED, _GREEN, _YELLOW = 1, 2, 31, 32, 33


class Shape(NamedTuple):
    """Which rows an answer has, and what of them is told.

    Attributes
    ----------
    windows : a row for each window of a long recording.
    events : a row for each event instead.
    top : classes listed in a row.
    hidden : fields of `Prediction` that nobody asked for.
    names : the files and folders of the call, from which tables in a folder have their names.
    band : Hz, the lowest and highest frequency that the model hears.
    classes : the model's, for the width of a column.
    gps : moments are GPS times.
    """

    windows: bool = False
    events: Events | None = None
    top: int = 3
    hidden: Sequence[str] = ()
    names: Sequence[str] = ()
    band: tuple[float, float] = (0.0, 0.0)
    classes: Sequence[str] = ()
    gps: bool = False

    def below(self, path: str) -> str:
        """A file's path from the folder of the call that it was found in; its name, if from none."""
        file = Path(path)
        for folder in sorted(map(Path, self.names), key=lambda name: -len(name.parts)):
            if folder in file.parents and ".." not in (below := file.relative_to(folder)).parts:
                return str(below)
        return file.name

    def rows(self, answer: Prediction) -> Sequence[Prediction]:
        """The rows of one file's answer."""
        if self.events is not None:
            return [
                row._replace(top=row.top[: self.top], windows=()) for row in self.events.of(answer)
            ]
        return (self.windows and answer.windows) or (answer,)


def write_csv(answers: Iterable[Prediction], shape: Shape, stream: TextIO) -> None:
    """A header, and a row each."""
    # Windows are rows of their own.
    columns = [name for name in Prediction._fields if name not in ("windows", *shape.hidden)]
    rows = (row for answer in answers for row in shape.rows(answer))
    cells = ([cell(getattr(row, name), name) for name in columns] for row in rows)
    write_rows(stream, chain([columns], cells))


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
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    width = min(40, max(map(len, [UNKNOWN, *shape.classes])))
    for answer in answers:
        for row in shape.rows(answer):
            unknown = row.label == UNKNOWN
            colour = _RED if row.reason.unanswered else _YELLOW if unknown else _GREEN
            span = f"{row.start:9.2f} to{row.end:9.2f} s  "
            if row.start != row.start:
                span = (
                    "" if row.at != row.at else f"at {'GPS ' if shape.gps else ''}{row.at:.3f} s  "
                )
            sure = "" if row.sure != row.sure else f"{row.sure:.0%}"
            if JOIN in row.label and row.label != row.best:  # each by itself, in the names' order
                names = row.label.split(JOIN)
                sure = JOIN.join(f"{p:.0%}" for name, p in sorted(row.top) if name in names)
            why = f"  ({row.reason}{f'; {row.best}?' if row.best else ''})" if unknown else ""
            words = [
                (f"{row.label:{width}}", colour), (f"{sure:>4}", _BOLD), (f" {span}", 0),
                (one_line(row.path), 0), (one_line(why), _DIM),
            ]  # fmt: skip
            if row.set and "set" not in shape.hidden:
                words.append((one_line(f"{{{', '.join(row.set)}}}"), 0))
            shown = (w if plain or not style else f"\x1b[{style}m{w}\x1b[0m" for w, style in words)
            print(*shown, file=stream)
