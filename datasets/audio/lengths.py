"""Compares the length that the header of a recording states with what is in the file.

A recorder that writes to a pipe cannot state a length, and one whose power fails or whose card is full states more than
there is. libsndfile refuses some of these files, and accepts others without a word.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import BinaryIO, NamedTuple

from datasets.audio.riff import UNSTATED, chunks

#: Lengths that stand for "until the end of the file" lie this near to 2**31 or 2**32: 0x7FFFF000 (sox), 0x7FFFFFFF
#: (Android), 0x80000000 (arecord), 0xFFFFFFFF (ffmpeg), and these less the size of the header.
_NEAR = 1 << 16
_NEVER = 1 << 62  # bytes; a longer one of RF64 is not stated, either
_SLACK = 64  # bytes; writers count headers and padding in different ways
_MOST_TAIL = (
    1 << 18
)  # bytes; a FLAC frame of 8 channels and 65 535 samples is larger, but none in use
_BLOCK_SIZES = {1: 192, **{n: 144 << n for n in range(2, 6)}, **{n: 1 << n for n in range(8, 16)}}
_TAGGED = 2048  # bytes from the start of an MP3 stream in which its first frame ends
_BEHIND = 0.02  # of an MP3 file, that may be tags behind its frames
_MOST_LOST = 10_000  # places at which a frame of MP3 is looked for behind damaged ones
_MPEG1 = 3  # the version in the header of a frame; 2 and 0 are MPEG-2 and 2.5
_KILOBITS = (
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)  # a second, by the rate in the header, of MPEG-2 and MPEG-1
_MOST_CHUNKS = 256
_MOST_AFTER = 1 << 16  # bytes behind the samples in which chunks are looked for
_AFTER = (b"LIST", b"id3 ", b"ID3 ", b"guan", b"wamd", b"bext", b"iXML", b"cue ", b"JUNK", b"PAD ")
_ID3V1 = 128  # bytes of a tag at the end
#: How a W64 file and its chunk of samples begin; each has a length of 8 bytes behind it, which counts itself.
_W64, _W64_DATA = (
    bytes.fromhex("726966662e91cf11a5d628db04c10000"),
    bytes.fromhex("64617461f3acd3118cd100c04f8edb8a"),
)


class Stated(NamedTuple):
    """What the header states.

    Attributes
    ----------
    missing : fraction of the stated length that is not in the file; 0 if nothing is stated.
    patches : bytes to write at an offset, so that the header states what there is.
    header : bytes to put in at an offset, where a header is wanted that states what there is.
    """

    missing: float = 0.0
    patches: tuple[tuple[int, bytes], ...] = ()
    header: tuple[int, bytes] | None = None


def stated_length(stream: BinaryIO, size: int) -> Stated:
    """Length in the header of a WAV, RF64, W64, AIFF, FLAC or MP3 file of ``size`` bytes; nothing for others."""
    begin = _tag_length(stream)
    stream.seek(begin)
    head = stream.read(64)
    if head.startswith(b"fLaC"):
        return _flac(stream, begin, head, size)
    if begin or head[:1] == b"\xff":
        return _mp3(stream, begin, size)
    if head.startswith(_W64):
        return _w64(stream, size)
    stream.seek(0)
    for name, length in chunks(stream):
        if name in (b"data", b"SSND"):
            return _samples(stream, length, size)
    return Stated()


def _samples(stream: BinaryIO, length: int, size: int) -> Stated:
    """A chunk of samples; the stream is at its content."""
    begin = stream.tell()
    never_closed = length >= _NEVER or (length == 0 and not _are_chunks(stream, begin, size))
    unstated = is_unstated(length) and length > size - begin
    end = _end_of_samples(stream, begin, size) if never_closed or unstated else size
    if never_closed or end < size:
        present = struct.pack("<I", min(end - begin, UNSTATED))
        return Stated(patches=((0, b"RIFF"), (begin - 4, present)))
    if length <= size - begin + _SLACK or unstated:
        return Stated()
    return Stated(1 - (size - begin) / length)


def _end_of_samples(stream: BinaryIO, begin: int, size: int) -> int:
    """Where samples of an unstated length end: at the chunks that a program has added behind them, or with the file."""
    first = max(begin, size - _MOST_AFTER)
    stream.seek(first)
    tail = stream.read()
    names = (at for name in _AFTER for at in _places(tail, name))
    return min((first + at for at in names if _are_chunks(stream, first + at, size)), default=size)


def _places(content: bytes, word: bytes) -> Iterator[int]:
    at = content.find(word)
    while at >= 0:
        yield at
        at = content.find(word, at + 1)


def _w64(stream: BinaryIO, size: int) -> Stated:
    """The length of the chunk of samples; libsndfile reads to the end of the file if there is less."""
    at = 40  # behind the two names and the length of all
    for _ in range(_MOST_CHUNKS):
        stream.seek(at)
        header = stream.read(24)
        if len(header) < 24:
            break
        length = int.from_bytes(header[16:], "little")
        if header.startswith(_W64_DATA):
            stated = length if length < _NEVER else 0
            missing = at + stated - size
            return Stated(missing / (stated - 24) if missing > _SLACK else 0.0)
        at += max(length + -length % 8, 24)
    return Stated()


def is_unstated(length: int) -> bool:
    """Whether a length in bytes stands for "until the end of the file"."""
    return any(abs(length - limit) <= _NEAR for limit in (1 << 31, 1 << 32))


def _are_chunks(stream: BinaryIO, at: int, size: int) -> bool:
    """Whether what follows in a WAV file are chunks up to its end, or nothing."""
    while at + 8 <= size:
        stream.seek(at)
        name, length = struct.unpack("<4sI", stream.read(8))
        if not (name.isascii() and name.decode().isprintable()):
            return False
        at += 8 + length + length % 2
    return size <= at <= size + 1


def _tag_length(stream: BinaryIO) -> int:
    """Bytes of an ID3v2 tag at the start of a file."""
    stream.seek(0)
    head = stream.read(10)
    if not head.startswith(b"ID3") or len(head) < 10:
        return 0
    return 10 + sum((head[6 + n] & 127) << 7 * (3 - n) for n in range(4))


def _mp3(stream: BinaryIO, begin: int, size: int) -> Stated:
    """The number of bytes in the tag ``Xing`` or ``Info`` of the first frame.

    Without a tag the decoder takes the bit rate of the first frame for that of all, and of joined files that of the
    first for the whole. Then the frames are counted.
    """
    stream.seek(begin)
    frame = stream.read(_TAGGED)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    flags = int.from_bytes(frame[at + 4 : at + 8]) if at >= 0 else 0
    if at < 0 or len(frame) < at + 16 or not flags & 1:
        frames = None if b"VBRI" in frame else _frames_of_mp3(stream, begin)
        return Stated(header=(begin, _xing(frame, *frames))) if frames else Stated()
    if not flags & 2:
        return Stated()
    count, length = struct.unpack_from(">II", frame, at + 8)
    if length < (size - begin) * (
        1 - _BEHIND
    ):  # more than tags is behind the frames that are stated
        frames = _frames_of_mp3(stream, begin)
        if not frames or frames[0] <= count:
            return Stated()
        return Stated(patches=((begin + at + 8, struct.pack(">II", *frames)),))
    if length <= size + _SLACK:
        return Stated()
    # libsndfile's decoder prints a warning for each file that is shorter.
    return Stated(
        1 - (size - begin) / length, ((begin + at + 12, struct.pack(">I", size - begin)),)
    )


def _xing(first: bytes, count: int, length: int) -> bytes:
    """A silent frame like the ``first`` that states the number of frames and of their bytes, as Xing's encoder began to.

    The decoder looks for it behind the side information, and plays nothing of it.
    """
    version, mono = first[1] >> 3 & 3, first[3] >> 6 == 3
    side = (17 if mono else 32) if version == _MPEG1 else (9 if mono else 17)
    rate = (9 if version == _MPEG1 else 8) << 4 | first[2] & 0b1100  # 128 and 64 kbit/s
    head = bytes([0xFF, first[1] | 1, rate, first[3]])
    frame = _mp3_frame(head)
    assert frame is not None
    states = b"Xing" + struct.pack(">III", 3, count, length + frame)
    return (head + bytes(side) + states).ljust(frame, b"\0")


def _frames_of_mp3(stream: BinaryIO, begin: int) -> tuple[int, int] | None:
    """Number of frames of layer 3 and of their bytes, from ``begin`` to the end of a file; None if there are none."""
    state = os.fstat(stream.fileno())
    if begin >= state.st_size:
        return None
    return _count_frames(stream.name, begin, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)  # once for a recording of many windows
def _count_frames(path: str, begin: int, size: int, _changed: int) -> tuple[int, int] | None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at, count, length, lost = begin, 0, 0, 0
        size = min(size, len(content))
        while at + 4 <= size and lost < _MOST_LOST:
            frame = _mp3_frame(content[at : at + 4])
            # Behind a frame is another, or a tag, or nothing: two bytes alone may be found in any content.
            if frame is not None and (count or _mp3_frame(content[at + frame : at + frame + 4])):
                at, count, length = at + frame, count + 1, length + frame
                continue
            lost += 1
            at = content.find(b"\xff", at + 1)
            if at < 0:
                break
    return (count, length) if count and lost < _MOST_LOST else None


def _mp3_frame(head: bytes) -> int | None:
    """Bytes of the frame of layer 3 that begins with these four (ISO 11172-3, 2.4.1.3 and 13818-3); None if none does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, bits, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or bits in (0, 15) or rate == 3:
        return None
    hertz = (44100, 48000, 32000)[rate] >> {_MPEG1: 0, 2: 1, 0: 2}[version]
    kilobits = _KILOBITS[version == _MPEG1][bits - 1]
    return (144 if version == _MPEG1 else 72) * kilobits * 1000 // hertz + (head[2] >> 1 & 1)


