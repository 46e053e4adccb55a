"""Finds the files that tables and annotations of other programs name, or are named after."""

from __future__ import annotations

import filecmp
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product, takewhile
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from datasets.core.address import as_path, is_address, is_held, local, split
from datasets.core.errors import BadFile, one_line
from datasets.core.scanning import files_below
from datasets.kinds.base import find_kind, kind_of
from datasets.tables.cells import file_named

#: Folders of tables beside those of the files, as data sets of sound have them (``meta``, ``FSD50K.ground_truth``).
_OF_TABLES = re.compile(
    r"meta(data)?|annotations?|labels?|tables?|csvs?|evaluationsetup|.*groundtruth"
)
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
#: What Label Studio puts before the name of an uploaded file.
_UPLOADED = re.compile(r"(?:^|(?<=[/\\]))[0-9a-f]{8}-(?=[^/\\]+$)")
#: Files of one name up to which each is compared with what is written.
_FEW = 8


def tab_cell(text: str) -> str:
    """Format text for a tab-separated table without quotes: tabs and line breaks become spaces."""
    return re.sub(r"[\t\r\n]", " ", text).strip()


class Found(NamedTuple):
    """What was found for a name in a table.

    Attributes
    ----------
    path : the file; where it would be if ``reason`` says why there is none.
    files : the files that it may be, none if there is none of the name.
    moved : it is not where it was written.
    """

    path: str
    files: tuple[str, ...]
    reason: str = ""
    moved: bool = False

    @property
    def unclear(self) -> bool:
        """Whether there are files of the name, but none that may be taken: it cannot be told which is meant, or the name
        is an address that is not read."""
        return bool(self.reason and self.files)


class _Written(NamedTuple):
    """A name as a table has it.

    Attributes
    ----------
    parts : its folders and its name, without a drive, in small letters and composed.
    exact : the same in its own letters.
    key : tells names of different files apart.
    """

    parts: tuple[str, ...]
    exact: tuple[str, ...]
    key: tuple[str, ...]


