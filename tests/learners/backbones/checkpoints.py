"""Writes variables as TensorFlow saves them, for tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MAGIC = 0xDB4775248B80FB57


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(name: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(name << 3) + varint(value)
    return varint(name << 3 | 2) + varint(len(value)) + value


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A block of a table; keys leave out what they share with the one before."""
    out, before = b"", b""
    for key, value in entries:
        shared = next((n for n, (a, b) in enumerate(zip(before, key, strict=False)) if a != b), 0)
        out += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        before = key
    return out + struct.pack("<II", 0, 1)


def write_checkpoint(folder: Path, variables: Mapping[str, np.ndarray], *, dtype: int = 1) -> Path:
    """Write ``variables.index`` and its data; return the index."""
    folder.mkdir(parents=True, exist_ok=True)
    data, entries = b"", [(b"", field(1, 1))]
    for name in sorted(variables):
        content = np.ascontiguousarray(variables[name], "<f4").tobytes()
        axes = b"".join(field(2, field(1, length)) for length in variables[name].shape)
        place = field(1, dtype) + field(2, axes) + field(4, len(data)) + field(5, len(content))
        entries.append((name.encode(), place + varint(6 << 3 | 5) + b"\0" * 4))
        data += content
    blocks, out = [], b""
    for first in range(0, len(entries), 16):
        of_block = block(entries[first : first + 16])
        blocks.append((of_block[:1] + b"z", varint(len(out)) + varint(len(of_block))))
        out += of_block + b"\0" * 5
    last = block(blocks)
    places = varint(0) * 2 + varint(len(out)) + varint(len(last))
    index = folder / "variables.index"
    index.write_bytes(out + last + b"\0" * 5 + places.ljust(40, b"\0") + struct.pack("<Q", MAGIC))
    (folder / "variables.data-00000-of-00001").write_bytes(data)
    return index
