"""Which of the programs wrote what ``--data`` names, and its rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from datasets.annotations.camtrap import PACKAGE, read_package
from datasets.annotations.recordings import has_tracks, read_tracks
from datasets.core.errors import Rejected, SecondhandError


def is_annotated(path: Path) -> bool:
    """Whether a folder or file is annotations: a data package, tables beside recordings, or a table."""
    if path.is_dir():
        return (path / PACKAGE).is_file() or has_tracks(path)
    return path.suffix.lower() == ".txt" or path.name == PACKAGE


def read_annotations(
    path: Path, label_column: str | None = None
) -> tuple[pd.DataFrame, list[Rejected], str]:
    """The rows of annotations: path, label, start, end (seconds), and of a data package group; what
    was left out; and a word on where the labels are from.

    A span that has two labels is left out, for an item has one.

    Raises
    ------
    SecondhandError : no label is there, or a table or column is missing.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / PACKAGE).is_file() and path in (folder, folder / PACKAGE):
        frame, rejected, note = read_package(folder, label_column)
    else:
        rows, rejected = read_tracks(path, label_column)
        frame, note = pd.DataFrame(rows), ""
    key = ["path", "start", "end"]
    frame = frame.drop_duplicates([*key, "label"])
    several = frame.duplicated(key, keep=False)
    for (file, start, end), same in frame.loc[several].groupby(key, dropna=False):
        span = "" if start != start else f"{start:g} to {end:g} s: "
        labels = " and ".join(sorted(same["label"]))
        rejected.append(Rejected(str(file), f"{span}it has the labels {labels}, and one is learnt"))
    frame = frame.loc[~several].reset_index(drop=True)
    if frame.empty:
        raise SecondhandError(f"--data {path}: no item is left; {': '.join(rejected[0])}")
    return frame, rejected, note
