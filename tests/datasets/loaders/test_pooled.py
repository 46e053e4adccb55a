"""Batches that are opened by workers which are there for all passes."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.core import DataLoaders
from PIL import Image

from datasets.core import file_state, processes
from datasets.core.errors import SecondhandError
from datasets.core.processes import CRASHED, kept_pools
from datasets.images.decoded import DecodedPictures
from datasets.images.opening import Preprocessing
from datasets.loaders import seeded
from datasets.loaders.blocks import (
    Augmentation,
    PictureBlock,
    Target,
    class_target,
    dataloaders,
    label_targets,
)
from tests.forks import crash

pytestmark = [
    pytest.mark.forks,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]

CLASSES = ["cat", "dog"]
LOOK = Preprocessing(size=24, mean=(0.5,) * 3, std=(0.5,) * 3)
TARGETS = {"one": class_target(CLASSES), "several": label_targets(CLASSES)}


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Twenty-two pictures to train on, and five to validate with."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    rows = []
    for number in range(27):
        path = folder / f"{number:02}.png"
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
        split = "train" if number < 22 else "valid"
        rows.append({"path": str(path), "label": CLASSES[number % 2], "split": split})
    return pd.DataFrame(rows)


@pytest.fixture(autouse=True)
def pools() -> Iterator[None]:
    with kept_pools():
        yield


def loaders(
    frame: pd.DataFrame,
    workers: int,
    target: Target | None = None,
    store: DecodedPictures | None = None,
) -> DataLoaders:
    block = PictureBlock(LOOK, Augmentation(), store)
    return dataloaders(frame, block, CLASSES, target=target, bs=4, workers=workers)


def passes(dls: DataLoaders) -> list[list[Any]]:
    """Two epochs, the training files in their order, and the validation."""
    found = []
    for seed in (1, 2):
        dls.train.begin(seed)
        found.append([*dls.train])
    whole = dls.train.new(shuffle=False, drop_last=False)
    whole.seed = dls.valid.seed = 3
    with dls.train.dataset.set_split_idx(1):
        found.append([*whole])
    return [*found, [*dls.valid]]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_batches_do_not_depend_on_who_opens_them(frame: pd.DataFrame, target: Target) -> None:
    expected, state = passes(loaders(frame, 0, target)), torch.get_rng_state()
    assert [len(batches) for batches in expected] == [5, 5, 6, 1]
    for workers in (1, 2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        found = passes(loaders(frame, workers, target))
        drawn = torch.get_rng_state()
        torch.set_rng_state(before)
        passes(loaders(frame, 0, target))
        assert torch.equal(drawn, torch.get_rng_state())
        for batches, others in zip(expected, found, strict=True):
            for batch, other in zip(batches, others, strict=True):
                assert [type(part) for part in batch] == [type(part) for part in other]
                assert all(torch.equal(*pair) for pair in zip(batch, other, strict=True))
    torch.set_rng_state(state)


def test_a_pass_uses_the_processes_of_the_one_before(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, pool = [], processes._pool

    def counted(*arguments: Any) -> Any:
        started.append(arguments)
        return pool(*arguments)

    monkeypatch.setattr(processes, "_pool", counted)
    dls = loaders(frame, 2)
    passes(dls)
    dls.train.begin(4)
    batches = iter(dls.train)
    next(batches)
    batches.close()  # as after Ctrl-C
    passes(dls)
    assert len(started) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_read_makes_a_smaller_batch(
    frame: pd.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    caplog.set_level(logging.WARNING)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    frame = frame.copy()
    frame.loc[25, "path"] = str(bad)
    dls = loaders(frame, workers)
    dls.valid.seed = 0
    whole = dls.valid.new(bs=2)
    whole.seed = 0
    assert [len(y) for _, y in whole] == [2, 1, 1]
    assert f"{bad}: left out of this epoch, " in caplog.text


def deadly(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let these items end the process that opens them."""
    real = seeded.Opening.open

    def opened(self: seeded.Opening, number: int, item: Any) -> Any:
        if number in numbers:
            crash()
        return real(self, number, item)

    monkeypatch.setattr(seeded.Opening, "open", opened)


def test_a_file_that_ends_its_process_is_left_out_and_said(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    dls = loaders(frame, 0)
    dls.train.begin(1)
    expected = {number: len(batch[1]) for number, batch in enumerate(dls.train)}
    at = dls.train.order.index(7) // 4
    expected[at] -= 1
    deadly(monkeypatch, 7)
    dls = loaders(frame, 2)
    dls.train.begin(1)
    assert {number: len(batch[1]) for number, batch in enumerate(dls.train)} == expected
    assert f"{frame['path'][7]}: left out of this epoch, {CRASHED}" in caplog.text
    caplog.clear()
    dls.train.begin(1)
    assert sum(len(y) for _, y in dls.train) == 19
    assert not caplog.text, "it is not tried again"


def test_where_each_file_ends_its_process_none_is_to_blame(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly(monkeypatch, *range(27))
    dls = loaders(frame, 1)
    dls.train.begin(1)
    with pytest.raises(SecondhandError, match=r"process that opens files died.*--workers 0"):
        next(iter(dls.train))


def test_what_has_changed_reaches_the_workers(frame: pd.DataFrame) -> None:
    dls = loaders(frame, 1)
    first = passes(dls)
    dls.train.after_item.fs[0].p = 1.0  # each picture is mirrored
    alone = loaders(frame, 0)
    alone.train.after_item.fs[0].p = 1.0
    changed, expected = passes(dls), passes(alone)
    assert torch.equal(changed[0][0][0], expected[0][0][0])
    assert not torch.equal(changed[0][0][0], first[0][0][0])


def test_workers_count_what_they_store_together(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_state, "SETTLED", 0.0)  # the pictures are new
    limit = 10 * (64 + 3 * 40 * 30)
    store = DecodedPictures(tmp_path / "cache", max_bytes=limit, expected=2 * limit)
    assert not store.fits
    dls = loaders(frame, 2, store=store)
    passes(dls)
    kept = sum(store.store.sizes())
    assert limit // 2 < kept <= limit + 2 * (64 + 3 * 40 * 30), "two at once may be one too many"
    assert store.bytes >= kept - 2 * (64 + 3 * 40 * 30)


def test_a_thread_asks_for_the_next_batch_meanwhile(frame: pd.DataFrame) -> None:
    """As for a GPU."""
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(4):
            asked.append(number)
            yield number
        raise SecondhandError("the end")

    ahead = seeded.one_ahead(numbers())
    assert next(ahead) == 0
    assert next(ahead) == 1
    with pytest.raises(SecondhandError, match="the end"):
        list(ahead)
    assert asked == [0, 1, 2, 3]
    dls = loaders(frame, 2)
    dls.valid.seed = 0
    batches = [[0, 1, 2], [3, 4]]
    dls.valid.before_iter()
    found = [*seeded.one_ahead(dls.valid._opened(batches))]
    for (x, y), (other, target) in zip(found, dls.valid._opened(batches), strict=True):
        assert torch.equal(x, other)
        assert torch.equal(y, target)


def test_who_stops_early_does_not_close_what_a_thread_is_asking() -> None:
    began = threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        began.set()
        time.sleep(0.05)
        yield 1

    with closing(numbers()) as inner, closing(seeded.one_ahead(inner)) as ahead:
        assert next(ahead) == 0
        assert began.wait(10)
