"""One file from the network: continued where it was broken off, checked, or not there at all.

``SECONDHAND_MIRROR`` names a base URL that stands for ``https://``: the file of
``https://HOST/PATH`` is then fetched from ``$SECONDHAND_MIRROR/HOST/PATH``, which is how
``wget --force-directories`` lays files out. The hashes stay those of the publisher.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
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
    ``NAME.part``; that is continued by HTTP Range when the connection or the process breaks.

    Raises
    ------
    SecondhandError : no network, no room, the wrong size or the wrong hash. Nothing stands under
        the final name then that was not there before.
    """
    path = folder / file.name
    if path.exists():
        _check(file, path, path)
        return path, False
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    reached = _size(part)
    while (broken := _fetch(file, part)) is not None:
        if _size(part) <= reached:  # nothing new came: no use in asking again and again
            raise _no_answer(file, path, reached, broken) from None
        reached = _size(part)
        log.info("%s: the connection broke, going on from byte %d", file.source, reached)
        time.sleep(0.2)
    try:
        _check(file, part, path)
    except SecondhandError:
        part.unlink()  # or every later try would go on from it
        raise
    os.replace(part, path)
    return path, True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(file: RemoteFile, part: Path) -> Exception | None:
    """Ask for what is missing of ``part``; what broke it off, or None when all is there."""
    import requests
    from tqdm import tqdm  # type: ignore[import-untyped]

    there = _size(part)
    if there and there == file.size:
        return None
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
    try:
        with requests.get(file.source, headers=asked, stream=True, timeout=TIMEOUT) as answer:
            span = answer.headers.get("Content-Range", "")
            if there and answer.status_code == 416:
                # The server has no byte behind these: all is there, or it is another file.
                if span == f"bytes */{there}":
                    return None
                part.unlink()
                return _fetch(file, part)
            answer.raise_for_status()
            if there and not (answer.status_code == 206 and span.startswith(f"bytes {there}-")):
                log.info("%s: the server starts from the beginning", file.source)
                there = 0
            length = answer.headers.get("Content-Length", "")
            total = there + int(length) if length.isdigit() else file.size
            if total is not None:
                need_room(part.parent, total - there, file.name)
            bar = tqdm(
                total=total, initial=there, unit="B", unit_scale=True, desc=file.name,
                disable=bool(os.environ.get("SECONDHAND_QUIET")) or None,  # None: unless on a terminal
            )  # fmt: skip
            with open(part, "ab" if there else "wb") as out, bar:
                for block in answer.iter_content(_BLOCK):
                    out.write(block)
                    bar.update(len(block))
                    if out.tell() > file.largest:
                        out.close()
                        part.unlink()
                        raise SecondhandError(
                            f"{file.source}: more than {file.largest} bytes come, which is not the "
                            "file that is meant"
                        )
    except requests.RequestException as error:
        return error
    if total is not None and _size(part) < total:
        return EOFError(f"{_size(part)} of {total} bytes came")
    return None


def _no_answer(file: RemoteFile, path: Path, there: int, error: Exception) -> SecondhandError:
    inner = error.args[0] if error.args else error  # of "Max retries exceeded" the cause
    reason = str(getattr(inner, "reason", error)).split("\n")[0][:200]
    kept = f" ({there} bytes are kept and continued next time)" if there else ""
    return SecondhandError(
        f"cannot fetch {file.source}: {reason}{kept}. Without a network, place the file by hand as "
        f"{path}, or name a mirror: {MIRROR}=BASE takes BASE/{file.url.removeprefix('https://')}"
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
