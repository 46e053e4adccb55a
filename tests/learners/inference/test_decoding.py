"""What prediction opens: moments in files, and decoders that crash or hang."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from datasets.audio.settings import MelSettings
from datasets.core import processes as _workers
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.core.processes import CRASHED
from datasets.images import boxes
from learners.inference.embedding import embed
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.predict import main
from tests import mutants
from tests.datasets.files import picture
from tests.forks import crash

pytestmark = [
    pytest.mark.slow,
    pytest.mark.forks,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mutants.write_models(folder := tmp_path_factory.mktemp("models"))
    return folder


def fragile(original):
    """A decoder that crashes on some files and hangs on others."""

    def decode(source, *words, **options):
        if "deadly" in str(source):
            crash()
        if "endless" in str(source):
            time.sleep(600)
        return original(source, *words, **options)

    return decode


@pytest.mark.parametrize("fault", ["deadly", "endless"])
def test_a_decoder_that_dies_costs_one_answer(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    files = [picture(tmp_path / f"{n}.png") for n in range(9)]
    expected = list(Predictor(models / "picture").predict(files))
    files.insert(4, picture(tmp_path / f"{fault}.png"))
    monkeypatch.setattr(boxes, "open_picture", fragile(boxes.open_picture))
    monkeypatch.setattr(_workers, "TIMEOUT", 3.0)
    answers = list(load_predictor(models / "picture", bs=4, workers=2).predict(files))
    assert answers.pop(4)[:5] == (Part(str(files[4])), "unknown", "", pytest.approx(np.nan, nan_ok=True),
                                  f"bad file: {CRASHED}")  # fmt: skip
    assert [(a.path, a.label, a.best) for a in answers] == [
        (e.path, e.label, e.best) for e in expected
    ]
    assert [a.probability for a in answers] == pytest.approx([e.probability for e in expected])


@pytest.mark.parametrize("method", ["spans", "read"])
def test_a_sound_that_kills_costs_one_answer(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Both when reading its length and when decoding it."""
    rng = np.random.default_rng(0)
    files = [tmp_path / name for name in ("a.wav", "deadly.wav", "b.wav", "long.wav")]
    for file in files:
        soundfile.write(file, rng.uniform(-0.5, 0.5, 12_000 if "long" in file.name else 4000), 8000)
    original = getattr(MelSettings, method)
    shaky = fragile(lambda path, spectrogram, **options: original(spectrogram, path, **options))
    monkeypatch.setattr(
        MelSettings,
        method,
        lambda spectrogram, path, **options: shaky(path, spectrogram, **options),
    )
    answers = list(Predictor(models / "sound").predict(files))
    bad = [answer.reason for answer in answers]
    if method == "read":
        assert bad[1] == f"bad file: {CRASHED}"
    assert all(not reason.startswith("bad file") for n, reason in enumerate(bad) if n != 1)
    assert len(answers[3].windows) > 1


def test_what_is_embedded_is_opened_apart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [picture(tmp_path / f"{name}.png") for name in ("a", "deadly", "b")]
    monkeypatch.setattr(boxes, "open_picture", fragile(boxes.open_picture))
    features, rejected = embed(files, backbone="embedded", size=64)
    assert [Path(item.path).name for item in rejected] == ["deadly.png"]
    assert rejected[0].reason == CRASHED
    assert np.isfinite(features).all(axis=1).tolist() == [True, False, True]


def test_what_is_handed_over_can_be(models: Path) -> None:
    opened = Predictor(models / "picture").open(Part("/nowhere/a.png"))
    assert isinstance(opened, BadFile)
    assert opened.reason == "there is no such file"


def test_a_strain_file_is_no_damaged_sound(models: Path, tmp_path: Path) -> None:
    (tmp_path / "H1.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    path = str(tmp_path / "H1.hdf5")
    for bad in Predictor(models / "sound").predict([Part(path), Part(path, at=1.0)]):
        assert bad.reason == "bad file: this is a strain file by its ending, not a sound"


def test_a_moment_of_a_sound(models: Path, tmp_path: Path, capsys) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 40_000)
    noise[:16_000] = 0  # silent for two of its five seconds
    soundfile.write(tmp_path / "a.wav", noise, 8000)
    soundfile.write(tmp_path / "short.wav", noise[-8000:], 8000)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    paths = [str(tmp_path / name) for name in ("a.wav", "short.wav", "bad.wav")]
    predictor = Predictor(models / "sound")
    (early,) = predictor.predict(paths[:1], at=0.5)
    assert (early.reason, early.part.at) == ("no signal", 0.5), "seconds from its beginning"
    full, _, bad = predictor.predict(paths)
    assert len(full.windows) > 5
    assert full.part.at is None
    assert main([str(models / "sound"), *paths, "--at", "4", "--format", "jsonl"]) == 3
    out, err = capsys.readouterr()
    first, second, third = map(json.loads, out.splitlines())
    assert (first["best"] != "", first["at"], first["windows"]) == (True, 4.0, [])
    assert second["reason"] == "no such moment: 4 s is outside the recording, which lasts 1 s"
    (late,) = predictor.predict(paths[:1], at=1126259462.4)
    assert "1126259462.4 s is outside the recording" in str(late.reason)
    assert third["reason"] == bad.reason, "and a bad file is a bad one at any moment"
    assert "1 of 3 files could not be read" in err
    assert "1 of 3 files do not contain the time --at 4.0" in err


def test_strain_says_which_moment_was_judged(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    path.write_bytes(mutants.strain_file(np.random.default_rng(0)))
    predictor = Predictor(models / "strain")
    sources: list[Any] = [
        path,
        Part(str(path), at=1126259457.5),
        Part(str(path), start=9, end=11),
    ]
    loudest, at_time, in_span = predictor.predict(sources)
    assert loudest.part.at == predictor.spectrogram.read(path).trigger
    assert at_time.part.at == 1126259457.5
    assert 1126259455 <= in_span.part.at <= 1126259457
    (again,) = predictor.predict([path], at=loudest.part.at)
    assert (again.part.at, again.best) == (loudest.part.at, loudest.best)
    assert again.probability == pytest.approx(loudest.probability, abs=1e-5), "of the same picture"
    (outside,) = predictor.predict([path], at=99.0)
    assert outside.reason.startswith(
        "no such moment: GPS 99.000 is outside the file, which covers 1126259446.000"
    )
    assert outside.part.at == 99.0


def test_a_picture_has_no_moment(models: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    for source in (
        lambda: main([str(models / "picture"), str(tmp_path / "a.png"), "--at", "0"]),
        lambda: next(Predictor(models / "picture").predict([tmp_path / "a.png"], at=0.0)),
    ):
        with pytest.raises(SecondhandError, match=r"--at 0\b.*pictures.*Leave"):
            source()
