"""Strangers: files of what a model is not to know. Those of ``--unknown`` are for measuring alone;
those of ``--background`` are learnt as none of the classes.

They come as a folder of any nesting (what its folders are called is no matter), as a table of
which the column ``path`` alone is needed, or as ``demo:NAME``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from datasets.annotations import is_annotated, read_annotations
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.scanning import SUFFIXES, files_below, kind_of
from datasets.items.checks import Look, usable, without_copies
from datasets.items.labels import UNKNOWN
from datasets.items.table import read_rows, with_columns, with_times


def load_strangers(
    source: str | os.PathLike[str],
    kind: str,
    known: pd.DataFrame,
    *,
    flag: str = "--unknown",
    check: Callable[[str], None] | None = None,
    looks: dict[str, Look] | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """The strangers that ``flag`` names, as an item table with the label ``unknown``.

    Parameters
    ----------
    source : a folder, a ``.csv``, ``.tsv`` or ``.parquet`` file, or ``demo:NAME``.
    kind : "picture", "sound" or "strain": what the known items are.
    known : the items of the run with their splits; a copy of one of them is no stranger.
    flag : names them, in errors.
    check : as in :func:`datasets.items.table.load_table`.
    looks : as in :func:`datasets.items.checks.usable`.

    Returns
    -------
    The table, and the files left out.

    Raises
    ------
    SecondhandError : there is no such folder or file, or no usable file in it.
    """
    frame, rejected = load_unlabelled(source, kind, flag, check=check, looks=looks)
    frame, copies = without_copies(frame, strangers_to=known)
    rejected += copies
    if frame.empty:
        left = (
            f" ({len(rejected)} left out, the first: {': '.join(rejected[0])})" if rejected else ""
        )
        raise SecondhandError(
            f"{flag} {os.fspath(source)}: no usable {kind} file in it{left}. Put files of what "
            f"the model is not to know there, or leave {flag} out"
        )
    return frame, rejected


def load_unlabelled(
    source: str | os.PathLike[str],
    kind: str,
    flag: str,
    *,
    check: Callable[[str], None] | None = None,
    looks: dict[str, Look] | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """The files that a ``flag`` names, as an item table with the label ``unknown``, and those left
    out.

    Parameters and errors are those of `load_strangers`, but copies stay, and there may be no file.
    """
    name = os.fspath(source)
    rejected: list[Rejected] = []
    if name.startswith("demo:"):
        from datasets.sources import write_demo

        frame, _ = write_demo(name.removeprefix("demo:"))
    elif Path(name).exists() and is_annotated(Path(name)):
        frame, rejected, _ = read_annotations(Path(name))
    elif Path(name).is_dir():
        # Other kinds of file are somebody's notes.
        files, rejected = files_below(name)
        own = [file for file in files if kind_of(file) == kind]
        frame = pd.DataFrame({"path": pd.Series(own, dtype=str)})
    elif Path(name).exists():
        frame, rejected = read_rows(Path(name), label=UNKNOWN)
    else:
        raise SecondhandError(f"{flag} {name}: there is no such folder or file")
    frame, short = with_times(frame, kind, name)
    frame = with_columns(frame.assign(label=UNKNOWN, split=""))
    frame, bad = usable(frame, kind, SUFFIXES[kind], check, looks)
    return frame, [*rejected, *short, *bad]
