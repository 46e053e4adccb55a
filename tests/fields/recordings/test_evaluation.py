"""Long recordings with a table of events: figures, and false alarms as background."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.sources.base import ReadOptions
from datasets.steps.unknown import load_unknown
from learners.evaluate import main
from learners.model.bundle import save_bundle
from learners.rule.fitting import uncalibrated
from tests.app import sites
from tests.left_out import of_field


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two tones, two recordings with an unlisted event, and a table of events."""
    folder = tmp_path_factory.mktemp("world")
    save_bundle(sites.tones(), folder / "model")
    (folder / "hours").mkdir()
    tones = [name for name in ("high", "low", "high") for _ in range(3)]
    sites.tone(folder / "hours" / "a.wav", *tones)
    (folder / "quiet").mkdir()
    sites.tone(folder / "quiet" / "b.wav", "low", "low")
    rows = ["path,label,start,end", "a.wav,high,0,2.5", "a.wav,low,3.5,5.5", "a.wav,high,4.2,4.6"]
    (folder / "hours" / "events.csv").write_text("\n".join(rows))
    return folder


def test_events_are_counted_in_whole_recordings(world, tmp_path, capsys):
    table, out = world / "hours" / "events.csv", tmp_path / "report"
    call = [str(world / "model"), "--data", str(table), "--events", "--threshold", "0.5"]
    assert main([*call, "--unknown", str(world / "quiet"), "--out", str(out)]) == 0
    output = capsys.readouterr().out
    # The third row is wrong. The second high tone of a.wav and the tone of b.wav are unlisted.
    assert "Found 2 of 3 events in 0.0031 hours.\n" in output
    assert "2 of 4 predicted events are right" in output
    assert "False alarms: 2 in 0.0031 hours, 650 an hour (no limits: 2 recordings" in output
    assert "4 predicted events:" in output.splitlines()[-1]
    report = json.loads((out / "report.json").read_text())
    assert report["verdict"]["colour"] == "amber"
    assert "2 of 3 events" in report["verdict"]["message"]
    assert report["hours"] == pytest.approx(11 / 3600)
    assert report["false_alarms_per_hour"] == pytest.approx(2 * 3600 / 11)
    by_class = {row["class"]: row for row in report["classes"]}
    assert (by_class["high"]["found"], by_class["high"]["events"]) == (1, 2)
    assert by_class["low"]["precision"] == pytest.approx(0.5)
    events = pd.read_csv(out / "predictions.csv")
    assert events["right"].tolist() == [True, True, False, False]
    assert (out / "index.html").read_text().count("<svg") == 2


