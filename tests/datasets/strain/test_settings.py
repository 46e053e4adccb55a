"""QScanSettings: what it draws, what its fingerprint covers, and how it reads untrusted JSON."""

import json
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.kinds.base import spectrogram_from_dict
from datasets.sources.glitches import simulate, write_hdf5
from datasets.spectrograms.settings import colour_table
from datasets.strain.files import Strain
from datasets.strain.qscan import qtransform, whiten
from datasets.strain.settings import COLOURS, QScanSettings

RATE, START = 4096, 1_000_000_000.0
GREY = QScanSettings(context=16, colour="grey", layout="row")


def tone(frequency, moment, seconds=16, rate=RATE):
    """Return strain noise with a short tone."""
    t = np.arange(seconds * rate) / rate
    noise = np.random.default_rng(0).standard_normal(t.size)
    wave = 8 * np.exp(-(((t - moment) / 0.02) ** 2) / 2) * np.sin(2 * np.pi * frequency * t)
    return Strain(1e-22 * (noise + wave), rate, START, START + moment)


def test_the_views_lie_side_by_side_with_low_frequencies_at_the_bottom():
    picture = GREY.render(tone(150, 8.0))
    assert (picture.shape, picture.dtype) == ((224, 224, 3), np.uint8)
    assert (picture[..., 0] == picture[..., 2]).all()
    expected = 223 * (1 - np.log(150 / 10) / np.log(1200 / 10))
    for i in range(4):
        view = picture[:, 56 * i : 56 * (i + 1), 0]
        row, column = np.unravel_index(view.argmax(), view.shape)
        assert abs(np.flatnonzero(view[:, 28] == 255).mean() - expected) < 15
        assert view[:, column].max() == 255
        assert abs(row - expected) < 60
        assert 24 <= np.flatnonzero((view == 255).any(axis=0)).mean() <= 32
    low = GREY.render(tone(30, 8.0))[:, :56, 0]
    assert (
        np.argwhere(low == 255)[:, 0].mean() > np.argwhere(picture[:, :56, 0] == 255)[:, 0].mean()
    )


def test_a_short_view_stretches_time():
    def width(i):
        return (picture[:, 56 * i : 56 * (i + 1), 0] > 128).any(axis=0).sum()

    picture = GREY.render(tone(100, 8.0))
    assert width(0) > 1.5 * width(1) > 2 * width(3)


def test_one_view_fills_the_picture_and_is_the_same_energy():
    row = replace(GREY, durations=(1.0, 4.0), size=(100, 120)).render(tone(100, 8.0))
    one = replace(GREY, layout="one", durations=(1.0,), size=(100, 60)).render(tone(100, 8.0))
    assert one.shape == (100, 60, 3)
    np.testing.assert_array_equal(row[:, :60], one)


def test_three_views_become_three_channels():
    spectrogram = replace(GREY, layout="channels", durations=(0.5, 1.0, 4.0))
    picture = spectrogram.render(tone(100, 8.0))
    row = replace(GREY, durations=(0.5, 1.0, 4.0), size=(224, 672)).render(tone(100, 8.0))
    for i in range(3):
        np.testing.assert_array_equal(picture[..., i], row[:, 224 * i : 224 * (i + 1), 0])


def test_four_durations_become_a_grid_of_two_rows():
    assert QScanSettings(context=16).layout == "grid"
    grid = replace(GREY, layout="grid", size=(100, 120)).render(tone(100, 8.0))
    row = replace(GREY, size=(50, 240)).render(tone(100, 8.0))
    np.testing.assert_array_equal(grid[:50], row[:, :120])
    np.testing.assert_array_equal(grid[50:], row[:, 120:])


@pytest.mark.parametrize(
    ("durations", "layout"),
    [
        ((), "grid"),
        ((0.5, 1.0, 2.0, 4.0), "grid"),
        ((0.5, 1.0, 2.0), "channels"),
        ((1.0, 2.0), "row"),
        ((1.0,), "one"),
    ],
)
def test_the_layout_follows_from_the_number_of_durations(durations, layout):
    assert QScanSettings(durations=durations).layout == layout


def test_no_short_burst_falls_between_two_pixels():
    # 4 s in 56 pixels of 71 ms: every burst of 4 ms is in one of them, equally bright.
    t = np.arange(16 * RATE) / RATE
    spectrogram = replace(GREY, layout="one", durations=(4.0,), size=(56, 56))
    for shift in np.arange(4) * 4 / 56 / 4:
        wave = 20 * np.exp(-(((t - 8 - shift) / 0.002) ** 2) / 2) * np.sin(2 * np.pi * 250 * t)
        values = 1e-22 * (np.random.default_rng(0).standard_normal(t.size) + wave)
        assert spectrogram.render(Strain(values, RATE, START, START + 8)).max() > 200


