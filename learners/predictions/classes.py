"""What a question says of classes: which may be answered, and each from what probability on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from datasets.core.cells import read_dicts
from datasets.core.errors import SecondhandError, shown


def read_names(classes: str) -> tuple[str, ...]:
    """Those in a file, one a line, or those with commas between them."""
    named = (
        _text(classes, "--classes").splitlines() if os.path.isfile(classes) else classes.split(",")
    )
    if not (names := tuple(name for line in named if (name := line.strip()))):
        raise SecondhandError(
            f"--classes {classes}: names no class; give some with commas between them, or a file with a "
            "name a line"
        )
    return names


def check_names(names: Sequence[str], model: str, classes: Sequence[str], flag: str) -> None:
    """Raise SecondhandError for names that are no classes of the model."""
    if strange := [name for name in names if name not in classes]:
        raise SecondhandError(
            f"{flag}: {model} has no {', '.join(strange)[:300]}; it has {', '.join(classes)[:500]}"
        )


def read_thresholds(file: Path) -> dict[str, float]:
    """Of a CSV file with the columns label and threshold: probabilities in [0, 1] by class.

    Raises
    ------
    SecondhandError : a column is missing, a class is there twice, or a threshold is none.
    """
    begin = f"--threshold-per-class {file}"
    columns, rows = read_dicts(_text(str(file), "--threshold-per-class").splitlines())
    found: dict[str, float] = {}
    if not {"label", "threshold"} <= {*columns}:
        raise SecondhandError(
            f"{begin}: columns {', '.join(columns)[:200] or '(none)'}; label and "
            "threshold are needed"
        )
    for row in rows:
        label, value = (row["label"] or "").strip(), row["threshold"]
        if label in found:
            raise SecondhandError(f"{begin}: {shown(label)} is there twice")
        try:
            found[label] = float(value)
        except (TypeError, ValueError):
            found[label] = -1.0
        if not 0 <= found[label] <= 1:
            raise SecondhandError(
                f"{begin}: {shown(value)} of {shown(label)} is no probability from 0 to 1"
            )
    return found


def _text(file: str, flag: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SecondhandError(f"{flag} {file}: cannot be read as text in UTF-8 ({error})") from None
