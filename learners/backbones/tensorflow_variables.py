"""Reads the variables that TensorFlow has saved, without TensorFlow.

They are two files. ``NAME.index`` is a table in LevelDB's format: its last 48 bytes say where the index block is, whose
entries say where the blocks of entries are. Their keys are names of variables, their values protocol buffers
(``BundleEntryProto``) with type, shape, and the place in ``NAME.data-00000-of-00001``. Nothing is run, and no length in
the files is believed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile

MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # bytes
#: Largest index and data in bytes, and most variables and axes, that are read.
MAX_INDEX, MAX_DATA, MAX_VARIABLES, MAX_AXES = 1 << 20, 1 << 28, 10_000, 8
FLOAT = 1  # `DataType.DT_FLOAT`
# Fields of `BundleEntryProto`, `TensorShapeProto` and its axes; a field that is left out is 0.
DTYPE, SHAPE, SHARD, OFFSET, SIZE, SLICES = 1, 2, 3, 4, 5, 7
AXIS, UNKNOWN_RANK, LENGTH = 2, 3, 1


def read_variables(index: Path) -> dict[str, NDArray[np.float32]]:
    """The variables of type float32, by name; others are left out.

    Parameters
    ----------
    index : ``NAME.index``; ``NAME.data-00000-of-00001`` lies beside it.

    Raises
    ------
    BadFile : a file is missing, damaged, or larger than the limits.
    """
    data = index.with_suffix(".data-00000-of-00001")
    table, values = _content(index, MAX_INDEX), _content(data, MAX_DATA)
    try:
        return {
            name.decode(): array
            for name, entry in _entries(table)
            if name and (array := _variable(entry, values)) is not None
        }
    except (ValueError, IndexError, struct.error) as error:
        raise BadFile(index, f"damaged index of TensorFlow's variables ({error})") from None


def _content(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise BadFile(file, f"cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise BadFile(file, f"more than {limit:,} bytes of TensorFlow's variables")
    return content


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry, with and without variables."""
    footer = table[-FOOTER:]
    if len(footer) < FOOTER or struct.unpack("<Q", footer[-8:])[0] != MAGIC:
        raise ValueError("its end is not that of a table")
    at = 0
    for _ in range(2):  # the place of the table's own properties, which are not used
        _, at = _varint(footer, at)
    count = 0
    for _, place in _block(table, footer[at:]):
        for entry in _block(table, place):
            if (count := count + 1) > MAX_VARIABLES:
                raise ValueError(f"more than {MAX_VARIABLES:,} variables")
            yield entry


def _block(table: bytes, place: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each entry of a block, whose place is offset and size."""
    offset, at = _varint(place, 0)
    size, _ = _varint(place, at)
    if offset + size >= len(table) or size < 4:
        raise ValueError("a block lies outside of the file")
    if table[offset + size]:
        raise ValueError("a block is compressed")
    block = table[offset : offset + size]
    restarts = struct.unpack("<I", block[-4:])[0]  # 32-bit numbers at the end, for binary search
    end, at, key = size - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = _varint(block, at)
        fresh, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + fresh + length > end:
            raise ValueError("an entry lies outside of its block")
        key = key[:shared] + block[at : at + fresh]
        at += fresh
        yield key, block[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, of at most 64 bits, and where it ends."""
    number = 0
    for place in range(10):
        byte = content[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError("a number has more than 64 bits")


def _fields(message: bytes) -> dict[int, list[int | bytes]]:
    """Values of each field of a protocol buffer: numbers, and bytes of what has a length."""
    fields: dict[int, list[int | bytes]] = {}
    value: int | bytes
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
        elif wire in (1, 2, 5):
            length, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            if at + length > len(message):
                raise ValueError("a field lies outside of its message")
            value = message[at : at + length]
            at += length
        else:
            raise ValueError(f"a field of wire type {wire}")
        fields.setdefault(number, []).append(value)
    return fields


def _number(fields: dict[int, list[int | bytes]], name: int) -> int:
    value = fields.get(name, [0])[-1]
    if not isinstance(value, int):
        raise ValueError("a field is no number")
    return value


def _messages(
    fields: dict[int, list[int | bytes]], name: int
) -> list[dict[int, list[int | bytes]]]:
    values = fields.get(name, [])
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError("a field is no message")
    return [_fields(value) for value in values if isinstance(value, bytes)]


def _variable(entry: bytes, data: bytes) -> NDArray[np.float32] | None:
    """A variable as read-only array; None if it is not of type float32."""
    fields = _fields(entry)
    if _number(fields, DTYPE) != FLOAT:
        return None
    if SLICES in fields or _number(fields, SHARD):
        raise ValueError("a variable is divided")
    shape: list[int] = []
    for of_shape in _messages(fields, SHAPE):
        if _number(of_shape, UNKNOWN_RANK):
            raise ValueError("a variable has no shape")
        shape += [_number(axis, LENGTH) for axis in _messages(of_shape, AXIS)]
    offset, size = _number(fields, OFFSET), _number(fields, SIZE)
    if len(shape) > MAX_AXES or size != 4 * math.prod(shape) or offset + size > len(data):
        raise ValueError("a variable does not fit into the data")
    array = np.frombuffer(data, "<f4", size // 4, offset).reshape(shape)
    return array.astype(np.float32, copy=False)
