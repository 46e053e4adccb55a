"""Names of the commands and extras in this installation, and the encoding of the output."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

#: Installed from a wheel, where the three packages lie in ``secondhand``; else from a checkout.
WHEEL = (Path(__file__).parents[2] / "__init__.py").is_file()
_COMMAND = (
    r"(?:(?:learners|datasets)\."
    r"(finetune|predict|evaluate|audit|export|suggest|discover|search|share|render|catalog|cache)|(app))\b"
)


def installed_commands(text: str) -> str:
    """Replace ``python -m learners.predict`` in a text by ``secondhand predict``, if it was installed from a
    wheel or started as ``secondhand``."""
    if not (WHEEL or os.environ.get("SECONDHAND_COMMAND")):
        return text
    text = re.sub(rf"(?<![\w/])python -m {_COMMAND}", r"secondhand \1\2", text)
    text = re.sub(rf"-m {_COMMAND}", r"-m secondhand \1\2", text)
    return re.sub(rf"(?<![\w/.]){_COMMAND}", lambda m: m[0] if m[2] else f"secondhand {m[1]}", text)


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


def use_utf8_output() -> None:
    """Write standard output and standard error as UTF-8, whatever the locale or PYTHONIOENCODING.

    File names that are not UTF-8 keep their bytes (``errors="surrogateescape"``). A terminal keeps its
    encoding; characters that it lacks appear as backslash escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # as where there is none
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
