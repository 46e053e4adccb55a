"""Predictions as rows, and the formats that they are written in: CSV and JSON lines for programs, a table
for people; those of a folder of files stand in files of their own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from datasets.core.cells import write_rows
from datasets.core.errors import SecondhandError, one_line
from datasets.core.files import file_beside
from datasets.items import JOIN, UNKNOWN
from learners.files import jsonable
from learners.inference import Prediction, cell
from learners.predictions.events import Events
from learners.predictions.journal import part_of

#: Formats that are a folder of files where they are written to one, and the kinds of files they are for.
FOLDERS = {
    "raven": ("sound",),
    "audacity": ("sound",),
    "camtrap-dp": ("picture", "sound"),
}
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


def check_out(format: str, kind: str, out: Path | None, *, overwrite: bool) -> None:
    """Raise SecondhandError where a model of this kind cannot be answered in this format, or where
    something lies at ``out``; not where that is a job to go on with."""
    if kind not in FOLDERS.get(format, (kind,)):
        raise SecondhandError(
            f"--format {format}: is for {' and '.join(FOLDERS[format])}, and this is a model of {kind}"
        )
    if out is None:
        if format == "camtrap-dp":
            raise SecondhandError(f"--format {format}: several tables; name a folder with --out")
        return
    if format not in FOLDERS and out.is_dir():
        raise SecondhandError(f"--out {out}: a folder; name a file, as {out / 'answers.csv'}")
    if format in FOLDERS and out.exists() and not out.is_dir():
        raise SecondhandError(f"--out {out}: a file, and {format} is written into a folder")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not overwrite and not part_of(out).exists():
        raise SecondhandError(f"--out {out}: is there already; choose another, or give --overwrite")


def write(format: str, answers: Iterable[Prediction], shape: Shape, out: Path | None) -> None:
    """Write answers to a file, into a folder, or to standard output as they come.

    A file is whole or not there; in a folder that holds other files those stay.
    """
    if format == "camtrap-dp":
        from learners.predictions.camtrap import write_camtrap

        assert out is not None  # as `check_out` has it
        write_camtrap(answers, shape, out)
    elif format in FOLDERS:
        from learners.predictions.tracks import print_track, write_tracks

        if out is None:
            print_track(format, answers, shape)
        else:
            write_tracks(format, answers, shape, out)
    elif out is None:
        _TEXTS[format](answers, shape, sys.stdout)
    else:
        # A name that is no UTF-8 is written as it is on the disk.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            _TEXTS[format](answers, shape, stream)


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


_TEXTS = {"csv": write_csv, "jsonl": write_jsonl, "table": write_table}
