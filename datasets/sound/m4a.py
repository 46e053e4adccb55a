"""Recordings of phones: AAC or Apple Lossless in an MP4 container, as `.m4a` has it.

FFmpeg decodes the packets, and sees nothing else of the file: the container is read here. FFmpeg's
reader of it knows a hundred kinds of content, looks for samples in other files where a file says so,
and takes memory on its word.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from datasets.errors import BadFile

MAX_TABLES = 32 << 20  # bytes; those of an hour have 0.6 MB
MAX_PACKETS = 1 << 22  # a day at 44.1 kHz
MAX_PACKET = 1 << 20  # bytes
_MAX_BOXES = 4096
#: The decoder needs the packets before: windows overlap, and bands may be told from the last ones.
_BEFORE = 4
_CODECS = {b"mp4a": "aac", b"alac": "alac"}


def is_mp4(head: bytes) -> bool:
    """Whether a file that begins like this is an MP4 or MOV container."""
    return head[4:8] == b"ftyp"


class Track(NamedTuple):
    """Where the packets of a recording lie, and what its own clock says.

    Attributes
    ----------
    codec, setup : "aac" or "alac", and what its decoder has to know.
    offsets, sizes : of each packet in the file, bytes.
    priming, duration : seconds at the beginning that the encoder put there, and after them.
    """

    codec: str
    setup: bytes
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    priming: float
    duration: float


class Mp4Sound:
    """A recording open for reading, with what is used of `soundfile.SoundFile`'s attributes.

    Raises
    ------
    BadFile : not such a recording, or one that must not be trusted; also by `read`.
    """

    format = "M4A"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 it is closed by __exit__
        try:
            self._track = read_track(path, self._file)
            self.subtype = self._track.codec.upper()
            self._start_decoder()
            first = self._frame(0)
            self.samplerate, self.channels = int(first.sample_rate), first.layout.nb_channels
            self._each = int(first.samples)
            self._priming = round(self._track.priming * self.samplerate)
            held = len(self._track.sizes) * self._each - self._priming
            self.frames = min(round(self._track.duration * self.samplerate), held)
        except BaseException:
            self._file.close()
            raise
        self.seek(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tell(self) -> int:
        """The next sample."""
        return self._at

    def seek(self, sample: int) -> None:
        """Go on from this sample."""
        self._at = sample
        wanted = sample + self._priming
        self._packet = max(wanted // self._each - _BEFORE, 0)
        self._skip = wanted - self._packet * self._each
        self._rest: NDArray[np.float32] = np.empty((0, self.channels), np.float32)
        self._start_decoder()

    def read(self, count: int, **_: object) -> NDArray[np.float32]:
        """The next samples, float32 [count, channels]; fewer at the end."""
        parts, left = [], min(count, self.frames - self._at)
        while left > 0:
            if not len(self._rest):
                if self._packet == len(self._track.sizes):
                    break
                decoded = self._decoded(self._packet)
                self._packet += 1
                self._rest = decoded[self._skip :]
                self._skip = max(self._skip - len(decoded), 0)
            parts.append(self._rest[:left])
            self._rest = self._rest[left:]
            left -= len(parts[-1])
        signal = np.concatenate([*parts, np.empty((0, self.channels), np.float32)])
        self._at += len(signal)
        return signal

    def _start_decoder(self) -> None:
        """A new one: what it fills noisy bands with depends on all that it has decoded."""
        import av

        self._decoder: Any = av.CodecContext.create(self._track.codec, "r")
        self._decoder.extradata = self._track.setup
        self._decoder.thread_count = 1

    def _decoded(self, number: int) -> NDArray[np.float32]:
        """A packet's samples, float32 [samples, channels]."""
        frame = self._frame(number)
        last = number == len(self._track.sizes) - 1
        if (frame.sample_rate, frame.layout.nb_channels) != (self.samplerate, self.channels) or (
            frame.samples != self._each and not (last and frame.samples < self._each)
        ):
            raise BadFile(self._path, "its rate, channels or packets change: damaged")
        values = frame.to_ndarray()
        if not frame.format.is_planar:
            values = values.reshape(-1, self.channels).T
        if values.dtype.kind == "i":
            values = values * np.float32(2.0 ** (1 - 8 * values.itemsize))
        return values.T.astype(np.float32)

    def _frame(self, number: int) -> Any:
        import av

        self._file.seek(int(self._track.offsets[number]))
        data = self._file.read(int(self._track.sizes[number]))
        try:
            frames = self._decoder.decode(av.Packet(data))
        except (av.FFmpegError, ValueError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadFile(self._path, f"cannot be decoded ({reason}): damaged") from None
        if len(frames) != 1:
            raise BadFile(self._path, f"packet {number} holds no sound: damaged")
        return frames[0]


def read_track(path: str | os.PathLike[str], file: BinaryIO) -> Track:
    """The one track of sound in a container, every number held against the file's size.

    Raises
    ------
    BadFile : no such track, a video, samples in another file, in fragments, or a damaged table.
    """
    try:
        return _track(path, file)
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(path, "damaged or truncated MP4 container") from None


def _track(path: str | os.PathLike[str], file: BinaryIO) -> Track:
    size = os.fstat(file.fileno()).st_size
    top = list(_boxes(file, size))
    names = {name for name, _, _ in top}
    if b"moof" in names:
        raise BadFile(path, "an MP4 container in fragments is not read: convert to WAV or FLAC")
    where = next(((first, length) for name, first, length in top if name == b"moov"), None)
    if where is None or where[1] > MAX_TABLES:
        raise BadFile(path, "truncated, or no recording: an MP4 container without its tables")
    file.seek(where[0])
    movie = _inside(file.read(where[1]))
    kinds: dict[bytes, tuple[dict[bytes, bytes], dict[bytes, bytes]]] = {}
    for name, content in movie:
        if name == b"trak":
            trak = dict(_inside(content))
            media = dict(_inside(trak[b"mdia"]))
            kinds.setdefault(media[b"hdlr"][8:12], (trak, media))
    if b"vide" in kinds:
        raise BadFile(path, "a video, not an audio file: extract its sound as WAV or FLAC")
    if b"soun" not in kinds:
        raise BadFile(path, "an MP4 container that holds no sound")
    trak, media = kinds[b"soun"]
    minf = dict(_inside(media[b"minf"]))
    tables = dict(_inside(minf[b"stbl"]))
    _check_own(path, minf)
    codec, setup = _codec(path, tables[b"stsd"])
    offsets, sizes = _packets(tables, size)
    if not len(sizes) or (offsets + sizes).max() > size or offsets.min() < 0:
        raise BadFile(path, "truncated: its tables name samples beyond its end")
    if sizes.max() > MAX_PACKET or sizes.min() < 1:
        raise BadFile(path, "damaged: a packet of no bytes, or of more than a megabyte")
    clock = _clock(media[b"mdhd"])
    steps = _table(tables[b"stts"], 2)
    total = float((steps[:, 0].astype(float) * steps[:, 1]).sum()) / clock
    priming, duration = _edit(path, trak, clock, _clock(dict(movie)[b"mvhd"]))
    left = total - priming
    return Track(codec, setup, offsets, sizes, priming, min(duration or left, left))


def _boxes(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, first byte, length) of what each box holds, up to `end`."""
    at = 0
    for _ in range(_MAX_BOXES):
        file.seek(at)
        head = file.read(16)
        if at >= end or len(head) < 8:
            return
        length, name = struct.unpack(">I4s", head[:8])
        begin = 8
        if length == 1:
            length, begin = struct.unpack(">Q", head[8:])[0], 16
        length = end - at if length == 0 else length
        if length < begin:
            raise ValueError("a box shorter than its own head")
        # What is cut short is told by what it should have held.
        yield name, at + begin, min(length, end - at) - begin
        at += length
    raise ValueError("too many boxes")


def _inside(data: bytes) -> list[tuple[bytes, bytes]]:
    """(name, content) of each box in one."""
    found = _boxes(BytesIO(data), len(data))
    return [(name, data[first : first + length]) for name, first, length in found]


def _check_own(path: str | os.PathLike[str], minf: dict[bytes, bytes]) -> None:
    """Samples that are said to lie in another file are not looked for."""
    references = dict(_inside(minf.get(b"dinf", b""))).get(b"dref", bytes(8))
    if any(not content[3] & 1 for _, content in _inside(references[8:])):
        raise BadFile(path, "its samples are in another file: export it whole")


def _codec(path: str | os.PathLike[str], description: bytes) -> tuple[str, bytes]:
    """The codec, and what its decoder has to know."""
    entries = _inside(description[8:])
    name, entry = entries[0]
    if name not in _CODECS or len(entries) > 1:
        named = name.decode("ascii", "replace")
        raise BadFile(path, f"{named!r} in an MP4 container is not read: convert to WAV or FLAC")
    # QuickTime's later versions of the entry have more numbers before the boxes.
    more = {0: 0, 1: 16}[struct.unpack(">H", entry[8:10])[0]]
    boxes = dict(_inside(entry[28 + more :]))
    boxes |= dict(_inside(boxes.get(b"wave", b"")))
    if name == b"alac":
        return "alac", struct.pack(">I4s", 8 + len(boxes[b"alac"]), b"alac") + boxes[b"alac"]
    kind, setup = _mpeg4(boxes[b"esds"][4:])
    if kind not in (0x40, 0x66, 0x67, 0x68):
        raise BadFile(path, f"MPEG-4 object type {kind:#x} is not read: convert to WAV or FLAC")
    return "aac", setup


def _mpeg4(data: bytes) -> tuple[int, bytes]:
    """Object type and decoder's setup of an elementary stream (ISO 14496-1, 7.2.6)."""
    content = _descriptor(data, 3)
    flags, at = content[2], 3
    at += 2 if flags & 0x80 else 0
    at += 1 + content[at] if flags & 0x40 else 0
    at += 2 if flags & 0x20 else 0
    config = _descriptor(content[at:], 4)
    return config[0], _descriptor(config[13:], 5)


def _descriptor(data: bytes, tag: int) -> bytes:
    if data[0] != tag:
        raise ValueError("another descriptor is expected")
    length, at = 0, 1
    while True:
        length = length << 7 | data[at] & 0x7F
        at += 1
        if not data[at - 1] & 0x80 or at > 4:
            return data[at : at + length]


def _packets(tables: dict[bytes, bytes], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and size of each packet (ISO 14496-12, 8.7) in a file of `size` bytes."""
    _, one, count = struct.unpack(">III", tables[b"stsz"][:12])
    if count > MAX_PACKETS or one * count > size:
        raise ValueError("too many packets")
    sizes = (
        np.full(count, one, np.int64)
        if one
        else np.frombuffer(tables[b"stsz"], ">u4", count, 12).astype(np.int64)
    )
    if b"co64" in tables:
        (chunks,) = struct.unpack(">I", tables[b"co64"][4:8])
        starts = np.frombuffer(tables[b"co64"], ">i8", chunks, 8).astype(np.int64)
    else:
        starts = _table(tables[b"stco"], 1)[:, 0]
    runs = _table(tables[b"stsc"], 3)  # from this chunk on (the first is 1) so many packets in each
    if runs[0, 0] != 1:
        raise ValueError("chunks without packets")
    number = np.searchsorted(runs[:, 0], np.arange(1, len(starts) + 1), side="right") - 1
    ends = np.cumsum(runs[number, 1])  # packets up to the end of each chunk
    chunk = np.searchsorted(ends, np.arange(count), side="right")
    before = np.cumsum(sizes) - sizes
    first = np.concatenate([[0], ends])[chunk]
    return starts[chunk] + before - before[np.minimum(first, max(count - 1, 0))], sizes


def _table(data: bytes, columns: int) -> NDArray[np.int64]:
    """The rows of a table of 32-bit numbers, [rows, columns]."""
    (rows,) = struct.unpack(">I", data[4:8])
    return np.frombuffer(data, ">u4", rows * columns, 8).astype(np.int64).reshape(rows, columns)


def _clock(header: bytes) -> int:
    """Ticks a second of a movie or a track."""
    ticks = int(struct.unpack_from(">I", header, 20 if header[0] else 12)[0])
    if not ticks:
        raise ValueError("a clock that stands")
    return ticks


def _edit(
    path: str | os.PathLike[str], trak: dict[bytes, bytes], clock: int, movie: int
) -> tuple[float, float]:
    """Seconds before what is to be heard, and how many those are, 0 for all that follow."""
    edits = dict(_inside(trak.get(b"edts", b""))).get(b"elst", bytes(8))
    row = ">Qq4x" if edits[0] else ">Ii4x"
    (count,) = struct.unpack(">I", edits[4:8])
    if count > 16:
        raise ValueError("too many edits")
    rows = [struct.unpack_from(row, edits, 8 + n * struct.calcsize(row)) for n in range(count)]
    heard = [(length, begin) for length, begin in rows if begin >= 0]
    if len(heard) > 1:
        raise BadFile(path, "cut together by an edit list: export it anew")
    return (heard[0][1] / clock, heard[0][0] / movie) if heard else (0.0, 0.0)
