"""The command datasets.render."""

import librosa
import numpy as np
import pytest
import soundfile
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.render import RenderSettings, main, render
from tests.datasets.sources.strain import BURST, START, frame

RATE = 8000


def write(path, seconds=0.5, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).standard_normal(round(RATE * seconds)) / 10
    soundfile.write(path, noise, RATE)
    return path


@pytest.fixture
def options(tmp_path):
    return ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "c"), "--workers", "1"]


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_renders_with_the_inferred_settings(tmp_path, options, capsys):
    paths = [write(tmp_path / f"{i}.wav", seed=i) for i in range(3)]
    assert main([*map(str, paths), *options]) == 0
    spectrogram = MelSettings.infer(paths)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{path}\t{tmp_path / 'out' / path.stem}.png" for path in paths]
    for path in paths:
        np.testing.assert_array_equal(
            pixels(tmp_path / "out" / f"{path.stem}.png"), spectrogram.picture(path)
        )


def test_settings_reach_the_spectrogram(tmp_path, options):
    path = write(tmp_path / "a.wav")
    (tmp_path / "s.yaml").write_text("colour: magma\nsize: [64, 96]\n")
    chosen = ["--rate", "16000", "--window", "0.6", "--level", "fixed"]
    assert main([str(path), *options, *chosen, "--config", str(tmp_path / "s.yaml")]) == 0
    spectrogram = MelSettings(rate=16_000, window=0.6, level="fixed", colour="magma", size=(64, 96))
    np.testing.assert_array_equal(pixels(tmp_path / "out" / "a.png"), spectrogram.picture(path))


def test_long_recording_is_one_picture_a_window(tmp_path, options):
    path = write(tmp_path / "long.flac", seconds=2)
    assert main([str(path), *options, "--window", "1", "--overlap", "0.5"]) == 0
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["long_00000.00s.png", "long_00000.50s.png", "long_00001.00s.png"]
    spectrogram = MelSettings.infer([], rate=RATE, window=1.0)
    np.testing.assert_array_equal(
        pixels(tmp_path / "out" / names[1]), spectrogram.picture(Part(path, start=0.5, end=1.5))
    )


def test_at_a_moment(tmp_path, options):
    path = write(tmp_path / "long.wav", seconds=2)
    assert main([str(path), *options, "--window", "0.5", "--at", "1.5"]) == 0
    spectrogram = MelSettings.infer([], rate=RATE, window=0.5)
    np.testing.assert_array_equal(
        pixels(tmp_path / "out" / "long.png"), spectrogram.picture(Part(path, at=1.5))
    )


def test_folders_are_kept_and_names_never_meet(tmp_path, options):
    for seed, name in enumerate(["x/a.wav", "x/a.flac", "y/deep/a.wav"]):
        write(tmp_path / "in" / name, seed=seed)
    (tmp_path / "in" / "notes.md").write_text("not a sound")
    assert main([str(tmp_path / "in"), *options]) == 0
    out = tmp_path / "out"
    pictures = sorted(str(path.relative_to(out)) for path in out.rglob("*.png"))
    assert pictures == ["x/a.png", "x/a.wav.png", "y/deep/a.png"]
    assert len({path.read_bytes() for path in out.rglob("*.png")}) == 3


@pytest.mark.parametrize("some_good", [True, False])
def test_bad_files_are_listed_and_the_status_is_3(tmp_path, options, capsys, some_good):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    (tmp_path / "notes.md").write_text("not a sound")
    good = [str(write(tmp_path / "good.wav"))] if some_good else []
    bad = [str(tmp_path / name) for name in ("bad.wav", "notes.md", "absent.wav")]
    assert main([*good, *bad, *options]) == 3
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == len(good)
    assert f"left out: {bad[0]}: cannot be decoded" in output.err
    assert f"left out: {bad[1]}: not a sound or strain file or picture by its ending" in output.err
    assert f"left out: {bad[2]}: there is no such file" in output.err


def test_strain_files_that_cannot_be_read_leave_the_others(tmp_path, options, capsys):
    (tmp_path / "no.hdf5").write_bytes(b"no strain")
    good = write(tmp_path / "good.wav")
    assert main([str(good), str(tmp_path / "no.hdf5"), *options]) == 3
    output = capsys.readouterr()
    assert output.out == f"{good}\t{tmp_path / 'out' / 'good.png'}\n"
    assert f"left out: {tmp_path / 'no.hdf5'}: " in output.err


