"""The columns of an item table, in their types.

They are ``path, label, group, split, fold``, those of `RECORDED_COLUMNS`, and ``complete`` (str, "" if unknown;
complete is "1" if all calls of the recording are labelled), ``start, end, gps`` (float seconds, NaN if not
given), ``low_hz, high_hz, confidence`` (only where labels have frequency limits, or were made by a program) and ``x, y, width, height`` of a box (fractions of
the picture, NaN for all of it). Rows with the reserved label ``unknown`` are of unknown classes: no network is
trained on them; they measure what a model refuses. Labels are normalised (`clean_label`), paths absolute.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.audio.band import BAND_COLUMNS
from datasets.core.address import as_path
from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.part import PART_COLUMNS, Box
from datasets.core.recorded import RECORDED_COLUMNS
from datasets.core.scanning import absolute_path
from datasets.images.boxes import box_in_picture
from datasets.items.labels import UNKNOWN, clean_label
from datasets.kinds.base import KINDS
from datasets.tables.cells import MISSING, SHORTEST_SPAN, span_error, with_points

log = logging.getLogger(__name__)

#: How sure a program was of a label: carried along for whoever looks at the labels.
CONFIDENCE = "confidence"
#: Column that marks the items of an earlier run.
REHEARSED = "rehearsed"
TEXT_COLUMNS = ("path", "label", "group", "split", "fold", *RECORDED_COLUMNS, "complete")
#: Columns that ``--group-by`` may name, once a step has filled them.
GROUPING = ("deployment",)
#: Names of the parts of data, in tables and of folders, and ours.
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "valid": "valid", "val": "valid", "validation": "valid",
    "calibration": "calibration",
    "test": "test", "testing": "test",
}  # fmt: skip


def normalise_splits(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Normalise the names in the column ``split``; SecondhandError for other values."""
    if "split" in frame:
        # The tables of a run use these words for unknown and background files.
        frame["split"] = frame["split"].str.lower().replace([UNKNOWN, "background"], "")
        wrong = sorted(set(frame["split"]) - {*SPLIT_NAMES, ""})
        if wrong:
            raise SecondhandError(
                f"{path}: unknown split {quoted(wrong[0])} (must be train, valid, calibration, test or empty)"
            )
        frame["split"] = frame["split"].map(lambda name: SPLIT_NAMES.get(name, ""))
    return frame


def with_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the missing columns of an item table, order them, and normalise paths and labels.

    The frequency limits and confidences of labels stay, if there are any.
    """
    empty = dict.fromkeys(TEXT_COLUMNS, "") | dict.fromkeys(PART_COLUMNS, float("nan"))
    frame = frame.assign(**{name: value for name, value in empty.items() if name not in frame})
    frame["path"] = frame["path"].map(
        {path: absolute_path(path) for path in frame["path"].unique()}
    )
    frame["label"] = frame["label"].map({name: clean_label(name) for name in frame["label"]})
    of_labels = [name for name in (*BAND_COLUMNS, CONFIDENCE) if name in frame]
    frame[of_labels] = frame[of_labels].apply(pd.to_numeric, errors="coerce")
    return frame[[*empty, *of_labels]].reset_index(drop=True)


def is_rehearsed(frame: pd.DataFrame) -> pd.Series:
    """True for the items of an earlier run."""
    return frame.get(REHEARSED, pd.Series(False, index=frame.index)).astype(bool)


def without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """An item table as it is written: without the columns of boxes if no item has one."""
    return frame.drop(columns=[name for name in Box._fields if frame[name].isna().all()])


def with_parts(frame: pd.DataFrame, kind: str, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Convert the times, or boxes, of this kind of file to numbers; rows with too short spans and boxes outside of
    the picture are rejected.

    Raises
    ------
    SecondhandError : a value is not a number, or a start is not before its end; names the row.
    """
    time_columns = [name for name in KINDS[kind].parts if name in frame]
    if not {*Box._fields} <= {*time_columns}:  # a width may be that of the file
        time_columns = [name for name in time_columns if name not in Box._fields]
    unused = [name for name in PART_COLUMNS if name in frame and name not in time_columns]
    if filled := [name for name in unused if not frame[name].isin(["", np.nan]).all()]:
        log.info("%s: columns that are not used for %s files: %s", source, kind, ", ".join(filled))
    frame = frame.drop(columns=unused).assign(
        **{n: _seconds(frame[n], source) for n in time_columns}
    )
    if {"start", "end"} <= {*time_columns}:
        for row in frame.index[frame["start"] >= frame["end"]][:1]:
            start, end = frame.loc[row, ["start", "end"]]
            raise SecondhandError(
                f"{source}, row {row + 2}: start {start:g} is not before end {end:g}"
            )
        short = frame.index[(frame["end"] - frame["start"]).round(9) < SHORTEST_SPAN]
        rejected = [
            Rejected(
                str(path), f"{span_error(start, end)} (row {row + 2} of {as_path(source).name})"
            )
            for row, path, start, end in frame.loc[short, ["path", "start", "end"]].itertuples()
        ]
        return frame.drop(index=short), rejected
    return _with_boxes(frame, source) if "x" in time_columns else (frame, [])


def _with_boxes(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows whose boxes lie in their pictures, cut at the edges, and the rejected rows; without a box a row is the
    whole picture."""
    columns, rejected, boxes = [*Box._fields], {}, {}
    given = frame[columns].notna().any(axis=1)
    for row, path, *values in frame.loc[given, ["path", *columns]].itertuples():
        try:
            boxes[row] = box_in_picture(values)
        except ValueError as error:
            where = f" (row {row + 2} of {as_path(source).name})"
            rejected[row] = Rejected(str(path), f"{error}{where}")
    frame = frame.drop(index=[*rejected])
    if boxes:
        frame.loc[[*boxes], columns] = [[*box] for box in boxes.values()]
    return frame, [*rejected.values()]


def _seconds(cells: pd.Series, source: str) -> pd.Series:
    """Numbers, NaN for empty cells."""
    cells = cells.mask(cells.isin(MISSING), "")
    numbers = pd.to_numeric(with_points(cells).replace("", "nan"), errors="coerce").astype(float)
    unit = "" if cells.name in Box._fields else " of seconds"
    for row in cells.index[~np.isfinite(numbers) & cells.ne("") & cells.notna()][:1]:
        raise SecondhandError(
            f"{source}, row {row + 2}: {cells.name} {quoted(cells.at[row])} is not a number{unit}"
        )
    return numbers
