"""One renderer for every route: settings, cache and DataBlock give the same spectrogram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.torch_core import set_seed
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.core.part import parts_of
from datasets.core.store import PICTURE
from datasets.images.opening import Preprocessing, pixels
from datasets.kinds.base import KINDS
from datasets.loaders.blocks import (
    SignalAugmentation,
    SpectrogramBlock,
    dataloaders,
    labelled_items,
)
from datasets.sources import glitches, sounds
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.windows import render_rows

pytestmark = pytest.mark.slow

LOOK = Preprocessing(size=48, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), resize="squash")


def table(kind: str, folder: Path) -> pd.DataFrame:
    """Six files of two classes, two of them for validation."""
    if kind == "sound":
        rows = sounds.write_demo(folder, per_class=3, classes=sounds.CLASSES[:2], rate=16000)
    else:
        names = ("Blip_sim", "Chirp_sim")
        rows = glitches.write_demo(folder, per_class=3, classes=names, duration=16)
    frame = pd.DataFrame(rows).assign(split=["train", "train", "valid"] * 2)
    if kind == "sound":  # the window is the middle of the file; one item is a span
        frame["start"], frame["end"] = [np.nan] * 5 + [0.5], [np.nan] * 5 + [1.0]
    return frame


@pytest.fixture(params=["sound", "strain"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    frame = table(request.param, tmp_path / "data")
    spectrogram = KINDS[request.param].settings().infer(frame["path"], size=(64, 80))
    return frame, spectrogram, PictureCache(tmp_path / "cache")


def loaders(case: Any, strength: float = 0.0, **options: Any) -> Any:
    frame, spectrogram, cache = case
    block = SpectrogramBlock(spectrogram, LOOK, SignalAugmentation(strength), cache)
    classes = sorted(frame["label"].unique())
    return dataloaders(frame, block, classes, **{"bs": 4, "workers": 0, **options})


def test_all_routes_give_the_same_picture(case: Any) -> None:
    frame, spectrogram, cache = case
    dls = loaders(case)
    valid = parts_of(frame.loc[frame["split"].eq("valid")])
    for item, (opened, _) in zip(valid, dls.valid_ds, strict=True):
        picture = spectrogram.picture(item)
        stored = cache.get(item, spectrogram)
        assert np.asarray(Image.open(stored).convert("RGB")).tobytes() == picture.tobytes()
        assert np.asarray(opened).tobytes() == LOOK.fit(Image.fromarray(picture)).tobytes()
    assert len({cache.get(item, spectrogram) for item in parts_of(frame)}) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_and_test_dl_see_what_prediction_sees(case: Any, workers: int) -> None:
    frame, spectrogram, _ = case
    part = frame.loc[frame["split"].eq("valid")]
    fitted = [pixels(LOOK.fit(Image.fromarray(spectrogram.picture(i)))) for i in parts_of(part)]
    mean, std = (np.reshape(values, (1, 3, 1, 1)) for values in (LOOK.mean, LOOK.std))
    expected = torch.as_tensor((np.stack(fitted) / 255.0 - mean) / std, dtype=torch.float32)
    dls = loaders(case, strength=1.0, workers=workers)
    for loader in (dls.valid, dls.test_dl(labelled_items(part), with_labels=True)):
        batch = torch.cat([torch.Tensor(x) for x, _ in loader])
        torch.testing.assert_close(batch, expected, atol=1e-6, rtol=1e-6)


def test_training_is_varied_and_without_strength_is_not(case: Any) -> None:
    frame, spectrogram, cache = case
    repeated = pd.concat([frame.head(1)] * 8 + [frame.tail(1)])
    for strength, different in ((1.0, 6), (0.0, 1)):
        set_seed(0)
        x, _ = loaders((repeated, spectrogram, cache), strength, bs=8).train.one_batch()
        distinct = len({tuple(one.flatten().tolist()) for one in torch.Tensor(x)})
        assert distinct >= different
        assert distinct == 1 or strength


def test_rows_that_cannot_be_rendered_are_left_out(case: Any) -> None:
    frame, spectrogram, cache = case
    bad = Path(frame["path"][1])
    bad.write_bytes(b"broken")
    rendered, rejected = render_rows(frame, spectrogram, cache)
    assert rendered["path"].tolist() == [path for path in frame["path"] if path != str(bad)]
    assert [item.path for item in rejected] == [str(bad)]
    assert len(cache.store.sizes(PICTURE)) == 5
    loaders((rendered, spectrogram, cache)).train.one_batch()
    assert len(cache.store.sizes(PICTURE)) == 5  # all were there


def test_spectrograms_are_not_cropped(case: Any) -> None:
    _, spectrogram, cache = case
    with pytest.raises(SecondhandError, match="resize 'squash'"):
        SpectrogramBlock(spectrogram, Preprocessing(size=48), SignalAugmentation(), cache)
