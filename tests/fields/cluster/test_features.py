"""A head that is fitted to a cluster's features is that of one machine, whatever happens to the workers."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastai.torch_core import set_seed

from datasets.core.errors import Rejected, SecondhandError
from datasets.core.processes import CRASHED
from datasets.images.opening import Preprocessing
from datasets.items.settings import SETTINGS
from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
from datasets.steps.reading import load_table
from fields.cluster.client import connect
from fields.cluster.elsewhere import OnCluster
from fields.cluster.features import batches_on
from learners.backbones.building import NetworkSpec, build
from learners.cli.settings import Settings
from learners.finetune import main
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import WEIGHTS
from learners.training.callbacks import mixed_precision
from learners.training.features import frozen_features, outputs, split_network
from learners.training.learner import make_learner
from tests import forks
from tests.fields.cluster.clusters import here, kill_when, scheduler_and_workers
from tests.pictures import write_pictures

__all__ = ["here"]  # a fixture

pytestmark = pytest.mark.slow

pytest.importorskip("distributed", reason="pip install 'secondhand[cluster]'")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, as workers do: with two, sums differ in the last bits."""
    with keep_thread_count(1):
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("photos"), per_class=15)


def learner(photos: Path, folder: Path, precision: str = "fp32", bs: int = 4) -> Any:
    """A learner of a body with random weights; its files are opened as for prediction."""
    frame = load_table(str(photos), check=False).frame
    frame = frame.assign(split=["train", "train", "valid"] * (len(frame) // 3))
    preprocessing = Preprocessing(size=32)
    set_seed(0)
    network, _, _ = build(NetworkSpec("resnet18", 3, 32, head="linear"), pretrained=False)
    block = PictureBlock(preprocessing, Augmentation())
    dls = dataloaders(frame, block, ["blue", "green", "red"], bs=bs, workers=0, path=str(folder))
    cbs = mixed_precision(precision, "cpu")
    return make_learner(dls, network, preprocessing, Settings().train, cbs=cbs)


def as_validated(learn: Any) -> Any:
    """The training files in their order, opened as for prediction; for the length of a `with` block."""
    return learn.dls.train_ds.set_split_idx(1)


def in_order(learn: Any) -> Any:
    return learn.dls.train.new(shuffle=False, drop_last=False)


def rows_of(outputs: Any) -> np.ndarray:
    return outputs.x.read(np.arange(len(outputs.x)))


@pytest.fixture
def on_cluster(here: Any, monkeypatch: pytest.MonkeyPatch) -> OnCluster:
    monkeypatch.setattr("fields.cluster.client.connect", lambda *_, **__: nullcontext(here))
    return OnCluster(Settings().but(cluster="tcp://here:1"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_features_are_those_of_one_machine_to_the_last_digit(
    photos: Path, tmp_path: Path, on_cluster: OnCluster, precision: str
) -> None:
    (ours,), valid = frozen_features(learner(photos, tmp_path, precision))
    (theirs,), their_valid = frozen_features(
        learner(photos, tmp_path, precision), elsewhere=on_cluster
    )
    assert [*theirs.numbers] == [*ours.numbers] != sorted(ours.numbers)
    assert torch.equal(theirs.y, ours.y)
    assert torch.equal(their_valid.y, valid.y)
    assert theirs.y.dtype == ours.y.dtype
    np.testing.assert_array_equal(rows_of(theirs), rows_of(ours))
    np.testing.assert_array_equal(rows_of(their_valid), rows_of(valid))
    assert not on_cluster.left_out


def test_a_file_that_fails_there_is_a_row_with_its_reason(
    photos: Path, tmp_path: Path, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is broken after it was checked, and one kills the workers that open it."""
    learn = learner(write_pictures(tmp_path / "p", per_class=15), tmp_path)
    items = learn.dls.train_ds.items
    broken, deadly = items[3].part.path, items[5].part.path
    body, _ = split_network(learn.model.eval())
    with as_validated(learn):
        whole = rows_of(outputs(body, in_order(learn), tmp_path))
    Path(broken).write_text("no picture")

    def some_die(task: Callable[..., Any], chunks: Any, crashed: None, **how: Any) -> Any:
        for place, rows in here.map_chunks(task, chunks, crashed, **how):
            paths = [item.part.path for item in chunks[place]]
            yield (
                place,
                [None if path == deadly else row for path, row in zip(paths, rows, strict=True)],
            )

    cluster: Any = SimpleNamespace(map_chunks=some_die, send=here.send)
    left_out: list[Rejected] = []
    loader = in_order(learn)
    with as_validated(learn):
        batches = [*batches_on(cluster, body, loader, None, left_out=left_out)]
    assert dict(left_out).keys() == {broken, deadly}
    assert dict(left_out)[deadly] == CRASHED
    assert "not a picture" in dict(left_out)[broken]
    kept = [n for n in range(len(items)) if n not in (3, 5)]
    assert [*loader.order] == kept
    x, y = (np.concatenate([*part]) for part in zip(*batches, strict=True))
    np.testing.assert_allclose(x, whole[kept], rtol=1e-4, atol=1e-5)
    assert [learn.dls.vocab[n] for n in y] == [items[n].label for n in kept]


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """Fork a local cluster's workers from the tests' server: each new interpreter imports torch for 5 s."""
    import dask

    forks.context()
    settings = {"worker.multiprocessing-method": "forkserver", "nanny.environ": {**os.environ}}
    with dask.config.set({f"distributed.{name}": value for name, value in settings.items()}):
        yield


def test_a_run_on_two_local_workers_has_the_weights_of_one_machine(
    tmp_path: Path, unreported: None, forked_workers: None
) -> None:
    """A file that cannot be read there is listed with its reason, and measures nothing."""
    photos = write_pictures(tmp_path / "photos", per_class=20)
    (photos / "red/cut.jpg").write_bytes((photos / "red/red_000.jpg").read_bytes()[:300])
    call = ["--data", str(photos), "--size", "32", "--epochs", "0", "--threads", "1"]
    for name, words in {
        "one": ["--workers", "0"],
        "two": ["--workers", "2", "--cluster", "local"],
    }.items():
        cache = ["--cache-dir", str(tmp_path / f"cache-{name}")]
        assert main([*call, *words, *cache, "--out", str(tmp_path / name)]) == 0
    files = [tmp_path / name / "model" / WEIGHTS for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    rejected = [(tmp_path / name / "rejected.csv").read_text() for name in ("one", "two")]
    assert rejected[0] == rejected[1]
    assert [Path(row["path"]).name for row in csv.DictReader(rejected[1].splitlines())] == [
        "cut.jpg"
    ]
    report = [(tmp_path / name / "predictions.csv").read_text() for name in ("one", "two")]
    assert report[0] == report[1]


def test_a_killed_worker_changes_nothing(photos: Path, tmp_path: Path) -> None:
    learn = learner(photos, tmp_path, bs=1)
    body, _ = split_network(learn.model.eval())
    left_out: list[Rejected] = []
    rows: list[np.ndarray] = []
    with (
        as_validated(learn),
        scheduler_and_workers(tmp_path) as (address, workers),
        connect(address) as cluster,
        kill_when(lambda: len(rows) > 3, workers[0]) as killer,
    ):
        expected = rows_of(outputs(body, in_order(learn), tmp_path))
        for x, _ in batches_on(cluster, body, in_order(learn), None, left_out=left_out):
            rows += [*x]
            if len(rows) > 3:
                killer.join(60)  # later batches wait for it
    np.testing.assert_array_equal(np.stack(rows), expected)
    assert not left_out


@pytest.mark.parametrize(
    ("asked", "flag"),
    [
        ({"freeze_epochs": 2}, "--freeze-epochs 2"),
        ({"weights": "none"}, "--weights none"),
        ({"head": "cosine"}, "--head cosine"),
    ],
)
def test_a_head_that_is_trained_by_steps_is_refused(asked: dict[str, Any], flag: str) -> None:
    with pytest.raises(SecondhandError, match=f"--cluster local with {flag} .*features"):
        Settings().but(cluster="local", **asked).check()
    Settings().but(**asked).check()
    Settings().but(cluster="local").check()


def test_the_cluster_may_change_when_a_run_is_resumed() -> None:
    assert "cluster" in Settings().free
    assert SETTINGS["cluster"].opens == ("cluster",)
