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
import re
import shutil
import tarfile
import threading
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from mimetypes import guess_type
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from datasets.core.address import absolute, is_address
from datasets.core.doors import State
from datasets.core.errors import BadFile, SecondhandError, Unavailable, first_line
from datasets.core.limits import OF_FULL_DISK, Counted, check_open_files
from datasets.core.part import AnyPath
from datasets.core.program import extra
from datasets.core.store import COPY, STARTED, STATE, Store
from fields.remote.limits import HOLDERS, PASSING, check_address

T = TypeVar("T")

#: Files that are fetched at the same time, and items whose files are fetched ahead of the one that is needed.
REQUESTS, AHEAD = 16, 64
#: Bytes of copies after which a process looks whether there is room for more.
LOOK = 2**30

#: In these a name before @ is that of a container.
_CONTAINERS = ("abfs", "abfss", "adl", "az", "wasb", "wasbs")
_USER = re.compile(rf"""{"".join(f"(?<!{one})" for one in _CONTAINERS)}(://)[^/\s'"@]+@""")
_SIGNATURE = re.compile(
    r"(?i)x-(amz|goog)-|\w*(sign?|signature|token|expires|key|policy)\b|s[a-z]{1,4}="
)
_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
#: Between an archive's member and the archive, and what stands for / in the first part of an `Address`.
_CHAIN, _SLASH = "::", "\x1f"
#: The scheme of what an archive, or a table, holds, by its ending.
ARCHIVES = {
    ".zip": "zip",
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"), "tar"),
    ".parquet": "parquet",
}
#: What identifies the content of a file, in the words of the drivers: the first that there is.
_CONTENT = ("ETag", "etag", "md5Hash", "blob_id", "sha256", "Content-MD5", "Digest", "CRC")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "date_time")
#: The size of a file of which the server does not say it.
_ANY = -1
#: The number of a state that neither content nor time tells from another.
_UNSTATED = 0
#: Seconds before a server is asked again; and how many times it is, in the next `_REST` seconds, once all were in vain.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.6,) * 9)
_FEW, _REST = 3, 60.0
#: Libraries whose errors, if a server has not answered, are those of the network.
_OF_NETWORK = ("aiohttp", "urllib3", "requests", "httpx", "httpcore")


class Entry(NamedTuple):
    """What a folder holds: an address, and the state of the file there; None for a folder."""

    address: str
    state: State | None


#: User names and passwords by server, and queries by address, which nothing else of the program knows.
_users: dict[str, str] = {}
_queries: dict[str, str] = {}
#: States of files that a listing has named, until they are fetched.
_listed: dict[str, State] = {}
#: The run that this process works for, and when it began: what was found out before is asked again.
_run, _since = "", STARTED
#: When a server had been asked in vain, by its name.
_down: dict[str, float] = {}
#: Bytes that this process has fetched since it looked whether there is room for more.
_fetched = LOOK


def member(address: str) -> str:
    """The part of an address that names the file, without the archive in which it is."""
    return address.partition(_CHAIN)[0]


def is_held(address: str) -> bool:
    """Whether a file is in an archive, whose table of contents is read once; to ask a server takes a request each."""
    return address.startswith(("zip://", "tar://"))


def plain_name(address: str) -> str:
    """The name of a file or folder as people write it: in the address of a web server it may have escapes.

    Examples
    --------
    >>> plain_name("https://a.org/50%25%20grey"), plain_name("s3://a/50%25")
    ('50% grey', '50%25')
    """
    name = as_path(address).name
    if not address.startswith(("http://", "https://")):
        return name
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        return name


def without_secrets(text: str) -> str:
    """An address without user name, password and query, which this process remembers for its requests.

    Raises
    ------
    BadFile : no file is read at such an address.
    SecondhandError : an address without its query has been met with another one, so the two cannot be told apart.
    """
    check_address(text)
    return remembered(text)


def remembered(text: str) -> str:
    """As `without_secrets`, for a value that may also be of no file, such as the address of a cluster."""
    return _CHAIN.join(map(_clean, text.split(_CHAIN)))


