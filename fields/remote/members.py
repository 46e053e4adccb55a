"""File systems of fsspec for what holds files: tables (``parquet://image/12.jpg::/data/train.parquet``), and archives.

A column of files is a struct of ``bytes`` and ``path``, as the Hugging Face hub has them, or bytes alone. A member is its
column and its row, from 0; the ending comes from the path, else from the first bytes, and is not looked at when a member is
read. All members have the state of the table or archive, so that asking for it reads none of them.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import posixpath
import re
import tarfile
import unicodedata
import zipfile
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem

from datasets.core.errors import BadFile
from datasets.core.limits import MOST_OF_LARGE, Counted
from datasets.core.store import COPY, Store

#: How the formats begin, and their endings; ``.`` stands for any byte.
_BEGIN = {
    rb"\xff\xd8\xff": ".jpg", rb"\x89PNG": ".png", rb"GIF8": ".gif", rb"RIFF....WEBP": ".webp", rb"BM": ".bmp",
    rb"II\*\x00|MM\x00\*": ".tiff", rb"....ftypavi": ".avif", rb"....ftyp(heic|heix|mif1)": ".heic",
    rb"RIFF....WAVE": ".wav", rb"fLaC": ".flac", rb"OggS": ".ogg", rb"ID3|\xff[\xe2-\xff]": ".mp3", rb"....ftyp": ".m4a",
}  # fmt: skip

#: A column, a row, and the contents of this and the following rows.
_Batch = tuple[str, int, list[bytes | None]]
#: Bytes of a Parquet table that are read at once, and about those of the batches that are kept.
BUFFER, _KEPT = 1 << 20, 1 << 27
#: Rows of a batch, and the bytes that they may have if each is as large as all of its group: the table may hold one
#: value a million times.
_ROWS, _AT_ONCE = 64, 1 << 29
#: How packed files begin, and what opens them.
_PACKED: dict[bytes, Callable[[str], Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open,
}  # fmt: skip


class ArchiveMembers(AbstractArchiveFileSystem):
    """The files in an archive, whose table of contents is made once.

    Parameters
    ----------
    files : what is known of each file, by its name.
    """

    cachable = False

    def __init__(self, files: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        super().__init__(**options)
        folders = self._all_dirnames(files)
        self.dir_cache = {name: {"name": name, "size": 0, "type": "directory"} for name in folders}
        self.dir_cache |= {
            name: {"name": name, "type": "file", **one} for name, one in files.items()
        }

    def _get_dirs(self) -> None:
        """Nothing is left to do: the archive is not written."""

    def packed_size(self, path: str) -> int | None:
        """Bytes that a member has in the archive; None if it is not packed."""
        return None


class ZipMembers(ArchiveMembers):
    """The files in a zip archive, also if Windows separates their folders by backslashes, or ``./`` begins their names.

    Parameters
    ----------
    fo : path of the archive.
    """

    protocol = "zip"

    def __init__(self, fo: str, **options: Any) -> None:
        self._archive = zipfile.ZipFile(fo)
        names = {
            name.replace("\\", "/").removeprefix("./").lstrip("/"): one
            for name, one in _names(self._archive.infolist()).items()
        }
        self._members = {name: one for name, one in names.items() if name and name[-1] != "/"}
        files = {n: {"size": one.file_size, "CRC": one.CRC} for n, one in self._members.items()}
        super().__init__(files, **options)

    def packed_size(self, path: str) -> int | None:
        member = self._members.get(path)
        return member.compress_size if member else None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> IO[bytes]:
        if path not in self._members:
            raise FileNotFoundError(path)
        member = self._members[path]
        if member.flag_bits & 1:
            raise BadFile(path, "encrypted: unpack the archive with its password")
        return self._archive.open(member)


def _names(members: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """The members by their names. Those that do not say that they are UTF-8 are it all the same, as macOS writes them, if
    all can be; the format says that they are of code page 437."""
    unmarked = {n: one.filename for n, one in enumerate(members) if _unmarked(one)}
    try:
        utf8 = {n: name.encode("cp437").decode() for n, name in unmarked.items()}
    except UnicodeError:
        utf8 = {}
    return {
        unicodedata.normalize("NFC", utf8[n]) if n in utf8 else one.filename: one
        for n, one in enumerate(members)
    }


def _unmarked(member: zipfile.ZipInfo) -> bool:
    """Whether a name beyond ASCII does not say that it is UTF-8."""
    return not (member.flag_bits & 0x800 or member.filename.isascii())


class TarMembers(ArchiveMembers):
    """The files in a tar archive, packed or not, and links to them.

    That of fsspec goes by the ending to see the packing, which a copy has not, and has a folder ``.`` where tar was given
    one.

    Parameters
    ----------
    fo : path of the archive.
    """

    protocol = "tar"

    def __init__(self, fo: str, **options: Any) -> None:
        stamp = _stamp(fo)
        self._archive = tarfile.open(unpacked(fo))  # noqa: SIM115 (as long as this)
        members = {member.name.removeprefix("./"): member for member in self._archive}
        linked = {name: members.get(_target(name, one), one) for name, one in members.items()}
        self._members = {name: one for name, one in linked.items() if one.isfile()}
        files = {name: {"size": one.size, "mtime": stamp} for name, one in self._members.items()}
        super().__init__(files, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> IO[bytes]:
        file = self._archive.extractfile(self._members[path]) if path in self._members else None
        if file is None:
            raise FileNotFoundError(path)
        return file


def _target(name: str, member: tarfile.TarInfo) -> str:
    """The name that a link in an archive leads to; "" for what is none."""
    if member.islnk():
        return member.linkname.removeprefix("./")
    above = posixpath.dirname(name)
    return posixpath.normpath(posixpath.join(above, member.linkname)) if member.issym() else ""


def unpacked(file: str) -> str:
    """A tar archive that is not packed: the file itself, or a copy in the store.

    Packed, it would be read from its beginning for each member.

    Raises
    ------
    tarfile.ReadError : it is damaged.
    BadFile : unpacked it is too large.
    CacheError : the copy cannot be written.
    """
    with open(file, "rb") as archive:
        head = archive.read(6)
    opened = next((open_ for mark, open_ in _PACKED.items() if head.startswith(mark)), None)
    if opened is None:
        return file
    store = Store()
    key = hashlib.sha256(f"{os.path.abspath(file)}\n{_stamp(file)}\nunpacked".encode()).hexdigest()
    copy = store.path_of(key, COPY)
    if not store.touch(copy):
        store.make_room_for_copies()
        store.write(key, COPY, partial(_unpack, opened, file))
    return str(copy)


def _unpack(opened: Callable[[str], Any], file: str, beside: Path) -> None:
    counted = Counted(file, None, os.path.getsize(file), MOST_OF_LARGE)
    with opened(file) as packed, open(beside, "wb") as out:
        while block := _next_block(packed):
            counted.add(len(block))
            out.write(block)


def _next_block(packed: IO[bytes]) -> bytes:
    try:
        return packed.read(1 << 20)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise tarfile.ReadError(str(error)) from None


class ParquetMembers(AbstractFileSystem):
    """The members of a Parquet file.

    Parameters
    ----------
    fo : path of the file.
    """

    protocol = "parquet"
    cachable = False

    def __init__(self, fo: str, **options: Any) -> None:
        from pyarrow.parquet import ParquetFile

        super().__init__(**options)
        self._file = ParquetFile(fo, buffer_size=BUFFER, pre_buffer=False)
        self._stamp, meta = _stamp(fo), self._file.metadata
        groups = (meta.row_group(n).num_rows for n in range(meta.num_row_groups))
        self._first_rows = [0, *accumulate(groups)]
        self._group, self._ahead = ("", -1), iter(list[_Batch]())
        self._kept = 0
        self._batches = deque[_Batch]()  # threads do not ask in the order of the rows

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The columns of files, or the members of one."""
        column = self._strip_protocol(path).strip("/")
        if not column:
            found = [{"name": n, "type": "directory", "size": 0} for n in media_columns(self._file)]
        elif column in media_columns(self._file):
            found = [self._member(name) for name in member_names(self._file, column) if name]
        else:
            found = [self.info(column)]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """A column or a member; the size of a member is not known before it is read."""
        name = self._strip_protocol(path).strip("/")
        if not name or name in media_columns(self._file):
            return {"name": name, "type": "directory", "size": 0}
        self._place(name)
        return self._member(name)

    def packed_size(self, path: str) -> int | None:
        """None: a member is in memory before it is written."""
        return None

    def _member(self, name: str) -> dict[str, Any]:
        return {"name": name, "type": "file", "size": None, "mtime": self._stamp}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO:
        column, row = self._place(self._strip_protocol(path).strip("/"))
        for of, first, contents in chain(self._batches, self._following(column, row)):
            if of == column and first <= row < first + len(contents):
                if (content := contents[row - first]) is not None:
                    return io.BytesIO(content)
                break
        raise FileNotFoundError(path)

    def _following(self, column: str, row: int) -> Iterator[_Batch]:
        """The batches after the last one, or those from the beginning of the group if the row is before that."""
        group = bisect_right(self._first_rows, row) - 1
        if self._group != (column, group) or row < self._batches[-1][1]:
            self._group, self._ahead = (column, group), self._in_batches(column, group)
            self._batches.clear()
            self._kept = 0
        for batch in self._ahead:
            self._batches.append(batch)
            self._kept += _size(batch)
            while len(self._batches) > 2 and (self._kept > _KEPT or len(self._batches) > 2 * _ROWS):
                self._kept -= _size(self._batches.popleft())
            yield batch

    def _in_batches(self, column: str, group: int) -> Iterator[_Batch]:
        first = self._first_rows[group]
        for batch in _batches(self._file, bytes_of(self._file, column), group):
            cells = batch.column(0).to_pylist()
            yield column, first, [one["bytes"] if isinstance(one, dict) else one for one in cells]
            first += len(cells)

    def _place(self, name: str) -> tuple[str, int]:
        column, _, member = name.rpartition("/")
        row = PurePosixPath(member).stem
        is_row = row.isdecimal() and int(row) < self._first_rows[-1]
        if not is_row or column not in media_columns(self._file):
            raise FileNotFoundError(name)
        return column, int(row)