@pytest.mark.parametrize("model", ["exclusive", "multi-label"])
def test_two_classes_of_one_span_are_two_events(world, tmp_path, capsys, model):
    """Segments of 3 s, with one row for each class, as soundscapes are labelled; with several labels also in one row."""
    folder = tmp_path / "m"
    bundle = sites.tones()
    if model == "multi-label":
        bundle = replace(bundle, rule=uncalibrated(2, multi_label=True))
    save_bundle(bundle, folder)
    rows = ["0,3,high", "0,3,low", "3,6,low", "6,9,high|low", "6,9,whale"]
    lines = ["path,start,end,label", *(f"{world}/hours/a.wav,{row}" for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    call = [str(folder), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "r")]
    assert main([*call, "--events", "--threshold", "0.5"]) == 0
    output = capsys.readouterr().out
    # High at 0 and at 6 s, and low from 0 to 9 s: each is found.
    assert "Found 3 of 3 events in 0.0025 hours, made of 5 labelled spans." in output
    assert "3 of 3 predicted events are right" in output
    assert not (tmp_path / "r" / "rejected.csv").read_text().splitlines()[1:]


def test_calls_that_one_event_lasts_over_are_counted_in_both_ways(world, tmp_path, capsys):
    """The recording has high tones from 0 to 3 and 6 to 9 s; the event of the first overlaps three calls."""
    rows = ["0.1,0.5,high", "1.1,1.5,high", "2.1,2.5,high", "3.1,3.5,low"]
    lines = ["path,start,end,label", *(f"{world}/hours/a.wav,{row}" for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    call = [str(world / "model"), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "r")]
    assert main([*call, "--events", "--threshold", "0.5"]) == 0
    output = capsys.readouterr().out
    assert (
        "Found 2 of 4 events in 0.0025 hours; 4 overlap a predicted event of their class," in output
    )
    report = json.loads((tmp_path / "r/report.json").read_text())
    assert (report["found"], report["touched"], report["repeated"]) == (2, 4, 0)
    page = (tmp_path / "r/index.html").read_text()
    assert "4 overlap a predicted event of their class" in page
    assert page.count("<th>overlapped</th>") == 2


def test_an_event_behind_the_end_of_its_recording_is_listed(world, tmp_path, capsys):
    """The recording lasts 9 s."""
    rows = ["0,3,high", "3,6,low", "8,12,high", "9,10,low", "20,22,low"]
    lines = ["path,start,end,label", *(f"{world}/hours/a.wav,{row}" for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    call = [str(world / "model"), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "r")]
    assert main([*call, "--events", "--threshold", "0.5"]) == 3
    assert "Found 3 of 3 events" in capsys.readouterr().out
    reasons = pd.read_csv(tmp_path / "r" / "rejected.csv")["reason"].tolist()
    assert reasons == [
        f"{second} s is outside the recording, which lasts 9 s" for second in (9, 20)
    ]


def test_a_span_of_two_classes_contradicts_itself_where_an_item_has_one(world, tmp_path):
    rows = ["0,3,high", "0,3,low", "3,6,low"]
    lines = ["path,start,end,label", *(f"{world}/hours/a.wav,{row}" for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    call = [str(world / "model"), "--data", str(tmp_path / "t.csv")]
    assert main([*call, "--out", str(tmp_path / "r")]) == 3
    assert len(pd.read_csv(tmp_path / "r" / "predictions.csv")) == 1
    reasons = pd.read_csv(tmp_path / "r" / "rejected.csv")["reason"]
    assert len(reasons) == 2
    assert reasons.str.contains("'high' and 'low'").all()
    (tmp_path / "t.csv").write_text("\n".join(lines[:3]))
    with pytest.raises(
        SecondhandError,
        match=r"t\.csv: no file of kind sound in it can be used\. .*'high' and 'low'",
    ):
        main(
            [str(world / "model"), "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "r2")]
        )


def test_calls_that_make_no_sense(world, tmp_path):
    call = [
        str(world / "model"),
        "--data",
        str(world / "hours" / "events.csv"),
        "--out",
        str(tmp_path / "r"),
    ]
    for words, message in (
        (["--gap", "1"], "--gap 1 without --events"),
        (["--events", "--no-labels"], "--events with --no-labels"),
        (["--events", "--gap", "-1"], "--gap -1.0"),
    ):
        with pytest.raises(SecondhandError, match=message):
            main([*call, *words])
    save_bundle(sites.colours(), tmp_path / "colours")
    with pytest.raises(SecondhandError, match=r"--events: .*model of sounds"):
        main([str(tmp_path / "colours"), *call[1:], "--events"])


def test_the_surest_answers_become_background(world, tmp_path, capsys):
    suggest = of_field("fields.loop.suggest").main
    out = tmp_path / "noise.csv"
    call = [str(world / "model"), str(world / "hours"), str(world / "quiet"), "--mine"]
    assert suggest([*call, "--n", "3", "--out", str(out)]) == 0
    assert "Likely false alarms: 3 of " in capsys.readouterr().out
    rows = list(csv.DictReader(out.open()))
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert "label" not in rows[0]
    assert all(row["why"].startswith(row["guess"]) for row in rows)
    known = pd.DataFrame({"path": [], "label": [], "start": [], "end": [], "gps": []})
    frame, rejected, _ = load_unknown(out, ReadOptions(kind="sound"), known, flag="--background")
    assert not rejected
    assert sorted(frame["start"]) == sorted(float(row["start"]) for row in rows)
