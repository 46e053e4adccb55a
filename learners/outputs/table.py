"""A table for the terminal, aligned and coloured."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TextIO

from datasets.core.errors import one_line, printable_line
from datasets.core.program import uncleaned
from datasets.items.labels import JOIN, UNKNOWN
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS, Output, as_text
from learners.predictions.rows import RowSettings

#: Terminal styles (ECMA-48, SGR).
_BOLD, _DIM, _RED, _GREEN, _YELLOW = 1, 2, 31, 32, 33


def write_table(predictions: Iterable[Prediction], shape: RowSettings, stream: TextIO) -> None:
    """Write aligned columns, row by row; coloured on a terminal unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    gps = shape.spectrogram is not None and shape.spectrogram.by_gps
    width = min(40, max(map(len, [UNKNOWN, *shape.classes])))
    for prediction in predictions:
        for row in shape.rows(prediction):
            unknown = row.label == UNKNOWN
            colour = _RED if row.reason.failed else _YELLOW if unknown else _GREEN
            when = ""
            _, start, end, at, _ = row.part
            if start is not None and gps:
                when = f"GPS {start:.2f} to {end:.2f}, {at:.3f} s  "
            elif start is not None:
                when = f"{start:9.2f} to{end:9.2f} s  "
            elif at is not None and shape.spectrogram is None:
                when = f"page {at:g}  "
            elif at is not None:
                when = f"at {'GPS ' if gps else ''}{at:.3f} s  "
            if time := shape.more(row).get("time"):
                when += f"{time}  "
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
                (f"{printable_line(row.label):{width}}", colour), (f"{probability:>5}", _BOLD), (f" {when}", 0),
                (one_line(row.path), 0), (f"  {one_line(why)}" if why else "", _DIM),
            ]  # fmt: skip
            if shape.lists_top and row.top:
                listed = ", ".join(f"{name} {_percent(p)}" for name, p in row.top)
                words.append((one_line(f"[{listed}]"), 0))
            shown = (w if plain or not style else f"\x1b[{style}m{w}\x1b[0m" for w, style in words)
            print(*shown, file=uncleaned(stream))


def _percent(probability: float) -> str:
    """Whole percent, rounded down: a probability just below a threshold is not shown as the threshold."""
    return f"{math.floor(100 * probability + 1e-9)} %"


OUTPUTS.add(Output("table", as_text(write_table), lists_classes=True))
