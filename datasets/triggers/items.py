"""Labelled triggers, each in its strain file -> rows of an item table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.core.cells import ENDINGS, read_cells
from datasets.core.errors import Rejected, SecondhandError
from datasets.strain import Frames, read_frames, write_cache
from datasets.triggers.tables import LABELS, Triggers, column_of, is_binary, read_triggers

#: What a row may also tell of its item. Gravity Spy calls the parts of its training set so.
_ALSO = {"group": ("group",), "split": ("split", "sample_type"), "fold": ("fold",)}
#: What ``learners.predict --triggers`` adds beside the label: the best class, and why it refused.
_PREDICTED = {"best": ("ml_label",), "reason": ("reason",)}


def has_triggers(path: Path) -> bool:
    """Whether a file is a table of triggers and none of items: it has no column path."""
    if not path.is_file() or is_binary(path):
        return path.is_file()
    return path.suffix.lower() in ENDINGS and column_of(read_cells(path), "path") is None


def items_of_triggers(
    path: Path,
    strain: str,
    label_column: str | None = None,
    together: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows with path, label, gps, and group, split and fold as the table has them, in the order of
    files and times, of predictions also best and reason; and the triggers that have no label, no GPS time or no strain.

    ``together`` : of which detectors the strain is wanted at each time, all that there are if none is
    named; None for the trigger's own alone.

    Raises
    ------
    SecondhandError : the table or its column of labels is missing, or none of its rows can be used.
    """
    triggers, frames = read_triggers(path), read_frames(strain)
    wanted = (label_column,) if label_column else LABELS
    column = triggers.column(*(name.lower() for name in wanted))
    if column is None:
        raise SecondhandError(
            f"{path}: no column {' or '.join(wanted)}; it has "
            f"{', '.join(map(str, triggers.cells.columns[:40]))}. Name the labels' by --label-column"
        )
    if together is not None:
        together = together or sorted(frames.files)
        if not 2 <= len(together) <= 3 or min(map(len, together)) < 2:
            there = ", ".join(sorted(frames.files))
            raise SecondhandError(f"--detectors together: two or three are drawn, not {there}")
    found = places(triggers, frames, together or ())
    files = [file if isinstance(file, str) else "" for file in found]
    rejected = frames.rejected + [
        Rejected(triggers.name(row), why.reason)
        for row, why in enumerate(found)
        if isinstance(why, Rejected)
    ]
    predicted = triggers.column("label") is not None and triggers.column("reason") is not None
    named = _ALSO | (_PREDICTED if predicted else {})
    also = {name: triggers.column(*names) for name, names in named.items()}
    told = {name: triggers.cells[its].astype(str) for name, its in also.items() if its}
    label = triggers.cells[column].astype(str).str.strip()
    frame = pd.DataFrame({"path": files, "label": label, "gps": triggers.gps, **told})
    nameless = frame["path"].ne("") & frame["label"].eq("")
    rejected += [
        Rejected(triggers.name(row), "no label") for row in np.flatnonzero(nameless).tolist()
    ]
    frame = frame.loc[frame["path"].ne("") & ~nameless]
    twice = frame.duplicated(["path", "gps", "label"])
    rejected += [
        Rejected(triggers.name(row), "the trigger of an earlier row") for row in frame.index[twice]
    ]
    frame = frame.loc[~twice]
    if frame.empty:
        first = f"; the first left out: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(f"{path}: no labelled trigger with strain{first}")
    return frame.sort_values(["path", "gps"], ignore_index=True), rejected


def places(
    triggers: Triggers, frames: Frames, together: Sequence[str] = ()
) -> list[str | Rejected]:
    """The strain file of each trigger, or what is lacking.

    ``together`` : detectors whose files are wanted at each time; a LAL cache stands for them.
    """
    caches: dict[tuple[str, ...], str] = {}

    def place(detector: str, gps: float) -> str | Rejected:
        if not together:
            return frames.find(detector, gps)
        found = [frames.find(name, gps) for name in together]
        if lacking := [one for one in found if isinstance(one, Rejected)]:
            return lacking[0]
        files = tuple(map(str, found))
        if files not in caches:
            of_each = dict(zip(together, files, strict=True))
            caches[files] = write_cache(of_each)
        return caches[files]

    return [
        Rejected("", triggers.no_time(row)) if gps != gps else place(detector, gps)
        for row, (gps, detector) in enumerate(
            zip(triggers.gps.tolist(), triggers.detector, strict=True)
        )
    ]
