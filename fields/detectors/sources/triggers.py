"""Labelled triggers of Gravity Spy, Omicron or LIGO_LW, and the strain of each, which ``--strain`` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.core.errors import Rejected, SecondhandError, first_left_out
from datasets.items.columns import normalise_splits
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.strain.frames import parse_series, read_frames
from fields.detectors.trigger_tables import find_strain_files, has_triggers, read_triggers

LABELS = ("label", "ml_label")
#: Optional columns; ``sample_type`` is the split in Gravity Spy's training set.
_ALSO = {"group": ("group",), "split": ("split", "sample_type"), "fold": ("fold",)}
#: Columns that ``learners.predict --triggers`` adds: the best class, and the reason of a refusal.
_PREDICTED = {"best": ("ml_label",), "reason": ("reason",)}
#: Seconds of strain that may be used on either side of a trigger, unless the setting ``context`` says otherwise.
CONTEXT = 32.0


def read_items(path: Path, options: ReadOptions) -> Rows:
    """Rows sorted by file and time, with path, label and gps; triggers without label, GPS time or strain are rejected.

    The settings ``strain``, ``channel`` and ``context`` are used as in `read_frames` and `find_strain_files`. If the table
    has them, there are columns group, split and fold, and for predictions best and reason.

    Raises
    ------
    SecondhandError : the table or its column of labels is missing, or no row can be used.
    """
    settings = options.settings
    strain = settings["strain"]
    triggers, frames = read_triggers(path), read_frames(strain)
    label_names = (options.label_column,) if options.label_column else LABELS
    column = triggers.column(*label_names)
    if column is None and not options.label:
        raise SecondhandError(
            f"{path}: no column {' or '.join(label_names)}. It has "
            f"{', '.join(map(str, triggers.cells.columns[:40]))}. Name the column of labels with --label-column"
        )
    sources = find_strain_files(
        triggers,
        frames,
        channel=settings.get("channel") or "",
        context=settings.get("context", CONTEXT),
    )
    predicted = triggers.column("label") is not None and triggers.column("reason") is not None
    columns = {
        name: triggers.column(*names)
        for name, names in (_ALSO | (_PREDICTED if predicted else {})).items()
    }
    optional = {name: triggers.cells[cells].astype(str) for name, cells in columns.items() if cells}
    files = [file if isinstance(file, str) else "" for file in sources]
    label = options.label or triggers.cells[column].astype(str).str.strip()
    frame = pd.DataFrame({"path": files, "label": label, "gps": triggers.gps, **optional})
    has_strain, labelled = frame["path"].ne(""), frame["label"].ne("")
    usable = frame.loc[has_strain & labelled]
    twice = usable.duplicated(["path", "gps", "label"])
    reasons = [(row, bad.reason) for row, bad in enumerate(sources) if isinstance(bad, Rejected)]
    reasons += [(row, "no label") for row in np.flatnonzero(has_strain & ~labelled).tolist()]
    reasons += [(row, "the same trigger as an earlier row") for row in usable.index[twice].tolist()]
    rejected = frames.rejected + [Rejected(triggers.name(row), why) for row, why in reasons]
    usable = usable.loc[~twice]
    if usable.empty:
        first = first_left_out(rejected, "one")
        raise SecondhandError(
            f"{path}: no labelled trigger with strain in --strain {strain}{first}"
        )
    order = [usable["path"].map(parse_series), usable["gps"]]
    return Rows(normalise_splits(usable.iloc[np.lexsort(order[::-1])], path), rejected)


def _check(paths: Sequence[Path], options: ReadOptions) -> None:
    """Raise SecondhandError if ``--strain`` does not suit the sources."""
    strain = options.settings.get("strain")
    if strain and not any(path.name == "demo:glitches" or has_triggers(path) for path in paths):
        raise SecondhandError(
            f"--strain {strain}: --data {' + '.join(map(str, paths))} is neither a table of triggers nor demo:glitches. "
            "Name one of them, or leave --strain out"
        )
    if strain and options.multi_label:
        raise SecondhandError(
            f"--labels cannot be combined with --strain {strain}, because a trigger has one label. Leave one of "
            "them out"
        )


SOURCES.add(
    Source(
        name="triggers",
        order=15,
        # Without strain it is a table like any other, which has no column path.
        claims=lambda path, options: bool(options.settings.get("strain")) and has_triggers(path),
        read=read_items,
        check=_check,
    )
)
