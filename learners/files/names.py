"""Words of sentences: numbers with their nouns, and paths shortened so that what is shared reveals no local folders.

The run's own files (config.yaml, items.csv, predictions.csv, log.txt) keep full paths.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets.core.address import absolute, as_path, is_address, split

#: Folders that lead to a file, wherever in a sentence; not those of a web address, nor "and/or".
_FOLDERS = re.compile(r"(?<![^\s'\"(\[{=,;`])(?:~|\.\.)?/(?=[^\s/])(?:[^/\s'\"<>|,;:()]+/)*")

#: Between the names of several sources of data.
SEVERAL = " + "


class PathShortener:
    """Shortens paths: those below the data's root start there, the root becomes its last part, others their names.

    Parameters
    ----------
    source : the value of ``--data``; several sources are joined by " + ".
    files : collections of paths; files outside the root are named from the folder they share.
    """

    def __init__(self, source: str = "", *files: Iterable[str]) -> None:
        named = [as_path(part) for part in source.split(SEVERAL) if part]
        roots = [path if path.is_dir() else path.parent for path in named if path.exists()]
        forms = _forms(roots)
        for paths in files:
            folders = {
                os.path.dirname(file)
                for file in paths
                if not (file.startswith(forms) or is_address(file))
            }
            if "" not in folders and len({os.path.isabs(folder) for folder in folders}) == 1:
                roots += _shared_by(folders)
        self._home = _forms([_home()])
        forms_all = {*_forms(roots), *self._home}
        names = "|".join(re.escape(form[:-1]) for form in sorted(forms_all, key=len, reverse=True))
        self._roots = re.compile(rf"(?<![\w./~-])({names})(/|(?![\w./-]))")

    def __call__(self, text: str) -> str:
        """A path or a sentence with its paths shortened."""
        return _FOLDERS.sub("", self._roots.sub(self._shorter, text))

    def in_all(self, value: Any) -> Any:
        """A value of JSON with the paths in all of its texts shortened."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self.in_all(one) for key, one in value.items()}
        return [self.in_all(one) for one in value] if isinstance(value, list) else value

    def _shorter(self, match: re.Match[str]) -> str:
        if match[2]:
            return ""
        return "~" if f"{match[1]}/" in self._home else last_part(match[1])


def last_part(path: str) -> str:
    """Last part of a path; "." and ".." are resolved first."""
    name = split(path.rstrip("/"))[1]
    return name if name not in ("", ".", "..") else Path(path).resolve().name


def data_name(source: str) -> str:
    """Last part of each source of ``--data``."""
    return SEVERAL.join(map(last_part, source.split(SEVERAL)))


def shared_provenance(values: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance for sharing, with paths shortened."""
    shared = dict(values)
    data = values.get("data")
    if isinstance(data, str) and data:
        shared["data"] = data_name(data)
    if isinstance(command := values.get("command"), str):
        shared["command"] = shared_command(command, data)
    for key in ("note", "protocol"):
        if isinstance(words := values.get(key), str):
            shared[key] = PathShortener()(words)
    return shared


def shared_command(command: str, data: object = None) -> str:
    """A command with absolute paths reduced to their last parts; relative paths only if they name the data."""
    try:
        words = shlex.split(command)
    except ValueError:  # it came with a model and may be anything
        return PathShortener()(command)
    return shlex.join(_word(word, data) for word in words)


def _word(word: str, data: object) -> str:
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if "local-dir:" in value:  # a backbone's folder, or several
        return flag + equals + re.sub(r"(?<=local-dir:)[^,]+", lambda m: last_part(m[0]), value)
    whole = f"/{Path(value)}"  # a path relative to another folder matches the end of a source
    of_data = any(f"/{source}".endswith(whole) for source in str(data).split(SEVERAL))
    if of_data or value.startswith(("/", "~")) or ".." in Path(value).parts:
        value = last_part(value)
    return f"{flag}{equals}{value}"


def _shared_by(folders: Collection[str]) -> list[Path]:
    """Deepest common folder; the folders themselves if its subfolders may be named after users."""
    shared = Path(os.path.commonpath(list(folders)))
    of_users = shared.is_absolute() and len(shared.parts) <= 2
    above_home = shared != _home() and _home().is_relative_to(shared)
    return [*map(Path, folders)] if of_users or above_home else [shared]


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _forms(folders: Iterable[Path]) -> tuple[str, ...]:
    """Folders in the forms that may precede a file name: unchanged, absolute, and with links resolved."""
    paths = {str(folder) for folder in folders}
    paths |= {way(folder) for folder in paths for way in (absolute, os.path.realpath)}
    return tuple(f"{form.rstrip('/')}/" for form in sorted(paths) if form not in (".", "/"))
