"""Files and folders that are written beside their place and then put there: whole or not at all.

The one way in which this application writes, but for a run, which grows in its place
(`learners.runs.folder`).
What a killed process leaves ends in ``.part``, or is a folder ``.NAME-…``. Whoever wrote it, each file
has the umask's mode: safetensors makes its own for the owner alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE


def write_beside(
    file: Path, content: bytes, *, place: Path | None = None, durable: bool = True
) -> None:
    """Write bytes as a whole file or not at all. Several processes may write the same one.

    Parameters
    ----------
    place : the folder for what is half written, on the same disk; by default the file's own.
    durable : have the content safely on the disk before it gets its name, as power may fail. That
        takes milliseconds; what can be made again does without.

    Raises
    ------
    OSError : it cannot be written; it names ``file``.
    """
    beside = (place or file.parent) / f".{file.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        with _naming_errors(file):
            beside.write_bytes(content)
            _move_into_place(beside, file, durable)
    finally:
        with suppress(OSError):
            beside.unlink()


@contextmanager
def file_beside(file: Path, *, durable: bool = True) -> Iterator[Path]:
    """A name for a library to write to, which becomes ``file`` when the block ends well.

    It is the same name in a new folder beside: libraries judge a file by its suffix.

    Parameters
    ----------
    durable : as for `write_beside`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        _naming_errors(file),
        tempfile.TemporaryDirectory(
            dir=file.parent, prefix=f".{file.name}.", suffix=".part", ignore_cleanup_errors=True
        ) as folder,
    ):
        beside = Path(folder) / file.name
        yield beside
        _give_umask(beside.parent)
        _move_into_place(beside, file, durable)


@contextmanager
def folder_beside(folder: Path, *, replace: bool) -> Iterator[Path]:
    """A new folder to write into, which becomes ``folder`` when the block ends well.

    Parameters
    ----------
    replace : take the place of one that is there. Else that one stays, and what was written goes:
        another process was first with the same.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.parent / f".{folder.name}-{uuid.uuid4().hex[:8]}"
    beside.mkdir()
    old = beside.with_name(f"{beside.name}-old")
    try:
        try:
            yield beside
            _give_umask(beside)
        except OSError as error:
            if str(beside) in str(error.filename):  # a name that nobody knows
                error.filename = str(folder)
            raise
        try:
            if replace and folder.exists():
                os.replace(folder, old)
            os.replace(beside, folder)
        except BaseException as error:
            if old.exists() and not folder.exists():
                os.replace(old, folder)
            if replace or not (isinstance(error, OSError) and folder.is_dir()):
                raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _give_umask(folder: Path) -> None:
    """The files in it get the mode of a new one. (To ask for the umask is to set it, for all threads.)"""
    new = folder / f".{uuid.uuid4().hex[:8]}.part"
    new.touch()
    mode = S_IMODE(new.stat().st_mode)
    new.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)


def _move_into_place(beside: Path, file: Path, durable: bool) -> None:
    if durable:
        with open(beside, "rb") as stream:
            os.fsync(stream.fileno())
    os.replace(beside, file)


@contextmanager
def _naming_errors(file: Path) -> Iterator[None]:
    """Name ``file`` in what the system says of it under its other name, or under none."""
    try:
        yield
    except OSError as error:
        beside = f"{os.sep}.{file.name}."
        if error.errno and (error.filename is None or beside in str(error.filename)):
            error.filename, error.filename2 = str(file), None
        raise
