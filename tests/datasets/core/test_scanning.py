"""Which files in folders are the user's, and how a path that is written otherwise is found."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from datasets.core.scanning import SYSTEM, files_below, in_any_form
from datasets.kinds.base import KINDS
from datasets.kinds.finding import find_files
from datasets.steps.reading import load_table
from datasets.tables.cells import file_named
from tests.datasets.files import picture, root, write

__all__ = ["root"]
#: Folders of desktops, notebooks, version control, network drives and Windows.
HIDDEN = (
    ".ipynb_checkpoints", ".Trash-1000", ".thumbnails", ".git", "@eaDir", "#recycle", "$RECYCLE.BIN", "$Recycle.Bin",
    "lost+found", "__MACOSX", "System Volume Information", "FOUND.000", "LOST.DIR", "Recycled", "@sharebin", "~snapshot",
    "Network Trash Folder", "Temporary Items",
)  # fmt: skip


def test_files_in_hidden_and_system_folders_are_nobodys(root: Path) -> None:
    """They are neither learnt nor predicted, wherever the folder is, and each folder is listed."""
    users = {str(path) for path in root.rglob("*.jpg")}
    for name in HIDDEN:
        picture(root / "cat" / name / "files" / "a.jpg")
        picture(root / name / "b.jpg")
    table = load_table(root)
    assert {*table.frame["path"]} == users
    listed = [item.path for item in table.rejected if item.reason == SYSTEM]
    assert sorted(listed) == sorted(
        str(root / sub / name) for name in HIDDEN for sub in ("", "cat")
    )
    skipped: Counter[str] = Counter()
    assert {*find_files([str(root)], KINDS["picture"], skipped)} == users
    assert skipped[SYSTEM] == 2 * len(HIDDEN)
    assert {*find_files([f"{root}/**/*.jpg"])} == users


def test_what_is_named_is_read_although_it_is_hidden(tmp_path: Path) -> None:
    file = picture(tmp_path / ".cache" / "@eaDir" / "a.jpg")
    assert files_below(file.parent)[0] == [str(file)]
    assert [*find_files([f"{tmp_path}/.cache/@eaDir/*.jpg"])] == [str(file)]


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_a_name_is_found_in_either_unicode_form(tmp_path: Path, stored: str, asked: str) -> None:
    """Also if a folder above has the other form than the file."""
    folder = tmp_path / unicodedata.normalize("NFD", "Bären")
    file = folder / unicodedata.normalize(stored, "Föhn é.png")
    picture(file)
    name = unicodedata.normalize(asked, "Bären/Föhn é.png")
    assert file_named(tmp_path, name) == file_named(tmp_path, name.replace("/", "\\")) == str(file)
    missing = f"{tmp_path}/Bären/Öl.png"
    assert in_any_form(missing) == missing


def test_an_address_of_a_file_is_that_file(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{n} ä.png") for n in range(4)]
    rows = [f"{file.as_uri()},{label}" for file, label in zip(files, "aabb", strict=True)]
    table = load_table(write(tmp_path / "t.csv", "\n".join(["path,label", *rows])))
    assert table.frame["path"].tolist() == [str(file) for file in files]