def test_energy_is_rendered_in_tenths_and_clipped():
    strain = tone(100, 8.0)
    spectrogram = replace(GREY, layout="one", durations=(1.0,))
    gram = qtransform(whiten(strain.values, RATE), RATE, search=(7.75, 8.25))
    # Each pixel is the mean energy at three times, 1/672 s apart.
    (fine,) = gram.images([(7.5, 8.5)], width=3 * 224, height=224)
    energy = fine.reshape(224, 224, 3).mean(axis=2)
    grey = spectrogram.render(strain)[::-1, :, 0]
    np.testing.assert_allclose(grey, np.clip(energy, 0, 25.5) * 10, atol=0.51)
    assert energy.max() > 25.5
    assert grey.max() == 255


def test_colours_are_matplotlibs():
    from matplotlib import colormaps

    for name in ("viridis", "cividis"):
        expected = colormaps[name](np.arange(256), bytes=True)[:, :3]
        np.testing.assert_allclose(colour_table(name), expected, atol=1)
    tables = {name: colour_table(name) for name in COLOURS}
    assert all(t.shape == (256, 3) and t.dtype == np.uint8 for t in tables.values())
    grey, colour = GREY.render(tone(100, 8.0)), replace(GREY, colour="magma").render(tone(100, 8.0))
    np.testing.assert_array_equal(tables["magma"][grey[..., 0]], colour)


def test_file_and_signal_give_the_same_bytes(tmp_path):
    strain = simulate("Blip_sim", rng=1, duration=20)
    path = tmp_path / "a.hdf5"
    write_hdf5(path, strain, "simulated")
    spectrogram = QScanSettings(context=16)
    by_time = spectrogram.picture(Part(path, at=strain.trigger))
    assert (
        by_time.tobytes()
        == spectrogram.render(spectrogram.read(Part(path, at=strain.trigger))).tobytes()
    )
    assert by_time.tobytes() == spectrogram.picture(Part(path, at=strain.trigger)).tobytes()
    strain_read = spectrogram.read(path)  # the loudest tile
    assert strain_read.trigger == pytest.approx(strain.trigger, abs=0.1)
    segment = spectrogram.read(Part(path, start=4.0, end=6.0))
    assert START + 4 <= segment.trigger <= START + 6
    with pytest.raises(BadFile, match=r"too little strain around GPS .* 32 s without gaps"):
        QScanSettings().picture(Part(path, at=strain.trigger))


def test_a_band_cut_by_the_sampling_rate_is_told_once_a_file_and_dark(caplog):
    strain = replace(tone(100, 8.0, rate=1024), path="strain/L-1126.hdf5")
    spectrogram = replace(GREY, fmax=1200.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python's own warnings name a line, not the file
        picture = spectrogram.render(strain)
        spectrogram.render(strain)
    message = "strain/L-1126.hdf5: a sampling rate of 1024 Hz limits the band to 323 Hz"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [strain.path]
    assert message in caplog.text
    caplog.clear()
    spectrogram.render(replace(strain, path="another.hdf5"))
    assert "another.hdf5: a sampling rate of 1024 Hz" in caplog.text
    caplog.clear()
    first = np.flatnonzero((picture > 0).any(axis=(1, 2)))[0]
    assert first == pytest.approx(223 * (1 - np.log(322.8 / 10) / np.log(120)), abs=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = replace(GREY, fmax=300.0).render(strain)
    assert (full[:8] > 0).any()
    assert not caplog.records


@pytest.mark.slow
def test_the_band_is_inferred_from_the_commonest_rate(tmp_path):
    paths = []
    for number, rate in enumerate((4096, 16384, 4096)):
        paths.append(tmp_path / f"{number}.hdf5")
        write_hdf5(paths[-1], simulate("No_Glitch_sim", rate=rate, duration=4), "simulated")
    broken = tmp_path / "broken.hdf5"
    broken.write_bytes(b"no strain")
    assert QScanSettings.infer([broken, *paths]).fmax == 1200
    inferred = QScanSettings.infer(paths[1:2], size=100, context=32.0)
    assert inferred == QScanSettings(fmax=2048, size=(100, 100))
    assert QScanSettings.infer(paths[:2]).fmax == 1200  # the lower of two equally common ones
    assert QScanSettings.infer([], fmax=500.0, context=32.0).fmax == 500
    with pytest.raises(SecondhandError, match=r"infer the band from.*broken.hdf5"):
        QScanSettings.infer([broken])
    with pytest.raises(SecondhandError, match="no files"):
        QScanSettings.infer([])
    # If it is not inferred, the band follows from the file's rate.
    strain = tone(100, 8.0)
    assert GREY.render(strain).tobytes() == replace(GREY, fmax=1200.0).render(strain).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "context"), [(4, 16), (20, 20), (40, 32)])
