"""Files that have an address instead of a place on a disk: in buckets, on hubs and servers, and in archives.

An address is what fsspec reads: a scheme and a path (``s3://bucket/birds/1.wav``), or a member of an archive and where
the archive is (``zip://birds/1.wav::s3://bucket/all.zip``). As text it is the path of an item, as on a disk. `local`
gives a copy to open, in the `Store`, named by the address and the state of the file there, so that what has not changed
is not fetched again. Whether it has changed is asked once a run.

fsspec is imported when the first address is met. Credentials and other options come from the environment, which the
drivers read themselves (``AWS_ACCESS_KEY_ID``, ``FSSPEC_S3_ANON``).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from mimetypes import guess_type
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from datasets.core.address import is_address
from datasets.core.doors import State
from datasets.core.errors import BadFile, SecondhandError, Unavailable
from datasets.core.limits import Counted, check_open_files
from datasets.core.part import AnyPath
from datasets.core.program import extra
from datasets.core.store import COPY, STARTED, STATE, Store
from fields.remote.asking import BrokenOff, asked, of_archive
from fields.remote.limits import HOLDERS, check_address
from fields.remote.names import CHAIN, is_nameless
from fields.remote.secrets import full, without_secrets

T = TypeVar("T")

#: Files that are fetched at the same time, and items whose files are fetched ahead of the one that is needed.
REQUESTS, AHEAD = 16, 64
#: Bytes of copies after which a process looks whether there is room for more.
LOOK = 2**30

#: How addresses of web servers begin.
_WEB = "http://", "https://"
#: What stands for / in the first part of an `Address`.
_SLASH = "\x1f"
#: What identifies the content of a file, in the words of the drivers: the first that there is.
_CONTENT = ("ETag", "etag", "md5Hash", "blob_id", "sha256", "Content-MD5", "Digest", "CRC")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "date_time")
#: The size of a file of which the server does not say it.
_ANY = -1
#: The number of a state that neither content nor time tells from another.
_UNSTATED = 0


class Entry(NamedTuple):
    """What a folder holds: an address, and the state of the file there; None for a folder."""

    address: str
    state: State | None


#: States of files that a listing has named, until they are fetched.
_listed: dict[str, State] = {}
#: The run that this process works for, and when it began: what was found out before is asked again.
_run, _since = "", STARTED
#: Bytes that this process has fetched since it looked whether there is room for more.
_fetched = LOOK


def as_path(text: str) -> Address:
    """The `Address` of a text that is one."""
    head, _, tail = without_secrets(text).partition(CHAIN)
    scheme, _, rest = head.partition("://")
    first, *parts = rest.split("/")
    if tail:  # the first part is a folder of the archive
        first, parts = f"{CHAIN}{tail}", [first, *parts]
    return Address(f"{scheme}://{first}".replace("/", _SLASH), *filter(None, parts))


class Address(PosixPath):
    """An address with the methods of a path; made by `as_path`.

    As text it is the address. Functions that open a path (``open``, h5py, pandas) get that of a copy on this disk.
    Its first part is all that is no folder: the scheme, and the bucket or server, or the archive.
    """

    is_folder: bool | None = None  # if a listing has said so

    def __str__(self) -> str:
        first, *parts = self.parts or (".",)
        root, chain, tail = first.replace(_SLASH, "/").partition(CHAIN)
        return "/".join([root.removesuffix("/") if parts else root, *parts]) + chain + tail

    def __fspath__(self) -> str:
        return str(local(str(self)))

    @property
    def name(self) -> str:
        return super().name if len(self.parts) > 1 else str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Address:
        return super().parent if len(self.parts) > 1 else self

    def absolute(self) -> Address:
        return self

    def mkdir(self, *args: Any, **options: Any) -> None:
        raise SecondhandError(
            f"{self}: only tables are written to an address, at the end of a job. Name a folder on a disk"
        )

    def is_dir(self) -> bool:
        if self.is_folder is None:
            self.is_folder = is_folder(str(self))
        return self.is_folder

    def is_file(self) -> bool:
        return self.is_folder is False or (not self.is_folder and is_file(str(self)))

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[Address]:  # type: ignore[override]
        """What the folder holds, but for keys that no path can have (`is_nameless`): those would be other files."""
        for entry in listing(str(self)):
            if is_nameless(entry.address):
                continue
            path = as_path(entry.address)
            path.is_folder = entry.state is None
            yield path

    def glob(self, pattern: str) -> Iterator[Address]:  # type: ignore[override]
        yield from map(as_path, matches(str(self / pattern)))


def plain_name(address: str) -> str:
    """The name of a file or folder as people write it: in the address of a web server it may have escapes.

    Examples
    --------
    >>> plain_name("https://a.org/50%25%20grey"), plain_name("s3://a/50%25")
    ('50% grey', '50%25')
    """
    name = as_path(address).name
    if not address.startswith(_WEB):
        return name
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        return name


def escaped(folder: str, path: str) -> str:
    """A path below a folder as its addresses write it: a web server is never sent what follows a #, which is of a name here.

    A ? and a % have a meaning in the path of an address, and keep it.

    Examples
    --------
    >>> escaped("https://a.org/t", "fox #1.jpg"), escaped("s3://a/t", "fox #1.jpg")
    ('fox %231.jpg', 'fox #1.jpg')
    """
    return path.replace("#", "%23") if folder.startswith(_WEB) else path


def is_file(address: str) -> bool:
    """Whether there is a file at an address."""
    try:
        if address.startswith("http") and address not in _listed:
            info = _info(address)
            if not _is_likely(address, info.get("mimetype")):
                return False
            _listed[address] = _state(info)
        return bool(state(address))
    except Unavailable:  # whether it is there is not known
        raise
    except BadFile:
        return False


def _is_likely(name: str, answered: str | None) -> bool:
    """Whether an answer of this type is the file of this name: some servers have a page, or a picture, for any name."""
    said, meant = (answered or "").partition("/")[0], (guess_type(name)[0] or "").partition("/")[0]
    if answered in ("text/html", "application/xhtml+xml"):
        return guess_type(name)[0] == answered
    return said not in ("image", "audio", "video") or not meant or said == meant


def is_folder(address: str) -> bool:
    """Whether there is a folder at an address."""
    if address in _listed:
        return False
    try:
        files, inside, _ = _files(address)
        if "http" in files.protocol and guess_type(address)[0]:
            return False  # to ask would read it
        return bool(asked(address, lambda: files.isdir(inside)))
    except Unavailable:
        raise
    except BadFile:
        return False


def matches(pattern: str) -> list[str]:
    """The addresses that a pattern names, sorted.

    Raises
    ------
    BadFile : there is no list of them.
    SecondhandError : the driver of the address is not installed.
    """
    files, inside, _ = _files(pattern)
    return sorted(_named(pattern, name) for name in asked(pattern, lambda: files.glob(inside)))


def local(name: str) -> Path:
    """The path of a copy on this disk of the file at an address, fetched unless it is there already.

    Raises
    ------
    BadFile : the file cannot be had.
    SecondhandError : the driver of the address is not installed.
    """
    now, store = state(name), Store()
    key = _key(name, now)
    copy = store.path_of(key, COPY)
    if not store.touch(copy):
        _make_room(store)
        try:
            store.write(key, COPY, partial(_fetch, name, now[0]))
        except BadFile as error:
            if not isinstance(error, Unavailable) and CHAIN not in name:
                _remember(name, error.reason)
            raise
    return copy


def state(address: str) -> State:
    """State of a file; asked once a run, in one of its processes.

    A member of an archive is looked up in the archive as it is now. A file of which the server says neither what it
    contains nor when it has changed is fetched: its content is its state.

    Raises
    ------
    BadFile : it is not there, or cannot be had.
    SecondhandError : the driver of the address is not installed.
    """
    if CHAIN in address:
        return _state(_info(address))
    listed, known = _listed.pop(address, None), _recalled(address)
    if known is None or listed not in (known, None):
        try:
            known = listed or _state(_info(address))
            if known[3] == _UNSTATED:
                known = _state_of_content(address, known[0])
        except Unavailable:  # the next time it may be there
            raise
        except BadFile as error:
            known = error.reason
        _remember(address, known)
    if isinstance(known, str):
        raise BadFile(address, known)
    return known


def listing(address: str) -> Iterator[Entry]:
    """Yield what a folder holds, by name, as the pages of a long listing arrive.

    Raises
    ------
    BadFile : it cannot be listed.
    SecondhandError : the driver of the address is not installed.
    """
    files, inside, _ = _files(address)
    folder = inside.strip("/")
    for page in _pages(address, files, inside):
        for info in page:
            if info["name"].strip("/") == folder:  # an empty file that stands for the folder
                continue
            name = _named(address, info["name"].rstrip("/"))
            if info["type"] == "directory":
                yield Entry(name, None)
            else:
                found = _state(info)
                if found[3] != _UNSTATED and CHAIN not in name:
                    _listed[name] = found
                yield Entry(name, found)


def read_ahead(items: Iterable[T], path_of: Callable[[T], AnyPath]) -> Iterator[T]:
    """Yield the items in their order while the files of those that follow are fetched, `REQUESTS` at a time.

    A file that cannot be had is left to whoever opens it, who is told why. Files on a disk are not looked at.
    """
    waiting = deque[tuple[T, Future[None] | None]]()
    with ThreadPoolExecutor(REQUESTS) as pool:  # starts a thread when it is needed
        for item in items:
            path = path_of(item)
            fetching = pool.submit(_try_to_fetch, str(path)) if is_address(path) else None
            if fetching is None and not waiting:
                yield item
                continue
            waiting.append((item, fetching))
            if len(waiting) > AHEAD:
                yield _when_fetched(*waiting.popleft())
        for item, fetching in waiting:
            yield _when_fetched(item, fetching)


def ask_again(address: str) -> None:
    """Ask once more about a file, or about the archive that holds it, though this run has."""
    _state_file(address.rpartition(CHAIN)[2]).unlink(missing_ok=True)


def work_for(run: str) -> None:
    """Ask about all files again if a process that serves several runs begins another one."""
    global _run, _since
    if run != _run:
        _run, _since = run, time.time()


def put(file: Path, address: str) -> None:
    """Write a file to an address, whole or not at all.

    Raises
    ------
    BadFile : it cannot be written there.
    SecondhandError : the driver of the address is not installed.
    """
    files, inside, _ = _files(address)
    try:
        asked(address, lambda: files.put_file(str(file), inside))
    except OSError as error:  # the disk of the server
        raise Unavailable(address, f"cannot be written: {error.strerror or error}") from None
    _state_file(address).unlink(missing_ok=True)


def _key(name: str, now: State) -> str:
    return hashlib.sha256(f"{name}\n{now}".encode()).hexdigest()


def _state_of_content(address: str, size: int) -> State:
    """The state of a file by its content, of which this leaves a copy for `local`."""
    store = Store()
    _make_room(store)
    copy = store.write(_key(address, (size, 0, 0, _UNSTATED)), COPY, partial(_fetch, address, size))
    with open(copy, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known = (size, 0, 0, int(digest[:15], 16))
    store.write(_key(address, known), COPY, partial(shutil.copyfile, copy))
    copy.unlink(missing_ok=True)
    return known


def _fetch(address: str, size: int, file: Path) -> None:
    """Write the bytes of a file of this size, or of one that is not known, to a path."""
    global _fetched
    from fsspec.callbacks import Callback

    files, inside, lock = _files(address)
    packed = files.packed_size(inside) if CHAIN in address else None

    counted = Counted(address, None)

    class Counting(Callback):
        def relative_update(self, inc: int = 1) -> None:
            counted.add(inc)

    def copy() -> int:
        nonlocal counted
        counted = Counted(address, None if size == _ANY else size, packed)
        with lock:
            files.get_file(inside, str(file), callback=Counting())
        read = file.stat().st_size
        if size != _ANY and read < size:
            raise BrokenOff
        return read

    read = asked(address, copy)
    _fetched += read
    if size not in (read, _ANY):
        raise Unavailable(address, f"it has changed while it was read: {size} bytes, now {read}")


def _when_fetched(item: T, fetching: Future[None] | None) -> T:
    if fetching is not None:
        fetching.result()
    return item


def _try_to_fetch(address: str) -> None:
    with suppress(SecondhandError):
        local(address)


def _files(address: str) -> tuple[Any, str, AbstractContextManager[Any]]:
    """The file system of an address, the path in it, and what is held while a file is read."""
    check_address(address)
    head, chain, tail = address.partition(CHAIN)
    scheme, _, inside = head.partition("://")
    scheme = scheme.strip().lower()
    if scheme in HOLDERS and not chain:
        raise BadFile(address, f"names no archive: write {scheme}://MEMBER::ARCHIVE")
    try:
        if chain:
            copy = str(local(tail)) if is_address(tail) else tail
            try:
                status = os.stat(copy)  # another archive may have taken its place
            except OSError as error:
                check_open_files(error)
                reason = "there is no such file" if error.errno == errno.ENOENT else error.strerror
                raise BadFile(tail, reason or str(error)) from None
            with _opening.setdefault(os.getpid(), threading.RLock()):
                stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
                stamp = (0, 0, 0, status.st_ino) if is_address(tail) else stamp
                archive, lock = _archive(scheme, tail, copy, stamp, os.getpid())
            return archive, inside, lock
        if scheme in ("s3", "s3a"):
            with _opening.setdefault(os.getpid(), threading.RLock()):
                return _buckets(os.getpid(), _access()), inside, nullcontext()
        if scheme in ("http", "https"):
            from fields.remote.pages import Pages

            return Pages(**_OPTIONS[scheme]), full(f"{scheme}://{inside}"), nullcontext()
        from fsspec.core import url_to_fs

        whole = full(f"{scheme}://{inside}")
        return *url_to_fs(whole, **_OPTIONS.get(scheme, {})), nullcontext()
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        package = (cause.name or scheme).partition(".")[0]
        remedy = extra("cloud") if package in _OF_EXTRA else f"pip install {package}"
        raise SecondhandError(
            f"{address}: {scheme}:// needs the package {package}. Install it: {remedy}"
        ) from None
    except ValueError as error:
        if isinstance(error, SecondhandError):
            raise
        raise SecondhandError(f"{address}: no files can be read from {scheme}://") from None


#: Packages of the extra ``cloud``.
_OF_EXTRA = ("fsspec", "botocore", "aiohttp")
#: Options of drivers. What is listed is remembered here, and for one run.
_OPTIONS: dict[str, dict[str, Any]] = {
    scheme: {"use_listings_cache": False} for scheme in ("gs", "gcs", "http", "https")
}


#: Held, by process, while an archive, which may be in a bucket, is opened: a fork never gets one that a thread holds.
_opening: dict[int, threading.RLock] = {}


@lru_cache(1)  # connections belong to a process, and to who it is for the server
def _buckets(process: int, access: tuple[str, ...]) -> Any:
    from fields.remote.buckets import Buckets

    return Buckets(REQUESTS)


def _access() -> tuple[str, ...]:
    """What tells a bucket's driver who asks, and where: a notebook may set it after the first try."""
    names = sorted(name for name in os.environ if name.startswith(("AWS_", "FSSPEC_")))
    times = []
    for variable, usual in _FILES_OF_AWS.items():
        with suppress(OSError):
            times.append(str(os.stat(os.environ.get(variable) or Path.home() / usual).st_mtime_ns))
    return (*(f"{name}={os.environ[name]}" for name in names), *times)


