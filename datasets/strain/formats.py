"""Opens strain files as a `StrainFile`: HDF5, GWF frames, or text with one number per line.

Files are untrusted: the values in a header are checked against limits before samples are read.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.limits import unread
from datasets.core.program import extra

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

#: Lowest and highest plausible sampling rate, Hz.
RATES = (64.0, 131072.0)
_BLOCK = 1 << 20  # bytes read at a time
#: Largest number of samples: 4096 s at 16 384 Hz, the largest published strain file.
MAX_SAMPLES = 1 << 26


@dataclass(frozen=True)
class StrainFile:
    """An open strain file; `read(i, j)` returns samples i to j as float64, NaN in gaps.

    ``detector`` and ``channel`` are "" if the file does not name them. ``problems`` : why some of the joined files
    could not be read, by path.
    """

    rate: float
    start: float
    samples: int
    detector: str
    read: Callable[[int, int], Floats]
    channel: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.samples / self.rate


def _checked_rate(path: Path, rate: float, start: float, samples: int) -> float:
    """Return the rate, rounded if nearly whole; raise BadFile for implausible numbers."""
    if not RATES[0] <= rate <= RATES[1]:
        raise BadFile(
            path, f"implausible rate: {rate:g} Hz ({RATES[0]:g} to {RATES[1]:g} Hz are supported)"
        )
    if not 0 <= start < 1e10:
        raise BadFile(path, f"implausible start: {start:g} is not a GPS time")
    if not 1 <= samples <= MAX_SAMPLES:
        remedy = ": cut it into several files" if samples else ""
        raise BadFile(path, f"has {samples} samples (1 to {MAX_SAMPLES} are supported){remedy}")
    return float(round(rate)) if abs(rate - round(rate)) < 1e-6 * rate else rate


def _in_memory(
    path: Path, values: Floats, rate: float, start: float, detector: str, channel: str = ""
) -> StrainFile:
    """A `StrainFile` whose samples are in memory."""
    rate = _checked_rate(path, rate, start, len(values))
    values.setflags(write=False)  # the array is cached and may be returned again
    return StrainFile(rate, start, len(values), detector, lambda i, j: values[i:j], channel)


class Wanted(NamedTuple):
    """What to read of a file that holds several series.

    Attributes
    ----------
    detector : such as "H1"; "" for the only one of the file.
    channel : the channel to read, with or without its detector; "" for the calibrated strain.
    trigger : the channel in which the moment was found; it must be the one that is read. "" if unknown.
    """

    detector: str = ""
    channel: str = ""
    trigger: str = ""


#: The calibrated strain of the only detector.
DEFAULT = Wanted()


def is_strain(channel: str) -> bool:
    """Whether a channel holds calibrated strain, by its name."""
    return any(word in channel.upper() for word in _NAMES)


@contextmanager
def open_file(path: Path, wanted: Wanted = DEFAULT) -> Iterator[StrainFile]:
    """Open a strain file: HDF5, GWF, or text, plain or gzip. The first bytes decide.

    Raises
    ------
    BadFile : not strain, damaged, or implausible; or the file does not hold what is ``wanted``.
    SecondhandError : a GWF frame, but the library for it is missing.
    """
    with _open_file(path, wanted) as source:
        _check_channel(path, wanted, source.channel)
        yield source


def _check_channel(path: Path, wanted: Wanted, channel: str) -> None:
    """Raise BadFile if a channel is not the wanted one. Releases of GWOSC, and files that name no channel, count as
    any channel of calibrated strain."""
    chosen = wanted.trigger or wanted.channel
    released = wanted.channel or not channel or re.search("GWOSC|LOSC", channel)
    if (
        not chosen
        or _is_named(channel, chosen)
        or (released and is_strain(chosen) and is_strain(channel or "STRAIN"))
    ):
        return
    here = f"the strain is the channel {channel}" if channel else "the strain names no channel"
    if wanted.trigger:
        raise BadFile(
            path, f"the trigger is in the channel {chosen}, but {here}: --channel chooses another"
        )
    raise BadFile(path, f"no channel {chosen}: {here}")


@contextmanager
def _open_file(path: Path, wanted: Wanted) -> Iterator[StrainFile]:
    try:
        with path.open("rb") as file:
            magic = file.read(8)
    except OSError as error:
        raise unread(path, error) or BadFile(path, f"cannot be read: {error}") from error
    if not magic:
        raise BadFile(path, "empty file")
    if magic == b"\x89HDF\r\n\x1a\n":
        with _open_hdf5(path, wanted) as source:
            yield source
    elif magic.startswith(b"IGWD"):
        yield _cached_read(("file", _stamp(path), wanted), lambda: _read_gwf(path, wanted))
    else:
        packed = magic.startswith(b"\x1f\x8b")
        yield _cached_read(("file", _stamp(path)), lambda: _read_text(path, packed))


# Cache of the last reads, so that consecutive triggers of one file read it once

_MOST_KEPT = 1 << 23  # samples: 64 MiB
_PIECE = 1 << 16  # samples of an HDF5 file in one piece of the cache
_last: OrderedDict[Any, Any] = OrderedDict()


def _stamp(path: Path) -> tuple[object, ...]:
    """A key that changes when the file changes."""
    status = path.stat()
    return os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ino


def _cached_read(key: tuple[Any, ...], read_values: Callable[[], Any]) -> Any:
    """Cached result of a read: a piece of a file, or a whole one. The oldest make room, the newest always stays."""
    values = _last.pop(key, None)
    if values is None:
        values = read_values()
        room = _MOST_KEPT - _samples(values)
        while _last and sum(map(_samples, _last.values())) > room:
            _last.popitem(last=False)
    _last[key] = values
    return values


def _samples(values: Floats | StrainFile) -> int:
    return values.samples if isinstance(values, StrainFile) else len(values)


def _in_pieces(
    path: Path, name: str, samples: int, read: Callable[[int, int], Floats]
) -> Callable[[int, int], Floats]:
    """`StrainFile.read` of a data set of an open file, through the cache of pieces."""
    stamp = (_stamp(path), name)

    def piece(number: int) -> Floats:
        first = number * _PIECE
        return read(first, min(first + _PIECE, samples))

    def between(first: int, last: int) -> Floats:
        numbers = range(first // _PIECE, -(-last // _PIECE))
        try:
            values = [_cached_read(("piece", stamp, n), partial(piece, n)) for n in numbers]
        except BadFile:  # the damage may lie in the rest of a piece
            return read(first, last)
        if not values:
            return np.empty(0)
        skip = first - numbers[0] * _PIECE
        return np.concatenate(values)[skip : skip + last - first]

    return between


# Text, plain or gzip

# Real strain compresses to a third; a file that expands by more than this is an attack on memory.
_MAX_RATIO = 20
_LONGEST_LINE = 1 << 16
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")  # control characters that text does not contain


def _read_text(path: Path, packed: bool) -> StrainFile:
    """Read a complete text file. Its header states the rate and the start, as in GWOSC's files.

    "# This file has 4096 samples per second", "# starting GPS 1126259446 duration 32".
    """
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            if _BINARY.search(file.peek(4096)[:4096]):
                raise BadFile(
                    path, "not strain: neither HDF5, GWF nor text with one number per line"
                )
            lines, header, line = _lines(path, file), "", b""
            for line in lines:
                if not line.startswith((b"#", b"%")):
                    break
                header += line.decode("utf-8", "replace")
            rate = _find_number(r"(\d+(?:\.\d+)?) samples per second", header)
            start = _find_number(r"starting GPS (\d+(?:\.\d+)?)", header)
            seconds = _find_number(r"duration (\d+(?:\.\d+)?)", header)
            limit = min(MAX_SAMPLES, round(seconds * rate)) if seconds and rate else MAX_SAMPLES
            numbers = islice(chain([line], lines), limit + 1)
            with warnings.catch_warnings(action="ignore"):  # of no lines
                values = np.loadtxt(numbers, comments=None, ndmin=1, encoding="utf-8")
    except BadFile:
        raise
    except ValueError as error:
        raise BadFile(path, f"needs one number per line: {str(error)[:200]}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = f"cannot be decompressed: {error}"
        raise unread(path, error) or BadFile(path, reason) from error
    if values.ndim > 1:
        raise BadFile(
            path, f"has {values.shape[1]} numbers in a line, but needs one number per line"
        )
    if rate is None or start is None:
        raise BadFile(
            path,
            f"no {'sampling rate' if rate is None else 'start time'} in its header: add two lines above "
            "the numbers, such as '# 4096 samples per second' and '# starting GPS 1126259446'",
        )
    if len(values) > limit:
        raise BadFile(
            path,
            f"has more than {limit} samples, the limit by the duration in its header or in total",
        )
    detector = re.search(r"\b([A-Z]\d)\b", header)
    return _in_memory(path, values, rate, start, detector[1] if detector else "")


def _find_number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.IGNORECASE)
    return float(match[1]) if match and len(match[1]) < 20 else None


def _lines(path: Path, file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """The lines of a file; raises BadFile for what no text of strain has: long or empty lines, or far more of them."""
    left, empty = path.stat().st_size * _MAX_RATIO + _BLOCK, False
    while line := file.readline(_LONGEST_LINE):
        left -= len(line)
        if left < 0:
            raise BadFile(path, f"decompresses to more than {_MAX_RATIO} times its size")
        if empty or len(line) == _LONGEST_LINE:
            raise BadFile(path, "has an empty or a very long line, but needs one number per line")
        empty = line.isspace()
        yield line


# GWF frames

#: Parts of the names of channels with calibrated strain: of LIGO, KAGRA and GWOSC; and of Virgo.
_NAMES = ("STRAIN", "HREC_HOFT")
_END = 46  # bytes of the last structure of a frame file: its length, the type of its checksum, and more


def _read_gwf(path: Path, wanted: Wanted) -> StrainFile:
    """Read a whole channel of a frame file with gwpy.

    Frame libraries trust their input, and damage may end the process: the commands open files in others.
    """
    remedy = extra("gw")
    try:
        from gwpy.io.gwf import get_channel_names
        from gwpy.timeseries import TimeSeries
    except ImportError as error:
        raise SecondhandError(f"{path}: GWF frames need gwpy. Install it: {remedy}") from error
    try:
        _check_sums(path)
        names = sorted(str(name) for name in get_channel_names(os.fspath(path)))
        channel = _strain_channel(path, names, wanted)
        series = TimeSeries.read(os.fspath(path), channel, format="gwf")
    except ImportError as error:
        raise SecondhandError(f"{path}: {error}. Install it: {remedy}") from error
    except BadFile:
        raise
    except Exception as error:  # the frame libraries' errors have no common root
        raise unread(path, error) or BadFile(path, f"damaged GWF: {error}") from error
    values = np.asarray(series.value, dtype=np.float64)
    rate, start = float(series.sample_rate.value), float(series.t0.value)
    return _in_memory(path, values, rate, start, _detector(channel), channel)


def _detector(channel: str) -> str:
    """Detector of a channel, such as H1 of "H1:GDS-CALIB_STRAIN"; "" for another name."""
    return channel.split(":")[0] if ":" in channel else ""


def _is_named(channel: str, name: str) -> bool:
    """Whether a channel has this name, with or without its detector, in small or capital letters."""
    channel, name = channel.casefold(), name.casefold()
    return channel == name or channel.endswith(f":{name}")


def _strain_channel(path: Path, names: list[str], wanted: Wanted) -> str:
    """The channel to read: the wanted one, else that of the trigger, else the first with calibrated strain."""
    of_detector = [
        name for name in names if not wanted.detector or _detector(name) == wanted.detector
    ]
    if wanted.channel and (
        named := [n for n in of_detector or names if _is_named(n, wanted.channel)]
    ):
        return named[0]
    strain = [name for name in names if is_strain(name)]
    strain = strain or [name for name in names if len(names) == 1 and ":" not in name]
    if not strain:
        channels = ", ".join(names[:5]) or "none"
        raise BadFile(
            path,
            f"no channel with {' or '.join(_NAMES)} in its name. Its channels are {channels}. Choose one with "
            "--channel",
        )
    detectors = sorted({_detector(name) for name in strain})
    if len(detectors) > 1:
        strain = [name for name in strain if _detector(name) == wanted.detector]
    if not strain:
        raise BadFile(
            path,
            f"contains strain of {' and '.join(detectors)}"
            + (
                f", not of {wanted.detector}"
                if wanted.detector
                else ": choose a channel with --channel"
            ),
        )
    if wanted.trigger in strain:
        return wanted.trigger
    if len(strain) > 1:
        log.info("%s: reading the channel %s, not %s", path, strain[0], ", ".join(strain[1:]))
    return strain[0]


def _check_sums(path: Path) -> None:
    """Raise RuntimeError if bytes of a frame file have changed, by the checksum at its end (LIGO-T970130, version 8)."""
    from lalframe import FrFileCksumValid, FrFileOpenURL

    opened = FrFileOpenURL(os.fspath(path))
    with path.open("rb") as file:
        version = file.read(6)[5]
        file.seek(-_END, os.SEEK_END)
        has_sum = version >= 8 and file.read(9)[8] == 1
    if has_sum:
        FrFileCksumValid(opened)


# HDF5, in the layout of the Gravitational Wave Open Science Center or of gwpy. Files are untrusted: only known paths and
# hard links are followed, never outside the file; shapes are checked before data are read; and the
# decompressed size of a chunk is checked before HDF5 decompresses it.

_MAX_CHUNK = 1 << 27  # bytes of one decompressed chunk
# Filters that may run: gzip, shuffle, checksum. Others load plug-ins, or have no size limit.
_FILTERS = {1, 2, 3}
_GZIP, _GZIP_RATIO = 1, 1032  # largest compression ratio of deflate
_MOST_NODES = 1000  # data sets of a group that are looked at


@contextmanager
def _open_hdf5(path: Path, wanted: Wanted) -> Iterator[StrainFile]:
    """Open an HDF5 file: GWOSC's strain/Strain with Xspacing and Xstart, or a series of gwpy with dx and x0."""
    import h5py

    with as_bad_file(path):
        file = h5py.File(path, "r")
    with file:
        with as_bad_file(path):
            series = _gwpy_series(file)
            if series and ("strain" not in file or "strain" in series.values()):
                channel = _strain_channel(path, sorted(series), wanted)
                source = _read_series(path, file, series[channel], ("dx", "x0"), channel)
            else:
                source = _read_series(path, file, "strain/Strain", ("Xspacing", "Xstart"))
        yield source