def _size(batch: _Batch) -> int:
    return sum(len(content or b"") for content in batch[2])


def _batches(file: Any, column: str, group: int) -> Iterator[Any]:
    """The rows of a group in batches that fit into memory, however often a value is repeated."""
    rows = max(1, min(_ROWS, _AT_ONCE // max(1, file.metadata.row_group(group).total_byte_size)))
    yield from file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False)


def _stamp(file: str) -> str:
    """A text that changes with a file; a copy in the store is called after its state, and its time is that of its use."""
    status = os.stat(file)
    if file.endswith(COPY):
        return file
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ctime_ns} {status.st_ino}"


def media_columns(file: Any) -> list[str]:
    """Names of the columns of an open Parquet file that hold files."""
    from pyarrow import types

    def holds_files(of: Any) -> bool:
        if types.is_struct(of):
            return "bytes" in {of.field(n).name for n in range(of.num_fields)}
        return bool(types.is_binary(of) or types.is_large_binary(of))

    return [field.name for field in file.schema_arrow if holds_files(field.type)]


def bytes_of(file: Any, column: str) -> str:
    """The column of the bytes of a column of files."""
    from pyarrow import types

    is_struct = types.is_struct(file.schema_arrow.field(column).type)
    return f"{column}.bytes" if is_struct else column


def member_names(file: Any, column: str) -> Iterator[str]:
    """Name of the member in each row of a column; "" for a row without bytes."""
    from pyarrow import compute

    row, groups = 0, range(file.metadata.num_row_groups)
    for batch in chain.from_iterable(_batches(file, column, group) for group in groups):
        cells = batch.column(0)
        is_struct = bytes_of(file, column) != column
        contents = compute.struct_field(cells, "bytes") if is_struct else cells
        heads = compute.binary_slice(contents, 0, 16).to_pylist()
        has_paths = is_struct and cells.type.get_field_index("path") >= 0
        paths = (
            compute.struct_field(cells, "path").to_pylist() if has_paths else [None] * len(heads)
        )
        for head, path in zip(heads, paths, strict=True):
            ending = PurePosixPath(path or "").suffix.lower() or _ending(head or b"")
            yield f"{column}/{row}{ending}" if head else ""
            row += 1


def _ending(head: bytes) -> str:
    return next((end for begin, end in _BEGIN.items() if re.match(begin, head, re.DOTALL)), "")


#: The file systems by the scheme of an address; all others are those that fsspec knows.
FILE_SYSTEMS = {"parquet": ParquetMembers, "tar": TarMembers, "zip": ZipMembers}