def _flac(stream: BinaryIO, begin: int, head: bytes, size: int) -> Stated:
    """The number of samples in STREAMINFO (RFC 9639, section 8.2), and that of the last frame."""
    total = (head[21] & 15) << 32 | int.from_bytes(head[22:26])
    longest = int.from_bytes(head[15:18]) or _MOST_TAIL // 2
    stream.seek(max(size - 2 * min(longest, _MOST_TAIL // 2) - _ID3V1, 0))
    tail = stream.read()
    if tail[-_ID3V1:].startswith(b"TAG"):
        tail = tail[:-_ID3V1]
    end = _last_sample(tail, int.from_bytes(head[10:12]), total)
    if end is None or (total and end >= total):
        return Stated()
    patch = bytes([head[21] & 0xF0 | end >> 32]) + (end & UNSTATED).to_bytes(4)
    return Stated(1 - end / total if total else 0.0, ((begin + 21, patch),))


def _last_sample(tail: bytes, block: int, total: int) -> int | None:
    """Number of samples up to the end of the last whole frame in the ``tail`` of a FLAC file; None if no frame is found.

    Parameters
    ----------
    block : samples in a frame of a stream with frames of one size.
    total : the stated number of samples; a last frame that ends there is whole.
    """
    at = len(tail)
    while (at := tail.rfind(b"\xff", 0, at)) >= 0:
        header = _frame(tail[at : at + 16], block)
        if header is not None:
            first, count = header
            whole = first + count == total or _crc(tail[at:], 0x8005, 16) == 0
            return first + count if whole else first
    return None


def _frame(head: bytes, block: int) -> tuple[int, int] | None:
    """First sample and number of samples of the frame that begins with ``head`` (RFC 9639, section 9.1); None if none
    does."""
    if len(head) < 16 or head[1] not in (0xF8, 0xF9):
        return None
    more = max(0, 8 - (head[4] ^ 0xFF).bit_length() - 1)  # bytes of the coded number, as in UTF-8
    number = head[4] & (0x7F >> more) if more else head[4]
    for byte in head[5 : 5 + more]:
        number = number << 6 | byte & 63
    at, code = 5 + more, head[2] >> 4
    extra = {6: 1, 7: 2}.get(code, 0)
    count = int.from_bytes(head[at : at + extra]) + 1 if extra else _BLOCK_SIZES.get(code, 0)
    at += extra + {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
    if not count or _crc(head[: at + 1], 0x07, 8):
        return None
    return (number if head[1] == 0xF9 else number * block), count


def _crc(content: bytes, polynomial: int, width: int) -> int:
    """Cyclic redundancy check, most significant bit first; 0 for content that ends with its own."""
    table, mask, value = _crc_table(polynomial, width), (1 << width - 8) - 1, 0
    for byte in content:
        value = (value & mask) << 8 ^ table[value >> width - 8 ^ byte]
    return value


@cache
def _crc_table(polynomial: int, width: int) -> list[int]:
    """The check of each single byte."""
    top, table = 1 << width - 1, []
    for byte in range(256):
        value = byte << width - 8
        for _ in range(8):
            value = (value << 1) ^ ((polynomial | top << 1) if value & top else 0)
        table.append(value)
    return table
