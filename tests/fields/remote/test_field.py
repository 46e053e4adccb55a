"""Without the folder of the field nothing has an address, one sentence says so, and files on a disk are read as ever."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from learners.model.bundle import save_bundle
from tests.forks import ROOT, run
from tests.learners.rules import untrained
from tests.pictures import write_pictures

#: Runs a command as if the field were not there.
WITHOUT = """
import runpy, sys
sys.modules["fields.remote"] = None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
#: The libraries that only it uses, and may not be installed without it.
LIBRARIES = ("fsspec", "botocore", "aiohttp")


def without_the_field(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run("-c", WITHOUT, *words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, photos in a folder, and the same in archives."""
    root = tmp_path_factory.mktemp("place")
    save_bundle(untrained(["blue", "green", "red"]), root / "model")
    write_pictures(root / "photos", per_class=2)
    for form in ("zip", "gztar"):
        shutil.make_archive(str(root / "all"), form, root / "photos")
    (root / "mixed.csv").write_text(
        "path,label\ns3://bucket/a.jpg,red\nphotos/red/red_000.jpg,red\n"
    )
    return root


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("finetune", "https://USER:WORD@host/a?sig=WORD"), ("finetune", "all.tar.gz"), ("predict", "s3://bucket/a"),
        ("predict", "all.zip"),
    ],
)  # fmt: skip
def test_an_address_or_archive_ends_in_one_sentence(place: Path, command: str, name: str) -> None:
    name = str(place / name) if name.startswith("all") else name
    words = {"finetune": ["--data", name], "predict": [place / "model", name]}[command]
    ended = without_the_field("secondhand", command, *words, "--out", place / "out")
    assert ended.returncode == 2
    (sentence,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert name.rpartition("@")[2].partition("?")[0] in sentence
    assert "is opened by fields/remote, which is left out here" in sentence
    assert "WORD" not in ended.stdout + ended.stderr
    assert not (place / "out").exists()


def test_the_core_has_no_word_for_it() -> None:
    words = re.compile(r"(?i)bucket|s3://|\bhf:|webdataset|fsspec")
    files = [
        file
        for folder in ("datasets", "learners", "app")
        for file in (ROOT / folder).rglob("*.py")
        if file.name != "shipped.py"  # which says what is missed where it is left out
    ]
    assert [file for file in files if words.search(file.read_text("utf-8"))] == []


def test_help_has_nothing_of_it() -> None:
    shown = without_the_field("secondhand", "predict", "--help")
    assert (shown.stderr, shown.returncode) == ("", 0)
    assert "Files, folders, or patterns" in shown.stdout
    assert not any(word in shown.stdout for word in ("hf:", "s3:", "address"))
    assert "share" not in without_the_field("secondhand", "--help").stdout


@pytest.mark.slow
def test_a_model_and_a_table_elsewhere_are_named(place: Path) -> None:
    for words in (
        ["s3://bucket/model", place / "photos"],
        ["hf:USER/NAME", place / "photos"],
        [place / "model", place / "photos", "--out", "s3://bucket/out.csv"],
    ):
        ended = without_the_field("secondhand", "predict", *words)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "is opened by fields/remote, which is left out here" in ended.stderr


@pytest.mark.slow
def test_files_on_a_disk_are_answered_and_a_row_with_an_address_is_listed(place: Path) -> None:
    here = run("-m", "secondhand", "predict", place / "model", place / "photos")
    assert here.returncode == 0
    without = without_the_field("secondhand", "predict", place / "model", place / "photos")
    assert (without.stdout, without.returncode) == (here.stdout, 0)
    code = (
        "import sys\n"
        "sys.modules['fields.remote'] = None\n"
        "from datasets.sources.base import ReadOptions, read_source\n"
        f"rows = read_source({str(place / 'mixed.csv')!r}, ReadOptions())\n"
        "print(len(rows.frame), *rows.rejected)\n"
        f"print(*[name for name in {LIBRARIES} if name in sys.modules])"
    )
    read = subprocess.run(  # alone: other programs have imported them
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert read.stdout.startswith("1 s3://bucket/a.jpg: is opened by fields/remote"), read.stderr
    assert read.stdout.splitlines()[1] == ""
