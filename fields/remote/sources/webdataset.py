"""WebDataset: tar files in which the files of a sample have one name, such as ``001.jpg`` and ``001.cls`` or ``001.json``."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

import pandas as pd

from datasets.core.address import as_path
from datasets.core.errors import BadFile, Rejected
from datasets.core.scanning import absolute_path, files_below, shown_by
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_each
from datasets.sources.table import read_rows, with_names
from datasets.tables.cells import cell_of
from fields.remote.names import ARCHIVES

#: Endings of the archives, and of the members that have labels.
ENDINGS = tuple(ending for ending, scheme in ARCHIVES.items() if scheme == "tar")
_LABELS = ("cls", "json")
#: Members that show whether an archive is one of samples, and the largest label in bytes.
_LOOKED_AT, _LARGEST = 64, 1 << 20
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def read_shards(path: Path, options: ReadOptions) -> Rows:
    """Rows of a shard, of all in a folder and below, or of those of a pattern, such as ``train-{000..009}.tar``.

    The label is the text of ``cls``, or a key of ``json``, whose other keys are columns of a table.

    Raises
    ------
    SecondhandError : as `read_table`, or no shard can be read.
    """
    options = replace(options, path_column=None)

    def read(shard: Path) -> Rows:
        cells, bad = _cells(shard)
        rows = read_rows(shard, options, cells=cells, resolve=False)
        return rows._replace(rejected=bad + rows.rejected)

    return with_names(path, read_each(path, dict.fromkeys(_shards(path), ""), read), options)


def _cells(shard: Path) -> tuple[pd.DataFrame, list[Rejected]]:
    """A row for each sample, with the address of its file, and its labels as text; and labels that cannot be read."""
    samples: dict[str, dict[str, str]] = {}
    rejected = []
    from fields.remote.members import unpacked

    try:
        with tarfile.open(unpacked(os.fspath(shard))) as archive:
            members = [*filter(tarfile.TarInfo.isfile, archive)]
            keys = _keys(member.name for member in members)
            for member in members:
                address = f"tar://{member.name.removeprefix('./')}::{absolute_path(shard)}"
                key, ending = keys[member.name]
                sample = samples.setdefault(key, {})
                if ending in _LABELS and member.size <= _LARGEST:
                    try:
                        sample |= _labels(ending, _text(archive, member))
                    except (ValueError, RecursionError) as error:
                        rejected.append(Rejected(address, f"not JSON ({str(error)[:100]})"))
                elif find_kind(member.name) and "path" not in sample:
                    sample["path"] = address
    except (OSError, EOFError, MemoryError, tarfile.TarError) as error:
        raise BadFile(shard, f"cannot be read as a tar archive ({error})") from None
    return pd.DataFrame([*filter(None, samples.values())]).fillna(""), rejected


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    return "" if file is None else file.read().decode("utf-8", "replace")


def _labels(ending: str, text: str) -> dict[str, str]:
    if ending == "cls":
        return {"label": text.strip()}
    content = json.loads(text)
    if not isinstance(content, dict):
        return {"label": cell_of(content)}
    return {str(key): cell_of(value) for key, value in content.items() if key != "path"}


def _keys(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Name of the sample of each member, and what follows it: up to the last point for a file and its labels that agree so
    far (``site.1.jpg`` and ``site.1.cls``), else up to the first, as the format says (``1.left.jpg`` and ``1.cls``)."""
    of_last = {name: name.rpartition(".") for name in names}
    labelled = {key for key, _, ending in of_last.values() if ending.lower() in _LABELS}
    of_files = {key for name, (key, *_) in of_last.items() if find_kind(name)}
    keys = {}
    for name, (last, _, ending) in of_last.items():
        folder, _, file = name.rpartition("/")
        first, _, rest = file.partition(".")
        pair = last in labelled & of_files
        keys[name] = (last, ending.lower()) if pair else (f"{folder}/{first}", rest.lower())
    return keys


def _shards(path: Path) -> Iterator[Path]:
    if braces := _BRACES.search(str(path)):
        first, last = braces.groups()
        for number in range(int(first), int(last) + 1):
            yield from _shards(as_path(_BRACES.sub(str(number).zfill(len(first)), str(path), 1)))
    elif path.is_dir():
        yield from (
            as_path(file) for file in files_below(path)[0] if file.lower().endswith(ENDINGS)
        )
    else:
        yield path


def _claims(path: Path, options: ReadOptions) -> bool:
    """Whether the first members of the first archive are a file and its label."""
    first = as_path(shown_by(path, *ENDINGS)) if path.is_dir() else next(_shards(path), path)
    if not first.name.lower().endswith(ENDINGS) or not first.is_file():
        return False
    from fields.remote.members import unpacked

    try:
        with tarfile.open(unpacked(os.fspath(first))) as archive:
            names = _keys(member.name for member in islice(archive, _LOOKED_AT)).values()
    except (OSError, EOFError, MemoryError, tarfile.TarError, BadFile):
        return False
    labelled = {key for key, ending in names if ending in _LABELS}
    files = {key for key, ending in names if find_kind(PurePosixPath(f"{key}.{ending}"))}
    return bool(labelled & files)


SOURCES.add(
    Source(
        name="webdataset",
        order=31,
        claims=_claims,
        read=read_shards,
        reads="shards of WebDataset (tar)",
        endings=ENDINGS,
        has_multi_label=lambda path: True,
    )
)
