"""Folders with links: every command finds the same files, and none loops."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from datasets.core.scanning import LINK_AGAIN, LINK_LOOP, files_below, skipped_line
from datasets.kinds.base import KINDS
from datasets.kinds.finding import find_files
from datasets.sources.base import ReadOptions
from datasets.steps.reading import load_table
from datasets.steps.unknown import load_unlabelled
from tests.pictures import write_pictures


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Two class folders, one of them a link, with links to a file, to a folder, and in circles."""
    target = write_pictures(tmp_path / "elsewhere", per_class=3)
    root = write_pictures(tmp_path / "root", per_class=3, classes=1, size=48)
    (root / "green").symlink_to(target / "green")
    (root / "red" / "more").symlink_to(target / "red")
    (root / "red" / "one.jpg").symlink_to(target / "blue" / "blue_000.jpg")
    (root / "red" / "up").symlink_to(root)
    (target / "red" / "round").symlink_to(root / "red")
    (root / "again").symlink_to(tmp_path)
    return root


def test_every_command_finds_the_files_behind_links(linked: Path) -> None:
    red = {f"red/red_00{n}.jpg" for n in range(3)} | {f"red/more/red_00{n}.jpg" for n in range(3)}
    files = {str(linked / name) for name in red | {"red/one.jpg"}}
    files |= {str(linked / "green" / f"green_00{n}.jpg") for n in range(3)}
    circles = {str(linked / name) for name in ("again", "red/up", "red/more/round")}

    table = load_table(linked)
    assert {*table.frame["path"]} == files
    assert {bad.path: bad.reason for bad in table.rejected} == dict.fromkeys(circles, LINK_LOOP)
    assert table.frame.loc[table.frame["path"].str.contains("more"), "label"].eq("red").all()

    frame, rejected, _ = load_unlabelled(linked, ReadOptions(kind="picture"), "--unknown")
    assert {*frame["path"]} == files
    assert {bad.path for bad in rejected} == circles

    skipped: Counter[str] = Counter()
    assert {*find_files([str(linked)], KINDS["picture"], skipped)} == files
    assert skipped == Counter({LINK_LOOP: 3})
    assert skipped_line(skipped) == f"skipped 3 files and folders: 3 {LINK_LOOP}"


def test_a_folder_that_is_a_link_itself_is_read(linked: Path) -> None:
    """The user has named it explicitly."""
    files, bad = files_below(linked / "green")
    assert len(files) == 3
    assert bad == []


def test_links_that_fan_out_lead_to_each_folder_once(tmp_path: Path) -> None:
    """Two links in each of 30 folders are a billion paths."""
    root = write_pictures(tmp_path / "root", per_class=2, classes=2, size=48)
    for n in range(30):
        (tmp_path / f"level{n}").mkdir()
        (tmp_path / f"level{n}" / f"{n}.txt").touch()
        for name in "ab":
            (tmp_path / f"level{n}" / name).symlink_to(tmp_path / f"level{n + 1}")
    (tmp_path / "level30").mkdir()
    (root / "red" / "more").symlink_to(tmp_path / "level0")
    found, bad = files_below(root / "red")
    assert len(found) == 2 + 30
    assert [one.reason for one in bad] == [LINK_AGAIN] * 30
