"""Archives from the network, unpacked with care: nothing outside the folder, no links, no bombs."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from datasets.core.errors import BadFile
from datasets.sources.download import need_room

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
    try:
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, RuntimeError,
        LookupError, OSError,
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the archive's
            raise
        reason = str(error)[:120] or type(error).__name__
        raise BadFile(
            archive, f"a broken archive ({reason}): delete it, and it is fetched again"
        ) from error


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        tally = _Tally(archive)
        for member in packed.infolist():
            kind = member.external_attr >> 28  # the type bits of a Unix mode
            tally.add(member.filename, member.file_size, kind in (0, 0o10, 0o04))
        need_room(folder, tally.size, archive.name)
        packed.extractall(folder)


def _unpack_tar(archive: Path, folder: Path) -> None:
    # How much a tar holds shows only at its end; it is no less than the archive, by experience.
    need_room(folder, archive.stat().st_size, archive.name)
    tally = _Tally(archive)
    with tarfile.open(archive, "r:*") as packed:
        for member in packed:
            tally.add(member.name, member.size, member.isreg() or member.isdir())
            packed.extract(member, folder, filter="data")


class _Tally:
    """What has been seen of an archive, and whether that is still reasonable."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.size = self.members = 0

    def add(self, name: str, size: int, plain: bool) -> None:
        path = PurePosixPath(name.replace("\\", "/"))
        self.size += size
        self.members += 1
        wrong = ""
        if path.is_absolute() or ".." in path.parts or (path.parts[:1] and ":" in path.parts[0]):
            wrong = f"the name {name!r} leads out of the folder"
        elif self.members > MAX_MEMBERS:
            wrong = f"holds more than {MAX_MEMBERS} files"
        elif self.size > MAX_BYTES:
            wrong = f"unpacks to more than {MAX_BYTES} bytes"
        elif not plain:
            wrong = f"{name} is a link or a device"
        if wrong:
            raise BadFile(self.archive, f"{wrong}: not unpacked")
