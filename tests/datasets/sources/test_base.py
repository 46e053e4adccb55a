"""Which source reads a path, and what is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core import registry
from datasets.core.errors import SecondhandError
from datasets.sources.base import SOURCES, ReadOptions, find_source
from tests.datasets.files import write
from tests.left_out import needs


def test_other_packages_are_looked_for_only_when_none_of_ours_claims_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(SOURCES, "_has_others", False)
    monkeypatch.setattr(registry, "entry_points", lambda group: looked.append(group) or [])
    table = write(tmp_path / "t.csv", "path,label\n0.png,fox\n")
    for name in (str(table), str(tmp_path), "demo:digits"):
        find_source(name, ReadOptions())
    assert looked == []
    with pytest.raises(SecondhandError):
        find_source(str(tmp_path / "none"), ReadOptions())
    assert looked == ["secondhand.sources"]


def test_every_source_has_a_name_and_an_order_of_its_own() -> None:
    orders = [source.order for source in SOURCES.ours().values()]
    assert len({*orders}) == len(orders)
    assert len(SOURCES.ours()) >= 10


CLAIMED = {
    "demo:digits": "demo", "esc50": "public", "photos": "folder",
    "labels.csv": "table", "labels.txt": "table", "tasks.json": "label-studio",
    "coco.json": "coco", "a.xml": "voc", "voc": "voc",
}  # fmt: skip
OF_CAMERAS = {
    "found.json": "megadetector", "package": "camtrap-dp", "package/datapackage.json": "camtrap-dp",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source"),
    [*CLAIMED.items(), *(pytest.param(*one, marks=needs("cameras")) for one in OF_CAMERAS.items())],
)
def test_a_path_is_claimed_by_its_name_and_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "package"):
        Path(folder).mkdir()
    write(tmp_path / "labels.csv", "path,label\n")
    write(tmp_path / "labels.txt", "path\tlabel\n")
    write(tmp_path / "found.json", '{"images": [{"file": "a.jpg"}]}')
    write(tmp_path / "package" / "datapackage.json", "{}")
    # Both may name other things of each other.
    write(tmp_path / "tasks.json", '[{"data": {"file_name": 1}, "annotations": [{"result": []}]}]')
    write(tmp_path / "coco.json", '{"images": [{"file_name": "a.jpg"}], "annotations": []}')
    for folder in (tmp_path, tmp_path / "voc" / "train" / "Annotations"):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "a.xml", '<?xml version="1.0"?>\n<annotation verified="yes">')
    assert find_source(name, ReadOptions()).name == source


def test_what_no_source_claims_is_said_with_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match=r"nowhere: there is no such.*demo:digits.*esc50"):
        find_source(str(tmp_path / "nowhere"), ReadOptions())
    text = write(tmp_path / "notes.txt", "rain")
    with pytest.raises(SecondhandError, match=r"notes\.txt: .*path,label"):
        find_source(str(text), ReadOptions())
