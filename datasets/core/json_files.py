"""Reads JSON files of other programs."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.core.errors import BadFile, one_line
from datasets.core.limits import unread

#: Bytes at the beginning of a large file that show its format.
_HEAD = 1 << 20


def parse_json(text: str | bytes, **options: Any) -> Any:
    """`json.loads` of what a stranger wrote: whole numbers are small enough to become floats.

    Raises
    ------
    ValueError : it is not JSON, or has a number of 300 digits or more.
    """
    if _is_huge(text):
        raise ValueError("a number of 300 digits or more")
    return json.loads(text, **options)


def _is_huge(text: str | bytes) -> bool:
    found = re.search(r"\d{300}", text) if isinstance(text, str) else re.search(rb"\d{300}", text)
    return found is not None


def _number(text: str) -> int | str:
    return int(text) if len(text) < 300 else text


def read_json(file: Path) -> Any:
    """Content of a JSON file in any encoding of Unicode; a number of 300 digits or more stays a text, which is no number to
    what reads it.

    Raises
    ------
    BadFile : it cannot be read or is not JSON; the reason names line and column.
    """
    try:
        data = file.read_bytes()
        # The names of files need not be UTF-8.
        text = data.decode(json.detect_encoding(data), "surrogateescape")
        return json.loads(text, parse_int=_number if _is_huge(text) else None)
    except OSError as error:
        raise unread(file, error) or BadFile(file, f"cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(file, f"not JSON ({one_line(str(error))[:100]})") from None


def has_keys(file: Path, *keys: str, ending: str = ".json") -> bool:
    """Whether a file has this ending, and all of the keys near its beginning: it may be large."""
    if file.suffix.lower() == ending and file.is_file():
        with suppress(OSError), file.open("rb") as stream:
            head = stream.read(_HEAD)
            return all(f'"{key}"'.encode() in head for key in keys)
    return False


def is_list(file: Path) -> bool:
    """Whether a file that ends in ``.json`` begins as a list does."""
    if file.suffix.lower() == ".json" and file.is_file():
        with suppress(OSError), file.open("rb") as stream:
            return re.match(rb"(\xef\xbb\xbf)?\s*\[", stream.read(64)) is not None
    return False
