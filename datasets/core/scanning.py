"""Many files looked at, of which some are bad: each gives an answer, or the reason why it gives none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from datasets.core.errors import BadFile, Rejected
from datasets.core.processes import CRASHED, in_parallel

A = TypeVar("A")
#: Why a folder is not looked into.
LEADS_BACK, UNLISTED = "link back to a folder above it", "folder that cannot be listed"
_CHUNK = 32  # files that a worker looks at before it reports


def look_at(look: Callable[[str], A], paths: Sequence[str]) -> list[A | Rejected]:
    """What ``look`` gives for each file, in their order; for a BadFile what is wrong with it."""
    found: list[A | Rejected] = []
    for path in paths:
        try:
            found.append(look(path))
        except BadFile as error:
            found.append(Rejected(path, error.reason))
    return found


def look_apart(
    look: Callable[[str], A], paths: Sequence[str], workers: int | None = None
) -> list[A | Rejected]:
    """`look_at` in processes, one a core unless given: one that dies costs the file that it read."""
    chunks = [[*paths[first : first + _CHUNK]] for first in range(0, len(paths), _CHUNK)]
    died: A | Rejected = Rejected("", CRASHED)
    answers = dict(in_parallel(partial(look_at, look), chunks, workers, died))
    found = [answer for number in range(len(chunks)) for answer in answers[number]]
    return [
        Rejected(path, answer.reason) if isinstance(answer, Rejected) else answer
        for path, answer in zip(paths, found, strict=True)
    ]


def walk(root: str | os.PathLike[str], left_out: list[Rejected]) -> Iterator[str]:
    """The user's files in a folder as they are found, its own before those of the folders in it, by name.

    Links to folders are followed. One that leads back to a folder above it, and a folder that cannot be
    listed, go to ``left_out``.
    """

    def unlisted(error: OSError) -> None:
        left_out.append(Rejected(str(error.filename), UNLISTED))

    for folder, folders, files in os.walk(root, onerror=unlisted, followlinks=True):
        back = [name for name in folders if leads_back(os.path.join(folder, name))]
        left_out += [Rejected(os.path.join(folder, name), LEADS_BACK) for name in sorted(back)]
        folders[:] = sorted({*folders} - {*back})
        yield from (os.path.join(folder, name) for name in sorted(files) if visible(Path(name)))


def leads_back(folder: str | os.PathLike[str]) -> bool:
    """Whether it is a link to a folder that it lies in: who follows it goes in circles."""
    if not os.path.islink(folder):
        return False
    above = {os.path.realpath(parent) for parent in Path(folder).absolute().parents}
    return os.path.realpath(folder) in above


def files_below(root: str | os.PathLike[str]) -> tuple[list[str], list[Rejected]]:
    """All that `walk` finds, sorted; and what is left out, also files that no table can name."""
    bad: list[Rejected] = []
    files = []
    for path in sorted(walk(root, bad), key=Path):
        name = path.encode("utf-8", "replace").decode()
        if name == path:
            files.append(path)
        else:
            bad.append(Rejected(name, "its name is no UTF-8: rename it"))
    return files, bad


def whole(path: str | os.PathLike[str]) -> str:
    """A path from the root, which names the same file from any folder. ``..`` stays: behind a link it is
    not the folder above."""
    return str(Path.cwd() / path)


def visible(path: Path) -> bool:
    """A file of the user's. Operating systems leave .DS_Store, ._photo.jpg and Thumbs.db everywhere."""
    return not path.name.startswith(".") and path.name not in ("Thumbs.db", "desktop.ini")
