"""Frames of one camera become one event, which empty frames do not outvote."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.special import log_softmax, softmax

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.core.processes import CRASHED
from datasets.items.items import Items
from fields.cameras.bursts import Bursts, events_of, fit_event_threshold, merge_frames
from fields.cameras.clock import Clock
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.predict import main
from learners.rule.numbers.arrays import Outputs
from learners.rule.reasons import Reason, Why
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.thresholds import threshold_for_accuracy
from tests.learners.outputs.conftest import model  # noqa: F401
from tests.learners.rules import plain_rule

CLASSES = ("fox", "hare", "owl")


def photo(path: Path, time: str | None, colour: str = "orange") -> str:
    """Write a photo that a camera took at a time of day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if time is not None:
        exif.get_ifd(0x8769)[0x9003] = f"2024:05:01 {time}"
    Image.new("RGB", (48, 32), colour).save(path, exif=exif)
    return str(path)


def answering(threshold: float) -> Rule:
    """A rule for events that answers from this probability on."""
    rule = plain_rule(3).but(threshold=threshold).for_events
    assert rule is not None
    return rule


def frame(path: str, logits: list[float], reason: Why = Why.ACCEPTED) -> Prediction:
    p = softmax(logits)
    top = sorted(zip(CLASSES, p.tolist(), strict=True), key=lambda pair: -pair[1])
    label = "unknown" if reason else top[0][0]
    return Prediction(Part(path), label, top[0][0], top[0][1], Reason(reason), top, 0.5)


def empty(path: str, reason: Why) -> Prediction:
    return Prediction(Part(path), "unknown", "", math.nan, Reason(reason), [], math.nan)


def test_frames_of_one_camera_within_the_gap_are_one_event(tmp_path):
    paths = [
        photo(tmp_path / "a" / "1.jpg", "06:00:00"),
        photo(tmp_path / "a" / "2.jpg", "06:02:00"),
        photo(tmp_path / "a" / "3.jpg", "06:00:50"),
        photo(tmp_path / "b" / "1.jpg", "06:00:10"),
        photo(tmp_path / "a" / "4.jpg", None),
        photo(tmp_path / "a" / "5.jpg", "06:01:50"),
    ]
    assert events_of(paths, Clock()) == [[0, 2, 5, 1], [3], [4]]
    assert events_of(paths, Clock(), gap=55) == [[0, 2], [5, 1], [3], [4]]
    assert events_of(paths, Clock(), gap=0) == [[0], [2], [5], [1], [3], [4]]


def test_each_frame_is_counted_and_read_once(tmp_path):
    paths = [photo(tmp_path / f"{n}.jpg", f"06:00:0{n}") for n in range(3)]
    deadly = photo(tmp_path / "lost.jpg", "06:00:09")
    clock = Clock()
    frames = [frame(path, [4.0, 0.0, 0.0]) for path in paths]
    crashed = empty(deadly, Why.BAD_FILE)._replace(reason=Reason(Why.BAD_FILE, CRASHED))
    events = [*Bursts(clock, answering(0.5))([*frames, crashed])]
    assert [clock.cells(Part(event.path))["time"] for event in events] == [
        "2024-05-01T06:00:00",
        "",
    ]
    assert clock.files == 4
    # A file that crashed its decoder is not opened again for its time.
    assert clock.remarks()[0].endswith(f"1 of 4, such as {deadly}")
    # One that a detector or decoder only refused is.
    assert len([*Bursts(Clock(), answering(0.5))([*frames, empty(deadly, Why.BAD_FILE)])]) == 1


