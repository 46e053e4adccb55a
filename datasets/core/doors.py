"""The door, behind which files have an address instead of a place on a disk, and the registry of those that fields add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.core.errors import Rejected
from datasets.core.part import AnyPath
from datasets.core.registry import Registry

#: Size in bytes, two zeros, and a number that changes with the content: a `datasets.core.file_state.QuickState`.
State = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Door:
    """What is asked about addresses, of which `datasets.core.address` asks.

    What answers raises BadFile for an address of which there is no file, or none to be had, and SecondhandError if all
    addresses like it cannot be read here.

    Attributes
    ----------
    example : one of its addresses, for the help of flags.
    schemes : what its addresses begin with, in small letters, before ``://``.
    path : the address as a path, whose methods work, and of which what opens a path gets a copy on this disk.
    local : the path of a copy on this disk. What has not changed is not fetched again.
    state : that of the file as it is now.
    member : the part that names the file, without what holds it.
    is_held : whether a file is in another one, which tells the names of all that it holds at once.
    plain_name : the name of the file or folder as people write it.
    contents : of what holds files, the address of a folder of them; any other path as it is.
    matches : the addresses that a pattern names, sorted.
    walk : the files in a folder and below, as `datasets.core.scanning.walk`, and a list to which what is left out is added.
    nameless : what a folder holds that no path can name.
    read_ahead : the items in their order, of any paths, while the files of those that follow are fetched.
    put : writes a file of this disk to an address, whole or not at all.
    without_secrets : the address without what nobody else shall know, such as a password, which the door keeps.
    remembered : as ``without_secrets``, for a value that may be of no file.
    hidden : a sentence without secrets in its addresses.
    escaped : a path below a folder, whose address is given first, with escapes for what is no part of a path in such
        addresses, but may be part of a name.
    ask_again : asks once more about a file, though this run has.
    work_for : asks about all files again if this process begins another run, of this name.
    """

    name: str
    example: str
    schemes: tuple[str, ...]
    path: Callable[[str], Path]
    local: Callable[[str], Path]
    state: Callable[[str], State]
    member: Callable[[str], str]
    is_held: Callable[[str], bool]
    plain_name: Callable[[str], str]
    contents: Callable[[str], str]
    matches: Callable[[str], list[str]]
    walk: Callable[[str, list[Rejected]], Iterator[str]]
    nameless: Callable[[str], list[Rejected]]
    read_ahead: Callable[[Iterator[Any], Callable[[Any], AnyPath]], Iterator[Any]]
    put: Callable[[Path, str], None]
    without_secrets: Callable[[str], str]
    remembered: Callable[[str], str]
    hidden: Callable[[str], str]
    ask_again: Callable[[str], None]
    work_for: Callable[[str], None]
    escaped: Callable[[str, str], str] = lambda folder, path: path


DOORS: Registry[Door] = Registry("datasets.core.doors")


def addresses() -> str:
    """What the help of a flag says of addresses, in a list."""
    return "".join(f"addresses such as {door.example}, " for door in DOORS.ours().values())
