"""Finds the user's files in folders, and what is not the user's."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from datasets.core.address import as_path, is_address, walk_address
from datasets.core.errors import Rejected, one_line

#: The file that describes a data package, such as Camtrap DP.
PACKAGE = "datapackage.json"
#: Files that show what a folder holds: a million others are not listed to find one.
SHOWN = 100
#: Why a folder is not looked into.
LINK_LOOP, UNLISTED = "link back to a folder above it", "folder that cannot be listed"
LINK_AGAIN = "link to a folder that is read already"
#: Why a file is not read whose name tables cannot hold.
NOT_UTF8 = "its name is not valid UTF-8: rename it"
SYSTEM = "hidden folder, or one of the system"
#: Files and folders of operating systems and network drives, in lower case; others begin with a dot.
_OF_SYSTEM = {
    "thumbs.db", "desktop.ini", "$recycle.bin", "recycler", "system volume information", "lost+found", "__macosx",
    "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp", "@sharebin", "@__thumb", "~snapshot",
    "recycled", "lost.dir", "msdownld.tmp", "network trash folder", "temporary items", "__pycache__",
}  # fmt: skip
#: Folders in which Windows puts what it finds on a damaged disk or card.
_RESCUED = re.compile(r"found\.\d{3}")


def walk(root: str | os.PathLike[str], left_out: list[Rejected]) -> Iterator[str]:
    """Yield the user's files in a folder and below, sorted by name, a folder's files before its subfolders'.

    Links to folders are followed, but to each folder once: two links in each of 30 folders would lead to a billion. Links
    to a parent folder or to one that is read already, unreadable folders, hidden ones and those of the system are added
    to ``left_out``.
    """

    if is_address(root):
        yield from walk_address(str(root), left_out)
        return

    def unlisted(error: OSError) -> None:
        left_out.append(Rejected(str(error.filename), UNLISTED))

    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, onerror=unlisted, followlinks=True):
        seen |= _identity(folder)
        back = [name for name in folders if is_link_loop(os.path.join(folder, name))]
        reasons = {name: SYSTEM for name in folders if not is_user_file(Path(name))}
        for name in sorted({*folders} - {*reasons, *back}):
            if os.path.islink(link := os.path.join(folder, name)):
                target = _identity(link)
                if target and target <= seen:
                    reasons[name] = LINK_AGAIN
                seen |= target
        reasons |= dict.fromkeys(back, LINK_LOOP)
        left_out += [
            Rejected(os.path.join(folder, name), why) for name, why in sorted(reasons.items())
        ]
        folders[:] = sorted({*folders} - {*reasons})
        yield from (
            os.path.join(folder, name) for name in sorted(files) if is_user_file(Path(name))
        )


def _identity(folder: str) -> set[tuple[int, int]]:
    """What tells a folder from all others of this machine; nothing where it has gone or the system has no such numbers."""
    try:
        state = os.stat(folder)
    except OSError:
        return set()
    return {(state.st_dev, state.st_ino)} if state.st_ino else set()


def is_link_loop(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a link to one of its parents; following it would never end."""
    if is_address(folder) or not os.path.islink(folder):
        return False
    above = {os.path.realpath(parent) for parent in Path(folder).absolute().parents}
    return os.path.realpath(folder) in above


def files_below(root: str | os.PathLike[str]) -> tuple[list[str], list[Rejected]]:
    """All files that `walk` finds, sorted, and the rejected ones; names that are not UTF-8 are rejected."""
    bad: list[Rejected] = []
    files = []
    for path in sorted(walk(root, bad), key=Path):
        if (name := in_unicode(path)) == path:
            files.append(path)
        else:
            bad.append(Rejected(name, NOT_UTF8))
    return files, bad


def shown_by(root: str | os.PathLike[str], *endings: str) -> str:
    """The first file with one of these endings among the first `SHOWN` in a folder and below, which show what it holds;
    "" if there is none."""
    first = islice(walk(root, []), SHOWN)
    return next((file for file in first if file.lower().endswith(endings)), "")


def in_unicode(text: str) -> str:
    """The text with ``?`` for each byte that is not UTF-8, which tables cannot hold."""
    return text.encode("utf-8", "replace").decode()


def below(path: str, names: Sequence[str]) -> str:
    """Path of a file relative to the folder among ``names`` that contains it, the innermost; else its name."""
    file = as_path(path)
    for folder in sorted(map(as_path, names), key=lambda name: -len(name.parts)):
        if folder in file.parents and ".." not in (inside := file.relative_to(folder)).parts:
            return str(inside)
    return file.name


def skipped_line(skipped: Counter[str]) -> str:
    """One line of text about the skipped files."""
    counts = [f"{count} {ending}" for ending, count in skipped.most_common(10)]
    more = ["…"] if len(skipped) > 10 else []
    total = skipped.total()
    if {*skipped} & {LINK_LOOP, LINK_AGAIN, UNLISTED, SYSTEM}:
        things = "files and folders" if total > 1 else "folder"
    else:
        things = "files of other kinds" if total > 1 else "file of another kind"
    return one_line(f"skipped {total} {things}: {', '.join([*counts, *more])}")


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Absolute path. ``..`` is kept, because after a link it is not the parent folder of the text."""
    return str(path) if is_address(path) else str(Path.cwd() / path)


def is_user_file(path: Path) -> bool:
    """Whether a file or folder is the user's: neither hidden nor of the operating system (``.DS_Store``,
    ``._photo.jpg``, ``Thumbs.db``, ``.Trash-1000``, ``@eaDir``)."""
    name = path.name.lower()
    return not (name.startswith(".") or name in _OF_SYSTEM or _RESCUED.fullmatch(name))


def in_any_form(path: str) -> str:
    """The path as it exists: the Unicode form of its names, NFC or NFD, may be another one.

    A zip or a drive from macOS has decomposed names (NFD), and tables that were written elsewhere composed ones.
    """
    if path.isascii() or is_address(path) or os.path.lexists(path):
        return path
    folder, name = os.path.split(path)
    names = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    paths = (os.path.join(in_any_form(folder), name) for name in names)
    return next(filter(os.path.lexists, paths), path)
