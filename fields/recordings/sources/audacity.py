"""Label tracks of Audacity (https://www.audacityteam.org): lines of start, end and label, separated by tabs."""

from __future__ import annotations

import math
from pathlib import Path

from datasets.sources.base import ReadOptions
from fields.recordings import tracks
from fields.recordings.tracks import ParsedSelection, Selection, seconds


def _starts(path: Path) -> bool:
    first = tracks.first_cells(path)
    return len(first) > 1 and not any(math.isnan(seconds(cell)) for cell in first[:2])


def _parse(path: Path, options: ReadOptions) -> list[ParsedSelection]:
    selections: list[ParsedSelection] = []
    for n, cells in tracks.read_lines(path):
        if cells[0] == "\\" and selections:  # the frequencies of the label above
            low, high = map(seconds, (*cells[1:], "", "")[:2])
            span, limits = selections[-1]
            selections[-1] = span._replace(low=low, high=high), limits
        elif cells[0] != "\\":
            start, end = (*cells, "")[:2]
            label = " ".join(cells[2:]).strip()
            selections.append((Selection(seconds(start), seconds(end), label, n), (start, end)))
    return selections


tracks.add_format(
    "audacity",
    41,
    ".txt",
    "an Audacity label track (tab-separated start, end and label)",
    _parse,
    starts=_starts,
)
