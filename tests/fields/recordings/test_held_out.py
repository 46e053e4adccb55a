"""Events in the held-out recordings of a run: which are found, and which windows count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from datasets.items.columns import with_columns
from datasets.items.facts import Labelled
from datasets.items.items import Items
from fields.recordings.held_out import held_out_events
from fields.recordings.report import held_out_sentences
from learners.loading.predictor import load_predictor
from tests.app import sites


@pytest.mark.parametrize("complete", ["1", ""])
def test_events_of_held_out_recordings(
    tmp_path: Path, complete: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for number in range(3):
        path = str(sites.tone(tmp_path / f"{number}.wav", "high", "low", "low", "high", "high"))
        rows += [
            (path, "low", 1.2, 2.8),
            (path, "high", 0.2, 0.6),
        ]  # the tones from 3 s on are labelled in the last recording alone, by a span that is no item
    frame = with_columns(pd.DataFrame(rows, columns=["path", "label", "start", "end"]))
    frame = frame.assign(split="calibration", complete=complete)
    both = pd.DataFrame([(path, name, 3.0, 5.0) for name in ("high", "low", "unknown")])
    spans = pd.concat([frame, both.set_axis(["path", "label", "start", "end"], axis=1)])
    predictor = load_predictor(sites.tones(), device="cpu", top=9, threshold=0.5)
    labelled = Labelled(spans[["path", "label", "start", "end"]])
    of_spans = Items(frame, frame.iloc[:0], "sound", "").knowing(labelled)
    facts = held_out_events(predictor, of_spans)
    assert facts is not None
    assert (facts["recordings"], facts["events"], facts["found"]) == (3, 8, 7)
    assert facts["recordings_left_out"] == 0
    if complete:
        assert facts["false_alarms"] == 2
        assert facts["false_alarms_per_hour"] == pytest.approx(2 * 3600 / 15)
    else:
        assert facts["false_alarms"] is None
    monkeypatch.setattr("fields.recordings.held_out.MOST_WINDOWS", 3)
    facts = held_out_events(predictor, of_spans)
    assert facts is not None
    assert (facts["recordings"], facts["recordings_left_out"]) == (1, 2)
    assert "1 held-out recording, not in 2 more" in held_out_sentences(facts)
    assert "overlap" not in held_out_sentences(facts)
    trained = replace(of_spans, frame=frame.assign(split="train"))
    assert held_out_events(predictor, trained) is None
    predictor.close()


def test_only_the_held_out_part_of_a_divided_recording_is_judged(tmp_path: Path) -> None:
    """Calls of the training part are no false alarms, and its seconds are not heard."""
    names = ["high", "low", "high", "low", "low", "high", "low", "high"]
    heard = [word for name in names for word in (name, "silence", "silence")]
    rows = []
    for number in range(3):
        path = str(sites.tone(tmp_path / f"{number}.wav", *heard))
        rows += [
            (path, name, 3.0 * n + 0.2, 3.0 * n + 0.8, "train" if n < 4 else "test")
            for n, name in enumerate(names)
            if (number, n) not in ((0, 1), (0, 6))  # two calls that nobody has labelled
        ]
    frame = pd.DataFrame(rows, columns=["path", "label", "start", "end", "split"])
    frame = with_columns(frame.drop(columns="split")).assign(split=frame["split"], complete="1")
    labelled = Labelled(frame[["path", "label", "start", "end"]])
    items = Items(frame, frame.iloc[:0], "sound", "").knowing(labelled)
    predictor = load_predictor(
        replace(sites.tones(), overlap=0.0), device="cpu", top=9, threshold=0.5
    )
    facts = held_out_events(predictor, items)
    assert facts is not None
    assert (facts["recordings"], facts["events"], facts["found"]) == (3, 11, 11)
    assert facts["false_alarms"] == 1  # the one in the test part
    # The border is in the middle between 9.8 and 12.2 s.
    assert 3600 * facts["hours"] == pytest.approx(3 * (24 - 11))
    assert facts["false_alarms_per_hour"] == pytest.approx(1 / facts["hours"])
    predictor.close()


def test_events_that_several_calls_or_answers_share_are_counted_in_both_ways(
    tmp_path: Path,
) -> None:
    """An answer that lasts over three calls finds one of them; two answers at one call are one hit."""
    path = str(
        sites.tone(tmp_path / "a.wav", *["high"] * 3, *["silence"] * 2, "low", "silence", "low")
    )
    spans = [("high", 0.1, 0.5), ("high", 1.1, 1.5), ("high", 2.1, 2.5), ("low", 5.0, 8.0)]
    rows = [(path, *span) for span in spans]
    frame = with_columns(pd.DataFrame(rows, columns=["path", "label", "start", "end"]))
    frame = frame.assign(split="test", complete="1")
    labelled = Labelled(frame[["path", "label", "start", "end"]])
    items = Items(frame, frame.iloc[:0], "sound", "").knowing(labelled)
    predictor = load_predictor(
        replace(sites.tones(), overlap=0.0), device="cpu", top=9, threshold=0.5
    )
    facts = held_out_events(predictor, items)
    assert facts is not None
    assert (facts["events"], facts["found"], facts["touched"]) == (4, 2, 4)
    assert (facts["false_alarms"], facts["repeated"]) == (1, 1)
    text = held_out_sentences(facts)
    assert "2 of 4 events found" in text
    assert "; 4 overlap a predicted event" in text
    assert "False alarms: 1 (1 of them on events that another predicted event finds) in" in text
    predictor.close()