def test_an_event_has_the_softmax_of_the_mean_logits():
    logits = [[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [3.0, 0.0, 1.0]]
    merged = merge_frames([frame("a", one) for one in logits], answering(0.5))
    expected = softmax(np.mean([log_softmax(one) for one in logits], axis=0))
    assert [dict(merged.top)[name] for name in CLASSES] == pytest.approx(expected.tolist())
    assert (merged.label, merged.reason) == ("fox", "")
    assert merged.probability == pytest.approx(expected[0])


def test_empty_frames_do_not_outvote_the_animal():
    fox = frame("1", [5.0, 0.0, 0.0])
    empty_frames = [frame(str(n), [0.0, 0.1, 0.0], Why.BACKGROUND) for n in range(8)]
    empty_frames += [empty("x", Why.BLANK), empty("y", Why.BAD_FILE)]
    merged = merge_frames([*empty_frames, fox], answering(0.9))
    assert (merged.label, merged.probability) == ("fox", pytest.approx(fox.probability))
    event = merge_frames(empty_frames, answering(0.9))
    assert (event.label, event.reason) == ("unknown", "background")
    assert merge_frames([empty("x", Why.BLANK)], answering(0.9)).reason == "blank"


def test_an_event_is_refused_below_its_threshold_or_if_most_frames_are_strange():
    unsure = [frame("1", [1.0, 0.5, 0.0])]
    assert merge_frames(unsure, answering(0.9)).reason == "ambiguous"
    outlier = frame("2", [6.0, 0.0, 0.0], Why.OUT_OF_DISTRIBUTION)
    usual = frame("3", [6.0, 0.0, 0.0])
    assert merge_frames([outlier, outlier, usual], answering(0.9)).reason == "out of distribution"
    assert merge_frames([outlier, usual], answering(0.9)).label == "fox"


def test_events_have_the_first_frames_path_and_their_length(tmp_path):
    paths = [photo(tmp_path / f"{n}.jpg", f"06:00:{n:02}") for n in (5, 0, 30)]
    bursts = Bursts(Clock(), answering(0.5), top=1)
    (event,) = bursts([frame(path, [3.0, 0.0, 0.0]) for path in paths])
    assert (event.path, event.part.start, event.part.end) == (paths[1], 0.0, 30.0)
    assert [one.path for one in event.windows] == [paths[1], paths[0], paths[2]]
    assert len(event.top) == 1
    assert bursts.summary().startswith("1 event of 3 files: 1 answered, 0 unknown.")


def test_a_target_accuracy_is_guaranteed_on_events(model, tmp_path):  # noqa: F811
    rng = np.random.default_rng(0)
    paths, labels, logits = [], [], []
    for event in range(200):
        label = CLASSES[event % 3]
        time = f"{6 + event // 60:02}:{event % 60:02}:"
        for second in (0, 1):
            paths.append(
                photo(tmp_path / str(event % 2) / f"{event}-{second}.jpg", f"{time}0{second}")
            )
            labels.append(label)
            logits.append(rng.normal(0, 1, 3) + 3 * np.eye(3)[event % 3])
    predictor = Predictor(model)
    features = np.zeros((len(paths), 1), np.float32)
    units = np.repeat(np.arange(200), 2)
    calibration = Outputs(np.array(logits), None, features, units)
    ours = ConfidenceSettings(target_accuracy=0.9)
    none = pd.DataFrame()
    photos = Items(none, none, "picture", "").knowing(Clock())
    fitted = fit_event_threshold(predictor.rule, CLASSES, calibration, labels, paths, ours, photos)
    scaled = predictor.rule.calibrator.scaled(np.array(logits))
    mean = softmax(log_softmax(scaled, axis=1).reshape(200, 2, 3).mean(axis=1), axis=1)
    right = mean.argmax(axis=1) == np.arange(200) % 3
    expected = threshold_for_accuracy(mean.max(axis=1), right, 0.9, groups=np.arange(200))
    assert fitted.value == pytest.approx(expected.value)
    assert fitted.accuracy_low == pytest.approx(expected.accuracy_low)
    assert fitted.accuracy_low >= 0.9
    few = Outputs(np.array(logits[:20]), None, features[:20], units[:20])
    missed = fit_event_threshold(
        predictor.rule, CLASSES, few, labels[:20], paths[:20], ours, photos
    )
    assert "10 calibration events" in missed.message
    assert missed.value == max(0.9, ours.least_probability)


def test_the_command_answers_each_event_once(model, tmp_path, capsys):  # noqa: F811
    for camera in ("a", "b"):
        for n in range(3):
            photo(
                tmp_path / "new" / camera / f"{n}.jpg", f"06:0{n // 2}:0{n}", ["red", "blue"][n % 2]
            )
    call = [model, str(tmp_path / "new"), "--events", "--gap", "30", "--threshold", "0"]
    main(call)
    shown = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(Path(row["path"]).name, row["end"]) for row in rows] == [
        ("0.jpg", "1.0"),
        ("2.jpg", "0.0"),
    ] * 2
    assert [row["time"][-8:] for row in rows] == ["06:00:00", "06:01:02"] * 2
    assert "4 events of 6 files: " in shown.err.splitlines()[-1]
    main([*call, "--format", "jsonl"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["windows"]) for line in lines] == [2, 1, 2, 1]


@pytest.mark.parametrize("flags", [["--format", "raven", "--out", "x"], ["--min-length", "1"]])
def test_what_events_of_pictures_do_not_support_is_a_wrong_call(model, tmp_path, flags):  # noqa: F811
    path = photo(tmp_path / "a.jpg", None)
    with pytest.raises(SecondhandError, match=flags[0]):
        main([model, path, "--events", "--threshold", "0", *flags])


def test_a_model_without_a_threshold_for_events_asks_for_one(model, tmp_path):  # noqa: F811
    with pytest.raises(SecondhandError, match="--threshold"):
        main([model, photo(tmp_path / "a.jpg", None), "--events"])
