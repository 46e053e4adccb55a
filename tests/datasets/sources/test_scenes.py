"""demo:scenes: what is heard is what its label says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.items import load_table
from datasets.sources import scenes, sounds


def test_the_sounds_of_its_label_are_in_it(monkeypatch) -> None:
    """Each with a power of its own, the loudest of 1, and nothing but noise in one of none."""
    given: list[float] = []

    def tone(label, rng, t, rate):
        given.append(label)
        return np.sin(2 * np.pi * 1000 * (1 + sounds.CLASSES.index(label)) * t)

    monkeypatch.setattr(sounds, "sound", tone)
    names = ["Siren_sim", "Bird_sim", "Rain_sim"]
    values, loudest = scenes.simulate(names, rng=np.random.default_rng(1))
    power = np.abs(np.fft.rfft(values))[[2000 * (1 + sounds.CLASSES.index(n)) for n in names]] ** 2
    assert names[int(power.argmax())] == loudest
    assert 0 > 10 * np.log10(power.min() / power.max()) > -10
    assert sorted(given) == sorted(names)
    assert 0.1 <= np.abs(values).max() <= 0.9
    assert scenes.simulate([], rng=np.random.default_rng(1))[1] == ""


def test_equal_seeds_write_equal_files(tmp_path: Path) -> None:
    one, two = (scenes.write_demo(tmp_path / name, count=12, seed=3) for name in "ab")
    assert [row["label"] for row in one] == [row["label"] for row in two]
    assert Path(one[5]["path"]).read_bytes() == Path(two[5]["path"]).read_bytes()
    assert {row["label"].count("|") for row in one} == {0, 1, 2}
    assert "" in {row["label"] for row in one}
    assert all(row["loudest"] in row["label"] for row in one)


def test_it_is_a_table_of_several_labels_that_says_it_is_simulated(
    monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    monkeypatch.setattr(scenes.write_demo, "__kwdefaults__", {"count": 14, "seed": 0})
    monkeypatch.setattr(scenes, "HOW_MANY", (0.1, 0.0, 0.3, 0.6))
    table = load_table("demo:scenes", labels="many")
    assert table.classes == sorted(sounds.CLASSES)
    assert table.note.startswith("SIMULATED")
    assert len(table.frame) + len(table.rejected) == 14
