"""Labelled spans of recordings: the same pixels in training, calibration and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.core.part import Part, parts_of
from datasets.items.columns import with_columns
from datasets.items.places import Spans, vary_places
from datasets.loaders.blocks import OpenSpectrogram, labelled_items
from datasets.spectrograms.pictures import PictureCache
from learners.evaluation.held_out import as_predicted
from learners.loading.predictor import load_predictor
from tests.app import sites


@pytest.fixture
def spans(tmp_path: Path) -> pd.DataFrame:
    """Three spans of a recording of 5 s, shorter than the window of 1 s, the last one at its end."""
    path = str(sites.tone(tmp_path / "a.wav", "high", "low", "high", "low", "high"))
    rows = [(path, "low", 1.2, 1.6), (path, "high", 2.3, 2.8), (path, "high", 4.7, 5.0)]
    frame = pd.DataFrame(rows, columns=["path", "label", "start", "end"])
    return with_columns(frame).assign(split="train")


def test_training_opens_what_a_prediction_opens(spans: pd.DataFrame, tmp_path: Path) -> None:
    predictor = load_predictor(sites.tones(), device="cpu")
    spectrogram = predictor.spectrogram
    assert spectrogram is not None
    varied = vary_places(spans, Spans(spans), spectrogram, overlap=0.25, exclusive=False, seed=0)
    opened = OpenSpectrogram(
        spectrogram, predictor.bundle.preprocessing, PictureCache(tmp_path / "cache"), None
    )
    for labelled in labelled_items(varied.rows):
        item, trained = labelled.part, np.asarray(opened.encodes(labelled)).transpose(2, 0, 1)
        for part in (spectrogram.shown(item), item):
            predicted = predictor.open(part)
            assert isinstance(predicted, np.ndarray)
            assert np.array_equal(trained, predicted), item
        assert trained.max(axis=(0, 1)).min() > 0  # no column without sound
    predictor.close()


def test_a_held_out_span_has_the_answer_of_its_window_in_the_recording(spans: pd.DataFrame) -> None:
    predictor = load_predictor(sites.tones(), device="cpu")
    ((_, windows),) = predictor.predict_windows([Part(spans["path"][0])])
    by_start = {w.prediction.part.start: w.logits for w in windows}
    shown = as_predicted(predictor, spans)
    for row, answer in zip(
        spans.itertuples(), predictor.predict_detailed(parts_of(shown)), strict=True
    ):
        start = answer.prediction.part.start
        assert np.allclose(by_start[start], answer.logits, atol=1e-5)
        middle = (row.start + row.end) / 2
        assert abs(start + 0.5 - middle) == min(abs(s + 0.5 - middle) for s in by_start)
    predictor.close()
