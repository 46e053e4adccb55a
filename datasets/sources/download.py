"""One file from the network: whole and checked, or not there at all.

``SECONDHAND_MIRROR`` names a base URL that stands for ``https://``: the file of
``https://HOST/PATH`` is then fetched from ``$SECONDHAND_MIRROR/HOST/PATH``, which is how
``wget --force-directories`` lays files out. The hashes stay those of the publisher.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from datasets.core.errors import SecondhandError

log = logging.getLogger(__name__)

MIRROR = "SECONDHAND_MIRROR"
LARGEST = 20 * 2**30  # bytes of one file, where the publisher's size is not known
ROOM = 64 * 2**20  # bytes of the disk that stay free
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 2**16


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
    largest : bytes; a file that is larger is refused.
    """

    url: str
    name: str
    hashes: tuple[str, ...] = ()
    size: int | None = None
    largest: int = LARGEST

    @property
    def source(self) -> str:
        """The URL that is asked: the publisher's, or the mirror's."""
        base = os.environ.get(MIRROR, "").strip().rstrip("/")
        return f"{base}/{self.url.removeprefix('https://')}" if base else self.url


def fetch_file(file: RemoteFile, folder: Path) -> tuple[Path, bool]:
    """The file in ``folder``, downloaded unless it is there, and whether it was downloaded.

    A file placed there by hand is checked in the same way. While it is on its way it is called
    ``NAME.part``.

    Raises
    ------
    SecondhandError : no network, no room, the wrong size or the wrong hash. Nothing stands under
        the final name then that was not there before.
    """
    import pooch
    import requests

    path = folder / file.name
    if path.exists():
        _check(file, path, path)
        return path, False
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    download = pooch.HTTPDownloader(
        _Progress(file, part), _BLOCK, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    try:
        download(file.source, part, None)
        _check(file, part, path)
        os.replace(part, path)
    except requests.RequestException as error:
        raise _no_answer(file, path, error) from None
    finally:
        part.unlink(missing_ok=True)
    return path, True


class _Progress:
    """The bar that pooch moves; it refuses what is too large for the disk, or for what is meant."""

    def __init__(self, file: RemoteFile, part: Path) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        self.file, self.part = file, part
        self.bar = tqdm(
            total=file.size, unit="B", unit_scale=True, desc=file.name,
            disable=bool(os.environ.get("SECONDHAND_QUIET")) or None,  # None: unless on a terminal
        )  # fmt: skip
        self.reset, self.close = self.bar.reset, self.bar.close

    @property
    def total(self) -> int | None:
        return self.bar.total

    @total.setter
    def total(self, size: int) -> None:
        """``size`` : as the server says, 0 where it does not."""
        self.bar.total = size or self.file.size
        need_room(self.part.parent, self.bar.total or 0, self.file.name)

    def update(self, count: int) -> None:
        self.bar.update(count)
        if self.part.stat().st_size > self.file.largest:
            raise SecondhandError(
                f"{self.file.source}: more than {self.file.largest} bytes come, which is not the "
                "file that is meant"
            )


def _no_answer(file: RemoteFile, path: Path, error: Exception) -> SecondhandError:
    inner = error.args[0] if error.args else error  # of "Max retries exceeded" the cause
    reason = str(getattr(inner, "reason", error)).split("\n")[0][:200]
    return SecondhandError(
        f"cannot fetch {file.source}: {reason}. Try again; or, without a network, place the file by "
        f"hand as {path}, or name a mirror: {MIRROR}=BASE takes "
        f"BASE/{file.url.removeprefix('https://')}"
    )


def need_room(folder: Path, size: int, name: str) -> None:
    """SecondhandError unless ``size`` bytes more fit on the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    if size + ROOM > free:
        raise SecondhandError(
            f"{name} needs {size / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB left: free "
            "some room, or let SECONDHAND_CACHE name a folder on another disk"
        )


def _check(file: RemoteFile, found: Path, path: Path) -> None:
    """SecondhandError if the size or the hash is not the published one."""
    import pooch

    size = found.stat().st_size
    if file.size is not None and size != file.size:
        raise SecondhandError(
            f"{file.source}: {size} bytes, {file.size} are published: not used; fetch it again, or "
            f"place the right file as {path}"
        )
    algorithms = dict.fromkeys(known.partition(":")[0] for known in file.hashes) or ["sha256"]
    received = [f"{name}:{pooch.file_hash(str(found), alg=name)}" for name in algorithms]
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
