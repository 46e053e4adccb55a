"""What a sound file claims of itself, held against what an honest file can be."""

from __future__ import annotations

import os
import stat
import struct
from typing import Any

from datasets.errors import BadFile

FORMATS = {"WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "M4A"}
RATES = (1_000, 768_000)  # Hz
MAX_CHANNELS = 64
MIN_SAMPLES = 16  # fewer hold no sound
# No encoder of these formats puts more samples into a byte: PCM and ADPCM at least 2 bits a sample,
# FLAC at least 8 bytes a frame of at most 65 535 samples, Opus at least one byte in 120 ms.
_FRAMES_PER_BYTE = {"WAV": 8, "WAVEX": 8, "RF64": 8, "W64": 8, "AIFF": 8}
_COMPRESSED_FRAMES_PER_BYTE = 8192

_VIDEO = (  # (offset, bytes, name)
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM container"),
    (8, b"AVI ", "an AVI video"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"\0\0\1\xba", "an MPEG video"),
    (0, b"\0\0\1\xb3", "an MPEG video"),
    (28, b"\x80theora", "an Ogg video"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a Windows Media container"),
)


def checked_size(path: str | os.PathLike[str]) -> tuple[int, bytes]:
    """The file's size in bytes and its first 64, after the checks that need no decoder."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(path, "not a regular file")
        with open(path, "rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise BadFile(path, f"cannot be opened: {error.strerror or error}") from None
    if not head:
        raise BadFile(path, "empty file")
    for offset, magic, name in _VIDEO:
        if head[offset : offset + len(magic)] == magic:
            raise BadFile(path, f"{name}, not an audio file: extract its sound as WAV or FLAC")
    return status.st_size, head


def check_header(file: Any, path: str | os.PathLike[str], size: int) -> None:
    """Refuse a header that no honest file has."""
    if file.format not in FORMATS:
        raise BadFile(path, f"{file.format} is not supported: convert to WAV or FLAC")
    if not RATES[0] <= file.samplerate <= RATES[1]:
        raise BadFile(
            path, f"header claims {file.samplerate} Hz; believed are {RATES[0]} to {RATES[1]}"
        )
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise BadFile(
            path, f"header claims {file.channels} channels; at most {MAX_CHANNELS} are read"
        )
    per_byte = _FRAMES_PER_BYTE.get(file.format, _COMPRESSED_FRAMES_PER_BYTE)
    if file.frames > size * per_byte:
        raise BadFile(path, f"header claims {file.frames} samples in a file of {size} bytes")
    claimed = _claimed_bytes(path)
    if claimed is not None and claimed > size:
        raise BadFile(
            path, f"truncated: header claims {claimed} bytes of samples, the file has {size}"
        )
    if file.frames < MIN_SAMPLES:
        raise BadFile(path, f"holds {max(file.frames, 0)} samples: too short to hold a sound")


def _claimed_bytes(path: str | os.PathLike[str]) -> int | None:
    """Length of the sample chunk as a RIFF, RF64 or AIFF header states it; None if unstated.

    libsndfile corrects a wrong length in silence, and would pass a truncated recording as a
    shorter one.
    """
    with open(path, "rb") as stream:
        container, _, form = struct.unpack("4s4s4s", stream.read(12).ljust(12, b"\0"))
        if container in (b"RIFF", b"RF64") and form == b"WAVE":
            layout, wanted = "<4sI", b"data"
        elif container == b"FORM" and form in (b"AIFF", b"AIFC"):
            layout, wanted = ">4sI", b"SSND"
        else:
            return None
        for _ in range(256):  # chunks; a real file has a handful
            header = stream.read(8)
            if len(header) < 8:
                return None
            name, length = struct.unpack(layout, header)
            if name == b"ds64":  # RF64 keeps 64-bit lengths here: RIFF, then data
                return int.from_bytes(stream.read(16)[8:], "little")
            if name == wanted:
                # Recorders that write to a pipe cannot go back and leave the largest number.
                return None if length == 0xFFFFFFFF else int(length)
            stream.seek(length + length % 2, os.SEEK_CUR)
    return None
