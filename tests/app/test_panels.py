from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import librosa
import numpy as np
import pytest
from PIL import Image

from app.panels import input_panels, panel_html, timeline
from datasets.audio.settings import MelSettings
from datasets.core.part import Part
from datasets.spectrograms.axes import Axes, Panel
from learners.inference.predictor import Predictor
from tests.app.sites import MOMENT, bursts, colours, strain, tone, tones
from tests.app.test_views import DOUBT, SURE
from tests.pictures import write_pictures


def places_of(axes: Axes) -> dict[str, float]:
    """Return the places of the ticks, from 0 (bottom) to 1."""
    low, high = axes.rows
    return {name: (place - low) / (high - low) for name, place in axes.ticks.items()}


@pytest.mark.parametrize("scale", ["mel", "cqt"])
def test_a_tone_lies_at_its_tick(tmp_path, scale):
    """The brightest row of a sine is where the axis puts its frequency."""
    options = {"n_mels": 64} if scale == "mel" else {"scale": "cqt", "fmin": 50.0, "fmax": 6400.0}
    spectrogram = MelSettings(rate=16_000, window=1.0, size=(512, 64), **options)
    axes = spectrogram.axes(Part(str(tone(tmp_path / "a.wav", "low"))))
    for frequency, label in ((500.0, "500"), (1000.0, "1k"), (5000.0, "5k")):
        t = np.arange(16_000) / 16_000
        grey = spectrogram.render(0.5 * np.sin(2 * np.pi * frequency * t))[:, 32, 0]
        row = float(np.mean(np.flatnonzero(grey == grey.max())))
        assert (1 - places_of(axes)[label]) * 512 == pytest.approx(row + 0.5, abs=512 / 64)


@pytest.mark.slow
def test_mel_places_are_librosas(tmp_path):
    spectrogram = MelSettings(rate=22_050, n_mels=40)
    axes = spectrogram.axes(Part(str(tone(tmp_path / "a.wav", "low"))))
    centres = librosa.mel_frequencies(42, fmin=spectrogram.fmin, fmax=spectrogram.fmax)[1:-1]
    for name, place in places_of(axes).items():
        frequency = float(name.removesuffix("k")) * (1000 if name.endswith("k") else 1)
        band = np.interp(librosa.hz_to_mel(frequency), librosa.hz_to_mel(centres), np.arange(40))
        if 0 < band < 39:
            assert place == pytest.approx((band + 0.5) / 40, abs=1e-3)


def test_svg_is_well_formed_and_escaped():
    picture = Image.new("RGB", (8, 4))
    axes = Axes("x & <1>", (0, 1), "f", np.log2, (0, 2))
    panel = Panel(picture, '<b>"&', axes)
    for svg in (
        panel_html(panel),
        timeline(
            [SURE._replace(part=Part("a", 0.0, 1.0)), DOUBT._replace(part=Part("a", 0.5, 1.5))],
            ["cat"],
            2,
        ),
    ):
        ElementTree.fromstring(f"<div xmlns:xlink='x'>{svg}</div>")
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
    assert panel.axes.seconds == (1, 2)
    assert "500" in panel.axes.ticks
    html = panel_html(panel)
    assert all(
        text in html for text in ("time in the recording (s)", "frequency (Hz, mel)", ">1.2<")
    )
    np.testing.assert_array_equal(
        np.asarray(panel.picture).transpose(2, 0, 1), predictor.open(Part(str(file), 1.0, 2.0))
    )
    short = tone(tmp_path / "b.wav", "low", rate=16_000)
    (padded,) = input_panels(predictor, Part(str(short)), None)
    assert padded.axes.seconds[0] == 0


@pytest.mark.parametrize(
    ("layout", "durations"),
    [("grid", [0.5, 1, 2, 4]), ("row", [0.5, 1, 2, 4]), ("channels", [0.5, 2, 4])],
)
def test_strain_has_a_panel_for_each_duration_and_one_search_for_its_moment(
    tmp_path, layout, durations
):
    predictor = Predictor(bursts(layout))
    (answer,) = predictor.predict([strain(tmp_path / "a.hdf5")])
    source = answer.part
    assert source.at == pytest.approx(MOMENT, abs=0.05)
    panels = input_panels(predictor, source, 0)
    assert [panel.axes.seconds[1] * 2 for panel in panels[:-1]] == durations
    assert panels[-1].picture.size == (64, 64)  # the heat map over all panels
    assert f"GPS {source.at:.3f}" in panels[0].axes.time
    # The burst is at 200 Hz, in the middle.
    bright = np.asarray(panels[0].picture.convert("L")).astype(float)
    row, column = np.argwhere(bright == bright.max()).mean(axis=0)
    assert column / bright.shape[1] == pytest.approx(0.5, abs=0.07)
    assert 1 - row / bright.shape[0] == pytest.approx(places_of(panels[0].axes)["200"], abs=0.08)
