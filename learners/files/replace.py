"""May a folder be replaced, and what does a library mean that could not write."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from datasets.errors import SecondhandError


def disk_error(file: Path, error: Exception) -> OSError:
    """What a library says of a failed write, as the error of the system that it was."""
    number = re.search(r"(?:os error|code:) (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(file))


def check_replaceable(folder: Path, *, overwrite: bool, mark: str) -> None:
    """Raise SecondhandError where ``folder`` is there and may not be replaced.

    It may with ``overwrite``, if it holds the file ``mark`` and so is one of its kind.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise SecondhandError(
            f"--out {folder}: is there already; choose another, or give --overwrite"
        )
    if not (folder / mark).is_file():
        raise SecondhandError(
            f"--out {folder}: holds no {mark}, so it is not overwritten; choose another"
        )
