"""Finds the files that annotations of other programs name, or are named after."""

from __future__ import annotations

import filecmp
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

from datasets.core.address import as_path, local, split


def tab_cell(text: str) -> str:
    """Format text for a tab-separated table without quotes: tabs and line breaks become spaces."""
    return re.sub(r"[\t\r\n]", " ", text).strip()


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


class FilesByName:
    """Index of files by name, with and without suffix."""

    def __init__(self, files: list[str]) -> None:
        self._named: dict[tuple[Path | None, str], list[str]] = defaultdict(list)
        self._alike: dict[str, list[str]] = defaultdict(list)
        for file in map(as_path, files):
            for key in map(_composed, {file.name, file.stem, tab_cell(file.name)}):
                self._alike[key.casefold()].append(str(file))
                for folder in (file.parent, None):
                    self._named[folder, key].append(str(file))

    def copy_beside(self, annotations: Path, file: str) -> str:
        """The file that annotations name; for one in another folder, its copy in the folder of the annotations, if any."""
        if not as_path(file).absolute().is_relative_to(annotations.parent.absolute()):
            for copy in self._named.get((annotations.parent, _composed(split(file)[1])), []):
                if filecmp.cmp(local(copy), local(file), shallow=False):
                    return copy
        return file

    def named(self, folder: Path | None, name: str) -> list[str]:
        """Files of this name in the folder; if there are none, in all folders, then those that only case tells apart."""
        name = _composed(name)
        same = self._named.get((folder, name)) or self._named.get((None, name))
        return same or self._alike.get(name.casefold(), [])

    def named_after(self, annotations: Path) -> list[str]:
        """Files that annotations are named after: ``a.wav`` for ``a.Table.1.selections.txt``, unless there is
        an ``a.Table.wav``."""
        words = annotations.name.split(".")
        names = (".".join(words[:n]) for n in range(len(words) - 1, 0, -1))
        return next(
            (files for name in names if (files := self.named(annotations.parent, name))), []
        )
