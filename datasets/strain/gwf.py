"""Strain in GWF frames, through gwpy and the frame library that it finds.

Frame libraries trust what they are given: a frame cut short ends the whole process, not with an
error but with a segmentation fault. So the file is walked from structure to structure, and its
checksum verified, before they see it (the layout is LIGO-T970130's, versions 6 and 8). That finds
damage, not malice: frames from strangers are best not opened.
"""

from __future__ import annotations

import logging
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datasets.errors import BadFile, SecondhandError
from datasets.strain.source import StrainFile, checked

log = logging.getLogger(__name__)

#: What the channels of calibrated strain are called: LIGO's, KAGRA's and GWOSC's; Virgo's own.
_NAMES = ("STRAIN", "HREC_HOFT")
_HEADER = 40
_COMMON = 14  # of each structure: length, checksum type, class, instance
_BLOCK = 1 << 20
_BITS_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def read_gwf(path: Path) -> StrainFile:
    """The strain channel of a frame file, all of it.

    Raises
    ------
    BadFile : damaged, or without exactly one detector's strain.
    SecondhandError : there is no gwpy, or no frame library for it.
    """
    check_frame(path)
    remedy = "pip install secondhand[gw]"
    try:
        from gwpy.io.gwf import get_channel_names
        from gwpy.timeseries import TimeSeries
    except ImportError as error:
        raise SecondhandError(f"{path}: GWF frames need gwpy: {remedy}") from error
    try:
        names = sorted(str(name) for name in get_channel_names(str(path)))
        channel = _strain_channel(path, names)
        series = TimeSeries.read(str(path), channel, format="gwf")
    except ImportError as error:
        raise SecondhandError(f"{path}: {error}: {remedy}") from error
    except BadFile:
        raise
    except Exception as error:  # each frame library raises errors of its own
        raise BadFile(path, f"broken GWF: {error}") from error
    values = np.asarray(series.value, dtype=np.float64)
    start = float(series.t0.value)
    rate = checked(path, float(series.sample_rate.value), start, values.size)
    detector = channel.split(":")[0]
    return StrainFile(rate, start, values.size, detector, lambda i, j: values[i:j], lambda *_: {})


def _strain_channel(path: Path, names: list[str]) -> str:
    strain = [name for name in names if any(word in name.upper() for word in _NAMES)]
    if not strain:
        there = ", ".join(names[:5]) or "none"
        raise BadFile(path, f"no channel with STRAIN in its name; its channels: {there}")
    detectors = sorted({name.split(":")[0] for name in strain})
    if len(detectors) > 1:
        raise BadFile(path, f"strain of {' and '.join(detectors)}: one file for each is needed")
    if len(strain) > 1:
        log.info("%s: %s is read, not %s", path, strain[0], ", ".join(strain[1:]))
    return strain[0]


def check_frame(path: Path) -> None:
    """Raise BadFile for a frame file that is cut short or damaged, as far as one can tell."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER)
        order = {b"\x34\x12": "<", b"\x12\x34": ">"}.get(header[12:14])
        if len(header) < _HEADER or order is None:
            raise BadFile(path, "broken GWF: it ends or is damaged in the header")
        if header[5] < 6:
            raise BadFile(path, f"version {header[5]} of GWF; 6 and later are read: convert it")
        begin, last = _HEADER, _HEADER
        begins = set()
        while begin < size:
            begins.add(begin)
            file.seek(begin)
            common = file.read(_COMMON)
            length = struct.unpack(f"{order}Q", common[:8])[0] if len(common) == _COMMON else size
            last, begin = begin, begin + length
            if length < _COMMON or begin > size:
                raise BadFile(path, f"broken GWF: cut short or damaged at byte {last} of {size}")
        file.seek(last)
        end = file.read()
        # FrEndOfFile: after what is common the numbers of frames and of bytes, and (in version 6
        # after a checksum) how many bytes from the end the table of contents begins.
        table = 26 if header[5] >= 8 else 34
        if len(end) < table + 8 or struct.unpack_from(f"{order}Q", end, 18)[0] != size:
            raise BadFile(path, f"broken GWF: it does not end where it should, at byte {size}")
        frames, back = (
            struct.unpack_from(f"{order}{t}", end, i)[0] for t, i in (("I", 14), ("Q", table))
        )
        if not frames or size - back not in begins:
            raise BadFile(path, "broken GWF: no frame in it, or no table of contents")
        checks = header[5] >= 8 and end[8] == 1
        if checks and struct.unpack(f"{order}I", end[-4:])[0] != _cksum(file, size - 4):
            raise BadFile(path, "broken GWF: its checksum is wrong, so bytes in it have changed")


def _cksum(file: BinaryIO, size: int) -> int:
    """The CRC of POSIX's `cksum` over the first `size` bytes.

    It is zlib's with the bits of all bytes and of the result reversed, begun at 0, and with the
    number of bytes added at the end.
    """
    crc, left = 0xFFFFFFFF, size
    file.seek(0)
    while left:
        block = file.read(min(left, _BLOCK))
        crc = zlib.crc32(block.translate(_BITS_REVERSED), crc)
        left -= len(block)
    length = size.to_bytes((size.bit_length() + 7) // 8, "little")
    crc = zlib.crc32(length.translate(_BITS_REVERSED), crc)
    # zlib inverts what it returns, and so does cksum: the two inversions cancel.
    return int(f"{crc:032b}"[::-1], 2)
