from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import librosa
import numpy as np
import pytest
from PIL import Image

from app.panels import (
    Panel,
    input_panels,
    log_ticks,
    mel_ticks,
    panel_svg,
    ticks,
    timeline,
)
from datasets.audio.settings import MelSettings
from datasets.core.part import Part
from learners.inference.predictor import Predictor
from tests.app.sites import MOMENT, bursts, colours, strain, tone, tones
from tests.app.test_views import DOUBT, SURE
from tests.pictures import write_pictures


def test_ticks_are_round_and_in_place():
    assert [value for _, value in ticks(0, 5, 5)] == [0, 1, 2, 3, 4, 5]
    assert [value for _, value in ticks(-0.25, 0.25, 5)] == pytest.approx([-0.2, -0.1, 0, 0.1, 0.2])
    assert {value: place for place, value in ticks(2, 4, 4)}[3] == 0.5
    assert ticks(1, 1) == []


def test_a_tone_lies_at_its_tick():
    """The brightest row of a sine is where the axis puts its frequency."""
    spectrogram = MelSettings(rate=16_000, window=1.0, size=(512, 64), n_mels=64)
    for frequency in (500.0, 2000.0, 5000.0):
        t = np.arange(16_000) / 16_000
        grey = spectrogram.render(0.5 * np.sin(2 * np.pi * frequency * t))[:, 32, 0]
        row = float(np.mean(np.flatnonzero(grey == grey.max())))
        label = f"{frequency / 1000:g}k" if frequency >= 1000 else f"{frequency:g}"
        place = {name: p for p, name in mel_ticks(spectrogram)}[label]
        assert (1 - place) * 512 == pytest.approx(row + 0.5, abs=512 / 64)


@pytest.mark.slow
def test_a_note_lies_at_its_tick():
    spectrogram = MelSettings(
        rate=16_000, window=1.0, size=(512, 64), scale="cqt", fmin=50.0, fmax=6400.0
    )
    places = {name: place for place, name in log_ticks(spectrogram.fmin, spectrogram.fmax)}
    for frequency, label in ((200.0, "200"), (1000.0, "1k"), (2000.0, "2k")):
        t = np.arange(16_000) / 16_000
        grey = spectrogram.render(0.5 * np.sin(2 * np.pi * frequency * t))[:, 32, 0]
        row = float(np.mean(np.flatnonzero(grey == grey.max())))
        assert (1 - places[label]) * 512 == pytest.approx(row + 0.5, abs=512 / 64)


@pytest.mark.slow
def test_mel_places_are_librosas():
    spectrogram = MelSettings(rate=22_050, n_mels=40)
    centres = librosa.mel_frequencies(42, fmin=spectrogram.fmin, fmax=spectrogram.fmax)[1:-1]
    for place, name in mel_ticks(spectrogram):
        frequency = float(name.removesuffix("k")) * (1000 if name.endswith("k") else 1)
        band = np.interp(librosa.hz_to_mel(frequency), librosa.hz_to_mel(centres), np.arange(40))
        if 0 < band < 39:
            assert place == pytest.approx((band + 0.5) / 40, abs=1e-3)


def test_log_ticks():
    places = {name: place for place, name in log_ticks(10, 1000)}
    assert places["100"] == pytest.approx(0.5)
    assert places["10"] == 0
    assert places["1k"] == 1


def test_svg_is_well_formed_and_escaped():
    picture = Image.new("RGB", (8, 4))
    panel = Panel(picture, '<b>"&', ((0.5, "<1>"),), ((0.0, "0"),), "x & y", "f")
    for svg in (
        panel_svg(panel),
        timeline(
            [SURE._replace(part=Part("a", 0.0, 1.0)), DOUBT._replace(part=Part("a", 0.5, 1.5))],
            ["cat"],
            2,
        ),
    ):
        ElementTree.fromstring(f"<div>{svg}</div>")
        assert "<1>" not in svg
        assert '<b>"' not in svg


@pytest.mark.slow
def test_the_panel_of_a_picture_is_the_input_of_the_network(tmp_path):
    predictor = Predictor(colours())
    file = write_pictures(tmp_path, per_class=1) / "red" / "red_000.jpg"
    input_panel, heat_panel = input_panels(predictor, Part(str(file)), 2)
    np.testing.assert_array_equal(
        np.asarray(input_panel.picture).transpose(2, 0, 1), predictor.open(str(file))
    )
    assert heat_panel.picture.size == input_panel.picture.size
    assert "red" in heat_panel.title


def test_the_axes_of_a_sound_are_seconds_and_hertz(tmp_path):
    predictor = Predictor(tones())
    file = tone(tmp_path / "a.wav", "low", "high", "high")
    (panel,) = input_panels(predictor, Part(str(file), 1.0, 2.0), None)
    assert [name for _, name in panel.x] == ["1", "1.2", "1.4", "1.6", "1.8", "2"]
    assert "500" in [name for _, name in panel.y]
    assert "(s)" in panel.x_label
    assert "(Hz" in panel.y_label
    np.testing.assert_array_equal(
        np.asarray(panel.picture).transpose(2, 0, 1), predictor.open(Part(str(file), 1.0, 2.0))
    )
    short = tone(tmp_path / "b.wav", "low", rate=16_000)
    (padded,) = input_panels(predictor, Part(str(short)), None)
    assert padded.x[0] == (0.0, "0")


@pytest.mark.parametrize(
    ("layout", "first"),
    [("grid", ["-0.2", "-0.4", "-1", "-2"]), ("channels", ["-0.2", "-1", "-2"])],
)
def test_strain_has_a_panel_for_each_duration_and_one_search_for_its_moment(
    tmp_path, layout, first
):
    predictor = Predictor(bursts(layout))
    (answer,) = predictor.predict([strain(tmp_path / "a.hdf5")])
    source = answer.part
    assert source.at == pytest.approx(MOMENT, abs=0.05)
    panels = input_panels(predictor, source, 0)
    assert [panel.x[0][1] for panel in panels[:-1]] == first
    assert panels[-1].picture.size == (64, 64)  # the heat map over all panels
    assert f"GPS {source.at:.3f}" in panels[0].x_label
    # The burst is at 200 Hz, in the middle.
    bright = np.asarray(panels[0].picture.convert("L")).astype(float)
    row, column = np.argwhere(bright == bright.max()).mean(axis=0)
    assert column / bright.shape[1] == pytest.approx(0.5, abs=0.07)
    assert 1 - row / bright.shape[0] == pytest.approx(
        {n: p for p, n in panels[0].y}["200"], abs=0.08
    )
