"""Reads when and where a recording was made from what recorders write into WAV files.

GUANO (https://guano-md.org), Wildlife Acoustics' WAMD, and AudioMoth's comment. Also how many times slower than it was
a recording plays: bat detectors with time expansion write a tenth of the rate.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from datasets.audio.riff import chunks
from datasets.core.address import as_path, local
from datasets.core.recorded import Recorded, iso_time, valid_expansion, valid_place

_LONGEST = 1 << 20  # bytes of a chunk that are read; WAMD may hold voice notes
_WAMD_TIME, _WAMD_PLACE, _WAMD_EXPANSION = 5, 6, 15  # numbers of its fields
#: The factor in a file name, such as ``bat_TE10.wav``.
_TE = re.compile(r"(?<![A-Za-z0-9])TE[_-]?x?(5|8|10|16|20|32)x?(?![A-Za-z0-9])", re.IGNORECASE)
_AUDIOMOTH = re.compile(
    r"Recorded at (\d\d:\d\d:\d\d)(?:\.\d+)? (\d\d/\d\d/\d{4}) "
    r"\(UTC(?:([+-])(\d\d?)(?::?(\d\d))?)?\)"
)


def recorder_notes(path: str | os.PathLike[str]) -> list[Recorded]:
    """What GUANO, WAMD and AudioMoth's comment in a WAV file say, in this order of preference.

    Empty for other and for unreadable files. Damaged chunks are ignored.
    """
    found: dict[bytes, Recorded] = {}
    with suppress(OSError, OverflowError), open(local(path), "rb") as stream:
        for name, length in chunks(stream):
            if name in _READERS:
                content = stream.read(min(length, _LONGEST))
                with suppress(ValueError, LookupError, struct.error, OverflowError):
                    found.setdefault(name, _READERS[name](content))
    return [found[name] for name in _READERS if name in found]


def time_expansion(path: str | os.PathLike[str]) -> float:
    """How many times slower a recording plays than it was, as `recorder_notes` or its name say; usually 1."""
    return find_expansion(path, recorder_notes(path))


def find_expansion(path: str | os.PathLike[str], notes: Iterable[Recorded]) -> float:
    """`time_expansion` by notes that have been read."""
    if stated := next(filter(None, (note.expansion for note in notes)), None):
        return stated
    named = _TE.search(as_path(path).stem)
    return float(named[1]) if named else 1.0


def _guano(content: bytes) -> Recorded:
    lines = content.decode("utf-8", "replace").strip("\0 ").splitlines()
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    place = None
    with suppress(ValueError):
        latitude, longitude = map(float, fields.get("Loc Position", "").split())
        place = valid_place(latitude, longitude)
    expansion = None
    with suppress(ValueError):
        expansion = valid_expansion(float(fields.get("TE", "")))
    return Recorded("GUANO", iso_time(fields.get("Timestamp", "")), place, expansion)


def _wamd(content: bytes) -> Recorded:
    """Fields of number (uint16), length (uint32) and value, little-endian; as guano-py's ``wamd2guano.py`` reads them."""
    fields: dict[int, str] = {}
    expansion = None
    begin = 0
    while begin + 6 <= len(content):
        number, length = struct.unpack_from("<HI", content, begin)
        begin += 6 + length
        value = content[begin - length : begin]
        fields[number] = value.decode("latin-1").strip("\0 ")
        if number == _WAMD_EXPANSION:
            expansion = valid_expansion(int.from_bytes(value[:2], "little"))
    place = None
    with suppress(ValueError, LookupError):
        place = _wamd_place([part.strip() for part in fields.get(_WAMD_PLACE, "").split(",")[1:]])
    return Recorded("WAMD", iso_time(fields.get(_WAMD_TIME, "")), place, expansion)


def _wamd_place(parts: list[str]) -> tuple[float, float] | None:
    """``LAT, N|S, LON, E|W`` of Song Meters, or ``LAT, LON`` with signs of Echo Meters."""
    if parts[1] not in ("N", "S"):
        return valid_place(float(parts[0]), float(parts[1]))
    latitude, longitude = float(parts[0]), float(parts[2])
    return valid_place(
        -latitude if parts[1] == "S" else latitude, -longitude if parts[3] == "W" else longitude
    )


def _list(content: bytes) -> Recorded:
    """The comment (ICMT) in a chunk LIST of the type INFO."""
    match = _AUDIOMOTH.search(content.decode("latin-1"))
    if match is None:
        raise ValueError("not AudioMoth's comment")
    clock, date, sign, hours, minutes = match.groups()
    time = datetime.strptime(f"{date} {clock}", "%d/%m/%Y %H:%M:%S")
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    zone = timezone(-offset if sign == "-" else offset)
    return Recorded("AudioMoth's comment", time.replace(tzinfo=zone))


_READERS = {b"guan": _guano, b"wamd": _wamd, b"LIST": _list}