class Below:
    """The files in a folder and below, which are listed once, and what finds one of them by what is written in a table.

    Parameters
    ----------
    kind : of the files, or "auto" for all; notes beside other files do not count.
    files : those in the folder and below, if they have been listed.
    """

    def __init__(
        self, folder: Path, kind: str = "auto", files: Sequence[str] | None = None
    ) -> None:
        self.folder, self.kind = folder, kind
        self._listed = files
        self._root = folder
        self._found: dict[str, list[str]] = {}
        self._ends: dict[str, dict[tuple[str, ...], list[str]]] = {}

    def locate(self, names: Iterable[str], near: Path | None = None) -> dict[str, Found]:
        """The file of each name, of any program and machine.

        It is the file at this path, absolute or relative to the table or the working directory. Else it is the one below
        the folder with the longest common end of the path, at least the name; ``\\`` separates folders as ``/`` does,
        drives do not count, nor do the case of letters, their Unicode form and ``%20`` for a space; an ending that no
        kind of file has may be left out. Two names are never one file: it is that of the name that is more like its path.
        A file is gone, and not moved, if a folder of its path is there and holds no such file.

        Parameters
        ----------
        near : folder of the table, if it is not that of all files. Of equal ones the file there, or nearest to it, is meant.
        """
        near = near or self.folder
        here: dict[str, str] = {}
        places: dict[str, tuple[int, list[str]]] = {}
        written: dict[str, _Written] = {}
        refused: dict[str, Found] = {}
        for name in dict.fromkeys(names):
            try:
                here[name], stands = self._standing(near, name)
            except BadFile as error:  # an address that is not read
                refused[name] = Found(one_line(name), (name,), error.reason)
                continue
            written[name] = _written(name)
            if stands:
                places[name] = (1 << 30, [here[name]])
            elif is_address(name.strip()):  # of somebody else's server
                places[name] = (0, [])
            else:
                places[name] = self._nearest(name, near)
        claims: dict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
        for name, (agreeing, files) in places.items():
            for file in files if len(files) <= _FEW else ():
                claims[file][written[name].key] = agreeing
        return refused | {
            name: self._decided(here[name], written[name], *places[name], claims) for name in places
        }

    def _decided(
        self,
        here: str,
        written: _Written,
        agreeing: int,
        files: list[str],
        claims: Mapping[str, Mapping[tuple[str, ...], int]],
    ) -> Found:
        """The file of a name, of those whose path is most like it; ``claims`` : how like those of other names are."""
        if len(files) > _FEW:
            return Found(here, tuple(files), f"several files are called so: {_named_first(files)}")
        usable, rivals = list[str](), list[str]()
        for file in files:
            others = [n for key, n in claims[file].items() if key != written.key]
            if agreeing >= len(written.parts) or max(others, default=0) < agreeing:
                usable.append(file)
            elif max(others) == agreeing:
                rivals.append(file)
        if len(usable) == 1:
            return Found(usable[0], (usable[0],), moved=usable[0] != here)
        if usable:
            return Found(
                here, tuple(usable), f"several files are called so: {_named_first(usable)}"
            )
        if rivals:
            reason = f"another name is as much like the only file of this name: {rivals[0]}"
            return Found(here, tuple(rivals), reason)
        return Found(here, (), f"no file of its own in {self._root} or below")

    def find(self, cell: str) -> list[str]:
        """The files that a cell may name, by itself; empty if there is none."""
        if cell not in self._found:
            self._found[cell] = [*self.locate([cell])[cell].files]
        return self._found[cell]

    def copy_beside(self, annotations: Path, file: str) -> str:
        """The file that annotations name; for one in another folder, its copy in the folder of the annotations, if any."""
        if not as_path(file).absolute().is_relative_to(annotations.parent.absolute()):
            for copy in self._named.get(_alike(split(file)[1]), []):
                if as_path(copy).parent == annotations.parent and filecmp.cmp(
                    local(copy), local(file), shallow=False
                ):
                    return copy
        return file

    def named_after(self, annotations: Path) -> list[str]:
        """Files that annotations are named after: ``a.wav`` for ``a.Table.1.selections.txt``, unless there is
        an ``a.Table.wav``. Of several the nearest to them counts, then that of the same folders."""
        words = annotations.name.split(".")
        for n in range(len(words) - 1, 0, -1):
            name = ".".join(words[:n])
            if files := self._named.get(_alike(name), []):
                files = self._nearest_to(annotations.parent, _exactly(files, (_composed(name),)))
                return _most(files, partial(_agreeing_parts, _parts(str(annotations))))
        return []

    @cached_property
    def _files(self) -> list[str]:
        files, others = self._in(self.folder)
        if not others and _OF_TABLES.fullmatch(
            "".join(filter(str.isalnum, self.folder.name)).casefold()
        ):
            self._root = self.folder.parent
            files, others = self._in(self._root)
        return others or files

    def _in(self, folder: Path) -> tuple[list[str], list[str]]:
        """The files of the kind in a folder and below, and those that are no text."""
        below = self._listed if self._listed is not None else files_below(folder)[0]
        kinds = {file: kind_of(file) for file in below}
        files = [file for file, kind in kinds.items() if kind and self.kind in ("auto", kind)]
        return files, [file for file in files if not file.lower().endswith(".txt")]

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        """The files by name, with and without ending, in small letters."""
        named: dict[str, list[str]] = defaultdict(list)
        for file in self._files:
            path = as_path(file)
            for key in {*map(_alike, (path.name, path.stem, tab_cell(path.name)))}:
                named[key].append(file)
        return dict(named)

    @cached_property
    def _there(self) -> frozenset[str]:
        """The names of all folders below."""
        above = len(self._root.parts)
        folders = {as_path(file).parent for file in self._files}
        return frozenset(_alike(part) for folder in folders for part in folder.parts[above:])

    @cached_property
    def _members(self) -> frozenset[str]:
        """The files in what holds them all."""
        return frozenset(files_below(self.folder)[0])

    def _standing(self, near: Path, name: str) -> tuple[str, bool]:
        """The path as it stands, and whether there is such a file; in another form only below the folder."""
        first = ""
        folders = [near] if near == self.folder else [near, self.folder]
        for text, folder in product(_forms(name), folders):
            way = PureWindowsPath(text)
            if text != name and (way.anchor or ".." in way.parts):
                continue
            path = file_named(folder, text)
            first = first or path
            if is_address(folder) and not is_address(name.strip()) and is_held(path):
                if path in self._members:
                    return path, True
            elif is_there(path):
                return path, True
        return first, False

    def _nearest(self, name: str, near: Path) -> tuple[int, list[str]]:
        """How many parts of the path agree, and the files of which most do."""
        for text in _forms(name):
            one = _written(text)
            if not one.parts:
                continue
            files = self._named.get(one.parts[-1], [])
            if len(files) > _FEW and len(files := self._longest(one.parts, near)) > _FEW:
                return 0, files
            files = [file for file in files if kind_of(text) in (None, kind_of(file))]
            agreeing = {file: _agreeing_parts(one.parts, file) for file in files}
            most = max(agreeing.values(), default=0)
            files = [file for file, parts in agreeing.items() if parts == most]
            if most < len(one.parts):
                files = [file for file in files if not self._contradicts(file, one.parts)]
            if files:
                return most, self._nearest_to(near, _exactly(files, one.exact))
        return 0, []

    def _longest(self, parts: tuple[str, ...], near: Path) -> list[str]:
        """Of many files of one name those with the longest common end, which are looked up by their ends; of many of
        these the one beside the table."""
        if parts[-1] not in self._ends:
            ends: dict[tuple[str, ...], list[str]] = defaultdict(list)
            for file in self._named[parts[-1]]:
                folders = _folders(file)
                for first in range(len(self._root.parts) - 1, len(folders) + 1):
                    ends[folders[first:]].append(file)
            self._ends[parts[-1]] = ends
        known = self._ends[parts[-1]]
        files = next(known[end] for n in range(len(parts)) if (end := parts[n:-1]) in known)
        beside = tuple(map(_alike, near.parts))[len(self._root.parts) - 1 :]
        here = known.get(beside, ()) if len(files) > _FEW else ()
        return [*here] if len(here) == 1 else files

    def _contradicts(self, file: str, parts: tuple[str, ...]) -> bool:
        """Whether a folder that is written is there, but the file lies in another one, and not only above or below."""
        first = next((n for n, part in enumerate(parts[:-1]) if part in self._there), None)
        if first is None:
            return False
        stated, folders = parts[first:-1], _folders(file)[len(self._root.parts) :]
        if stated[0] in folders:
            folders = folders[folders.index(stated[0]) :]
        return not (_is_within(stated, folders) or _is_within(folders, stated))

    def _nearest_to(self, near: Path, files: list[str]) -> list[str]:
        """Of several files the one in this folder, else those whose path begins as it for longest."""
        if len(files) < 2:
            return files
        beside = [file for file in files if as_path(file).parent == near]
        if len(beside) == 1:
            return beside
        return _most(files, lambda file: _agreeing(as_path(file).parts[::-1], near.parts[::-1]))