#: The channel of a series of gwpy that is called after its detector alone.
_UNNAMED = "strain"


def _gwpy_series(file: Any) -> dict[str, str]:
    """Data set of each series that gwpy wrote, by its channel or name; two levels of groups are searched."""
    import h5py

    found: dict[str, str] = {}
    groups = [("", file)]
    for place, group in groups:
        for name in list(group)[:_MOST_NODES]:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            node = group[name]
            if isinstance(node, h5py.Dataset) and {"dx", "x0"} <= {*node.attrs}:
                label = next(
                    (node.attrs[key] for key in ("channel", "name") if key in node.attrs), name
                )
                of_detector = f"{name}:{_UNNAMED}" if re.fullmatch(r"[A-Z]\d", name) else name
                found[str(label) if ":" in str(label) else of_detector] = f"{place}{name}"
            elif isinstance(node, h5py.Group) and place.count("/") < 2:
                groups.append((f"{place}{name}/", node))
    return found


def _read_series(
    path: Path, file: Any, name: str, axis: tuple[str, str], channel: str = ""
) -> StrainFile:
    """Open a data set; ``axis`` : its attributes for the spacing of the samples (s) and for the start (GPS)."""
    strain = numeric_dataset(path, file, name)
    if strain.ndim != 1 or strain.dtype.kind not in "fiu":
        raise BadFile(
            path,
            f"{name} has type {strain.dtype} and shape {strain.shape}, not a row of numbers",
        )
    spacing = numeric_attribute(path, strain, axis[0])
    if not 0 < spacing < float("inf"):
        raise BadFile(path, f"{axis[0]} is {spacing:g} s, so the sampling rate is unknown")
    start = numeric_attribute(path, strain, axis[1])
    samples = int(strain.shape[0])
    rate = _checked_rate(path, 1 / spacing, start, samples)

    def read(first: int, last: int) -> Floats:
        with as_bad_file(path):
            check_chunks(path, strain, first, last)
            values = np.asarray(strain[first:last], dtype=np.float64)
        return values

    pieces = _in_pieces(path, name, samples, read)
    detector = _detector(channel) or _meta_detector(path, file)
    named = channel if ":" in channel and channel != f"{detector}:{_UNNAMED}" else ""
    return StrainFile(rate, start, samples, detector, pieces, named)


