"""Names of the commands and extras in this installation, and the encoding of the output."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from datasets.core.errors import printable

#: Installed from a wheel, where the three packages lie in ``secondhand``; else from a checkout.
WHEEL = (Path(__file__).parents[2] / "__init__.py").is_file()
#: Commands that are modules of their own in a checkout, as in ``python -m learners.predict``.
MODULES = ("finetune", "predict", "evaluate", "adjust", "export")
#: Set by ``secondhand``, for the processes that it starts too: how it was called.
CALLED = "SECONDHAND_COMMAND"
_MODULE = rf"learners\.({'|'.join(MODULES)})\b"


def installed_commands(text: str) -> str:
    """Replace ``python -m learners.predict`` in a text by ``secondhand predict``, if it was installed from a
    wheel or started as ``secondhand``."""
    if not (WHEEL or os.environ.get(CALLED)):
        return text
    text = re.sub(rf"(?<![\w/])python -m {_MODULE}", r"secondhand \1", text)
    text = re.sub(rf"-m {_MODULE}", r"-m secondhand \1", text)
    return re.sub(rf"(?<![\w/.]){_MODULE}", r"secondhand \1", text)


def typed_words(command: str) -> list[str]:
    """The words by which a user calls a command here."""
    called = os.environ.get(CALLED, "")
    if command in MODULES and not (WHEEL or called):
        return ["python", "-m", f"learners.{command}"]
    return [*(called or "secondhand").split(), command]


def extra(name: str) -> str:
    """Command that installs an extra of pyproject.toml."""
    return f"pip install 'secondhand[{name}]'" if WHEEL else f"pip install -e '.[{name}]'"


def program_version() -> str:
    """Version of this installation: ``secondhand.__version__``, without importing that package."""
    home = Path(__file__).parents[2]
    text = (home / ("__init__.py" if WHEEL else "secondhand/__init__.py")).read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


class CleanedStream:
    """A stream of text whose control characters are written as escapes, see `datasets.core.errors.printable`.

    Names of files, labels and cells of tables come from strangers, and a terminal obeys the control characters in them.

    Attributes
    ----------
    uncleaned : the stream itself, for colours and lines that are drawn again.
    """

    def __init__(self, stream: TextIO) -> None:
        self.uncleaned = stream

    def write(self, text: str) -> int:
        return self.uncleaned.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "uncleaned":  # while it is copied
            raise AttributeError(name)
        return getattr(self.uncleaned, name)


def uncleaned(stream: TextIO) -> TextIO:
    """The stream that takes colours: of a `CleanedStream` the one below it."""
    return stream.uncleaned if isinstance(stream, CleanedStream) else stream


def clean_terminal() -> None:
    """Clean what goes to standard error, and to standard output where that is a terminal; other programs get data."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None or isinstance(stream, CleanedStream):
            continue
        if name == "stderr" or stream.isatty():
            setattr(sys, name, CleanedStream(stream))


def use_utf8_output() -> None:
    """Write standard output and standard error as UTF-8, whatever the locale or PYTHONIOENCODING, see also
    `clean_terminal`.

    File names that are not UTF-8 keep their bytes (``errors="surrogateescape"``). A terminal keeps its
    encoding; characters that it lacks appear as backslash escapes.
    """
    for each in (sys.stdout, sys.stderr):
        stream = uncleaned(each)
        if not isinstance(stream, io.TextIOWrapper):  # as where there is none
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    clean_terminal()
