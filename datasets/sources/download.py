"""Downloads files and archives, verifies their hashes, and unpacks them.

``SECONDHAND_MIRROR`` is a base URL that replaces ``https://``: ``https://HOST/PATH`` is then downloaded from
``$SECONDHAND_MIRROR/HOST/PATH``, the layout of ``wget --force-directories``. The publisher's hashes still apply.
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
TIMEOUT = 30.0  # seconds without any data


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a public data set.

    Attributes
    ----------
    url : the publisher's address, ``https://``.
    name : local file name.
    hashes : published hashes, each as ``md5:…`` or ``sha256:…``. One must match; there are several if the
        publisher has packed the same files more than once. Empty if none is published.
    size : published size in bytes, or None.
    """

    url: str
    name: str
    hashes: tuple[str, ...] = ()
    size: int | None = None

    @property
    def source(self) -> str:
        """URL to download from: the publisher's, or the mirror's."""
        base = os.environ.get(MIRROR, "").strip().rstrip("/")
        return f"{base}/{self.url.removeprefix('https://')}" if base else self.url


def fetch_file(file: RemoteFile, folder: Path) -> tuple[Path, bool]:
    """Path of the file in ``folder``, downloaded unless it exists, and whether it was downloaded.

    A file that the user placed there is verified in the same way.

    Raises
    ------
    SecondhandError : no network, or the wrong size or hash; no file is written then.
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
            f"cannot download {file.source}: {reason}. Try again. Without a network, place the file at {path}, "
            f"or set a mirror: with {MIRROR}=BASE it is downloaded from "
            f"BASE/{file.url.removeprefix('https://')}"
        ) from None
    return path, True


def require_space(folder: Path, size: float, name: str) -> None:
    """Raise SecondhandError unless the disk of ``folder`` has ``size`` free bytes for ``name``."""
    free = shutil.disk_usage(folder).free
    if size + ROOM > free:
        raise SecondhandError(
            f"{name} needs {size / 1e9:.2f} GB, but {folder} has {free / 1e9:.2f} GB left. Free disk space, or "
            "set SECONDHAND_CACHE to a folder on another disk"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.zip``, ``.tgz`` or ``.tar.gz`` into ``folder``; nothing is written outside of it.

    Raises
    ------
    BadFile : the archive is damaged, or a member of a tar is a device or would be outside the folder.
    """
    try:
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, folder)  # skips names that lead outside the folder
        else:
            shutil.unpack_archive(archive, folder, filter="data")
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError, OSError,
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not the archive
            raise
        reason = str(error)[:120] or type(error).__name__
        raise BadFile(
            archive, f"damaged archive ({reason}): delete it to download it again"
        ) from error


def _check(file: RemoteFile, received_file: Path, path: Path) -> None:
    """Raise SecondhandError if the size or hash is not the published one; ``path`` is for the message."""
    size = received_file.stat().st_size
    if file.size is not None and size != file.size:
        raise SecondhandError(
            f"{file.source}: it has {size} bytes instead of the published {file.size}, so it is not used. "
            f"Download it again, or place the right file at {path}"
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
            "%s cannot be verified, because no hash is published. It has %s", file.name, received[0]
        )
    elif not set(received) & set(file.hashes):
        raise SecondhandError(
            f"{file.source}: its hash is {', '.join(received)} instead of the published "
            f"{' or '.join(file.hashes)}, so it is damaged or was changed, and is not used. Download it again, "
            f"or place the right file at {path}"
        )
