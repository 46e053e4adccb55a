"""Downloads files and archives, verifies their hashes, and unpacks them.

``SECONDHAND_MIRROR`` names a base URL that stands for ``https://``: the file of
``https://HOST/PATH`` is then fetched from ``$SECONDHAND_MIRROR/HOST/PATH``, which is how
``wget --force-directories`` lays files out. The hashes stay those of the publisher.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import file_beside

log = logging.getLogger(__name__)

MIRROR = "SECONDHAND_MIRROR"
ROOM = 64 * 2**20  # bytes of the disk that stay free
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a public data set.

    Attributes
    ----------
    url : where the publisher keeps it, ``https://``.
    name : what it is called here.
    hashes : published ones, each as ``md5:…`` or ``sha256:…``; one must match. Several where the
        publisher packs the same files anew; none where none was found.
    size : bytes, where published.
    """

    url: str
    name: str
    hashes: tuple[str, ...] = ()
    size: int | None = None

    @property
    def source(self) -> str:
        """The URL that is asked: the publisher's, or the mirror's."""
        base = os.environ.get(MIRROR, "").strip().rstrip("/")
        return f"{base}/{self.url.removeprefix('https://')}" if base else self.url


def fetch_file(file: RemoteFile, folder: Path) -> tuple[Path, bool]:
    """The file in ``folder``, downloaded unless it is there, and whether it was downloaded.

    A file placed there by hand is checked in the same way.

    Raises
    ------
    SecondhandError : no network, the wrong size or the wrong hash. Nothing stands under the file's
        name then that was not there before.
    """
    import pooch
    import requests

    path = folder / file.name
    if path.exists():
        _check(file, path, path)
        return path, False
    download = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty() and not os.environ.get("SECONDHAND_QUIET"),
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},
    )
    try:
        with file_beside(path) as beside:
            download(file.source, beside, None)
            _check(file, beside, path)
    except requests.RequestException as error:
        cause = error.args[0] if error.args else error  # of "Max retries exceeded"
        reason = str(getattr(cause, "reason", error)).split("\n")[0][:200]
        raise SecondhandError(
            f"cannot fetch {file.source}: {reason}. Try again; or, without a network, place the file by "
            f"hand as {path}, or name a mirror: {MIRROR}=BASE takes "
            f"BASE/{file.url.removeprefix('https://')}"
        ) from None
    return path, True


def require_space(folder: Path, size: float, name: str) -> None:
    """SecondhandError unless ``size`` bytes more fit on the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    if size + ROOM > free:
        raise SecondhandError(
            f"{name} needs {size / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB left: free "
            "some room, or let SECONDHAND_CACHE name a folder on another disk"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.zip``, ``.tgz`` or ``.tar.gz`` into ``folder``, and nothing outside of it.

    Raises
    ------
    BadFile : the archive is broken, or a tar has a member that is a device or leads out of the folder.
    """
    try:
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, folder)  # which leaves out names that lead elsewhere
        else:
            shutil.unpack_archive(archive, folder, filter="data")
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError, OSError,
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the archive's
            raise
        reason = str(error)[:120] or type(error).__name__
        raise BadFile(
            archive, f"a broken archive ({reason}): delete it, and it is fetched again"
        ) from error


def _check(file: RemoteFile, received_file: Path, path: Path) -> None:
    """SecondhandError if the size or the hash is not the published one."""
    size = received_file.stat().st_size
    if file.size is not None and size != file.size:
        raise SecondhandError(
            f"{file.source}: {size} bytes, {file.size} are published: not used; fetch it again, or "
            f"place the right file as {path}"
        )
    algorithms = dict.fromkeys(published.partition(":")[0] for published in file.hashes) or [
        "sha256"
    ]
    received = []
    for name in algorithms:
        with received_file.open("rb") as stream:
            received.append(f"{name}:{hashlib.file_digest(stream, name).hexdigest()}")
    if not file.hashes:
        log.warning(
            "%s: no hash of it is published, so it is taken as it came: %s", file.name, received[0]
        )
    elif not set(received) & set(file.hashes):
        raise SecondhandError(
            f"{file.source}: the hash is {', '.join(received)}, published is "
            f"{' or '.join(file.hashes)}: damaged or tampered with, and not used. Fetch it again, "
            f"or place the right file as {path}"
        )
