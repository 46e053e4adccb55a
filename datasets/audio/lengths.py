"""Compares the length that the header of a recording states with what is in the file.

A recorder that writes to a pipe cannot state a length, and one whose power fails or whose card is full states more than
there is. libsndfile refuses some of these files, and accepts others without a word.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from datasets.audio.riff import UNSTATED, chunks

#: Lengths that stand for "until the end of the file" lie this near to 2**31 or 2**32: 0x7FFFF000 (sox), 0x7FFFFFFF
#: (Android), 0x80000000 (arecord), 0xFFFFFFFF (ffmpeg), and these less the size of the header.
_NEAR = 1 << 16
_NEVER = 1 << 62  # bytes; a longer one of RF64 is not stated, either
_SLACK = 64  # bytes; writers count headers and padding in different ways
_TAGGED = 2048  # bytes from the start of an MP3 stream in which its first frame ends
_BEHIND = 0.02  # of an MP3 file, that may be tags behind its frames
_MOST_AFTER = 1 << 16  # bytes behind the samples in which chunks are looked for
_AFTER = (b"LIST", b"id3 ", b"ID3 ", b"guan", b"wamd", b"bext", b"iXML", b"cue ", b"JUNK", b"PAD ")


class Stated(NamedTuple):
    """What the header states.

    Attributes
    ----------
    missing : fraction of the stated length that is not in the file; 0 if nothing is stated.
    patches : bytes to write at an offset, so that the header states what there is.
    guessed : an MP3 stream whose header does not state all of it; libsndfile guesses its length.
    """

    missing: float = 0.0
    patches: tuple[tuple[int, bytes], ...] = ()
    guessed: bool = False


def stated_length(stream: BinaryIO, size: int) -> Stated:
    """Length in the header of a WAV, RF64, AIFF or MP3 file of ``size`` bytes; nothing for others, see `flac_length`."""
    begin = _tag_length(stream)
    stream.seek(begin)
    head = stream.read(4)
    if head.startswith(b"fLaC"):
        return Stated()
    if begin or head[:1] == b"\xff":
        return _mp3(stream, begin, size)
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
    first for the whole.
    """
    stream.seek(begin)
    frame = stream.read(_TAGGED)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    flags = int.from_bytes(frame[at + 4 : at + 8]) if at >= 0 else 0
    if at < 0 or len(frame) < at + 16 or not flags & 1:
        return Stated(guessed=b"VBRI" not in frame)
    if not flags & 2:
        return Stated()
    length = int.from_bytes(frame[at + 12 : at + 16])
    if length < (size - begin) * (1 - _BEHIND):  # more than tags is behind the frames
        return Stated(guessed=True)
    if length <= size + _SLACK:
        return Stated()
    # libsndfile's decoder prints a warning for each file that is shorter.
    present = struct.pack(">I", size - begin)
    return Stated(1 - (size - begin) / length, ((begin + at + 12, present),))


def flac_length(stream: BinaryIO, file: Any) -> Stated:
    """The number of samples of a FLAC file that its header does not state, or which are not there.

    Parameters
    ----------
    file : the same file, a `soundfile.SoundFile`, which may stand anywhere then.
    """
    if _reaches(file, file.frames - 1):
        return Stated()
    state = os.fstat(stream.fileno())
    samples = _samples_of_flac(stream.name, state.st_size, state.st_mtime_ns)
    if not samples:  # which would stand for a length that is not stated
        return Stated()
    begin = _tag_length(stream)
    stream.seek(begin)
    head = stream.read(26)
    total = (head[21] & 15) << 32 | int.from_bytes(head[22:])  # STREAMINFO (RFC 9639, section 8.2)
    patch = bytes([head[21] & 0xF0 | samples >> 32]) + (samples & UNSTATED).to_bytes(4)
    return Stated(1 - samples / total if total else 0.0, ((begin + 21, patch),))


def _reaches(file: Any, sample: int) -> bool:
    """Whether libsndfile finds a sample. Where it does not, it reads nothing of this file any more."""
    try:
        file.seek(sample)
    except RuntimeError:
        return False
    return True


@lru_cache(maxsize=4096)  # once for a recording of many windows
def _samples_of_flac(path: str, _size: int, _changed: int) -> int:
    """Number of samples that libsndfile reaches; 0 without any."""
    import soundfile

    def is_there(sample: int) -> bool:
        with soundfile.SoundFile(os.fsencode(path)) as file:
            return _reaches(file, sample)

    first, beyond = -1, 1
    while is_there(beyond):
        first, beyond = beyond, 2 * beyond
    while beyond - first > 1:
        middle = (first + beyond) // 2
        first, beyond = (middle, beyond) if is_there(middle) else (first, middle)
    return beyond
