"""Writes simulated files of labelled classes, each from its own seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside

#: What is written to a path with a file's own generator, by the class's number and the file's:
#: what a table says of it besides.
Write = Callable[[Path, np.random.Generator, int, int], dict[str, Any]]


def check_class(label: str, known: Sequence[str]) -> None:
    """Raise SecondhandError for an unknown class name."""
    if label not in known:
        raise SecondhandError(f"{label!r} is not simulated; {', '.join(known)} are")


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
    """Write ``per_class`` files of each class, `folder/CLASS/CLASS-seed-number` and the ``ending``.

    Equal seeds write equal files. ``classes`` are some of the ``known`` ones: one left out can serve
    as the unknown, and changes no other file. One row a file: `path`, `label`, `simulated`, which is
    True, and what ``write`` gave.
    """
    if per_class < 1:
        raise SecondhandError(f"{per_class} files of each class: at least 1 is needed")
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
