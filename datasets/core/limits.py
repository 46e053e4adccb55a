"""The limits of what comes from elsewhere: how many bytes and cells.

A table may come from a stranger, as may what it names. All that copies, unpacks or reads them asks here, and ends in one
sentence that names the file, its size and the remedy.
"""

from __future__ import annotations

import errno
import os

from datasets.core.errors import BadFile, SecondhandError, Unavailable

_MIB = 1 << 20
#: Bytes of a file that is copied or unpacked, by its ending; of any other, and of one whose size the server does not
#: say. A recording of a day has 8 GiB.
MOST_BYTES = 512 * _MIB
MOST_OF_LARGE = 20 << 30
_LARGE = {
    ".wav", ".wave", ".w64", ".rf64", ".flac", ".aif", ".aiff", ".aifc", ".mp3", ".ogg", ".oga", ".opus", ".m4a",
    ".mp4", ".au", ".caf", ".hdf5", ".h5", ".hdf", ".gwf", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".xz",
    ".txz", ".parquet", ".pq", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy",
}  # fmt: skip
#: Times that a packed file may grow, beyond the size up to which nobody asks. Pictures and sounds are packed already:
#: silence alone grows more.
_TIMES, _UNASKED = 200, 64 * _MIB
#: Bytes of a table of text, unpacked, and of one of its lines; and cells of any table.
MOST_TEXT, MOST_LINE, MOST_CELLS = 1 << 30, _MIB, 100_000_000
#: Cells of a table whose format says many in a few bytes.
MOST_PACKED_CELLS = 30_000_000
#: Bytes of memory that reading a spreadsheet or a Parquet table may take.
MOST_MEMORY = 4 << 30
#: Errors of a disk that is full, or that nothing may be written to.
OF_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
#: Errors of a process, or of the machine, that has too many files open.
_OF_OPEN_FILES = (errno.EMFILE, errno.ENFILE)
#: The beginnings of what torch makes of them, of its workers and of what these hand over.
_OF_TORCH = ("Too many open files", "received 0 items of ancdata")
#: Errors of a file that another program has opened or locked; Windows has numbers of its own (sharing and lock violation).
_HELD = (errno.EBUSY, errno.ETXTBSY, errno.EAGAIN, errno.EDEADLK)
_HELD_ON_WINDOWS = (32, 33)
#: Errors that damaged content leads to, such as a place before the beginning of the file.
_OF_CONTENT = (errno.EINVAL, errno.EOVERFLOW, errno.ERANGE, errno.EDOM, errno.EILSEQ, errno.ESPIPE)


class Counted:
    """Counts the bytes of a file while it is copied or unpacked.

    Parameters
    ----------
    name : of the file, for its error.
    stated : bytes that it is said to have; None if that is not known.
    packed : bytes from which it is unpacked; None if it is not.
    most : bytes that it may have; by default those of a file with its ending.

    Raises
    ------
    BadFile : the stated size is beyond the limit, as soon as it is known.
    """

    def __init__(
        self, name: str, stated: int | None, packed: int | None = None, most: int | None = None
    ) -> None:
        self._name, self._bytes = name, 0
        ending = os.path.splitext(name.partition("::")[0])[1].lower()
        known = stated is not None or packed is not None
        self._most = most or (MOST_OF_LARGE if ending in _LARGE and known else MOST_BYTES)
        self._remedy = "Name a copy of it on a disk"
        if packed is not None and (grown := max(_TIMES * packed, _UNASKED)) < self._most:
            self._most = grown
            self._remedy = (
                f"Nothing that is read grows so much: {packed:,} bytes are packed here. Unpack it yourself "
                "if you trust it"
            )
        self.check(stated or 0)

    def add(self, count: int) -> None:
        """Count bytes that are about to be written."""
        self._bytes += count
        self.check(self._bytes)

    def check(self, size: int) -> None:
        if size > self._most:
            raise BadFile(
                self._name,
                f"{size:,} bytes or more, beyond the limit of {self._most:,} for such a file. {self._remedy}",
            )


def check_cells(
    path: str | os.PathLike[str], rows: int, columns: int, most: int = MOST_PACKED_CELLS
) -> None:
    """Raise BadFile for a table of too many cells."""
    if rows * columns > most:
        raise BadFile(
            path,
            f"{rows:,} rows of {columns:,} columns, more than {most:,} cells: divide the table, or leave out columns",
        )


def check_packed(path: str | os.PathLike[str]) -> None:
    """Raise BadFile for a file that is a zip archive (a spreadsheet, arrays) and swells when it is unpacked."""
    import zipfile

    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for one in archive.infolist():
            Counted(str(path), one.file_size, one.compress_size, MOST_OF_LARGE)


def unread(path: str | os.PathLike[str], error: BaseException) -> BadFile | None:
    """The error of a file that the system does not open or read now; None where its content is at fault.

    Decoders raise errors of the system, too: no number of those says that a file is damaged.

    Raises
    ------
    SecondhandError : there are too many open files.
    """
    check_open_files(error)
    if not isinstance(error, OSError) or error.errno in _OF_CONTENT:
        return None
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return BadFile(path, "there is no such file")
    if isinstance(error, IsADirectoryError):
        return BadFile(path, "is a folder, not a file")
    if error.errno in _HELD or getattr(error, "winerror", None) in _HELD_ON_WINDOWS:
        return Unavailable(
            path,
            f"is held by another program ({_name_of(error)}): close it there, and call again",
        )
    if isinstance(error, PermissionError):  # which is what Windows says of a file that is held, too
        return Unavailable(
            path, "is not readable: check its permissions, and whether another program holds it"
        )
    if error.errno in errno.errorcode:
        return Unavailable(path, f"cannot be read now: {_name_of(error)}")
    return None


def _name_of(error: OSError) -> str:
    """What the system calls an error; libraries write sentences of their own into it."""
    return os.strerror(error.errno or 0) if error.errno in errno.errorcode else str(error)


def check_open_files(error: BaseException) -> None:
    """Raise SecondhandError if this process, or the machine, has too many files open: the file is not at fault."""
    said = ""
    if isinstance(error, OSError) and error.errno in _OF_OPEN_FILES:
        said = os.strerror(error.errno or 0)
    elif isinstance(error, RuntimeError) and str(error).startswith(_OF_TORCH):
        said = "in the pipes of torch's workers"
    if said:
        raise SecondhandError(
            f"too many open files ({said}). Allow more with ulimit -n 4096, or use fewer --workers"
        ) from None
