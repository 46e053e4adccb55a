"""What an output format is, and the registry of all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from datasets.cli.options import Condition
from datasets.core.files import file_beside
from datasets.core.registry import Registry
from datasets.kinds.base import KINDS, Kind
from learners.inference.predictions import Prediction
from learners.predictions.rows import RowSettings


@dataclass(frozen=True)
class Output:
    """A format of predictions, the word behind ``--format``.

    Attributes
    ----------
    write : writes predictions to a file or folder, or to standard output for None. An existing file is replaced as a
        whole; other files in a folder stay.
    conflicts : settings that it does not go with.
    check : returns what of a call the format cannot write, as the end of a sentence that begins with ``--format NAME``;
        "" if it writes everything. It is called with the rows and the kind of data before anything is predicted.
    folder : ``--out`` is a folder of files.
    needs_out : what it writes, if that cannot go to standard output, and what to give as ``--out``.
    lists_classes : it has a column for the most probable classes.
    windows : a recording has a row for each window, also without ``--windows``.
    parts : a picture has a row for each box of a detector, also without ``--windows``.
    """

    name: str
    write: Callable[[Iterable[Prediction], RowSettings, Path | None], None]
    check: Callable[[RowSettings, Kind], str] = lambda shape, kind: ""
    folder: bool = False
    needs_out: str = ""
    lists_classes: bool = False
    windows: bool = False
    parts: bool = False
    conflicts: tuple[Condition, ...] = ()


OUTPUTS: Registry[Output] = Registry("learners.outputs")


def only_for(*media: str) -> Callable[[RowSettings, Kind], str]:
    """An `Output.check` that refuses kinds of other media types, such as "image"."""

    def check(shape: RowSettings, kind: Kind) -> str:
        if kind.media in media:
            return ""
        names = [name for name, one in KINDS.items() if one.media in media]
        return f"is for {' and '.join(names)}, but the kind of this model is {kind}. Choose another --format"

    return check


def as_text(
    write: Callable[[Iterable[Prediction], RowSettings, TextIO], None],
    finish: Callable[[Path], object] = lambda file: None,
) -> Callable[[Iterable[Prediction], RowSettings, Path | None], None]:
    """An `Output.write` for a format that is one text, from a function that writes it to a stream.

    ``finish`` : called with the written file, before it is renamed to its place.
    """

    def to_file(predictions: Iterable[Prediction], shape: RowSettings, out: Path | None) -> None:
        if out is None:
            write(predictions, shape, sys.stdout)
            return
        # File names that are not UTF-8 are written byte by byte.
        with (
            file_beside(out) as beside,
            open(beside, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            write(predictions, shape, stream)
            stream.close()
            finish(beside)

    return to_file
