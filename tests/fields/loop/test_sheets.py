"""Contact sheets: what they show, and that the next one replaces them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from datasets.core.part import Part
from fields.loop.sheets import Shot, write_sheet
from learners.inference.predictor import Predictor
from tests.app import sites
from tests.learners.report.test_report import Page


def test_a_contact_sheet_has_spectrograms_and_players_of_sounds(tmp_path):
    path = sites.tone(tmp_path / "<b>long.wav", "low", "high", "silence")
    shots = [Shot(Part(str(path), 1.0, 2.0), "1", "<i>high</i> & low")]
    missing = Shot(Part(str(tmp_path / "gone.wav")), "2", "was there")
    folder = tmp_path / "next"
    file = write_sheet(
        folder, Predictor(sites.tones()), [*shots, missing], title="Next <s>", lead="So & so."
    )
    page = Page(file)
    assert file == folder / "index.html"
    assert "<b>long.wav, 1.0–2.0 s" in page.text  # noqa: RUF001
    assert "<i>high</i> & low" in page.text
    assert "was there · gone.wav: " in page.text
    assert str(tmp_path) not in file.read_text()
    (picture,) = page.all("img")
    assert str(picture["src"]).startswith("data:image/jpeg;base64,")
    (player,) = page.all("audio")
    signal, rate = soundfile.read(folder / str(player["src"]))
    expected, _ = soundfile.read(path, start=rate, stop=2 * rate)
    assert len(signal) == rate
    np.testing.assert_allclose(signal, expected, atol=1e-3)


def test_a_contact_sheet_replaces_the_last_one(tmp_path):
    Image.new("RGB", (30, 20), (200, 30, 30)).save(tmp_path / "a.png")
    shot = Shot(Part(str(tmp_path / "a.png")), "1", "red")
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "0001.flac").write_text("of the last one")
    page = write_sheet(tmp_path / "next", Predictor(sites.colours()), [shot], title="", lead="")
    assert [file.name for file in (tmp_path / "next").iterdir()] == ["index.html"]
    assert not Page(page).all("audio")
    assert [path.name for path in Path(tmp_path).iterdir() if path.name.startswith(".")] == []
