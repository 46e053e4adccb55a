"""datasets.core.files: files are written completely or not at all, whatever interrupts."""

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datasets.core import files
from datasets.core.files import file_beside, folder_beside, is_replaceable, write_beside

ROOT = Path(__file__).parents[3]
MOVES = {("os", "replace"), ("os", "rename"), ("os", "renames"), ("shutil", "move")}


def by_bytes(file: Path, content: bytes) -> None:
    write_beside(file, content)


def by_library(file: Path, content: bytes) -> None:
    with file_beside(file) as temporary:
        assert (temporary.name, temporary.exists()) == (file.name, False)
        temporary.write_bytes(content)


WRITERS = pytest.mark.parametrize("write", [by_bytes, by_library])


@WRITERS
def test_a_file_is_replaced_whole(tmp_path, write):
    file = tmp_path / "a.txt"
    for content in (b"one", b"two"):
        write(file, content)
        assert file.read_bytes() == content
        assert os.listdir(tmp_path) == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize(
    ("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)]
)
def test_files_have_the_umasks_mode_whoever_wrote_them(tmp_path, mask, file_mode, folder_mode):
    """safetensors creates files that only their owner may read; they get the usual mode."""

    def private(file):
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))

    before = os.umask(mask)
    try:
        with file_beside(tmp_path / "a") as temporary:
            private(temporary)
        with folder_beside(tmp_path / "model", replace=True) as folder:
            private(folder / "b")
            (folder / "in").mkdir()
            private(folder / "in" / "c")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777
             for path in tmp_path.rglob("*")}  # fmt: skip
    assert modes == {
        "a": file_mode, "model": folder_mode, "model/b": file_mode,
        "model/in": folder_mode, "model/in/c": file_mode,
    }  # fmt: skip


@WRITERS
@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_an_error_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, write, step, number):
    file = tmp_path / "a.txt"
    file.write_bytes(b"old")

    def fails(old, *target):
        raise OSError(number, os.strerror(number), *([] if step == "fsync" else [old, 0, *target]))

    monkeypatch.setattr(files.os, step, fails)
    with pytest.raises(OSError, match=f"'{file}'") as failed:
        write(file, b"new")
    assert (failed.value.errno, failed.value.filename2) == (number, None)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.txt"]


@WRITERS
def test_a_folder_that_cannot_be_made_is_not_hidden(tmp_path, write):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(OSError, match=f"'{tmp_path}/a"):
        write(tmp_path / "a" / "b.txt", b"new")


def test_what_can_be_made_again_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files.os, "fsync", synced.append)
    write_beside(tmp_path / "a", b"1", durable=False)
    with file_beside(tmp_path / "b", durable=False) as temporary:
        temporary.write_bytes(b"2")
    assert synced == []
    by_bytes(tmp_path / "a", b"1")
    by_library(tmp_path / "b", b"2")
    assert len(synced) == 2


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), file_beside(tmp_path / "a"):
        (tmp_path / "elsewhere").read_bytes()
    assert os.listdir(tmp_path) == []


def fill(folder: Path, replace: bool, name: str, error: type[BaseException] | None = None) -> None:
    with folder_beside(folder, replace=replace) as temporary:
        (temporary / name).write_text("a")
        if error:
            raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
def test_a_folder_is_there_whole_or_as_it_was(tmp_path, error):
    folder = tmp_path / "deep" / "set"
    with pytest.raises(error):
        fill(folder, False, "half", error)
    assert os.listdir(folder.parent) == []
    for name in ("one", "two"):
        fill(folder, True, name)
        assert os.listdir(folder) == [name]
    with pytest.raises(error):
        fill(folder, True, "half", error)
    assert (os.listdir(folder), os.listdir(folder.parent)) == (["two"], ["set"])


def test_of_two_that_write_the_same_folder_the_first_stays(tmp_path):
    with folder_beside(tmp_path / "set", replace=False) as second:
        (second / "a").write_text("late")
        with folder_beside(tmp_path / "set", replace=False) as first:
            (first / "a").write_text("early")
    assert (tmp_path / "set/a").read_text() == "early"
    assert os.listdir(tmp_path) == ["set"]


def test_a_kill_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"old")
    code = (
        "import os, signal, sys; from pathlib import Path; from datasets.core import files\n"
        "files.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_beside(Path(sys.argv[1]), b'new')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old"
    (remaining,) = set(os.listdir(tmp_path)) - {"a.txt"}
    assert remaining.startswith(".a.txt.")
    assert remaining.endswith(".part")  # a later run finds and removes it by this name


def renames_file(path: Path) -> bool:
    """Whether a call renames a file or folder, by os, shutil or pathlib."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = getattr(node.func.value, "id", "")
            if (module, node.func.attr) in MOVES:
                return True
            # Text files pass two arguments here, dataclasses and tables named ones.
            module_level = (
                len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Dict)
            )
            if node.func.attr in ("replace", "rename") and module_level:
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("write", [by_bytes, by_library])
def test_a_pipe_is_never_replaced(tmp_path, write):
    """Nor a device: it would be gone for all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError) as error:
        write(pipe, b"x")
    assert error.value.filename == str(pipe)
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]


@pytest.mark.parametrize(
    ("name", "replaceable"),
    [("/dev/null", False), ("/dev/stdout", False), ("/dev/x.csv", False), ("x.csv", True)],
)
def test_names_in_the_folder_of_devices_are_not_for_files(tmp_path, name, replaceable):
    assert is_replaceable(tmp_path / name) == replaceable


def test_a_file_that_another_process_writes_meanwhile_is_replaceable(tmp_path):
    class Appearing(type(tmp_path)):
        def stat(self, **options):
            try:
                return super().stat(**options)
            finally:
                self.touch()

    assert is_replaceable(Appearing(tmp_path / "a"))


def test_there_is_no_other_way_to_write():
    """Except for runs, which grow in place."""
    ours = [
        path
        for room in ("fields", "app", "learners", "datasets")
        for path in (ROOT / room).rglob("*.py")
    ]
    assert {str(path.relative_to(ROOT)) for path in ours if renames_file(path)} == {
        "datasets/core/files.py",
        "learners/runs/folder.py",
    }
