"""The trial of speeds: what it may change, what it must leave alone, what it remembers."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from fastai.torch_core import set_seed

from learners import _trial, speed
from learners.config import SpeedSettings
from learners.finetune import main
from learners.machine import threads_kept
from learners.speed import Work, settle
from tests.learners.test_callbacks import CNN, _state, folder, learner, quietly  # noqa: F401
from tests.pictures import write_pictures

QUICK = ["--backbone", "test_resnet", "--no-pretrained", "--size", "32", "--bs", "8", "--epochs", "1",
         "--freeze-epochs", "0"]  # fmt: skip


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads are open, and are put back."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with threads_kept():
        yield


@pytest.fixture
def work(tmp_path) -> Work:
    return Work(CNN, 64, "cpu", 10_000, tmp_path / "cache")


@pytest.fixture
def clock(monkeypatch):
    """Steps that take what a table says: (channels last, threads, compiled) -> seconds."""
    table: dict[tuple, float] = {}
    tried: list[tuple] = []

    def seconds(self, way: SpeedSettings) -> float:
        key = (bool(way.channels_last), way.threads, bool(way.compile))
        tried.append(key)
        self.all.append(table.get(key, 1.0))
        return self.all[-1]

    monkeypatch.setattr(_trial.Trial, "seconds", seconds)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    torch.set_num_threads(4)
    return table, tried


def test_the_quickest_way_is_taken_said_and_remembered(folder, tmp_path, work, clock, caplog):  # noqa: F811
    caplog.set_level(logging.INFO)
    table, tried = clock
    table |= {(True, 4, False): 0.2, (False, 4, False): 0.18, (False, 2, False): 0.1}
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(compile=False), learn.model, learn.dls, work)
    assert (chosen.channels_last, chosen.threads, chosen.compile) == (False, 2, False)
    assert chosen.precision in ("fp32", "bf16")
    assert torch.get_num_threads() == 2
    assert {loader.fake_l.num_workers for loader in learn.dls.loaders} == {chosen.workers}
    (line,) = [r.message for r in caplog.records if r.message.startswith("speed: ")]
    assert "channels first, " in line
    assert "2 threads" in line
    assert "0.1 s a step" in line
    torch.set_num_threads(4)
    tried.clear()
    again = settle(SpeedSettings(compile=False), learn.model, learn.dls, work)
    assert again == chosen
    assert not tried
    assert "as found before" in caplog.text
    # Another network, size, batch or machine is another question.
    torch.set_num_threads(4)
    settle(SpeedSettings(compile=False), learn.model, learn.dls, replace(work, size=96))
    assert tried


def test_what_the_user_gave_is_never_changed(folder, tmp_path, work, clock):  # noqa: F811
    table, _ = clock
    table |= {(False, 2, False): 0.01}
    learn = learner(folder, tmp_path)
    for given in (
        SpeedSettings(channels_last=True, threads=4, workers=3, compile=False, precision="bf16"),
        SpeedSettings(channels_last=True, compile=False),
        SpeedSettings(threads=3, compile=False),
    ):
        chosen = settle(given, learn.model, learn.dls, work)
        for name, value in vars(given).items():
            if value not in (None, "auto"):
                assert getattr(chosen, name) == value, name
            assert getattr(chosen, name) is not None, name


def test_a_number_given_to_openmp_is_the_users_too(folder, tmp_path, work, clock, monkeypatch):  # noqa: F811
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    table, _ = clock
    table |= {(True, 2, False): 0.01}
    learn = learner(folder, tmp_path)
    assert settle(SpeedSettings(compile=False), learn.model, learn.dls, work).threads == 4


def test_a_gain_within_chance_changes_nothing(folder, tmp_path, work, clock):  # noqa: F811
    table, _ = clock
    table |= {(False, 4, False): 0.97, (False, 2, False): 0.96}
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(compile=False), learn.model, learn.dls, work)
    assert (chosen.channels_last, chosen.threads) == (True, 4)


@pytest.mark.parametrize(
    ("given", "kept", "device", "workers"),
    [(None, True, "cpu", 0), (None, False, "cpu", 3), (3, True, "cpu", 3), (None, True, "cuda", 3)],
)
def test_decoded_pictures_need_no_workers_beside_a_network_on_the_cpu(
    folder,  # noqa: F811
    tmp_path,
    work,
    clock,
    given,
    kept,
    device,
    workers,
):
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(speed="off", precision="fp32", workers=given), learn.model,
                    learn.dls, replace(work, kept=kept, device=device))  # fmt: skip
    assert chosen.workers == workers
    assert learn.dls.train.fake_l.num_workers == workers


@pytest.mark.parametrize(("steps", "compiled"), [(1_000_000, True), (1000, False)])
def test_compiling_must_win_back_its_cost(
    folder,  # noqa: F811
    tmp_path,
    work,
    clock,
    monkeypatch,
    steps,
    compiled,
):
    table, tried = clock
    table |= {(True, 4, False): 2.0, (True, 4, True): 1.5}
    table |= {
        (last, n, False): 3.0 for last in (True, False) for n in (2, 4) if (last, n) != (True, 4)
    }
    now = iter(range(0, 10**9, 400))  # compiling takes 400 s by this clock
    # Its own clock alone: a pool of processes that is ending waits by the true one.
    ticks = SimpleNamespace(monotonic=lambda: next(now) if len(tried) > 2 else 0.0)
    monkeypatch.setattr(speed, "time", ticks)
    monkeypatch.setattr(speed, "LONGEST_TRIAL", 1e9)
    monkeypatch.setattr(speed, "PART", 1e9)
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(), learn.model, learn.dls, replace(work, steps=steps))
    assert (True, 4, True) in tried
    assert chosen.compile is compiled


def test_where_compiling_fails_there_is_none(folder, tmp_path, work, clock, monkeypatch, caplog):  # noqa: F811
    caplog.set_level(logging.INFO)
    seconds = _trial.Trial.seconds

    def no_compiler(self, way):
        if way.compile:
            raise RuntimeError("No working C++ compiler found")
        return seconds(self, way)

    monkeypatch.setattr(_trial.Trial, "seconds", no_compiler)
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(), learn.model, learn.dls, work)
    assert chosen.compile is False
    assert "No working C++ compiler" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"chosen": {}}', '{"chosen": 3}',
                                     '{"chosen": {"channels_last": true, "precision": "fp64", '
                                     '"threads": 4, "workers": 1, "compile": false}}'])  # fmt: skip
def test_a_damaged_memory_is_no_memory(folder, tmp_path, work, clock, content):  # noqa: F811
    table, tried = clock
    table |= {(False, 4, False): 0.1}
    learn = learner(folder, tmp_path)
    given = SpeedSettings(compile=False, threads=4)
    settle(given, learn.model, learn.dls, work)
    (file,) = (work.cache / "speed").iterdir()
    file.write_text(content)
    tried.clear()
    assert settle(given, learn.model, learn.dls, work).channels_last is False
    assert tried
    assert json.loads(file.read_text())["chosen"]["channels_last"] is False


def test_a_short_training_is_not_held_up(folder, tmp_path, work, clock, caplog):  # noqa: F811
    caplog.set_level(logging.INFO)
    _, tried = clock
    learn = learner(folder, tmp_path)
    chosen = settle(SpeedSettings(), learn.model, learn.dls, replace(work, steps=20))
    assert len(tried) <= 2
    assert (chosen.channels_last, chosen.compile, chosen.threads) == (True, False, 4)
    assert "too short a training" in caplog.text
    assert not (work.cache / "speed").exists()
    tried.clear()
    settle(SpeedSettings(), learn.model, learn.dls, replace(work, steps=0))
    settle(SpeedSettings(speed="off"), learn.model, learn.dls, work)
    settle(SpeedSettings(speed=False), learn.model, learn.dls, work)  # a bare off in YAML
    assert not tried


def test_a_trial_leaves_the_training_as_it_would_have_been(folder, tmp_path, work, monkeypatch):  # noqa: F811
    """Real steps, and then the same training to the last bit."""
    monkeypatch.setattr(speed, "SHORTEST", 0.0)
    ends = []
    for tried in (False, True):
        learn = learner(folder, tmp_path)
        learn.dls.train.rng.seed(3)
        set_seed(1)
        before = _state(learn.model)
        if tried:
            given = SpeedSettings(workers=0, compile=False, threads=torch.get_num_threads())
            assert settle(given, learn.model, learn.dls, work).channels_last is not None
            assert list((work.cache / "speed").iterdir())
            assert all(torch.equal(learn.model.state_dict()[n], v) for n, v in before.items())
            assert all(p.grad is None for p in learn.model.parameters())
            assert not learn.opt.state_dict()["state"] if learn.opt else True
        quietly(learn, epochs=1, freeze_epochs=0)
        ends.append(_state(learn.model))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_trial_times_what_is_asked(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path)
    seen = []
    x, y = learn.dls.train.one_batch()
    trial = _trial.Trial(learn.model, torch.Tensor(x), torch.as_tensor(y), "cpu")
    conv = next(m for m in trial.network.modules() if isinstance(m, torch.nn.Conv2d))
    conv.register_forward_hook(
        lambda m, i, out: seen.append(
            (
                out.is_contiguous(memory_format=torch.channels_last),
                out.dtype,
                torch.get_num_threads(),
            )
        )
    )
    before = torch.get_num_threads()
    for last, precision in ((True, "fp32"), (False, "bf16")):
        way = SpeedSettings(channels_last=last, precision=precision, threads=1)  # type: ignore[arg-type]
        assert 0 < trial.seconds(way) < 60
    assert seen == [(True, torch.float32, 1), (False, torch.bfloat16, 1)]
    assert torch.get_num_threads() == before
    assert trial.network.training


def test_the_runs_settings_say_what_was_used(tmp_path, monkeypatch):
    pictures = write_pictures(tmp_path / "pictures", classes=2)
    out = tmp_path / "run"
    assert main(["--data", str(pictures), "--out", str(out), *QUICK, "--workers", "0"]) == 0
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["speed"] == "auto"
    assert config["channels_last"] is True
    assert config["compile"] is False
    assert config["workers"] == 0
    assert config["threads"] == torch.get_num_threads()
    assert config["precision"] in ("fp32", "bf16")
    assert not list(Path(out).rglob("*.part"))
    # With everything said, nothing is tried: a repeated run trains as this one did.
    monkeypatch.setattr(_trial.Trial, "seconds", lambda self, way: pytest.fail("tried"))
    monkeypatch.setattr(speed, "SHORTEST", 0.0)
    again = tmp_path / "again"
    assert main(["--config", str(out / "config.yaml"), "--out", str(again)]) == 0
