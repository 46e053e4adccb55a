"""Output formats of predictions: CSV, JSON lines, a table for the terminal, and annotation tables of sound editors.

A row is a file, a window or an event.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

from datasets.core.cells import check_not_spreadsheet, mark_csv, write_rows
from datasets.core.errors import SecondhandError, one_line
from datasets.core.files import file_beside, is_replaceable, write_beside
from datasets.core.scanning import below
from datasets.images import Box
from datasets.items import JOIN, TIME_AND_PLACE, UNKNOWN
from learners.files import jsonable
from learners.inference import Prediction, cell
from learners.predictions.journal import journal_file
from learners.predictions.provenance import check_record
from learners.predictions.rows import RowSettings, with_full_span

#: Formats written as a folder of files, and the kinds of data they are for.
FOLDERS = {"raven": ("sound",), "audacity": ("sound",), "camtrap-dp": ("picture", "sound")}
#: Terminal styles (ECMA-48, SGR).
_BOLD, _DIM, _RED, _GREEN, _YELLOW = 1, 2, 31, 32, 33
RAVEN = (
    "Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)",
    "High Freq (Hz)", "Begin Path", "File Offset (s)", "Annotation", "Score",
)  # fmt: skip
#: Columns of Raven tables for time and place; Raven shows columns of any other name as annotations.
_RAVEN_PLACE = tuple(map(str.capitalize, TIME_AND_PLACE))


def write_csv(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write a CSV header and rows; windows are rows, not a column, and a box is four columns.

    The header depends on the model and the call only: where no file has a time or place, the cells are empty.
    """
    hidden = ("windows", "box", *shape.hidden)
    columns = [name for name in Prediction._fields if name not in hidden]
    boxes = () if "box" in shape.hidden else Box._fields
    rows = (
        {name: getattr(row, name) for name in columns}
        | dict(zip(boxes, row.box or [""] * len(boxes), strict=True))
        | shape.more(row)
        for prediction in predictions
        for row in shape.rows(prediction)
    )
    cells = ([cell(value, name) for name, value in row.items()] for row in rows)
    write_rows(stream, chain([[*columns, *boxes, *shape.more_columns]], cells))


