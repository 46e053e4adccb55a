"""Writes to an address, whole or not at all, what a job writes on this disk."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.core.address import is_address, put
from datasets.core.errors import SecondhandError
from datasets.core.store import cache_root

#: Folder of the cache in which jobs write what is to have an address, and their journals.
FOLDER = "outputs"


@contextmanager
def published(out: Path | None, *, overwrite: bool = False) -> Iterator[Path | None]:
    """Yield where to write what shall be at ``out``: there, or for an address on this disk.

    If the block succeeds, it and the files beside it are put to the address, it itself last. The place is the same for
    the same address, so that an interrupted job goes on.

    Raises
    ------
    SecondhandError : there is something at the address, without ``overwrite``.
    BadFile : the address cannot be written; the files stay on this disk.
    """
    if out is None or not is_address(out):
        yield out
        return
    if not overwrite and out.exists():
        raise SecondhandError(
            f"--out {out} already exists. Choose another name or give --overwrite"
        )
    folder = cache_root() / FOLDER / hashlib.sha256(str(out).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / out.name
    yield place
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in sorted(files, key=lambda file: (file == place, file)):
        put(file, str(out.parent / file.relative_to(folder)))
    shutil.rmtree(folder)