def test_the_context_is_what_the_files_hold(tmp_path, seconds, context):
    write_hdf5(tmp_path / "a.hdf5", simulate("No_Glitch_sim", duration=seconds), "simulated")
    assert QScanSettings.infer([tmp_path / "a.hdf5"]).context == context
    assert QScanSettings.infer([tmp_path / "a.hdf5"], fmax=500.0).context == context
    assert QScanSettings.infer([tmp_path / "a.hdf5"], context=18.0).context == 18


CHANGES = {
    "context": 16.0,
    "qlow": 5.0,
    "qhigh": 32.0,
    "fmin": 20.0,
    "fmax": 1000.0,
    "durations": (0.5, 1.0, 2.0),
    "layout": "row",
    "clip": 20.0,
    "size": (140, 168),
    "colour": "grey",
}


def test_the_fingerprint_covers_every_field(monkeypatch):
    base = QScanSettings(size=(168, 168), layout="channels")
    assert set(CHANGES) == {field.name for field in fields(QScanSettings)}
    prints = {base.fingerprint()} | {
        replace(base, **{name: value}).fingerprint() for name, value in CHANGES.items()
    }
    assert len(prints) == 1 + len(CHANGES)
    assert QScanSettings(context=32).fingerprint() == QScanSettings().fingerprint()  # 32 is 32.0
    monkeypatch.setattr("datasets.spectrograms.settings.RENDERER_VERSION", 999)
    assert base.fingerprint() not in prints


def test_json_brings_the_settings_back():
    for spectrogram in (QScanSettings(), replace(GREY, size=100, durations=(0.5, 2.0), fmax=2048)):
        text = json.dumps(spectrogram.to_dict())
        again = spectrogram_from_dict(json.loads(text))
        assert again == spectrogram
        assert hash(again) == hash(spectrogram)
        assert again.fingerprint() == spectrogram.fingerprint()
    assert QScanSettings().kind == QScanSettings().to_dict()["kind"] == "strain"


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"contxt": 32}, "contxt"),
        ({"kind": "sound"}, "spectrogram.context is not a known key"),
        ({"kind": "film"}, "'film'"),
        ({"renderer": 0}, "train the model again"),
        ({"context": 4}, "context=4.*16"),
        ({"context": "32"}, "context='32'"),
        ({"context": True}, "context=True"),
        ({"context": 0}, "context=0"),
        ({"context": float("nan")}, "context=nan"),
        ({"qlow": 1}, "qlow=1"),
        ({"qlow": 64, "qhigh": 8}, "qhigh=8"),
        ({"fmin": 1, "qhigh": 64}, "fmin=1"),
        ({"fmin": None}, "fmin=None"),
        ({"fmax": 12}, "fmax=12"),
        ({"durations": {}}, "durations={}"),
        ({"durations": [1] * 9, "layout": "row"}, "durations=.* 8"),
        ({"durations": "1234"}, "durations='1234'"),
        ({"durations": [0, 1, 1]}, "durations.0.=0 .*0.05"),
        ({"durations": [1, 1, 31]}, "durations=.*0.05 to 30"),
        ({"durations": [1, 2], "layout": "channels"}, "durations=.*three"),
        ({"durations": [1, 2], "layout": "one"}, "durations=.*single"),
        ({"layout": "pile"}, "layout='pile'.*channels, row, one"),
        ({"layout": ["row"]}, "layout="),
        ({"clip": 0}, "clip=0"),
        ({"size": 1e3}, "size=1000"),
        ({"size": [224]}, "size=.224"),
        ({"size": [10**6, 10**6]}, r"size\[0\]=1000000"),
        (
            {"size": [224, 226], "layout": "row", "durations": [1] * 4},
            r"size=.*1 x 4 Q-scans can share: \[224, 228\]",
        ),
        ({"size": [225, 224]}, r"size=.*2 x 2 Q-scans can share: \[226, 224\]"),
        ({"durations": [1, 2, 4]}, "durations=.*four for the layout grid"),
        ({"colour": "jet"}, "colour='jet'"),
        ({"colour": {}}, "colour={}"),
    ],
)
def test_wrong_settings_are_named(values, match):
    with pytest.raises(SecondhandError, match=match):
        spectrogram_from_dict({**QScanSettings().to_dict(), **values})


def test_strain_that_cannot_be_rendered_is_a_bad_file():
    with pytest.raises(BadFile, match="no noise"):
        GREY.render(Strain(np.zeros(16 * RATE), RATE, START, START + 8))
    with pytest.raises(BadFile, match="not inside"):
        GREY.render(tone(100, 1.0))
