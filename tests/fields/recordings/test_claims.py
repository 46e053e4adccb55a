"""What is read as a label track or a table of selections, by its name and beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.sources.base import ReadOptions, find_source
from tests.datasets.files import write

CLAIMED = {
    "track.txt": "audacity", "selections.txt": "raven", ".": "raven", "a.TextGrid": "textgrid",
    "a.eaf": "elan", "labels.txt": "table",
}  # fmt: skip


@pytest.mark.parametrize(("name", "source"), CLAIMED.items())
def test_a_path_is_claimed_by_its_name_and_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "labels.txt", "path\tlabel\n")
    write(tmp_path / "track.txt", "0\t1\twren\n")
    write(tmp_path / "selections.txt", "Selection\tBegin Time (s)\tEnd Time (s)\n")
    write(tmp_path / "a.TextGrid", "")
    write(tmp_path / "a.eaf", "")
    assert find_source(name, ReadOptions()).name == source


def test_a_text_of_no_format_is_said_with_those_of_its_ending(tmp_path: Path) -> None:
    text = write(tmp_path / "notes.txt", "rain")
    with pytest.raises(SecondhandError, match=r"notes\.txt: .*Raven.*Audacity.*path,label"):
        find_source(str(text), ReadOptions())
    sheet = write(tmp_path / "labels.numbers", "PK")
    with pytest.raises(SecondhandError, match=r"labels\.numbers: .*path,label") as error:
        find_source(str(sheet), ReadOptions())
    assert "a Raven selection table" not in str(error.value)
