"""Archives from the network, unpacked with care: nothing outside the folder, no links, no bombs."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from datasets.errors import BadFile
from datasets.public.download import need_room

MAX_MEMBERS = 200_000
MAX_BYTES = 40 * 2**30  # of all members together


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.zip``, ``.tgz`` or ``.tar.gz`` into ``folder``.

    Raises
    ------
    BadFile : the archive is broken, or has a member that is a link, a device, absolute or outside
        the folder; more than `MAX_MEMBERS` of them, or more than `MAX_BYTES` in all.
    SecondhandError : the disk has no room for it.
    """
    with _broken(archive):
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        tally = _Tally(archive)
        for member in members:
            tally.add(member.filename, member.file_size)
            kind = member.external_attr >> 28  # the type bits of a Unix mode
            if kind not in (0, 0o10, 0o04):
                raise BadFile(archive, f"{member.filename} is a link or a device: not unpacked")
        need_room(folder, tally.size, archive.name)
        for member in members:
            packed.extract(member, folder)


def _unpack_tar(archive: Path, folder: Path) -> None:
    # How much a tar holds shows only at its end; it is no less than the archive, by experience.
    need_room(folder, archive.stat().st_size, archive.name)
    with tarfile.open(archive, "r:*") as packed:
        tally = _Tally(archive)
        for member in packed:
            tally.add(member.name, member.size)
            if not (member.isreg() or member.isdir()):
                raise BadFile(archive, f"{member.name} is a link or a device: not unpacked")
            packed.extract(member, folder, filter="data")


class _Tally:
    """What has been seen of an archive, and whether that is still reasonable."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.size = 0
        self.members = 0

    def add(self, name: str, size: int) -> None:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts[:1] and ":" in path.parts[0]):
            raise BadFile(self.archive, f"the name {name!r} leads out of the folder: not unpacked")
        self.size += size
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise BadFile(self.archive, f"holds more than {MAX_MEMBERS} files: not unpacked")
        if self.size > MAX_BYTES:
            raise BadFile(self.archive, f"unpacks to more than {MAX_BYTES} bytes: not unpacked")


@contextmanager
def _broken(archive: Path) -> Iterator[None]:
    """Whatever the readers raise for a broken archive becomes BadFile."""
    try:
        yield
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, RuntimeError,
        shutil.ReadError, LookupError,
    ) as error:  # fmt: skip
        raise _again(archive, error) from error
    except OSError as error:
        if error.errno is not None:  # the disk's, not the archive's
            raise
        raise _again(archive, error) from error


def _again(archive: Path, error: Exception) -> BadFile:
    reason = str(error)[:120] or type(error).__name__
    return BadFile(archive, f"a broken archive ({reason}): delete it, and it is fetched again")
