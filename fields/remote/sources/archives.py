"""Archives (zip, tar) of what `--data` reads in a folder, such as class folders. Nothing is unpacked beside them."""

from __future__ import annotations

from pathlib import Path

from datasets.core.address import as_path, contents
from datasets.core.errors import SecondhandError
from datasets.core.scanning import is_user_file
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_source
from fields.remote.names import ARCHIVES

#: A table of files is a source of its own.
ENDINGS = tuple(ending for ending in ARCHIVES if ending != ".parquet")


def read_archive(path: Path, options: ReadOptions) -> Rows:
    """Rows of the folder in an archive: its top, or the only folder there if that has no files itself."""
    folder = as_path(contents(str(path)))
    entries = [entry for entry in folder.iterdir() if is_user_file(entry)]
    if not entries:
        raise SecondhandError(f"--data {path}: there is no file in it")
    if (
        len(entries) == 1
        and entries[0].is_dir()
        and any(one.is_dir() for one in entries[0].iterdir())
    ):
        folder = entries[0]
    return read_source(str(folder), options)


SOURCES.add(
    Source(
        name="archives",
        order=60,
        claims=lambda path, options: path.name.lower().endswith(ENDINGS) and path.is_file(),
        read=read_archive,
        reads="a zip or tar archive of class folders",
        endings=ENDINGS,
        has_multi_label=lambda path: True,
    )
)