def hidden(text: str) -> str:
    """A sentence without user names, passwords and queries in its addresses."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def as_path(text: str) -> Address:
    """The `Address` of a text that is one."""
    head, _, tail = without_secrets(text).partition(_CHAIN)
    scheme, _, rest = head.partition("://")
    first, *parts = rest.split("/")
    if tail:  # the first part is a folder of the archive
        first, parts = f"{_CHAIN}{tail}", [first, *parts]
    return Address(f"{scheme}://{first}".replace("/", _SLASH), *filter(None, parts))


def contents(path: str) -> str:
    """The folder of what an archive holds; any other path as it is.

    Examples
    --------
    >>> contents("/data/all.zip"), contents("s3://bucket/a.tar.gz"), contents("/data/a.wav")
    ('zip://::/data/all.zip', 'tar://::s3://bucket/a.tar.gz', '/data/a.wav')
    """
    name = path.lower()
    scheme = next((ARCHIVES[ending] for ending in ARCHIVES if name.endswith(ending)), "")
    return f"{scheme}://{_CHAIN}{absolute(path)}" if scheme and _CHAIN not in path else path


def is_nameless(address: str) -> bool:
    """Whether a folder of an address has no name, as a key of a bucket may have; a path leaves such folders out."""
    return "//" in member(address).partition("://")[2]


class Address(PosixPath):
    """An address with the methods of a path; made by `as_path`.

    As text it is the address. Functions that open a path (``open``, h5py, pandas) get that of a copy on this disk.
    Its first part is all that is no folder: the scheme, and the bucket or server, or the archive.
    """

    is_folder: bool | None = None  # if a listing has said so

    def __str__(self) -> str:
        first, *parts = self.parts or (".",)
        root, chain, tail = first.replace(_SLASH, "/").partition(_CHAIN)
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
        return bool(_answer(address, lambda: files.isdir(inside)))
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
    return sorted(_named(pattern, name) for name in _answer(pattern, lambda: files.glob(inside)))


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
            if not isinstance(error, Unavailable) and _CHAIN not in name:
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
    if _CHAIN in address:
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
                if found[3] != _UNSTATED and _CHAIN not in name:
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
    _state_file(address.rpartition(_CHAIN)[2]).unlink(missing_ok=True)


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
        _answer(address, lambda: files.put_file(str(file), inside))
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


class _BrokenOff(Exception):
    """Fewer bytes than were promised."""


def _fetch(address: str, size: int, file: Path) -> None:
    """Write the bytes of a file of this size, or of one that is not known, to a path."""
    global _fetched
    from fsspec.callbacks import Callback

    files, inside, lock = _files(address)
    packed = files.packed_size(inside) if _CHAIN in address else None

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
            raise _BrokenOff
        return read

    read = _answer(address, copy)
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


def _clean(link: str) -> str:
    """One link of a chain without its secrets, which are remembered."""
    scheme, separator, rest = link.partition("://")
    if not separator:
        return link
    scheme = scheme.strip().lower()
    place, slash, path = rest.partition("/")
    user, at, server = place.rpartition("@")
    if at and scheme not in _CONTAINERS:
        _users[f"{scheme}://{server}"] = user
        place = server
    query = ""
    if scheme in ("http", "https"):
        place, mark, after = place.partition("?")
        path, mark, query = path.partition("?") if not mark else (path, mark, after)
        path = path.partition("#")[0]
        if "%" in path:
            from fields.remote.pages import plain_path

            path = plain_path(path)
    plain = f"{scheme}://{place}{slash}{path}"
    if query and _unsigned(_queries.get(plain, query)) != _unsigned(query):
        raise SecondhandError(
            f"{plain}: two addresses differ only after ?, which names no file here. Use addresses without it, or one of "
            "the two"
        )
    if query:
        _queries[plain] = query
    return plain


def _unsigned(query: str) -> set[str]:
    """The words of a query that no signature has, which may name a file."""
    return {word for word in query.split("&") if not _SIGNATURE.match(word)}


def _full(link: str) -> str:
    """One link of a chain with its secrets."""
    scheme, separator, rest = link.partition("://")
    server = rest.partition("/")[0]
    user = _users.get(f"{scheme}://{server}") if _users else None
    query = f"?{_queries[link]}" if link in _queries else ""
    return f"{scheme}{separator}{f'{user}@' if user else ''}{rest}{query}"


def _files(address: str) -> tuple[Any, str, AbstractContextManager[Any]]:
    """The file system of an address, the path in it, and what is held while a file is read."""
    check_address(address)
    head, chain, tail = address.partition(_CHAIN)
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

            return Pages(**_OPTIONS[scheme]), _full(f"{scheme}://{inside}"), nullcontext()
        from fsspec.core import url_to_fs

        full = _full(f"{scheme}://{inside}")
        return *url_to_fs(full, **_OPTIONS.get(scheme, {})), nullcontext()
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
        raise BadFile(address, f"cannot be read as {scheme} ({_of_archive(error)})") from None


def _info(address: str) -> dict[str, Any]:
    files, inside, _ = _files(address)
    info: dict[str, Any] = _answer(address, lambda: files.info(inside))
    if info["type"] == "directory":
        raise BadFile(address, "a folder, not a file")
    return info


def _pages(address: str, files: Any, inside: str) -> Iterator[list[dict[str, Any]]]:
    """What a folder holds, by name: in a bucket page by page, because it may be a million files."""
    if "s3" not in files.protocol:
        found = _answer(address, lambda: files.ls(inside, detail=True))
        yield sorted(found, key=lambda info: str(info["name"]))
        return
    pages = files.pages(inside)
    while (page := _answer(address, lambda: next(pages, None))) is not None:
        yield sorted(page, key=lambda info: str(info["name"]))


def _named(folder: str, name: str) -> str:
    """The address of what a file system calls ``name``, beside or below ``folder``."""
    head, chain, tail = folder.partition(_CHAIN)
    if "://" not in name:
        name = f"{head.partition('://')[0]}://{name.lstrip('/')}"
    return without_secrets(name) + chain + tail


def _state(info: dict[str, Any]) -> State:
    content = next((info[name] for name in (*_CONTENT, *_TIMES) if info.get(name)), "")
    text = str(content).strip('"').encode()
    number = int(hashlib.sha256(text).hexdigest()[:15], 16) if text else _UNSTATED
    size = info.get("size")
    return (_ANY if size is None else int(size), 0, 0, number)


def _answer(address: str, ask: Callable[[], T]) -> T:
    """What a driver answers; its errors become BadFile, in words that name no secret.

    What may pass is asked for again, after pauses that grow.
    """
    server = address.partition(_CHAIN)[0].partition("://")[2].partition("/")[0]
    rests = time.monotonic() - _down.get(server, -_REST) < _REST
    for pause in (*(_PAUSES[:_FEW] if rests else _PAUSES), None):
        try:
            answer = ask()
            _down.pop(server, None)
            return answer
        except SecondhandError:
            raise
        except Exception as error:
            check_open_files(error)
            if isinstance(error, OSError) and (
                error.errno in OF_FULL_DISK or (error.errno == errno.EACCES and error.filename)
            ):
                raise
            passes = _passes(error)
            if passes and pause is None:
                _down[server] = time.monotonic()
            if pause is None or not passes:
                kind = Unavailable if passes or _is_of_access(error) else BadFile
                raise kind(address, _reason(error)) from None
        time.sleep(pause)
    raise AssertionError


def _status_of(error: BaseException) -> int | None:
    """The status with which a server has answered; None if it has not."""
    answer = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    return status if isinstance(status, int) else None


def _passes(error: Exception) -> bool:
    """Whether a server may answer the next time."""
    cause = error.__cause__ or error
    if (status := _status_of(cause)) is not None:
        return status in PASSING
    if isinstance(error, ConnectionError) or isinstance(
        cause, _BrokenOff | ConnectionError | TimeoutError
    ):
        return True
    library = type(cause).__module__.partition(".")[0]
    return library in _OF_NETWORK and not isinstance(cause, ValueError)


def _is_of_access(error: Exception) -> bool:
    return "NoCredentials" in type(error.__cause__ or error).__name__


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    status = _status_of(cause)
    if isinstance(cause, _BrokenOff):
        return "the connection has ended each time before the end of the file, or the file is being replaced. Try again"
    if _passes(error):
        what = (
            f"its server answers {status}"
            if status
            else f"its server cannot be reached ({type(cause).__name__})"
        )
        return f"{what}, though it was asked several times. Try again later"
    if isinstance(error, PermissionError) or status in (401, 403):
        return "access is denied. Are the credentials in the environment?"
    if "NoCredentials" in type(cause).__name__:
        return "no credentials in the environment"
    if isinstance(error, FileNotFoundError | KeyError):
        return "there is no such file"
    if status:
        return f"its server refuses it (status {status})"
    return f"cannot be had ({_of_archive(cause)})"


def _of_archive(error: BaseException) -> str:
    """What is wrong with an archive, in words; of other errors the name, because their texts may hold a secret."""
    if isinstance(error, NotImplementedError):
        return (
            "packed by a method that is not read, such as the Deflate64 of Windows: unpack it, or pack it anew by "
            "another program"
        )
    if isinstance(error, zipfile.BadZipFile | tarfile.TarError | zlib.error | EOFError):
        return f"the archive is damaged: {first_line(error, 120)}"
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return f"{type(error).__name__} of its reader"


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
