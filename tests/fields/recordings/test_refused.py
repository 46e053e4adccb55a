"""Which windows of held-out recordings a model refuses, by recording."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from datasets.items.columns import with_columns
from datasets.items.items import Items
from fields.recordings import refused
from fields.recordings.refused import with_refusals
from learners.evaluation.held_out import Evaluation
from learners.loading.predictor import load_predictor
from learners.rule.refused import Usual
from tests.app import sites


def test_windows_of_held_out_recordings_by_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = (("high", "low", "low", "high"), ("high", *["silence"] * 5), ("low", "low"))
    paths = [str(sites.tone(tmp_path / f"{n}.wav", *names)) for n, names in enumerate(sounds)]
    rows = [(path, "low", 0.2, 0.8) for path in paths]
    frame = with_columns(pd.DataFrame(rows, columns=["path", "label", "start", "end"]))
    frame = frame.assign(split=["calibration", "calibration", "train"])
    empty = Evaluation(pd.DataFrame(), None, None)
    items = Items(frame, frame.iloc[:0], "sound", "")
    predictor = load_predictor(sites.tones(), device="cpu", threshold=0.5)
    usual = Usual.read(with_refusals(empty, predictor, items, {}).metrics)
    assert usual is not None
    judged = [len([*predictor.spectrogram.spans(path)]) for path in paths]
    # Silence is neither answered nor refused.
    assert usual.unit == "window"
    assert sum(n * times for _, n, times in usual.groups) < judged[0] + judged[1]
    assert sum(times for *_, times in usual.groups) == 2
    assert sum(k * times for k, _, times in usual.groups) == 0
    strict = load_predictor(sites.tones(), device="cpu", threshold=1.0)
    all_refused = Usual.read(
        with_refusals(empty, predictor, items, dict.fromkeys(paths, strict)).metrics
    )
    assert all_refused is not None
    assert all_refused.shares.value == 1
    monkeypatch.setattr(refused, "MOST_OF_ONE", 2)
    few = Usual.read(with_refusals(empty, predictor, items, {}).metrics)
    assert few is not None
    assert max(n for _, n, _ in few.groups) == 2
    trained = Items(frame.assign(split="train"), frame.iloc[:0], "sound", "")
    assert with_refusals(empty, predictor, trained, {}).metrics == {}
    predictor.close()
    strict.close()
