"""Windows of recordings that are divided between splits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.settings import MelSettings
from datasets.items.places import Spans, rest_of_recordings


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_background_is_of_the_split_of_the_nearest_call(overlap, tmp_path):
    path = str(tmp_path / "a.wav")
    soundfile.write(path, 0.01 * np.random.default_rng(0).normal(size=60 * 2000), 2000)
    frame = pd.DataFrame([
        {"path": path, "label": "a", "start": 10.0 * k + 4, "end": 10.0 * k + 5, "split": "train" if k < 3 else "test"}
        for k in range(6)
    ])  # fmt: skip
    rest = rest_of_recordings(
        frame, Spans(frame), MelSettings(rate=2000, window=2.0),
        overlap=overlap, most={"train": 99, "test": 99}, seed=0,
    )  # fmt: skip
    trained, held = (rest.loc[rest["split"].eq(split)] for split in ("train", "test"))
    assert len(trained) > 8
    assert len(held) > 8
    assert trained["end"].max() <= held["start"].min()
    assert 27 < trained["end"].max() <= 31
