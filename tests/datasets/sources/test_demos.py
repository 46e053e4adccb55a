"""The simulated demos: complete or absent, labelled as simulated, and drawable."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part, parts_of
from datasets.core.store import cache_root
from datasets.items.facts import Origin
from datasets.kinds.base import KINDS
from datasets.sources import demos, glitches, sounds
from datasets.spectrograms.pictures import PictureCache
from datasets.steps.reading import load_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    monkeypatch.setattr(demos, "_PER_CLASS", {"sounds": 2, "glitches": 2})


@pytest.mark.parametrize(
    ("name", "kind", "count"), [("sounds", "sound", 6), ("glitches", "strain", 8)]
)
def test_a_demo_is_written_once_and_says_that_it_is_simulated(
    name: str, kind: str, count: int
) -> None:
    table = load_table(f"demo:{name}")
    assert table.kind == kind
    assert "SIMULATED" in table.fact(Origin).note
    assert len(table.classes) == count
    assert all(label.endswith("_sim") for label in table.classes)
    assert not table.rejected
    (folder,) = (cache_root() / "demos").iterdir()  # no temporary file is left
    assert folder.name.startswith(f"{name}-")
    first = Path(table.frame["path"][0])
    written = first.stat().st_mtime_ns
    assert load_table(f"demo:{name}").frame.equals(table.frame)
    assert first.stat().st_mtime_ns == written
    spectrogram = KINDS[kind].settings().infer(table.frame["path"])
    picture = PictureCache().get(parts_of(table.frame)[0], spectrogram)
    assert picture.stat().st_size > 1000


def test_glitches_keep_one_class_back_and_know_their_triggers() -> None:
    table = load_table("demo:glitches")
    assert len(table.unknown_items) == 2
    assert table.unknown_items["path"].str.contains("Whistle_sim").all()
    assert demos.UNKNOWN_CLASS not in table.classes
    assert demos.UNKNOWN_CLASS in table.fact(Origin).note
    assert table.frame["group"].is_unique
    spectrogram = KINDS["strain"].settings().infer(table.frame["path"])
    for row in table.frame.itertuples():
        assert spectrogram.read(Part(row.path, at=row.gps)).trigger == row.gps  # type: ignore[attr-defined]


def test_a_demo_that_is_broken_off_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("soundfile.write", fails)
    with pytest.raises(OSError, match="no space"):
        demos.write_demo("sounds")
    assert not list((cache_root() / "demos").iterdir())


def test_there_is_no_such_demo() -> None:
    with pytest.raises(SecondhandError, match=r"no demo:birds\. The demos are demo:digits"):
        demos.write_demo("birds")


def test_a_demo_cleared_in_part_is_written_again() -> None:
    frame, _ = demos.write_demo("digits")
    folder = Path(frame["path"][0]).parent
    (folder / "items.csv").unlink()
    again, _ = demos.write_demo("digits")
    assert again.equals(frame)
    assert Path(again["path"][0]).is_file()


def digests(rows: list[dict]) -> dict[str, str]:
    """Return the hashes of the files by name."""
    return {
        Path(row["path"]).name: hashlib.sha256(Path(row["path"]).read_bytes()).hexdigest()
        for row in rows
    }


@pytest.mark.parametrize("module", [sounds, glitches])
def test_the_seed_settles_every_byte_and_classes_are_independent(module, tmp_path: Path) -> None:
    write = partial(module.write_demo, per_class=1, duration=16 if module is glitches else 1)
    first = digests(write(tmp_path / "a"))
    assert len(set(first.values())) == len(first) == len(module.CLASSES)
    assert digests(write(tmp_path / "b")) == first
    assert digests(write(tmp_path / "c", classes=module.CLASSES[1:])).items() < first.items()
    assert not set(digests(write(tmp_path / "d", seed=1)).values()) & set(first.values())


@pytest.mark.parametrize("module", [sounds, glitches])
def test_wrong_calls_are_named(module, tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match=rf"'Rain'.*{module.CLASSES[0]}"):
        module.simulate("Rain")
    with pytest.raises(SecondhandError, match="'Rain'"):
        module.write_demo(tmp_path, classes=["Rain"])
    with pytest.raises(SecondhandError, match="per_class=0"):
        module.write_demo(tmp_path, per_class=0)
