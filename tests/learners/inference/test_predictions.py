"""The answer for a long recording, and the windows that it comes from."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from learners.inference.predictions import (
    NO_SIGNAL,
    TOP_WINDOWS,
    DetailedPrediction,
    Prediction,
    decisions_of,
    pool_windows,
)
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle, save_bundle
from learners.predict import main
from learners.rule.reasons import Reason
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.learners.inference.test_predictor import bundle
from tests.learners.rules import plain_rule
from tests.left_out import needs

RATE = 8000
SPECTROGRAM_SETTINGS = MelSettings(rate=RATE, window=1.0, size=(48, 48), n_mels=16)


@pytest.fixture(scope="module")
def model() -> Bundle:
    untrained = bundle()
    untrained.spectrogram, untrained.overlap = SPECTROGRAM_SETTINGS.to_dict(), 0.5
    return untrained


def tone(path: Path, seconds: float, *, silent: float = 0.0) -> Path:
    """Write a sweep, then silence."""
    t = np.arange(round(seconds * RATE)) / RATE
    sound = 0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t)
    sound[len(sound) - round(silent * RATE) :] = 0
    soundfile.write(path, sound, RATE)
    return path


def test_the_logits_are_the_mean_of_the_largest() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(7, 4)).astype(np.float32)
    features = rng.normal(size=(7, 5)).astype(np.float32)
    blank = Prediction(Part("x"), "", "", 0.0, Reason(), [], 0.0)
    windows = [DetailedPrediction(blank, z, x) for z, x in zip(logits, features, strict=True)]
    windows.insert(2, DetailedPrediction(blank._replace(reason=NO_SIGNAL), None, None))
    joined, near, trained = pool_windows(windows)
    expected = np.sort(logits, axis=0)[-TOP_WINDOWS:].mean(axis=0)
    np.testing.assert_allclose(joined, expected, rtol=1e-6)
    speaking = np.argsort(logits[:, expected.argmax()])[-TOP_WINDOWS:]
    np.testing.assert_allclose(near, features[speaking].mean(axis=0), rtol=1e-5)
    assert not trained
    logits_of_spans = [
        DetailedPrediction(blank._replace(distance_p=1.0), w.logits, w.features) for w in windows
    ]
    assert pool_windows(logits_of_spans)[2]
    one = [int(n) + (n >= 2) for n in speaking[:1]]  # skip the silent window
    assert not pool_windows([windows[n] if n in one else w for n, w in enumerate(logits_of_spans)])[
        2
    ]


def test_a_long_file_is_one_answer_with_its_windows(model: Bundle, tmp_path: Path) -> None:
    long, short = tone(tmp_path / "long.wav", 3.0), tone(tmp_path / "short.wav", 0.8)
    predictor = load_predictor(model, bs=2)
    one, other, again = predictor.predict([long, short, Part(str(long), 0.5, 1.5)])
    assert [(w.part.start, w.part.end) for w in one.windows] == [
        (s / 2, s / 2 + 1) for s in range(5)
    ]
    assert one.part.start is None
    assert one.path == str(long)
    assert other.windows == ()
    # A window's answer is that of the span alone.
    assert one.windows[1].best == again.best
    assert one.windows[1].probability == pytest.approx(again.probability, abs=1e-5)
    assert (again.part.start, again.part.end) == (0.5, 1.5)
    # The file's answer, computed from the logits of the spans.
    spans = [Part(str(long), w.part.start, w.part.end) for w in one.windows]
    _, logits, _ = predictor.outputs(spans)
    joined = torch.from_numpy(logits).topk(TOP_WINDOWS, dim=0).values.mean(0)
    chance = (joined / predictor.rule.calibrator.temperature.value).softmax(0)
    assert one.probability == pytest.approx(float(chance.max()), abs=1e-5)
    assert one.best == model.classes[int(chance.argmax())]


def test_a_long_span_keeps_its_own_place(model: Bundle, tmp_path: Path) -> None:
    long = tone(tmp_path / "long.wav", 4.0)
    span, again, full = Predictor(model).predict(
        [Part(str(long), 0.5, 3.0), Part(str(long), 0.5, 3.0), long]
    )
    assert (span.part.start, span.part.end) == (0.5, 3.0)
    assert [w.part.start for w in span.windows] == [0.5, 1.0, 1.5, 2.0]
    assert [w.part.end for w in span.windows] == [1.5, 2.0, 2.5, 3.0]
    assert (again.part.start, again.probability) == (0.5, span.probability), (
        "asked twice, answered twice"
    )
    assert full.part.start is None
    assert len(full.windows) == 7


def test_silence_takes_no_part_and_all_of_it_is_no_signal(model: Bundle, tmp_path: Path) -> None:
    half = tone(tmp_path / "half.wav", 4.0, silent=2.0)
    first = tone(tmp_path / "all.wav", 2.0)
    silence = tone(tmp_path / "none.wav", 3.0, silent=3.0)
    mixed, first_part, silent = Predictor(model).predict([half, first, silence])
    reasons = [window.reason for window in mixed.windows]
    assert reasons[-3:] == ["no signal"] * 3
    assert mixed.best in model.classes
    assert silent.reason == "no signal"
    assert silent.label == "unknown"
    assert [w.reason for w in silent.windows] == ["no signal"] * 5
    assert first_part.best in model.classes


def test_a_window_that_cannot_be_read_makes_the_file_bad(model: Bundle, tmp_path: Path) -> None:
    complete = tone(tmp_path / "whole.flac", 30.0)
    content = complete.read_bytes()
    quarter = len(content) // 4
    damaged = content[: 2 * quarter] + bytes(quarter) + content[3 * quarter :]
    complete.write_bytes(damaged)  # its end is there: it is no truncated recording
    good = tone(tmp_path / "good.wav", 2.0)
    bad, fine = Predictor(model).predict([complete, good])
    assert bad.reason.startswith("bad file: ")
    assert bad.windows[0].best in model.classes  # readable windows are answered one by one
    assert bad.label == "unknown"
    assert np.isnan(bad.probability)
    assert fine.best in model.classes


@needs("recordings")
def test_the_command_prints_a_row_a_file_or_a_window(
    model: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_bundle(model, tmp_path / "model")
    long = tone(tmp_path / "long.wav", 3.0)
    assert main([str(folder), str(long)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["path"], row["start"]) for row in rows] == [(str(long), "")]
    assert main([str(folder), str(long), "--windows"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["end"]) for row in rows] == [1.0, 1.5, 2.0, 2.5, 3.0]


@needs("recordings")
def test_the_command_says_what_of_the_windows_is_in_no_event(
    model: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(save_bundle(model, tmp_path / "model"))
    long, short = tone(tmp_path / "long.wav", 3.0), tone(tmp_path / "short.wav", 0.8)
    call = [folder, str(long), str(short)]
    assert main([*call, "--events", "--threshold", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err.splitlines()[-1] == (
        "0 events in 2 recordings. 2 recordings without events. 6 windows: 0 answered, 6 unknown (6 ambiguous). "
        "Windows are 1 s long."
    )
    assert main([*call, "--events", "--threshold", "0", "--min-length", "0.9"]) == 0
    out, err = capsys.readouterr()
    assert str(short) not in out, "it is shorter"
    assert err.splitlines()[-1].startswith("1 event in 2 recordings: ")
    for words, message in {
        ("--windows", "--at", "1"): r"--windows .*--at 1\b",
        ("--events", "--at", "1"): r"--events .*--at 1\b",
        ("--format", "raven", "--at", "1"): r"--format raven .*--at 1\b",
        ("--windows", "--events"): r"--windows .*--events.*leave one",
    }.items():
        with pytest.raises(SecondhandError, match=message):
            main([*call, *words])


def test_an_answer_under_another_threshold_is_the_class_or_the_last_group_that_reaches_it():
    branch = (("pet", 0.9), ("cat", 0.6))
    answer = Prediction(
        Part("a.jpg"), "pet", "cat", 0.6, Reason(), [], np.nan, more={"branch": branch}
    )
    rule = with_tree(plain_rule(2), Tree(("cat", "dog", "pet"), np.array([2, 2, -1]), 2))

    for threshold, expected in ((0.6, "cat"), (0.7, "pet"), (0.95, "unknown")):
        again = rule.but(threshold=threshold).again(decisions_of([answer], ("cat", "dog")))
        assert again.labels(rule.names(("cat", "dog"))) == [expected]
