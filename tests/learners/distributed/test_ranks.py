"""Several processes train what one would have: the same batches, figures and files."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pytest
import timm
import torch
from fastai.data.core import TfmdDL
from safetensors.torch import save_file

from datasets.core.errors import SecondhandError
from learners.distributed import ranks
from learners.distributed.shards import Shard
from learners.finetune import main
from learners.training import learner
from tests.forks import Program
from tests.pictures import write_pictures

#: Without BatchNorm, whose statistics are of a process's own part on CPUs, and without dropout two
#: processes compute what one does, but for the order in which numbers are added; nor do several
#: processes keep features.
QUICK = ["--backbone", "test_vit", "--weights", "none", "--size", "160", "--dropout", "0", "--bs", "8",
         "--workers", "0", "--precision", "fp32"]  # fmt: skip

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
          "--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no",
          "--main_process_port", "0", "-m", "learners.finetune"]  # fmt: skip

#: Several processes that each import torch, on two cores: minutes, and more where others are at work.
LONG = pytest.mark.long("minutes: the same without a launcher is tried")


@pytest.fixture(autouse=True)
def no_kept_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "FROZEN_VIEWS", 0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def as_one_of(monkeypatch: pytest.MonkeyPatch, number: int, of: int) -> None:
    """This process in a launch."""
    given = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": of, "MASTER_ADDR": "127.0.0.1"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))


def loader(n: int, bs: int, *, train: bool, bad: tuple[int, ...] = ()) -> TfmdDL:
    """Its items are their numbers; those that are bad cannot be read."""
    made = TfmdDL(list(range(n)), bs=bs, shuffle=train, drop_last=train, num_workers=0)
    made.do_item = lambda number: None if number in bad else torch.tensor(number)
    made.rng = random.Random(5)
    return made


def batches(loader: TfmdDL) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("n", [47, 48, 5, 12])
def test_the_parts_of_a_batch_make_up_the_batch_that_one_process_has(n):
    whole = batches(loader(n, 12, train=True))
    parts = [batches(Shard(loader(n, 12, train=True), rank, 3)) for rank in range(3)]
    assert [[*chain(*together)] for together in zip(*parts, strict=True)] == whole
    shard = Shard(loader(n, 12, train=True), 1, 3)
    assert len(shard) == len(whole)


@pytest.mark.parametrize("n", [47, 48, 2])
def test_validation_counts_each_item_once(n):
    parts = [Shard(loader(n, 12, train=False), rank, 3) for rank in range(3)]
    seen = [batches(part) for part in parts]
    assert sorted(chain(*chain(*seen))) == list(range(n))
    assert [len(part) for part in parts] == [len(part) for part in seen]


def test_a_process_has_as_many_batches_where_a_file_cannot_be_read():
    """Else the others would wait for it; also where the first ones of its part are lost."""
    order = [number for batch in batches(loader(24, 8, train=True)) for number in batch]
    for bad in [(order[0],), tuple(order[:5]), (order[-1], order[9])]:
        part = batches(Shard(loader(24, 8, train=True, bad=bad), 0, 2))
        assert [len(batch) for batch in part] == [4, 4, 4]
        assert not set(bad) & set(chain(*part))


def test_alone_there_is_one_process_and_it_is_the_first(monkeypatch):
    assert (ranks.count(), ranks.rank(), ranks.is_first()) == (1, 0, True)
    assert ranks.share(3) == ranks.from_first(lambda: 3) == 3
    assert ranks.gathered(3) == [3]
    assert ranks.device("cuda:7") == "cuda:7"
    ranks.check_batch(1)
    monkeypatch.setenv("WORLD_SIZE", "4")  # some cluster's own, without a launch
    assert ranks.count() == 1


def test_of_several_each_knows_its_place(monkeypatch):
    as_one_of(monkeypatch, 2, 3)
    assert (ranks.count(), ranks.rank(), ranks.is_first()) == (3, 2, False)
    assert ranks.device("cpu") == "cpu"
    ranks.check_batch(12)
    with pytest.raises(SecondhandError, match=r"--bs 16 .*15 or 18"):
        ranks.check_batch(16)
    with pytest.raises(SecondhandError, match=r"--bs 3 .*6"):
        ranks.check_batch(3)
    with pytest.raises(SecondhandError, match="--device cuda:1"):
        ranks.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SecondhandError, match=r"process 3 .*2"):
        ranks.device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert ranks.device("auto") == "cuda:2"
    with pytest.raises(SecondhandError, match="--cv 3"):
        main(["--data", "x", "--cv", "3"])


class Forked:
    """Two processes on CPUs at one run, told what a launcher tells, but begun without one."""

    def __init__(self, words: list[str], said: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        told |= {"ACCELERATE_USE_CPU": "true"}
        self._both = [
            Program("-m", "learners.finetune", *words,
                    env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]  # fmt: skip

    def process(self, number: int) -> int:
        return self._both[number].pid

    def running(self) -> bool:
        return all(one.poll() is None for one in self._both)

    def wait(self, seconds: float) -> int:
        return max(abs(one.wait(seconds)) for one in self._both)

    def said(self) -> str:
        return "".join(one.out + one.err for one in self._both)

    def end(self) -> None:
        for one in self._both:
            one.kill()
            one.wait(30)


class Launched:
    """Two by accelerate: a launcher and its processes, which each import torch."""

    def __init__(self, words: list[str], said: Path) -> None:
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        self._said = said
        with said.open("w") as file:
            self._launcher = subprocess.Popen(
                [*LAUNCH, *words], stdout=file, stderr=file, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._begun: dict[int, int] = {}

    def process(self, number: int) -> int:
        self._begun |= children(self._launcher.pid)
        return self._begun[number]

    def running(self) -> bool:
        return self._launcher.poll() is None

    def wait(self, seconds: float) -> int:
        return self._launcher.wait(seconds)

    def said(self) -> str:
        return self._said.read_text()

    def end(self) -> None:
        self._begun |= children(self._launcher.pid)
        for pid in [self._launcher.pid, *self._begun.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._launcher.wait(30)


Pair = TypeVar("Pair", Forked, Launched)
BOTH_WAYS = pytest.mark.parametrize("way", [Forked, pytest.param(Launched, marks=LONG)])


@contextmanager
def together(way: type[Pair], words: list[str], said: Path) -> Iterator[Pair]:
    """None is left at the end."""
    both = way(words, said)
    try:
        yield both
    finally:
        both.end()


def children(launcher: int) -> dict[int, int]:
    """Rank -> process of a launcher's processes."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            given = (folder / "environ").read_bytes().split(b"\0") if parent == launcher else []
        except OSError:
            continue
        for line in given:
            if line.startswith(b"RANK="):
                found[int(line[5:])] = int(folder.name)
    return found


