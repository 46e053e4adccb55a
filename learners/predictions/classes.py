"""The classes that a call predicts, and their thresholds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from datasets.core.errors import SecondhandError, quoted
from datasets.tables.cells import read_csv, read_text, with_points


def read_class_names(classes: str) -> tuple[str, ...]:
    """Class names from a file with one per line, or from a comma-separated list.

    Raises
    ------
    SecondhandError : there is no name.
    """
    parts = classes.split(",")
    if os.path.isfile(classes):
        parts = read_text(Path(classes)).splitlines()
    if not (names := tuple(name for line in parts if (name := line.strip()))):
        raise SecondhandError(
            f"--classes {classes} contains no class name. Give names separated by commas, or a file with one name per "
            "line"
        )
    return names


def check_class_names(names: Sequence[str], model: str, classes: Sequence[str], flag: str) -> None:
    """Raise SecondhandError for names that are not classes of the model."""
    if unknown := [name for name in names if name not in classes]:
        raise SecondhandError(
            f"{flag}: the model {model} has no class {', '.join(unknown)[:300]}. Its classes are "
            f"{', '.join(classes)[:500]}"
        )


def read_thresholds(file: Path) -> dict[str, float]:
    """Thresholds by class, probabilities in [0, 1], from a CSV file with the columns label and threshold.

    Raises
    ------
    SecondhandError : a column is missing, a class appears twice, or a threshold is not a probability.
    """
    prefix = f"--threshold-per-class {file}"
    cells = read_csv(file)
    thresholds: dict[str, float] = {}
    if not {"label", "threshold"} <= {*cells}:
        raise SecondhandError(
            f"{prefix} has the columns {', '.join(map(str, cells))[:200] or '(none)'}; it needs the columns label and threshold"
        )
    for label, value in zip(
        cells["label"].str.strip(), with_points(cells["threshold"]), strict=True
    ):
        if label in thresholds:
            raise SecondhandError(f"{prefix}: the class {quoted(label)} has two rows. Delete one")
        try:
            thresholds[label] = float(value)
        except (TypeError, ValueError):
            thresholds[label] = -1.0
        if not 0 <= thresholds[label] <= 1:
            raise SecondhandError(
                f"{prefix}: the threshold {quoted(value)} of {quoted(label)} is not a number from 0 to 1"
            )
    return thresholds