def _meta_detector(path: Path, file: Any) -> str:
    """Detector that GWOSC's files name."""
    detector = numeric_dataset(path, file, "meta/Detector", optional=True)
    name = detector[()] if detector is not None and detector.shape == () else b""
    return name.decode("utf-8", "replace")[:16] if isinstance(name, bytes) else ""


@contextmanager
def as_bad_file(path: Path) -> Iterator[None]:
    """Convert the errors that h5py raises for a broken file to BadFile."""
    try:
        yield
    except BadFile:
        raise
    except (
        OSError, RuntimeError, ValueError, LookupError, TypeError, MemoryError, zlib.error,
    ) as error:  # fmt: skip
        raise unread(path, error) or BadFile(path, f"damaged HDF5: {error}") from error


def find_dataset(
    path: Path,
    file: Any,
    name: str,
    *,
    optional: bool = False,
    layout: str = "the HDF5 layout of GWOSC",
) -> Any:
    """Find a data set by name; only hard links and data inside the file are allowed.

    ``layout`` : name of the expected layout, for the message. Returns None if the data set is ``optional``
    and missing.
    """
    import h5py

    node = file
    for step in name.split("/"):
        link = node.get(step, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            if optional:
                return None
            raise BadFile(path, f"no {name}, so it is not {layout}")
        if not isinstance(link, h5py.HardLink):
            raise BadFile(path, f"{name} is of type {type(link).__name__}, which is not followed")
        node = node[step]
    if not isinstance(node, h5py.Dataset):
        raise BadFile(path, f"{name} is of type {type(node).__name__}, not a data set")
    if node.is_virtual or node.external:
        raise BadFile(path, f"the data of {name} are in other files, which are not opened")
    return node


def numeric_dataset(path: Path, file: Any, name: str, *, optional: bool = False) -> Any:
    """`find_dataset`, with limits on shape, filters and chunk size."""
    node = find_dataset(path, file, name, optional=optional)
    if node is None:
        return None
    if node.shape is None or node.size > MAX_SAMPLES:
        raise BadFile(
            path, f"{name} has the shape {node.shape} (at most {MAX_SAMPLES} values are supported)"
        )
    plan = node.id.get_create_plist()
    filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
    if not set(filters) <= _FILTERS or filters.count(_GZIP) > 1:
        raise BadFile(
            path,
            f"{name} has the HDF5 filters {filters} (only gzip, shuffle and Fletcher32 are run)",
        )
    chunk = int(np.prod(node.chunks or ())) * node.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise BadFile(
            path,
            f"{name} has chunks of {chunk >> 20} MiB (at most {_MAX_CHUNK >> 20} MiB are supported)",
        )
    if node.size and node.id.get_storage_size() == 0:
        raise BadFile(path, f"{name} has the shape {node.shape}, but no data")
    return node


def numeric_attribute(path: Path, dataset: Any, name: str) -> float:
    """A numeric attribute of a data set; BadFile if it is missing or not a number."""
    attributes = dataset.attrs
    if name not in attributes:
        raise BadFile(path, f"{dataset.name} has no attribute {name}")
    described = attributes.get_id(name)
    if described.shape not in ((), (1,)) or described.dtype.kind not in "fiu":
        raise BadFile(path, f"the attribute {name} of {dataset.name} is not a number")
    return float(np.asarray(attributes[name]).reshape(()))


def check_chunks(path: Path, dataset: Any, first: int, last: int) -> None:
    """Raise BadFile for missing chunks and for chunks that unpack to more than their size.

    HDF5 itself fills missing chunks with zeros and unpacks gzip data of any size.
    """
    if dataset.chunks is None:
        return
    step = dataset.chunks[0]
    size = step * dataset.dtype.itemsize
    for top in range(first // step * step, last, step):
        info = dataset.id.get_chunk_info_by_coord((top,))
        if info.byte_offset is None:
            raise BadFile(path, f"the samples {top} to {top + step} are missing from the file")
        if dataset.compression == "gzip" and info.size * _GZIP_RATIO > _MAX_CHUNK:
            mask, raw = dataset.id.read_direct_chunk((top,))
            unpacked = len(zlib.decompressobj().decompress(raw, size + 5)) if mask == 0 else 0
            if unpacked > size + 4:  # a checksum has 4 bytes
                raise BadFile(
                    path, f"a chunk of {info.size} bytes decompresses to more than its {size} bytes"
                )
