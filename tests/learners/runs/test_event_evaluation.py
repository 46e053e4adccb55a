"""Long recordings with a table of events: figures, and false alarms as background."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items import load_unknown
from learners.evaluate import main
from learners.model import save_bundle
from learners.suggest import main as suggest
from tests.app import sites


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
    assert "Found 2 of 3 events" in output
    assert "2 of 4 predicted events are right" in output
    # 2 in 11 s is 650 an hour; the exact limits of a count of 2 are 0.242 and 7.22.
    assert "False alarms: 2 in 0.0031 hours, 650 an hour (95 % limits 79 to 2400)." in output
    report = json.loads((out / "report.json").read_text())
    assert report["hours"] == pytest.approx(11 / 3600)
    assert report["false_alarms_per_hour"] == pytest.approx(2 * 3600 / 11)
    by_class = {row["class"]: row for row in report["classes"]}
    assert (by_class["high"]["found"], by_class["high"]["events"]) == (1, 2)
    assert by_class["low"]["precision"] == pytest.approx(0.5)
    events = pd.read_csv(out / "predictions.csv")
    assert events["right"].tolist() == [True, True, False, False]
    assert (out / "index.html").read_text().count("<svg") == 2


def test_calls_that_make_no_sense(world, tmp_path):
    call = [
        str(world / "model"),
        "--data",
        str(world / "hours" / "events.csv"),
        "--out",
        str(tmp_path / "r"),
    ]
    for words, message in (
        (["--gap", "1"], "--gap needs --events"),
        (["--events", "--no-labels"], "--events needs labels"),
        (["--events", "--gap", "-1"], "--gap -1: expected seconds"),
    ):
        with pytest.raises(SecondhandError, match=message):
            main([*call, *words])
    save_bundle(sites.colours(), tmp_path / "colours")
    with pytest.raises(SecondhandError, match=r"--events: .*model of sounds"):
        main([str(tmp_path / "colours"), *call[1:], "--events"])


def test_the_surest_answers_become_background(world, tmp_path, capsys):
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
    frame, rejected = load_unknown(out, "sound", known, flag="--background")
    assert not rejected
    assert sorted(frame["start"]) == sorted(float(row["start"]) for row in rows)
