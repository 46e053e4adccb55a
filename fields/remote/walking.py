"""Finds the files below a folder that has an address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from datasets.core.errors import BadFile, Rejected, SecondhandError, Unavailable
from datasets.core.scanning import LINK_LOOP, SYSTEM, UNLISTED, is_user_file
from fields.remote.address import Entry, as_path, listing
from fields.remote.limits import MOST_DEPTH, MOST_FOLDERS
from fields.remote.names import is_nameless

#: Why a folder is not looked into.
TOO_DEEP = f"more than {MOST_DEPTH} folders within each other"
#: Folders above one that hold the same as it, before it is taken for a link to itself.
_REPEATED = 2
#: Why a file of a bucket is not read that a program has named by joining ``photos/`` and ``/fox``.
NAMELESS = "its key has a folder without a name (//): rename it, or name its address in a table"


def walk(root: str, left_out: list[Rejected]) -> Iterator[str]:
    """`datasets.core.scanning.walk`, for a folder that has an address; those of a server may lead to themselves, or have no end."""
    count = 0

    def within(folder: str, above: tuple[str, ...]) -> Iterator[str]:
        nonlocal count
        count += 1
        if count > MOST_FOLDERS:
            raise SecondhandError(
                f"{root}: more than {MOST_FOLDERS:,} folders, such as {folder}. Name one of the folders in it"
            )
        entries: Iterable[Entry] = listing(folder)
        try:
            if folder.startswith("http"):  # a page is read whole; those of a bucket may be long
                entries = [*entries]
                held = " ".join(entry.address.removeprefix(folder) for entry in entries)
                if above.count(held) >= _REPEATED:
                    left_out.append(Rejected(folder, LINK_LOOP))
                    return
                above = (*above, held)
            else:
                above = (*above, "")
            folders = []
            for entry in entries:
                address = entry.address
                is_users = is_user_file(as_path(address))
                if is_nameless(address):
                    left_out.extend(_nameless(entry))
                elif entry.state is None and is_users:
                    folders.append(address)
                elif entry.state is None:
                    left_out.append(Rejected(address, SYSTEM))
                elif is_users:
                    yield address
        except Unavailable:
            raise
        except BadFile as error:
            if len(above) <= 1:
                raise
            left_out.append(Rejected(folder, f"{UNLISTED} ({error.reason})"))
            return
        for inside in folders:
            if len(above) > MOST_DEPTH:
                left_out.append(Rejected(inside, TOO_DEEP))
            else:
                yield from within(inside, above)

    yield from within(root, ())


def nameless_in(folder: str) -> list[Rejected]:
    """What a folder holds and no path can name."""
    entries = (entry for entry in listing(folder) if is_nameless(entry.address))
    return [rejected for entry in entries for rejected in _nameless(entry)]


def _nameless(entry: Entry) -> list[Rejected]:
    """The file of an entry that no path can name, or the files below it; a folder whose files cannot be listed, and those
    beyond `MOST_FOLDERS`, stand for them.
    """
    found, folders = list[str](), [entry.address] if entry.state is None else []
    if not folders:
        found.append(entry.address)
    for _ in range(MOST_FOLDERS):
        if not folders:
            break
        folder = folders.pop()
        try:
            inside = [*listing(folder)]
        except Unavailable:
            raise
        except BadFile:
            inside = []
        folders += [one.address for one in inside if one.state is None]
        found += [one.address for one in inside if one.state is not None] if inside else [folder]
    return [Rejected(address, NAMELESS) for address in found + folders]
