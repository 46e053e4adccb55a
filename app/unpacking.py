"""Unpacks a zip of class folders that a visitor dropped; nothing is written outside its folder."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from datasets.core.errors import SecondhandError, quoted
from datasets.core.files import folder_beside
from datasets.core.scanning import is_user_file

#: Limits of a zip: its files, their bytes unpacked, and how many times the bytes of the zip these may be.
MAX_FILES, MAX_BYTES, MAX_RATIO = 20_000, 8 << 30, 100
#: Bytes of disk that stay free for the run.
ROOM = 1 << 30
#: Most bytes that the index of a zip needs for a file; a longer index would only fill the memory.
_ENTRY = 600
#: Others, such as bzip2, unpack megabytes at a time, which would fill the memory.
_COMPRESSED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Errors of the disk that the names in a zip cause: too long, twice the same, a file that is a folder as well.
_OF_NAMES = (
    errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ,
)  # fmt: skip
#: Errors of a zip that is damaged, or of the disk.
_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OSError)
LIMITS = f"at most {MAX_FILES} files, {MAX_BYTES >> 30} GB unpacked and {MAX_RATIO} times the size of the zip"


def unpack_zip(archive: Path, root: Path) -> Path:
    """Unpack a zip into ``root``, in a folder of its content's hash.

    A zip that was unpacked before is not unpacked again. Hidden files and those of the operating system are skipped.

    Returns
    -------
    The folder that holds the class folders: a single folder around all of them is entered.

    Raises
    ------
    SecondhandError : the zip is damaged, encrypted or beyond the limits, or one of its names is a link or leads
        outside. Nothing of it is kept then. OSError : the disk is full, or cannot be written.
    """
    name = quoted(archive.name)
    with open(archive, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:8]
    folder = root / digest / re.sub(r"[^\w-]+", "_", archive.stem)[:60]
    if not folder.exists():
        try:
            _check_index(archive)
            with zipfile.ZipFile(archive) as opened:
                members = list(_members(opened, name, archive.stat().st_size))
                _require_room(root, sum(member.file_size for member, _ in members), name)
                with folder_beside(folder, replace=False) as beside:
                    for member, path in members:
                        target = beside / path
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with opened.open(member) as source, open(target, "xb") as file:
                            shutil.copyfileobj(source, file)
        except _FAULTS as error:
            of_disk = isinstance(error, OSError) and error.errno not in _OF_NAMES
            if of_disk or isinstance(error, SecondhandError):
                raise
            reason = getattr(error, "strerror", None) or str(error)[:120] or type(error).__name__
            raise SecondhandError(
                f"{name} is not a zip that can be unpacked ({reason}). Make the zip again"
            ) from None
    inner = [entry for entry in folder.iterdir() if is_user_file(entry)]
    alone = inner[0] if len(inner) == 1 and inner[0].is_dir() else None
    return alone if alone and any(entry.is_dir() for entry in alone.iterdir()) else folder


def _check_index(archive: Path) -> None:
    """Raise BadZipFile if the index at the end of a zip is longer than that of `MAX_FILES` files can be.

    `zipfile` reads the whole index into memory before it tells anything of it.
    """
    with open(archive, "rb") as stream:
        stream.seek(max(0, archive.stat().st_size - (1 << 16) - 22))
        tail = stream.read()
    end = tail.rfind(b"PK\x05\x06")
    if end >= 0 and int.from_bytes(tail[end + 12 : end + 16], "little") > MAX_FILES * _ENTRY:
        raise zipfile.BadZipFile(f"its list of files is too long: {LIMITS}")


def _members(
    opened: zipfile.ZipFile, name: str, size: int
) -> Iterator[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The files to unpack with their paths within the folder, all of them checked before the first is unpacked."""
    members = [member for member in opened.infolist() if not member.is_dir()]
    total = sum(member.file_size for member in members)
    too_large = {
        f"{len(members)} files": len(members) > MAX_FILES,
        f"{total / 2**30:.1f} GB unpacked": total > MAX_BYTES,
        f"{total / max(size, 1):.0f} times its size unpacked": total > MAX_RATIO * size,
    }
    if wrong := [what for what, is_wrong in too_large.items() if is_wrong]:
        raise SecondhandError(
            f"{name} has {' and '.join(wrong)}, but this page unpacks {LIMITS}. Unpack it yourself and name the folder"
        )
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        kind, parts = stat.S_IFMT(member.external_attr >> 16), path.parts or ("..",)
        fault = (
            "leads outside the folder" if path.is_absolute() or ".." in parts or ":" in parts[0]
            else "is a link or a device" if kind not in (0, stat.S_IFREG)
            else "is encrypted" if member.flag_bits & 1
            else "is compressed in an unusual way" if member.compress_type not in _COMPRESSED
            else ""
        )  # fmt: skip
        if fault:
            raise SecondhandError(
                f"{name}: {quoted(member.filename[:100])} in it {fault}. Make a zip of the class folders alone"
            )
        if all(is_user_file(Path(part)) for part in parts):
            yield member, path


def _require_room(root: Path, size: int, name: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if size + ROOM > free:
        raise SecondhandError(
            f"{name} needs {size / 2**30:.1f} GB and {ROOM >> 30} GB for the run, but {root} has {free / 2**30:.1f} GB "
            "left. Free some space, or choose another folder: --train FOLDER"
        )
