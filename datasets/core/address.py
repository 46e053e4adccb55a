"""Paths of files that are not on a disk: what they are is asked of the door of their scheme.

An address is a text such as ``scheme://place/1.wav``. As text it is the path of an item, as on a disk. `local` gives the
path to open. What is on a disk needs no door.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from datasets.core.doors import DOORS, Door, State
from datasets.core.errors import BadFile, Rejected
from datasets.core.part import AnyPath
from datasets.core.shipped import needed_to_open

T = TypeVar("T")

_SCHEME = re.compile(r"(?!(?i:file):)([A-Za-z][A-Za-z0-9+.-]+)://")
#: A user's name and password in an address, and what follows the path.
_SECRETS = re.compile(r"(://)(?:[^/\s'\"@]+@)?([^\s'\"?]*)(?:\?[^\s'\"]*)?")


def is_address(path: AnyPath) -> bool:
    """Whether a path is an address, instead of one on a disk.

    Examples
    --------
    >>> is_address("attic://fox/a.jpg"), is_address("C:/a.jpg"), is_address("file:///a.jpg")
    (True, False, False)
    """
    return bool(_SCHEME.match(str(path)))


def door_of(address: AnyPath) -> Door:
    """The door that answers for an address.

    Raises
    ------
    BadFile : there is none; the message names the field that has it.
    """
    if (door := _door(address)) is not None:
        return door
    text = str(address)
    schemes = [f"{one}://" for door in DOORS.values() for one in door.schemes]
    begins = f", or their address begins with {', '.join(schemes)}" if schemes else ""
    reason = (
        needed_to_open(text)
        or f"{text.partition('://')[0]}:// is not read. Files are on a disk{begins}"
    )
    raise BadFile(_SECRETS.sub(r"\1\2", text), reason)


def _door(path: AnyPath) -> Door | None:
    """The door of an address; None of one that nothing reads, and of a path on a disk."""
    found = _SCHEME.match(str(path))
    if found is None:
        return None
    scheme = found[1].lower()
    every = (door for doors in DOORS.in_turn() for door in doors)
    return next((door for door in every if scheme in door.schemes), None)


def as_path(name: AnyPath) -> Path:
    """A path whose methods work for an address, too: that of its door for one, else as pathlib has it."""
    if isinstance(name, Path):
        return name
    return door_of(name).path(str(name)) if is_address(name) else Path(name)


def local(path: AnyPath) -> AnyPath:
    """The path to open: itself, or for an address that of a copy on this disk, fetched unless it is there already.

    Raises
    ------
    BadFile : the file cannot be had.
    """
    if is_address(path):
        return door_of(path).local(str(path))
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # to open a pipe would wait for its writer
        raise BadFile(os.fspath(path), "a pipe, socket or device, not a file")
    return path


def state(address: str) -> State:
    """State of the file at an address; raises BadFile if it is not there, or cannot be had."""
    return door_of(address).state(address)


def member(path: AnyPath) -> str:
    """The part of a path that names the file, without what holds it."""
    return str(path) if (door := _door(path)) is None else door.member(str(path))


def is_held(path: AnyPath) -> bool:
    """Whether a file is in another one, which tells the names of all that it holds at once."""
    return (door := _door(path)) is not None and door.is_held(str(path))


def plain_name(path: Path) -> str:
    """The name of a file or folder as people write it: in an address it may have escapes."""
    return door_of(path).plain_name(str(path)) if is_address(path) else path.name


def escaped(folder: AnyPath, path: str) -> str:
    """A path below a folder, of which all is the path: in some addresses what follows a # is not."""
    return door_of(folder).escaped(str(folder), path) if is_address(folder) else path


def contents(path: str) -> str:
    """The folder of what a file holds; any other path as it is.

    Raises
    ------
    BadFile : it holds files, and the field that reads them is not here.
    """
    found = (door.contents(path) for doors in DOORS.in_turn() for door in doors)
    inside = next((one for one in found if one != path), path)
    if inside == path and not is_address(path) and (reason := needed_to_open(path)):
        raise BadFile(path, reason)
    return inside


def matches(pattern: str) -> list[str]:
    """The addresses that a pattern names, sorted; raises BadFile if there is no list of them."""
    return door_of(pattern).matches(pattern)


def absolute(path: AnyPath) -> str:
    """`os.path.abspath`, or the address as it is."""
    return str(path) if is_address(path) else os.path.abspath(path)


def split(path: str) -> tuple[str, str]:
    """`os.path.split`: the folder of a file and its name, for an address, too."""
    if not is_address(path):
        return os.path.split(path)
    address = as_path(path)
    return str(address.parent), address.name


def exists(path: AnyPath) -> bool:
    """`os.path.exists`, for an address, too."""
    return as_path(path).exists() if is_address(path) else os.path.exists(path)


def is_folder(path: AnyPath) -> bool:
    """`os.path.isdir`, for an address, too."""
    return as_path(path).is_dir() if is_address(path) else os.path.isdir(path)


def walk_address(folder: str, rejected: list[Rejected]) -> Iterator[str]:
    """`datasets.core.scanning.walk`, for a folder that has an address."""
    return door_of(folder).walk(folder, rejected)


def nameless_in(folder: Path) -> list[Rejected]:
    """What a folder that has an address holds and no path can name; nothing on a disk."""
    return door_of(folder).nameless(str(folder)) if is_address(folder) else []


def read_ahead(items: Iterable[T], path_of: Callable[[T], AnyPath]) -> Iterator[T]:
    """Yield the items in their order while the files of those that follow are fetched.

    A file that cannot be had is left to whoever opens it, who is told why. Files on a disk are not looked at.
    """
    following = iter(items)
    for item in following:
        if (door := _door(path_of(item))) is None:
            yield item
        else:
            yield from door.read_ahead(chain([item], following), path_of)


def put(file: Path, address: str) -> None:
    """Write a file to an address, whole or not at all; raises BadFile if it cannot be written there."""
    door_of(address).put(file, address)


def without_secrets(text: str) -> str:
    """An address without what nobody else shall know, which its door keeps for its requests; any other text as it is.

    Raises
    ------
    BadFile : no file is read at such an address.
    """
    return door_of(text).without_secrets(text) if is_address(text) else text


def remembered(text: str) -> str:
    """As `without_secrets`, for a value that may also be of no file, such as the address of a machine."""
    if is_address(text):
        for door in DOORS.values():
            text = door.remembered(text)
    return text


def hidden(text: str) -> str:
    """A sentence without user names, passwords and queries in its addresses."""
    if "://" not in text:
        return text
    doors = [*DOORS.values()]
    for door in doors:
        text = door.hidden(text)
    return text if doors else _SECRETS.sub(r"\1\2", text)


def ask_again(path: AnyPath) -> None:
    """Ask once more about a file that has an address, though this run has."""
    if is_address(path):
        door_of(path).ask_again(str(path))


def work_for(run: str) -> None:
    """Ask about all addresses again if a process that serves several runs begins another one."""
    for door in DOORS.values():
        door.work_for(run)