def write_jsonl(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write one JSON object per line; NaN becomes null."""
    for prediction in predictions:
        for row in shape.rows(prediction):
            more = {name: jsonable(value) for name, value in shape.more(row).items()}
            line = json.dumps(_as_json(row, shape.hidden) | more, ensure_ascii=False)
            stream.write(f"{line}\n")


def _as_json(row: Prediction, hidden: Sequence[str]) -> dict[str, object]:
    windows = [_as_json(window, hidden) for window in row.windows]
    known = row._asdict() | {"windows": windows, "box": row.box and row.box._asdict()}
    return {name: jsonable(value) for name, value in known.items() if name not in hidden}


def write_table(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write aligned columns, row by row; coloured on a terminal unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    width = min(40, max(map(len, [UNKNOWN, *shape.classes])))
    for prediction in predictions:
        for row in shape.rows(prediction):
            unknown = row.label == UNKNOWN
            colour = _RED if row.reason.failed else _YELLOW if unknown else _GREEN
            when = ""
            if row.start == row.start and shape.gps:
                when = f"GPS {row.start:.2f} to {row.end:.2f}, {row.at:.3f} s  "
            elif row.start == row.start:
                when = f"{row.start:9.2f} to{row.end:9.2f} s  "
            elif row.at == row.at:
                when = f"at {'GPS ' if shape.gps else ''}{row.at:.3f} s  "
            if clock := shape.more(row).get("time"):
                when += f"{clock}  "
            probability = "" if row.sure != row.sure else _percent(row.sure)
            if JOIN in row.label and row.label != row.best:
                # A probability per label, sorted by name.
                names = row.label.split(JOIN)
                probability = JOIN.join(_percent(p) for name, p in sorted(row.top) if name in names)
            why = ""
            if unknown:  # the percentage belongs to the guess
                why = f"{f'{row.best}? {probability}, ' if row.best else ''}{row.reason}"
                probability = ""
            words = [
                (f"{row.label:{width}}", colour), (f"{probability:>5}", _BOLD), (f" {when}", 0),
                (one_line(row.path), 0), (f"  {one_line(why)}" if why else "", _DIM),
            ]  # fmt: skip
            if shape.lists_top and row.top:
                listed = ", ".join(f"{name} {_percent(p)}" for name, p in row.top)
                words.append((one_line(f"[{listed}]"), 0))
            shown = (w if plain or not style else f"\x1b[{style}m{w}\x1b[0m" for w, style in words)
            print(*shown, file=stream)


def _percent(probability: float) -> str:
    """Whole percent, rounded down: a probability just below a threshold is not shown as the threshold."""
    return f"{math.floor(100 * probability + 1e-9)} %"


def raven_table(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write a tab-separated Raven selection table; times are seconds in the recording of "Begin Path"."""
    from datasets.annotations import tab_cell  # which imports pandas

    write = partial(print, sep="\t", file=stream)
    write(*RAVEN, *(_RAVEN_PLACE if shape.clock else ()))
    low, high = (f"{frequency:.1f}" for frequency in shape.band)
    number = 0
    for prediction in predictions:
        for row in _labelled_rows(prediction, shape):
            number += 1
            write(
                number, "Spectrogram 1", 1, row.start, row.end, low, high,
                tab_cell(row.path), row.start, tab_cell(row.label), f"{row.sure:.6f}",
                *(tab_cell(str(cell(v, name))) for name, v in shape.more(row).items()),
            )  # fmt: skip


def audacity_track(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write an Audacity label track: start, end and label, tab separated, without a header.

    Raises
    ------
    SecondhandError : there is more than one recording, but a track does not name recordings.
    """
    path = None
    for prediction in predictions:
        if path not in (None, prediction.path):
            raise SecondhandError(
                "--format audacity: a label track is for a single recording. For several recordings, give a folder as "
                "--out"
            )
        path = prediction.path
        for row in _labelled_rows(prediction, shape):
            stream.write(f"{row.start!r}\t{row.end!r}\t{one_line(row.label)}\n")


_TRACKS: dict[str, tuple[Callable[[Iterable[Prediction], RowSettings, Any], None], str]] = {
    "raven": (raven_table, ".selections.txt"),
    "audacity": (audacity_track, ".txt"),
}


def write_tracks(
    format: str, predictions: Iterable[Prediction], shape: RowSettings, folder: Path
) -> None:
    """Write a table per readable recording, named after it, in the same subfolders."""
    track, ending = _TRACKS[format]
    used_names: set[str] = set()
    for prediction in predictions:
        if prediction.reason.failed:
            continue
        names = _table_names(below(prediction.path, shape.names), ending)
        name = next(name for name in names if name not in used_names)
        used_names.add(name)
        text = io.StringIO()
        track([prediction], shape, text)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_beside(
            folder / name, text.getvalue().encode("utf-8", "surrogateescape"), durable=False
        )


def _labelled_rows(prediction: Prediction, shape: RowSettings) -> Iterator[Prediction]:
    """Rows whose label is not "unknown", with numeric times."""
    for row in shape.rows(prediction):
        if row.label == UNKNOWN:
            continue
        row = with_full_span(row)
        # The length of a recording that has been deleted is NaN.
        yield row._replace(start=0.0, end=0.0) if math.isnan(row.end) else row


def _table_names(path: str, ending: str) -> Iterator[str]:
    """Yield names for a recording's table: ``a.txt`` for a.wav, then ``a.wav.txt``, ``a.wav.2.txt``, …"""
    yield os.path.splitext(path)[0] + ending
    yield path + ending
    yield from (f"{path}.{number}{ending}" for number in count(2))


_TEXTS = {"csv": write_csv, "jsonl": write_jsonl, "table": write_table}


def check_out(format: str, kind: str, out: Path | None, *, overwrite: bool) -> None:
    """Check the format and the output path.

    Raises
    ------
    SecondhandError : the format does not suit the kind of data or the path, or ``out`` exists without ``overwrite``
        and is not an unfinished job.
    """
    if kind not in FOLDERS.get(format, (kind,)):
        raise SecondhandError(
            f"--format {format} is for {' and '.join(FOLDERS[format])}, but this is a model for {kind}. Choose another "
            "--format"
        )
    if out is None:
        needed = {
            "camtrap-dp": "several tables. Give a folder",
            "megadetector": "a JSON. Give a file",
        }
        if format in needed:
            raise SecondhandError(f"--format {format} writes {needed[format]} as --out")
        return
    if format not in FOLDERS and out.is_dir():
        raise SecondhandError(
            f"--out {out} is a folder. Give a file, such as {out / 'predictions.csv'}"
        )
    if format in FOLDERS and out.exists() and not out.is_dir():
        raise SecondhandError(
            f"--out {out} is a file, but --format {format} writes a folder. Give a folder"
        )
    if not out.is_dir() and not is_replaceable(out):
        raise SecondhandError(f"--out {out} is a pipe or a device. Give a file")
    if format in _TEXTS:
        check_not_spreadsheet(out)
    occupied = any(out.iterdir()) if out.is_dir() else out.exists()
    if occupied and not overwrite and not journal_file(out).exists():
        raise SecondhandError(
            f"--out {out} already exists. Choose another name or give --overwrite"
        )
    check_record(out, overwrite=overwrite)


def write(
    format: str, predictions: Iterable[Prediction], shape: RowSettings, out: Path | None
) -> None:
    """Write predictions to a file, into a folder or, as they come, to standard output.

    An existing file is replaced atomically; other files in a folder stay.
    """
    if format == "megadetector":
        from learners.predictions.megadetector import write_megadetector

        assert out is not None  # `check_out` has checked this
        write_megadetector(predictions, shape, out)
    elif format == "camtrap-dp":
        from learners.predictions.camtrap import write_camtrap

        assert out is not None  # `check_out` has checked this
        write_camtrap(predictions, shape, out)
    elif format in FOLDERS and out is not None:
        write_tracks(format, predictions, shape, out)
    elif format in FOLDERS:
        _TRACKS[format][0](predictions, shape, sys.stdout)
    elif out is None:
        _TEXTS[format](predictions, shape, sys.stdout)
    else:
        # File names that are not UTF-8 are written byte by byte.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            _TEXTS[format](predictions, shape, stream)
            stream.close()
            if format == "csv":
                mark_csv(beside)
