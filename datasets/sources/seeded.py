"""Writes simulated files of labelled classes, each from its own seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside

#: Writes one file, given its path, its random generator and the numbers of class and file; returns further
#: columns of its row.
Write = Callable[[Path, np.random.Generator, int, int], dict[str, Any]]


def check_class(label: str, known: Sequence[str]) -> None:
    """Raise SecondhandError for an unknown class name."""
    if label not in known:
        raise SecondhandError(
            f"there is no simulated class {label!r}. The classes are {', '.join(known)}"
        )


def write_seeded(
    folder: str | os.PathLike[str],
    ending: str,
    write: Write,
    *,
    known: Sequence[str],
    classes: Sequence[str],
    per_class: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Write ``per_class`` files of each class, `folder/CLASS/CLASS-seed-number` with the ``ending``.

    Equal seeds write equal files. ``classes`` are some of the ``known`` ones; leaving one out does not change
    the files of the others.

    Returns
    -------
    One row per file: `path`, `label`, `simulated` (True), and the columns from ``write``.

    Raises
    ------
    SecondhandError : an unknown class, or ``per_class`` below 1.
    """
    if per_class < 1:
        raise SecondhandError(f"invalid settings: per_class={per_class} (must be 1 or more)")
    for label in classes:
        check_class(label, known)
    rows = []
    for label in classes:
        (Path(folder) / label).mkdir(parents=True, exist_ok=True)
        index = known.index(label)
        for number in range(per_class):
            path = Path(folder, label, f"{label}-{seed}-{number:04d}{ending}")
            with file_beside(path, durable=False) as beside:
                more = write(beside, np.random.default_rng([seed, index, number]), index, number)
            rows.append({"path": str(path), "label": label, **more, "simulated": True})
    return rows
