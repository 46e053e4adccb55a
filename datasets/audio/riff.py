"""Walks the chunks of WAV and AIFF files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

#: Length that a recorder leaves in the header if it cannot correct it, as it writes to a pipe.
UNSTATED = 0xFFFFFFFF
_MOST = 256  # chunks; a real file has a handful


def chunks(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield name and length in bytes of each chunk, with the stream at its content; none for other files.

    The length of the samples of an RF64 file is that of its chunk ``ds64``; lengths are not checked.
    """
    container, _, form = struct.unpack("4s4s4s", stream.read(12).ljust(12, b"\0"))
    if container in (b"RIFF", b"RF64") and form == b"WAVE":
        layout = "<4sI"
    elif container == b"FORM" and form in (b"AIFF", b"AIFC"):
        layout = ">4sI"
    else:
        return
    samples = UNSTATED
    for _ in range(_MOST):
        header = stream.read(8)
        if len(header) < 8:
            return
        name, length = struct.unpack(layout, header)
        begin = stream.tell()
        if name == b"ds64":  # RF64 keeps 64-bit lengths here: RIFF, then data
            samples = int.from_bytes(stream.read(16)[8:], "little")
            stream.seek(begin)
        elif name == b"data" and length == UNSTATED:
            length = samples
        yield name, length
        stream.seek(begin + length + length % 2)