@pytest.mark.slow
def test_strain_takes_settings_and_axes_for_people(tmp_path, options, capsys):
    file = str(frame(tmp_path / "frames"))
    call = [file, "--at", str(START + BURST), *options]
    settings = "{durations: [1], picture: [64, 96], context: 16}"
    assert main([*call, "--spectrogram", settings]) == 0
    source, picture = capsys.readouterr().out.strip().split("\t")
    assert source == file
    plain = pixels(picture)
    assert plain.shape[:2] == (64, 96)
    assert main([*call, "--spectrogram", settings, "--axes", "--overwrite"]) == 0
    drawn = pixels(picture).astype(int)
    assert min(drawn.shape[:2]) > 300
    # Around the plot the figure is white.
    assert (drawn[-3:] > 250).all()
    assert (drawn[:, -3:] > 250).all()
    assert main([*call, "--spectrogram", "{window: 3}", "--overwrite"]) == 2
    assert "--spectrogram window" in capsys.readouterr().err


def ringing(path, seconds=2.0, hertz=1000):
    """A tone in the second half of silence."""
    time = np.arange(round(RATE * seconds)) / RATE
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * hertz * time) * (time > seconds / 2), RATE)
    return path


@pytest.mark.slow
def test_sound_is_drawn_with_axes_and_decibels(tmp_path, options):
    """The loudest row and columns of the picture are where librosa's mel scale and the time put the tone."""
    call = [str(ringing(tmp_path / "tone.wav")), *options, "--window", "2", "--axes"]
    assert main([*call, "--colour", "grey"]) == 0
    drawn = pixels(tmp_path / "out" / "tone.png")[..., 0].astype(int)
    # Around the plot the figure is white.
    assert (drawn[-3:] > 250).all()
    assert (drawn[:, -3:] > 250).all()
    dark = drawn < 5
    across, down = (np.flatnonzero(dark.mean(axis=axis) > 0.3) for axis in (0, 1))
    plot = drawn[down.min() : down.max() + 1, across.min() : across.max() + 1]
    height, width = plot.shape
    right = plot[:, round(0.55 * width) : round(0.75 * width)].mean(axis=1)
    low, high, tone = librosa.hz_to_mel([20, RATE / 2, 1000])
    assert 1 - right.argmax() / height == pytest.approx((tone - low) / (high - low), abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", ["{level: pcen}", "{level: fixed}", "{colour: windows}", "{scale: cqt, fmax: 4000}"]
)
def test_all_spectrograms_of_sound_have_axes(tmp_path, options, settings):
    path = write(tmp_path / "long.wav", seconds=1.5)
    call = [str(path), *options, "--window", "0.5", "--spectrogram", settings, "--axes"]
    assert main(call) == 0
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [f"long_0000{start}0s.png" for start in ("0.0", "0.5", "1.0")]
    assert min(pixels(tmp_path / "out" / names[0]).shape[:2]) > 300


def test_a_colour_bar_tells_what_white_is():
    tone = 0.5 * np.sin(np.arange(8000) * 0.8)
    for level, scale, name in (
        ("clip", 1, "dB relative to the peak"),
        ("clip", 1e-4, "dB relative to -50 dBFS"),
        ("fixed", 1, "dB relative to full scale"),
    ):
        settings = MelSettings(rate=8000, window=1, level=level, range_db=70)
        signal = settings.fit(scale * tone)
        assert settings.bar(signal) == (name, -70, 0)
    assert MelSettings(level="pcen").bar(tone) == ("PCEN", 0, 4)


