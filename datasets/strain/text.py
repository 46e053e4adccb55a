"""Strain in text, one number a line, plain or gzip."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datasets.errors import BadFile
from datasets.strain.source import MAX_SAMPLES, Floats, StrainFile, checked

# Real strain packs to a third; what unpacks to more than this was made to fill a memory.
_MAX_RATIO = 20
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")  # no text has these
_BLOCK = 1 << 20  # bytes of text at a time


def read_text(path: Path, packed: bool, rate: float | None, gps_start: float | None) -> StrainFile:
    """Read a text file whole. GWOSC's header gives the rate and the GPS start unless given here.

    "# This file has 4096 samples per second", "# starting GPS 1126259446 duration 32".
    """
    blocks: list[Floats] = []
    header, total, limit = "", 0, MAX_SAMPLES
    try:
        for text in _blocks(path, packed):
            if not blocks:
                if _BINARY.search(text[:4096]):
                    raise BadFile(
                        path, "not strain: neither HDF5, GWF nor text with one number a line"
                    )
                text, header = _split_header(path, text)
                seconds = _find(r"duration (\d+(?:\.\d+)?)", header)
                if rate is None:
                    rate = _find(r"(\d+(?:\.\d+)?) samples per second", header)
                if gps_start is None:
                    gps_start = _find(r"starting GPS (\d+(?:\.\d+)?)", header)
                limit = min(limit, round(seconds * rate)) if seconds and rate else limit
            blocks.append(_numbers(path, text))
            if rate is None or gps_start is None:
                raise BadFile(
                    path,
                    f"no header that says {'at what rate' if rate is None else 'when'} it was "
                    "measured: put two lines above the numbers, as '# 4096 samples per second' and "
                    "'# starting GPS 1126259446'",
                )
            total += len(blocks[-1])
            if total > limit:
                raise BadFile(path, f"more than {limit} samples, the most by its header or in all")
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(path, f"cannot be unpacked: {error}") from error
    if rate is None or gps_start is None:  # never: _blocks yields once at least
        raise BadFile(path, "empty file")
    values = np.concatenate(blocks)
    rate = checked(path, rate, gps_start, total)
    found = re.search(r"\b([A-Z]\d)\b", header)
    return StrainFile(
        rate, gps_start, total, found[1] if found else "", lambda i, j: values[i:j], lambda *_: {}
    )


def _find(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text, re.IGNORECASE)
    return float(found[1]) if found and len(found[1]) < 20 else None


def _blocks(path: Path, packed: bool) -> Iterator[bytes]:
    """Whole lines, about a megabyte at a time."""
    rest, unpacked = b"", 0
    allowed = path.stat().st_size * _MAX_RATIO + _BLOCK
    with gzip.open(path) if packed else path.open("rb") as file:
        while data := file.read(_BLOCK):
            unpacked += len(data)
            if unpacked > allowed:
                raise BadFile(path, f"unpacks to more than {_MAX_RATIO} times its size")
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if not newline:
                raise BadFile(path, "a line of a megabyte: one number a line is expected")
            yield whole + newline
    if rest.strip() or not unpacked:
        yield rest


def _split_header(path: Path, text: bytes) -> tuple[bytes, str]:
    end = 0
    while text[end : end + 1] in (b"#", b"%"):
        after = text.find(b"\n", end) + 1
        if after == 0 or after > 1 << 16:
            raise BadFile(path, "a header of more than 64 kB, or nothing after it")
        end = after
    return text[end:], text[:end].decode("utf-8", "replace")


def _numbers(path: Path, text: bytes) -> Floats:
    """One float a line; BadFile that quotes the line where it is anything else."""
    text = text.strip()
    lines = text.count(b"\n") + 1 if text else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = np.fromstring(text, dtype=np.float64, sep="\n") if text else np.empty(0)
        except ValueError:
            values = np.empty(0)
    if len(values) != lines:
        for line in text.split(b"\n"):
            try:
                float(line)
            except ValueError:
                shown = line[:40].decode("utf-8", "replace")
                raise BadFile(path, f"one number a line is expected, not {shown!r}") from None
    if len(values) != lines:
        raise BadFile(path, "one number a line is expected")
    return values
