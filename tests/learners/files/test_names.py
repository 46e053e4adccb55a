"""How paths are shown to people without access to the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from learners.files.names import PathShortener, last_part, shared_command, shared_provenance


def test_files_are_named_from_the_root_however_it_was_typed(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for source in ("data", "data/", f"{tmp_path}/data", "./data", "../" + tmp_path.name + "/data"):
        names = PathShortener(source)
        for folder in (Path(source), tmp_path / "data"):
            assert names(str(folder / "cat/1.jpg")) == "cat/1.jpg"
            assert names(f"as {folder}/a b.jpg, and {folder} (all)") == "as a b.jpg, and data (all)"
    assert PathShortener("linked")(str(tmp_path / "data/1.jpg")) == "1.jpg"
    monkeypatch.chdir(tmp_path / "data")
    assert PathShortener(".")("cat/1.jpg") == "cat/1.jpg"
    assert last_part(".") == "data"
    assert last_part("../linked/") == "linked"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/mnt/u/set/a/1.jpg", "/mnt/u/set/b/1.jpg"], ["a/1.jpg", "b/1.jpg"]),
        (["/home/ann/a/1.jpg", "/home/bob/b/2.jpg"], ["1.jpg", "2.jpg"]),
        (["/net/homes/ann/1.jpg", "/net/homes/bob/2.jpg"], ["1.jpg", "2.jpg"]),
        (["/home/Ann L/a/1.jpg", "/home/bob/b c/2.jpg"], ["1.jpg", "2.jpg"]),
        (["x/a/1.jpg", "x/b/2.jpg"], ["a/1.jpg", "b/2.jpg"]),
        (["../x/1.jpg", "/mnt/2.jpg", "a/3.jpg"], ["1.jpg", "2.jpg", "a/3.jpg"]),
    ],
)
def test_files_that_lie_elsewhere(paths, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/net/homes/bob")
    names = PathShortener("items.csv", paths)
    assert list(map(names, paths)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "16 kHz / 8 kHz, 4/8, and/or",
        "see https://example.org/a/b",
        "tcp://10.0.0.1:8786",
        "unfrozen 3/3",
        "m/s (JPEG/PNG)",
    ],
)
def test_what_is_no_path_stays(text):
    assert PathShortener("items.csv", ["/mnt/u/set/1.jpg"])(text) == text


def test_the_command_keeps_all_but_the_folders():
    command = (
        "python -m learners.finetune --data sub/photos --unknown=/home/a=b/odd --out runs/x "
        "--backbone scratch/resnet18 --group-by '_(?P<group>[a-z]+)_' --noise '~/s/*.hdf5'"
    )
    assert shared_command(command, "sub/photos") == (
        "python -m learners.finetune --data photos --unknown=odd --out runs/x "
        "--backbone scratch/resnet18 --group-by '_(?P<group>[a-z]+)_' --noise '*.hdf5'"
    )
    assert "/home" not in shared_command("python '/home/a/b.py", None)
    flag = "--backbone auto:local-dir:/home/a/ears,hf-hub:a/b,local-dir:nets/eyes"
    assert shared_command(flag) == "--backbone auto:local-dir:ears,hf-hub:a/b,local-dir:eyes"
    assert shared_command("--backbone=local-dir:/home/a/ears/") == "--backbone=local-dir:ears"


def test_what_is_shared_once_is_the_same_shared_twice():
    long = {"data": "/home/a/set", "command": "x --data /home/a/set", "note": "", "seconds": 3.0}
    short = shared_provenance(long)
    assert short == {"data": "set", "command": "x --data set", "note": "", "seconds": 3.0}
    assert shared_provenance(short) == short
    assert shared_provenance({"data": "demo:digits"}) == {"data": "demo:digits"}
    assert shared_provenance({"data": None, "command": 3, "note": [1]}) == {
        "data": None, "command": 3, "note": [1],
    }  # fmt: skip