def test_a_file_that_cannot_be_read_costs_its_picture_alone(tmp_path, options, capsys):
    good, bad = write(tmp_path / "a.wav"), write(tmp_path / "b.flac", seconds=3)
    bad.write_bytes(bad.read_bytes()[: -bad.stat().st_size // 2])
    assert main([str(good), str(bad), *options, "--axes"]) == 3
    assert [file.name for file in (tmp_path / "out").glob("*.png")] == ["a.png"]
    assert str(bad) in capsys.readouterr().err


def test_pictures_are_replaced_only_on_request(tmp_path, options, capsys):
    first, second = (write(tmp_path / name, seconds=2) for name in ("a.wav", "b.wav"))
    call = [str(second), *options, "--window", "0.5", "--at"]
    assert main([*call, "1.5"]) == 0
    picture = tmp_path / "out" / "b.png"
    before = picture.read_bytes()
    assert main([str(first), *call, "0.5"]) == 2
    assert f"{picture} exists. Name another folder, or give --overwrite" in capsys.readouterr().err
    assert [*picture.parent.iterdir()] == [picture]
    assert picture.read_bytes() == before
    assert main([*call, "0.5", "--overwrite"]) == 0
    assert picture.read_bytes() != before


def test_kind_given_overrules_the_name(tmp_path, options):
    path = write(tmp_path / "a.wav").rename(tmp_path / "a.dat")
    assert main([str(path), *options]) == 3
    assert main([str(path), *options, "--kind", "sound"]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--window", "-1"], "window=-1.0"),
        (["--colour", "pink"], "colour='pink'"),
        (["--overlap", "1"], "overlap=1.0"),
        (["--workers", "0"], "--workers 0"),
        (["--size", "[5,5]"], "size=(5, 5)"),
        (["--kind", "video"], "--kind 'video'"),
    ],
)
def test_wrong_settings_are_named_and_the_status_is_2(tmp_path, options, capsys, flags, message):
    path = write(tmp_path / "a.wav")
    assert main([str(path), *options, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--windo", "1"], ["--level", "loud"], ["--at", "noon"]])
def test_wrong_calls_end_with_2(tmp_path, options, flags):
    with pytest.raises(SystemExit, match="2"):
        main([str(write(tmp_path / "a.wav")), *options, *flags])


def test_out_must_be_a_folder(tmp_path, options, capsys):
    (tmp_path / "out").write_text("in the way")
    assert main([str(write(tmp_path / "a.wav")), *options]) == 2
    assert "is a file" in capsys.readouterr().err


def test_nothing_to_draw(tmp_path):
    with pytest.raises(SecondhandError, match=r"no files\. Name"):
        render(RenderSettings(files=[], out=str(tmp_path / "out")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        SecondhandError, match="no sound or strain files or pictures in this folder"
    ):
        render(RenderSettings(files=[str(tmp_path / "empty")], out=str(tmp_path / "out")))


def test_pictures_are_drawn_by_one_range_for_all(tmp_path, options, capsys):
    rng = np.random.default_rng(0)
    values = [rng.integers(0, top, (20, 30)).astype(np.uint16) for top in (4096, 4096, 900)]
    for number, one in enumerate(values):
        Image.fromarray(one).save(tmp_path / f"{number}.tif")
    (tmp_path / "3.tif").write_bytes(b"II*\0 not a picture")
    assert main([str(tmp_path), *options]) == 3
    out, err = capsys.readouterr()
    assert "3.tif: damaged TIFF" in err
    lines = [line.split("\t") for line in out.splitlines()]
    assert [name for name, _ in lines] == [str(tmp_path / f"{number}.tif") for number in range(3)]
    for (_, picture), one in zip(lines, values, strict=True):
        np.testing.assert_array_equal(pixels(picture)[..., 0], np.rint(one / 4095 * 255))
    assert main([str(tmp_path / "2.tif"), *options, "--range", "0", "900", "--overwrite"]) == 0
    np.testing.assert_array_equal(
        pixels(tmp_path / "out/2.png")[..., 0], np.rint(values[2] / 900 * 255)
    )


def test_pictures_beside_sounds_are_drawn_on_request_alone(tmp_path, options):
    folder = tmp_path / "calls"
    write(folder / "a.wav")
    Image.new("RGB", (9, 9), (10, 20, 30)).save(folder / "cover.png")
    rendered, _ = render(RenderSettings(files=[str(folder)], out=options[1], cache_dir=options[3]))
    assert [picture.name for _, picture in rendered] == ["a.png"]
    rendered, _ = render(
        RenderSettings(files=[str(folder)], out=options[1], cache_dir=options[3], kind="picture")
    )
    assert [picture.name for _, picture in rendered] == ["cover.png"]
    assert (pixels(rendered[0][1]) == (10, 20, 30)).all()
