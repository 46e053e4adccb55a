"""Files and folders that are written beside their place and then put there: whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.errors import SecondhandError


def write_beside(file: Path, content: bytes) -> None:
    """Write a whole file or nothing: beside it, then renamed."""
    beside = file.with_name(f".{file.name}.part")
    try:
        beside.write_bytes(content)
        put(beside, file)
    except OSError as error:
        error.filename = error.filename or str(file)
        raise
    finally:
        beside.unlink(missing_ok=True)


def put(beside: Path, file: Path) -> None:
    """Give a written file its name, its content safely on the disk first: power may fail."""
    with open(beside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(beside, file)


def disk_error(file: Path, error: Exception) -> OSError:
    """What a library says of a failed write, as the error of the system that it was."""
    number = re.search(r"(?:os error|code:) (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(file))


@contextmanager
def written_beside(folder: Path, *, overwrite: bool = True, mark: str = "") -> Iterator[Path]:
    """A new folder to write into, which takes the place of ``folder`` when the block ends well.

    With a ``mark``, `check_replaceable` is asked first.
    """
    if mark:
        check_replaceable(folder, overwrite=overwrite, mark=mark)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        beside.chmod(0o755)
        yield beside
        old = beside.with_name(f"{beside.name}-old")
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(beside, folder)
        except BaseException:
            if old.exists():
                os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_replaceable(folder: Path, *, overwrite: bool, mark: str) -> None:
    """Raise SecondhandError where ``folder`` is there and may not be replaced.

    It may with ``overwrite``, if it holds the file ``mark`` and so is one of its kind.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise SecondhandError(
            f"--out {folder}: is there already; choose another, or give --overwrite"
        )
    if not (folder / mark).is_file():
        raise SecondhandError(
            f"--out {folder}: holds no {mark}, so it is not overwritten; choose another"
        )