def is_there(path: str) -> bool:
    """Whether there is a file; an address with the ending of one is taken at its word, as asking takes a request."""
    return find_kind(path) is not None if is_address(path) else os.path.isfile(path)


def _forms(name: str) -> Iterator[str]:
    """What a name may mean: itself, with its percent encoding undone, and without what Label Studio puts before it."""
    if is_address(name.strip()):
        yield name
        return
    encoded = [unquote(name)] if _ENCODED.search(name) else []
    for form in (name, *encoded):
        yield form
    for form in (name, *encoded):
        if (plain := _UPLOADED.sub("", form)) != form:
            yield plain


def _written(name: str) -> _Written:
    text = unicodedata.normalize("NFC", name.strip())
    if text.lower().startswith("file://"):
        text = url2pathname(urlsplit(text).path)
    path = PureWindowsPath(text)  # splits at \ and at /
    drive = re.match(r"/?([A-Za-z]:)", text)
    exact = tuple(
        part for part in path.parts
        if part not in (path.anchor, "..", "~") and not re.fullmatch("[A-Za-z]:", part)
    )  # fmt: skip
    parts = tuple(part.casefold() for part in exact)
    return _Written(parts, exact, (drive[1].casefold() if drive else "", *parts))


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _alike(name: str) -> str:
    """A name by which those are found that only case or the Unicode form tells apart."""
    return _composed(name).casefold()


def _folders(file: str) -> tuple[str, ...]:
    return tuple(map(_alike, as_path(file).parts[:-1]))


def _parts(file: str) -> tuple[str, ...]:
    return tuple(map(_alike, as_path(file).parts))


def _agreeing(file: Sequence[str], other: Sequence[str]) -> int:
    """How many of the last parts are equal; the names themselves, of which an ending may be left out, are taken as equal."""
    pairs = zip(reversed(file[:-1]), reversed(other[:-1]), strict=False)
    return 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _agreeing_parts(parts: Sequence[str], file: str) -> int:
    return _agreeing(_parts(file), parts)


def _exactly(files: list[str], exact: tuple[str, ...]) -> list[str]:
    """Of files that differ in case those that are written so, then those whose ending is."""

    def likeness(file: str) -> tuple[int, bool]:
        parts = tuple(map(_composed, as_path(file).parts))
        same_name = parts[-1] == exact[-1]
        is_like = same_name or as_path(file).stem == exact[-1]
        return _agreeing(parts, exact) if is_like else 0, same_name

    return _most(files, likeness) if len(files) > 1 else files


def _named_first(files: Sequence[str]) -> str:
    """The files, or how many there are and the first of them."""
    more = f" and {len(files) - _FEW} more" if len(files) > _FEW else ""
    return ", ".join(files[:_FEW]) + more


def _most(files: list[str], measure: Callable[[str], Any]) -> list[str]:
    """The files of the largest measure."""
    measures = [measure(file) for file in files]
    best = max(measures, default=None)
    return [file for file, one in zip(files, measures, strict=True) if one == best]


def _is_within(few: Sequence[str], many: Sequence[str]) -> bool:
    """Whether all parts are among others, in their order."""
    rest = iter(many)
    return all(part in rest for part in few)