_FILES_OF_AWS = {
    "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials",
    "AWS_CONFIG_FILE": ".aws/config",
}


@lru_cache(
    8
)  # an archive's table of contents is read once in a process, while it is the same archive
def _archive(
    scheme: str, address: str, copy: str, stamp: tuple[int, ...], process: int
) -> tuple[Any, threading.Lock]:
    from fields.remote.members import FILE_SYSTEMS

    try:
        opened: Any = FILE_SYSTEMS[scheme](fo=copy)
        opened.isdir("")  # fsspec makes the table here, which no other thread may see half made
        return opened, threading.Lock()
    except BadFile as error:
        raise type(error)(address, error.reason) from None
    except SecondhandError:
        raise
    except MemoryError:
        raise BadFile(address, "its table of contents does not fit into memory") from None
    except Exception as error:  # the readers' own errors have no common root
        check_open_files(error)
        raise BadFile(address, f"cannot be read as {scheme} ({of_archive(error)})") from None


def _info(address: str) -> dict[str, Any]:
    files, inside, _ = _files(address)
    info: dict[str, Any] = asked(address, lambda: files.info(inside))
    if info["type"] == "directory":
        raise BadFile(address, "a folder, not a file")
    return info


def _pages(address: str, files: Any, inside: str) -> Iterator[list[dict[str, Any]]]:
    """What a folder holds, by name: in a bucket page by page, because it may be a million files."""
    if "s3" not in files.protocol:
        found = asked(address, lambda: files.ls(inside, detail=True))
        yield sorted(found, key=lambda info: str(info["name"]))
        return
    pages = files.pages(inside)
    while (page := asked(address, lambda: next(pages, None))) is not None:
        yield sorted(page, key=lambda info: str(info["name"]))


