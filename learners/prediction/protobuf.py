"""Protocol Buffers' wire format, as far as it takes to look through a file before others read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Part = memoryview | bytes


def fields(message: Part) -> Iterator[tuple[int, memoryview | int]]:
    """The numbers of a message's fields, and what is in them: bytes, or a number.

    Raises
    ------
    ValueError, IndexError : it is cut off, or holds what no reader of today writes.
    """
    data, place = memoryview(message), 0
    while place < len(data):
        key, place = _number(data, place)
        wire = key & 7
        if wire == 0:
            value, place = _number(data, place)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, place = _number(data, place)
        if place + size > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[place : place + size]
        place += size


def _number(data: memoryview, place: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")


class Message:
    """A message, gone through once."""

    def __init__(self, data: Any) -> None:
        self._fields = list(fields(data)) if isinstance(data, memoryview) else []

    def all(self, *numbers: int) -> list[Any]:
        """What is in the fields of these numbers."""
        return [value for number, value in self._fields if number in numbers]