def until(true: Callable[[], bool], both: Forked | Launched) -> None:
    limit = time.monotonic() + 300
    while not true():
        assert both.running(), both.said()
        assert time.monotonic() < limit, both.said()
        time.sleep(0.02)


def epochs(file: Path) -> pd.DataFrame:
    return pd.read_csv(file).drop(columns="seconds")


def answers(run: Path) -> pd.DataFrame:
    """With the names and the numbers of `top` apart: numbers are equal but for rounding."""
    frame = pd.read_csv(run / "predictions.csv")
    top = frame.pop("top").map(json.loads)
    frame["names"] = [" ".join(name for name, _ in row) for row in top]
    return frame.join(pd.DataFrame([[p for _, p in row] for row in top]).add_prefix("top "))


def has_rows(history: Path, rows: int) -> bool:
    return history.is_file() and len(epochs(history)) >= rows


def same_history(first: Path, second: Path, name: str = "history.csv") -> None:
    pd.testing.assert_frame_equal(epochs(first / name), epochs(second / name), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@BOTH_WAYS
def test_two_processes_reach_the_figures_of_one(pictures, tmp_path, way):
    """From the same fitted head, with averaged weights; of a launcher's also with a rate that one finds, and two members."""
    long = way is Launched
    more = ["--lr", "auto", "--seeds", "2"] if long else ["--lr", "1e-3"]
    count = 2 if long else 1
    torch.manual_seed(0)
    body = timm.create_model("test_vit", num_classes=5)
    save_file(body.state_dict(), tmp_path / "body.safetensors")
    words = ["--data", str(pictures), *QUICK, "--weights", str(tmp_path / "body.safetensors"),
             "--epochs", str(count), "--ema", *more]  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*words, "--out", str(one)]) == 0
    with together(way, [*words, "--out", str(two)], tmp_path / "said") as both:
        assert both.wait(400) == 0, both.said()
    for name in ("history.csv", "history-2.csv")[:count]:
        same_history(one, two, name)
        assert len(epochs(two / name)) == 1 + count, "one row an epoch"
    left = {str(file.relative_to(two)) for file in two.rglob("*") if not file.match("report/*/*")}
    assert left == {
        str(file.relative_to(one)) for file in one.rglob("*") if not file.match("report/*/*")
    }
    ours, theirs = answers(one), answers(two)
    # Places among nine calibration items: of two that lie as far, rounding says which is first.
    places = [frame.pop("distance_p") for frame in (ours, theirs)]
    assert list(places[0]) == pytest.approx(list(places[1]), abs=0.1001)
    pd.testing.assert_frame_equal(ours, theirs, rtol=0.01, atol=1e-3)
    blends = [(run / "log.txt").read_text().count("from the head-only model") for run in (one, two)]
    assert blends == [2 * count] * 2, "half and a quarter of the way, each tried once"
    assert not list(two.rglob("probe.safetensors"))
    spoken = both.said().count(f"unfrozen {count}/{count}")
    assert spoken == count, "one process speaks: once a member"
    assert (two / "log.txt").read_text().count("learning rate") == (2 if long else 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@BOTH_WAYS
def test_where_one_dies_all_end_and_the_run_goes_on(pictures, tmp_path, way):
    """The second process is killed (of a launcher's then the first); one alone ends the run."""
    deaths, count = (((1, 2), (0, 4)), 12) if way is Launched else (((1, 1),), 3)
    words = ["--data", str(pictures), *QUICK, "--epochs", str(count), "--lr", "1e-3"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    begin = [*words, "--out", str(run)]
    for dead, rows in deaths:
        with together(way, begin, tmp_path / f"said-{dead}") as both:
            until(partial(has_rows, run / "history.csv", rows), both)
            os.kill(both.process(dead), signal.SIGKILL)
            assert both.wait(60) != 0
        text = both.said()
        assert f"process {2 - dead} of 2: another process of this run has ended" in text, text
        assert f"-m learners.finetune --resume {run}" in text
        assert text.count("another process of this run has ended") == 1
        begin = ["--resume", str(run)]
    assert main(["--resume", str(run)]) == 0
    assert main([*words, "--out", str(whole)]) == 0
    same_history(whole, run)
    assert not list(run.rglob(".*")), "nothing half-written is left"