def _named(folder: str, name: str) -> str:
    """The address of what a file system calls ``name``, beside or below ``folder``."""
    head, chain, tail = folder.partition(CHAIN)
    if "://" not in name:
        name = f"{head.partition('://')[0]}://{name.lstrip('/')}"
    return without_secrets(name) + chain + tail


def _state(info: dict[str, Any]) -> State:
    content = next((info[name] for name in (*_CONTENT, *_TIMES) if info.get(name)), "")
    text = str(content).strip('"').encode()
    number = int(hashlib.sha256(text).hexdigest()[:15], 16) if text else _UNSTATED
    size = info.get("size")
    return (_ANY if size is None else int(size), 0, 0, number)


def _recalled(address: str) -> State | str | None:
    """What another process of this run, or this one, has found out: a state, or why there is none."""
    file = _state_file(address)
    try:
        if os.stat(file).st_mtime < _since:
            return None
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return known if isinstance(known, str) else tuple(known)


def _remember(address: str, known: State | str) -> None:
    file, text = _state_file(address), json.dumps(known).encode()
    with suppress(OSError):
        if file.read_bytes() == text:  # to replace a file may wait for the disk
            os.utime(file)
            return
    Store().add(file.stem, STATE, text)


def _state_file(address: str) -> Path:
    return Store().path_of(hashlib.sha256(address.encode()).hexdigest(), STATE)


def _make_room(store: Store) -> None:
    """Remove copies that have not been used for long, once a process has fetched `LOOK` more bytes."""
    global _fetched
    if _fetched >= LOOK:
        _fetched = 0
        store.make_room_for_copies()
