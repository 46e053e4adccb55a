"""Finds the files of a kind that names, folders and patterns stand for."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from datasets.core.address import as_path, contents, is_address, is_folder, matches, without_secrets
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.scanning import is_user_file, skipped_line, walk
from datasets.kinds.base import Kind, find_kind


def find_files(
    names: Sequence[str], kind: Kind | None = None, skipped: Counter[str] | None = None
) -> Iterator[str]:
    """Yield the files that names stand for: a file, the matches of a pattern, or the files of a folder, or of a
    file that holds others.

    Files of another kind are skipped in folders only; a file that is named itself is always yielded.

    Parameters
    ----------
    kind : kind of the model's inputs; None for all kinds.
    skipped : counter of the skipped files by suffix, and of the skipped folders by reason.
    """
    for name in map(without_secrets, names):
        if find_kind(name) != kind:
            name = contents(name)
        if is_folder(name):
            left_out: list[Rejected] = []
            for file in walk(name, left_out):
                if (file_kind := find_kind(file)) and kind in (None, file_kind):
                    yield file if is_address(file) else str(Path(file))
                elif skipped is not None:
                    skipped[as_path(file).suffix.lower() or "without an ending"] += 1
            if skipped is not None:
                skipped.update(folder.reason for folder in left_out)
        else:
            yield from named(name)


def named(name: str) -> list[str]:
    """The files and folders that a pattern stands for, sorted; any other name, or a pattern that matches nothing, itself:
    it is reported as a missing file."""
    if not glob.has_magic(name):
        return [name]
    if is_address(name):
        return matches(name) or [name]
    if os.path.exists(name):
        return [name]
    wanted = {*Path(name).parts}  # what the pattern itself names
    return sorted(
        match for match in glob.glob(name, recursive=True)
        if all(part in wanted or is_user_file(Path(part)) for part in Path(match).parts)
    ) or [name]  # fmt: skip


def some_files(names: Sequence[str], kind: Kind, skipped: Counter[str]) -> Iterator[str]:
    """`find_files`, but raises SecondhandError at once if there is no file."""
    files = find_files(names, kind, skipped)
    first = next(files, None)
    if first is None:
        raise SecondhandError(
            f"{', '.join(names)[:500]}: no {kind} file in a supported format"
            f"{f' ({skipped_line(skipped)})' if skipped else ''}. Name {kind} files, folders that contain "
            "some, or patterns"
        )
    return chain([first], files)
