"""Standard output and standard error that hold every file name."""

from __future__ import annotations

import io
import sys


def hold_every_name() -> None:
    """Have standard output and standard error written as UTF-8, whatever the locale or PYTHONIOENCODING
    says, for names may hold any letter; a name that is no UTF-8 by its own bytes, as Python reads it
    back with ``errors="surrogateescape"``.

    A terminal keeps its encoding, and is shown what it does not know as a backslash escape.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # as where there is none
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
