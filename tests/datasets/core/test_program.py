"""File names of any spelling are written and read back in any locale."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from datasets.core.errors import BadFile, Rejected
from datasets.core.program import uncleaned, use_utf8_output

NAMES = [b"a \xf0\x9f\xa6\x8a.txt", b"no UTF-8 \xff.txt", "Äpfel.txt".encode()]


def test_a_terminal_that_lacks_a_letter_is_shown_its_escape(monkeypatch):
    leader, follower = os.openpty()
    with os.fdopen(follower, "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        use_utf8_output()
        print("a 🦊", os.fsdecode(b"\xff"), flush=True)
        assert os.read(leader, 100).split(b"\r")[0] == rb"a \U0001f98a \udcff"
    os.close(leader)


def test_other_streams_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", None)
    use_utf8_output()


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {}])
def test_a_command_writes_names_as_the_disk_has_them(locale, tmp_path: Path):
    files = [os.path.join(os.fsencode(tmp_path), name) for name in NAMES]
    for file in files:
        Path(os.fsdecode(file)).write_text("no sound")
    words = [sys.executable, "-m", "secondhand", "render", *files, "--kind", "sound", "--out", tmp_path / "to"]  # fmt: skip
    process = subprocess.run(words, env=os.environ | locale, capture_output=True, timeout=200)
    assert b"Traceback" not in process.stderr
    for file in files:
        assert file + b": " in process.stderr
    assert process.returncode == 3


HOSTILE = "\x1b]0;title\x07\x1b[2J a\x9b31m\u202egpj.exe\u2028"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_terminal_would_obey_is_written_as_escapes(monkeypatch, terminal):
    """To standard error always, to standard output on a terminal alone: programs get names as they are."""
    streams = {}
    for name in ("stdout", "stderr"):
        streams[name] = io.StringIO()
        streams[name].isatty = lambda: terminal
        monkeypatch.setattr(sys, name, streams[name])
    use_utf8_output()
    use_utf8_output()  # cleans once
    for name in streams:
        print(f"写真 \u200d\udcff\t{HOSTILE}", file=getattr(sys, name))
    escaped = "\\x1b]0;title\\x07\\x1b[2J a\\x9b31m\\u202egpj.exe\\u2028"
    assert streams["stderr"].getvalue() == f"写真 \u200d\udcff\t{escaped}\n"
    data = escaped if terminal else HOSTILE
    assert streams["stdout"].getvalue() == f"写真 \u200d\udcff\t{data}\n"
    print("\x1b[1mbold", file=uncleaned(sys.stderr))
    assert streams["stderr"].getvalue().endswith("\x1b[1mbold\n")


def test_a_name_forges_no_line():
    error = BadFile("a.jpg\nerror: all is well\x1b[2J", "damaged")
    assert str(error) == "a.jpg\\nerror: all is well\\x1b[2J: damaged"
    assert str(Rejected(error.path, "x\ny")) == "a.jpg\\nerror: all is well\\x1b[2J: x\\ny"
    assert error.path == "a.jpg\nerror: all is well\x1b[2J", "as the file is called"
