"""Whether a replaced file is noticed, however it was replaced."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from datasets.core import file_state
from datasets.core.file_state import FileState, is_same


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording of 400 kB that begins and ends in silence."""
    file = tmp_path / "a.wav"
    file.write_bytes(bytes(100_000) + os.urandom(200_000) + bytes(100_000))
    return file


def other(file: Path) -> bytes:
    """Another recording of the same length and with the same silence."""
    content = file.read_bytes()
    return content[:100_000] + os.urandom(200_000) + content[300_000:]


def test_another_of_the_same_size_and_time_is_seen(file, tmp_path):
    recorded = FileState.read(file)
    assert is_same(recorded, file)
    file.write_bytes(other(file))
    os.utime(file, ns=(recorded.mtime, recorded.mtime))  # as cp -p, rsync and unzip do
    assert not is_same(recorded, file)
    recorded = FileState.read(file)
    (tmp_path / "b.wav").write_bytes(other(file))
    os.utime(tmp_path / "b.wav", ns=(recorded.mtime, recorded.mtime))
    os.replace(tmp_path / "b.wav", file)
    assert not is_same(recorded, file)


def test_another_time_or_size_is_another_file(file):
    recorded = FileState.read(file)
    os.utime(file, (1, 1))
    assert not is_same(recorded, file), "what is hashed is not all of it"
    recorded = FileState.read(file)
    with file.open("ab") as stream:
        stream.write(b"x")
    os.utime(file, (1, 1))
    assert not is_same(recorded, file)


def test_the_same_content_in_another_place_is_the_same_file(file, tmp_path):
    recorded = FileState(*json.loads(json.dumps(FileState.read(file))))
    file.chmod(0o600)
    assert is_same(recorded, file)
    shutil.copy2(file, tmp_path / "copy.wav")
    os.replace(tmp_path / "copy.wav", file)
    now = FileState.read(file)
    assert (now.ctime, now.inode) != (recorded.ctime, recorded.inode)
    assert is_same(recorded, file)
    assert now.content == recorded.content


def test_an_untouched_file_is_not_opened(file, monkeypatch):
    recorded = FileState.read(file)
    monkeypatch.setattr(file_state, "open", None, raising=False)
    assert is_same(recorded, file)


def test_what_is_no_file_that_can_be_read_stays_so(file, tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")  # reading it would wait
    for name in (tmp_path / "gone.wav", tmp_path, tmp_path / "pipe.wav", "a\0.wav"):
        assert FileState.read(name) is None
        assert is_same(None, name)
    assert not is_same(None, file)
    assert not is_same(FileState.read(file), tmp_path / "gone.wav")


def test_small_files_are_hashed_whole(tmp_path):
    for size in (0, 1, 4096, 5000, 65_536):
        file = tmp_path / "small"
        file.write_bytes(bytes(size))
        before = FileState.read(file).content
        for at in {0, size // 2, size - 1} if size else ():
            file.write_bytes(bytes(at) + b"x" + bytes(size - at - 1))
            assert FileState.read(file).content != before
