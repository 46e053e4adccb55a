"""Several processes train as one would: the same batches, figures and files."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
from fastai.data.core import TfmdDL
from safetensors.torch import save_file

from datasets.core.errors import SecondhandError
from datasets.loaders.seeded import Repeatable
from learners import distributed
from learners.finetune import main
from tests.forks import Program, until
from tests.pictures import write_pictures

#: Settings under which two processes compute what one does, up to rounding: no BatchNorm, whose
#: statistics are per process on CPUs, and no dropout.
QUICK = ["--backbone", "test_vit", "--weights", "none", "--size", "64", "--dropout", "0", "--bs", "8",
         "--workers", "0", "--precision", "fp32"]  # fmt: skip

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
          "--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no",
          "--main_process_port", "0", "-m", "learners.finetune"]  # fmt: skip

#: Several processes import torch, each for minutes on two cores.
LONG = pytest.mark.long("minutes: the same without a launcher is tried")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def set_rank(monkeypatch: pytest.MonkeyPatch, number: int, of: int) -> None:
    """Make this process one of a launch."""
    variables = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": of, "MASTER_ADDR": "127.0.0.1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


class Numbers(Repeatable, TfmdDL):
    pass


def loader(n: int, bs: int, bad: tuple[int, ...] = ()) -> TfmdDL:
    """Return a training loader of numbers, some of which cannot be read."""
    dl = Numbers(list(range(n)), bs=bs, shuffle=True, drop_last=True, num_workers=0)
    dl.do_item = lambda number: None if number in bad else torch.tensor(number)
    dl.rng = random.Random(5)
    return dl


def batches(loader: TfmdDL, rank: int = 0, count: int = 1) -> list[list[int]]:
    """Return the items of a process's part of each batch."""
    loader.part = (rank, count)
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("n", [47, 48, 12])
def test_the_parts_of_a_batch_make_up_the_batch_that_one_process_has(n):
    expected = [batch.tolist() for batch in loader(n, 12)]
    parts = [batches(loader(n, 12), rank, 3) for rank in range(3)]
    assert [[*chain(*pieces)] for pieces in zip(*parts, strict=True)] == expected


def test_a_process_has_as_many_batches_where_a_file_cannot_be_read():
    """The other processes would wait for it, even if the first items of its part are lost."""
    order = [number for batch in batches(loader(24, 8)) for number in batch]
    for bad in [(order[0],), tuple(order[:5]), (order[-1], order[9])]:
        part = batches(loader(24, 8, bad), 0, 2)
        assert [len(batch) for batch in part] == [4, 4, 4]
        assert not set(bad) & set(chain(*part))


def test_alone_there_is_one_process_and_it_is_the_first(monkeypatch):
    assert (distributed.count(), distributed.rank(), distributed.is_first()) == (1, 0, True)
    assert distributed.first_process_value(lambda: 3) == 3
    assert distributed.device("cuda:7") == "cuda:7"
    distributed.check_batch(1)
    monkeypatch.setenv("WORLD_SIZE", "4")  # set by a cluster, without a launch
    assert distributed.count() == 1


def test_of_several_each_knows_its_place(monkeypatch):
    set_rank(monkeypatch, 2, 3)
    assert (distributed.count(), distributed.rank(), distributed.is_first()) == (3, 2, False)
    assert distributed.device("cpu") == "cpu"
    distributed.check_batch(12)
    with pytest.raises(SecondhandError, match=r"--bs 16 .*--bs 18"):
        distributed.check_batch(16)
    with pytest.raises(SecondhandError, match=r"--bs 3 .*--bs 6"):
        distributed.check_batch(3)
    with pytest.raises(SecondhandError, match="--device cuda:1"):
        distributed.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SecondhandError, match=r"process 3 .*2"):
        distributed.device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert distributed.device("auto") == "cuda:2"
    with pytest.raises(SecondhandError, match="--cv 3"):
        main(["--data", "x", "--cv", "3"])


@contextmanager
def two_processes(words: list[str]) -> Iterator[list[Program]]:
    """Run two processes on CPUs with a launcher's variables but without a launcher."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    variables |= {"ACCELERATE_USE_CPU": "true"}
    both = [
        Program("-m", "learners.finetune", *words,
                env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]  # fmt: skip
    try:
        yield both
    finally:
        for one in both:
            one.kill()
            one.wait(30)


def output(both: list[Program]) -> str:
    return "".join(one.out + one.err for one in both)


def forked(words: list[str]) -> str:
    with two_processes(words) as both:
        assert [one.wait(400) for one in both] == [0, 0], output(both)
        return output(both)


def launched(words: list[str]) -> str:
    """Run accelerate's launcher; its processes each import torch."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [*LAUNCH, *words], env=environment, capture_output=True, text=True, timeout=800
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout + completed.stderr


