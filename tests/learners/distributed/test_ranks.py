"""Several processes train what one would have: the same batches, figures and files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO

import pandas as pd
import pytest
import torch
from fastai.data.core import TfmdDL

from datasets.errors import SecondhandError
from learners.distributed import ranks
from learners.distributed.shards import Shard
from learners.finetune import main
from learners.training import checkpoints as _state
from tests.pictures import write_pictures

#: Without BatchNorm, whose statistics are of a process's own part on CPUs, and without dropout two
#: processes compute what one does, but for the order in which numbers are added; nor do several
#: processes keep features.
QUICK = ["--backbone", "test_vit", "--no-pretrained", "--size", "160", "--dropout", "0", "--bs", "8",
         "--workers", "0", "--precision", "fp32", "--frozen-views", "0"]  # fmt: skip

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
          "--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no",
          "--main_process_port", "0", "-m", "learners.finetune"]  # fmt: skip

#: Several processes that each import torch, on two cores: minutes, and more where others are at work.
LONG = pytest.mark.skipif(
    not os.environ.get("SECONDHAND_LONG"), reason="takes minutes: set SECONDHAND_LONG=1"
)


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
    with pytest.raises(SecondhandError, match=r"--bs 16 .* 3 cannot share it .* give 15 or 18"):
        ranks.check_batch(16)
    with pytest.raises(SecondhandError, match="give 6"):
        ranks.check_batch(3)
    with pytest.raises(SecondhandError, match="--device cuda:1: 3 processes have a GPU each"):
        ranks.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SecondhandError, match="process 3 of this machine has no GPU: 2 are here"):
        ranks.device("auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert ranks.device("auto") == "cuda:2"
    with pytest.raises(SecondhandError, match="--cv 3 with 3 processes"):
        main(["--data", "x", "--cv", "3"])


def test_each_process_goes_on_with_its_own_random_states(monkeypatch):
    random.seed(1)
    tensors, numbers = _state.generators()
    random.seed(2)
    torch.manual_seed(2)
    _state.add_others(tensors, numbers, [_state.generators()])
    expected = random.random(), torch.rand(1)
    as_one_of(monkeypatch, 1, 2)
    _state.put_generators_back(tensors, numbers)
    assert (random.random(), torch.rand(1)) == expected


def test_a_run_of_one_process_does_not_import_accelerate():
    code = "import sys, learners.finetune, learners.runs.finetuning; assert 'accelerate' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@contextmanager
def launched(words: list[str], said: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Two processes on CPUs; none is left at the end."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*LAUNCH, *words], stdout=said, stderr=said, env=environment, start_new_session=True,
        text=True,
    )  # fmt: skip
    ranks_of = children(process.pid)
    try:
        yield process
    finally:
        ranks_of |= children(process.pid)
        for pid in [process.pid, *ranks_of.values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(30)


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


def until(true: Callable[[], bool], process: subprocess.Popen[str], said: Path) -> None:
    limit = time.monotonic() + 300
    while not true():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < limit, said.read_text()
        time.sleep(0.02)


def epochs(file: Path) -> pd.DataFrame:
    return pd.read_csv(file).drop(columns="seconds")


def has_rows(history: Path, rows: int) -> bool:
    return history.is_file() and len(epochs(history)) >= rows


def same_history(first: Path, second: Path, name: str = "history.csv") -> None:
    pd.testing.assert_frame_equal(epochs(first / name), epochs(second / name), rtol=1e-3)


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_reach_the_figures_of_one(pictures, tmp_path):
    """With averaged weights, accumulated gradients, a rate that one finds, and two members."""
    words = ["--data", str(pictures), *QUICK, "--epochs", "2", "--ema", "--accumulate", "2",
             "--lr", "auto", "--seeds", "2"]  # fmt: skip
    one, two, said = tmp_path / "one", tmp_path / "two", tmp_path / "said"
    assert main([*words, "--out", str(one)]) == 0
    with said.open("w") as file, launched([*words, "--out", str(two)], file) as process:
        assert process.wait(400) == 0, said.read_text()
    for name in ("history.csv", "history-2.csv"):
        same_history(one, two, name)
        assert len(epochs(two / name)) == 3, "one row an epoch"
    left = {str(file.relative_to(two)) for file in two.rglob("*") if not file.match("report/*/*")}
    assert left == {
        str(file.relative_to(one)) for file in one.rglob("*") if not file.match("report/*/*")
    }
    answers = [pd.read_csv(run / "predictions.csv") for run in (one, two)]
    pd.testing.assert_frame_equal(*answers, rtol=0.01, atol=1e-3)
    assert said.read_text().count("unfrozen 2/2") == 2, "one process speaks: once a member"
    assert (two / "log.txt").read_text().count("learning rate") == 2


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_where_one_dies_all_end_and_the_run_goes_on(pictures, tmp_path):
    """The second process is killed, then the first; one process alone ends the run."""
    words = ["--data", str(pictures), *QUICK, "--epochs", "12", "--lr", "1e-3"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    begin = [*words, "--out", str(run), "--checkpoint-minutes", "0"]
    for dead, rows in ((1, 2), (0, 4)):
        said = tmp_path / f"said-{dead}"
        with said.open("w") as file, launched(begin, file) as process:
            until(partial(has_rows, run / "history.csv", rows), process, said)
            os.kill(children(process.pid)[dead], signal.SIGKILL)
            assert process.wait(60) != 0
        text = said.read_text()
        assert f"process {2 - dead} of 2: another process of this run has ended" in text, text
        assert f"-m learners.finetune --resume {run}" in text
        assert text.count("another process of this run has ended") == 1
        begin = ["--resume", str(run)]
    assert main(["--resume", str(run)]) == 0
    assert main([*words, "--out", str(whole)]) == 0
    same_history(whole, run)
    assert not list(run.rglob(".*")), "nothing half-written is left"
