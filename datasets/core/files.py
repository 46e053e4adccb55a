"""Atomic writing: a file or folder is written under a temporary name and then renamed.

All output is written this way, except run folders (`learners.runs.folder`), which grow in place.
A killed process leaves files that end in ``.part`` or folders named ``.NAME-…``. All files get the mode
of the umask (safetensors would make them readable by the owner only).
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG


def write_beside(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write bytes to a file atomically, as `path_beside`. Several processes may write the same file."""
    with path_beside(file, file.parent, durable=durable) as beside:
        beside.write_bytes(content)


@contextmanager
def path_beside(file: Path, place: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``file`` if the block succeeds.

    Parameters
    ----------
    place : folder of the temporary file, on the same disk.
    durable : flush the content to disk before renaming, in case of a power failure. This takes
        milliseconds; pass False for files that can be recomputed.

    Raises
    ------
    OSError : the file cannot be written; the error names ``file``.
    """
    beside = place / f".{file.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        with _naming_errors(file):
            yield beside
            _move_into_place(beside, file, durable)
    finally:
        with suppress(OSError):
            beside.unlink()


@contextmanager
def file_beside(file: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``file`` if the block succeeds.

    The path has the same name in a temporary folder, because libraries use the suffix.

    Parameters
    ----------
    durable : as for `path_beside`.
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
    """Yield a temporary folder that is renamed to ``folder`` if the block succeeds.

    Parameters
    ----------
    replace : replace an existing folder. Otherwise the existing one stays and the new one is deleted,
        because another process has written the same content first.
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
    """Give all files in the folder the mode of a new file. (Reading the umask would mean setting it.)"""
    new = folder / f".{uuid.uuid4().hex[:8]}.part"
    new.touch()
    mode = S_IMODE(new.stat().st_mode)
    new.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)


def is_replaceable(file: Path) -> bool:
    """Whether a file can be written by renaming: it is an ordinary one, or there is none.

    A device or pipe would be gone, for every other program, too; ``/dev/stdout`` is a link to an open file.
    """
    try:  # asked once, because another process may write it
        is_file = S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_file = True
    return is_file and file.absolute().parent != Path("/dev")


def _move_into_place(beside: Path, file: Path, durable: bool) -> None:
    if not is_replaceable(file):
        raise FileExistsError(errno.EEXIST, "it is a folder, a pipe or a device", str(file))
    if durable:
        with open(beside, "rb") as stream:
            os.fsync(stream.fileno())
    os.replace(beside, file)


@contextmanager
def _naming_errors(file: Path) -> Iterator[None]:
    """Replace the temporary name in an OSError by ``file``."""
    try:
        yield
    except OSError as error:
        beside = f"{os.sep}.{file.name}."
        if error.errno and (error.filename is None or beside in str(error.filename)):
            error.filename, error.filename2 = str(file), None
        raise