def epochs(file: Path) -> pd.DataFrame:
    return pd.read_csv(file).drop(columns="seconds")


def answers(run: Path) -> pd.DataFrame:
    """Return the predictions, with the names and numbers of `top` in separate columns."""
    frame = pd.read_csv(run / "predictions.csv")
    top = frame.pop("top").map(json.loads)
    frame["names"] = [" ".join(name for name, _ in row) for row in top]
    return frame.join(pd.DataFrame([[p for _, p in row] for row in top]).add_prefix("top "))


def same_history(first: Path, second: Path, name: str = "history.csv") -> None:
    pd.testing.assert_frame_equal(epochs(first / name), epochs(second / name), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("train", [forked, pytest.param(launched, marks=LONG)])
def test_two_processes_reach_the_figures_of_one(pictures, tmp_path, train):
    """With a fitted head and averaged weights; a launched run also searches the rate."""
    long = train is launched
    more = ["--lr", "auto", *["--seeds", "2"] * long]
    count = 2 if long else 1
    torch.manual_seed(0)
    body = timm.create_model("test_vit", num_classes=5, img_size=64)
    save_file(body.state_dict(), tmp_path / "body.safetensors")
    words = ["--data", str(pictures), *QUICK, "--weights", str(tmp_path / "body.safetensors"),
             "--epochs", str(count), "--ema", "--accumulate", "16", *more]  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*words, "--out", str(one)]) == 0
    text = train([*words, "--out", str(two)])
    for name in ("history.csv", "history-2.csv")[:count]:
        same_history(one, two, name)
        assert len(epochs(two / name)) == 1 + count, "one row an epoch"
    files = {str(file.relative_to(two)) for file in two.rglob("*") if not file.match("report/*/*")}
    assert files == {
        str(file.relative_to(one)) for file in one.rglob("*") if not file.match("report/*/*")
    }
    ours, theirs = answers(one), answers(two)
    # There are nine calibration items: at equal distances rounding decides which is first, and
    # whether the one at a limit is refused.
    places = [frame.pop("distance_p") for frame in (ours, theirs)]
    assert list(places[0]) == pytest.approx(list(places[1]), abs=0.1001)
    decisions = [frame[["label", "reason"]].fillna("") for frame in (ours, theirs)]
    assert (decisions[0] != decisions[1]).any(axis=1).sum() <= 1
    figures = [frame.drop(columns=["label", "reason"]) for frame in (ours, theirs)]
    pd.testing.assert_frame_equal(*figures, rtol=0.01, atol=1e-3)
    blends = [
        (run / "log.txt").read_text().count("from the head-only model: ") for run in (one, two)
    ]
    assert blends == [4 * count] * 2, "each share of the way once"
    assert not list(two.rglob("probe.safetensors"))
    assert text.count(f"Epoch {count} of {count}:") == count, "one process speaks: once a member"
    assert (two / "log.txt").read_text().count("Learning rate") == count


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("terminated", [False, pytest.param(True, marks=LONG)])
def test_where_one_dies_all_end_and_the_run_goes_on(pictures, tmp_path, terminated):
    """The other process sees the connection break, or is ``terminated`` as by launchers."""
    words = ["--data", str(pictures), *QUICK, "--epochs", "3", "--lr", "1e-3"]
    run, reference = tmp_path / "run", tmp_path / "whole"
    with two_processes([*words, "--out", str(run)]) as both:
        until(lambda: any((run / "checkpoint").glob("state-*.json")), 300)
        both[1].kill()
        if terminated:
            both[0].send_signal(signal.SIGTERM)
        assert both[0].wait(60) != 0
        text = output(both)
    assert f"-m learners.finetune --resume {run}" in text
    if not terminated:
        assert text.count("Process 1 of 2 ends, because another process of this run") == 1, text
    assert main(["--resume", str(run)]) == 0
    assert main([*words, "--out", str(reference)]) == 0
    same_history(reference, run)
    assert not list(run.rglob(".*")), "nothing half-written is left"
