"""TextGrids of Praat (https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html), as text, long or short."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from datasets.core.errors import BadFile, quoted
from datasets.tables.cells import read_text
from fields.recordings import tiers
from fields.recordings.tiers import Tier
from fields.recordings.tracks import Selection, seconds

_POINTS = "TextTier"
_CLASSES = ("IntervalTier", _POINTS)
#: What Praat reads: texts in quotes, and numbers that stand free. All else, and what follows a !, is for people.
_WORD = re.compile(r'"([^"]*(?:""[^"]*)*)"|!.*|(\S+)')


class _Entry(NamedTuple):
    """A text, its line, and the numbers before it; at the end of the file None."""

    line: int
    numbers: list[str]
    text: str | None


def _entries(content: str) -> Iterator[_Entry]:
    numbers: list[str] = []
    line, counted = 1, 0
    for word in _WORD.finditer(content):
        if word[1] is not None:
            line += content.count("\n", counted, word.start())
            counted = word.start()
            yield _Entry(line, numbers, word[1].replace('""', '"'))
            numbers = []
        elif word[2] and not math.isnan(seconds(word[2])):
            numbers.append(word[2])
    yield _Entry(line, numbers, None)


def _read_tiers(path: Path) -> list[Tier]:
    """The tiers of a file, without their empty intervals.

    Raises
    ------
    BadFile : it is no TextGrid as text, or has more or fewer tiers or intervals than it says.
    """
    entries = _entries(read_text(path))
    head = [one.text or "" for one in islice(entries, 2)]
    if not head[0].startswith("ooTextFile") or head[1:] != ["TextGrid"]:
        raise BadFile(path, "no TextGrid as text. Save it in Praat by Save as text file")
    found: list[Tier] = []
    # Of the file and of each tier: how many tiers or intervals it says that it has, and has.
    stated, counts, begins = list[str](), [0], True
    for line, numbers, text in entries:
        if begins:  # its two limits and its size
            stated += numbers[2:3] or ["?"]
            numbers, begins = numbers[3:], False
        if text in _CLASSES and not numbers:
            found.append(Tier(tiers.label(next(entries).text), [], text == _POINTS))
            counts[0], begins = counts[0] + 1, True
            counts.append(0)
        elif text is not None and found:
            counts[-1] += 1
            times = numbers * 2 if found[-1].of_points else numbers
            start, end = times if len(times) == 2 else (" ".join(times), "")
            if name := tiers.label(text):
                span = Selection(seconds(start), seconds(end), name, line)
                found[-1].spans.append((span, (start, end)))
    names = ["the file", *(f"tier {quoted(one.name)}" for one in found)]
    for name, count, size in zip(names, counts, [*stated, "?"], strict=False):
        if seconds(size) != count:
            raise BadFile(
                path, f"damaged or cut off: {name} says that it has {size} and has {count}"
            )
    return found


tiers.add_format("textgrid", 42, ".textgrid", "a TextGrid of Praat", _read_tiers)
