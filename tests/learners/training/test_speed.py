"""Unset precision, memory format, workers and threads follow rules."""

from __future__ import annotations

import multiprocessing
import platform
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from datasets.core import processes
from datasets.core.errors import SecondhandError
from learners.backbones.building import NetworkSpec, build
from learners.cli.settings import TrainSettings
from learners.finetune import main
from learners.inference.engine import pick_device
from learners.machine import hardware
from learners.machine.hardware import SpeedSettings, check_precision
from learners.training import speed
from learners.training.speed import compiling_pays, usual_precision, workers_for
from tests.pictures import write_pictures

pytestmark = pytest.mark.usefixtures("unreported")

QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "1",
         "--freeze-epochs", "0"]  # fmt: skip
PLAIN, DEPTHWISE = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8)


@pytest.mark.parametrize(
    ("network", "amx", "device", "precision"),
    [
        (PLAIN, False, "cpu", "fp32"),
        (PLAIN, True, "cpu", "bf16"),
        (nn.Sequential(PLAIN, DEPTHWISE), True, "cpu", "fp32"),
        (nn.Conv2d(8, 8, 3, groups=2), True, "cpu", "bf16"),
        (nn.Conv2d(1, 8, 3), True, "cpu", "bf16"),
        (DEPTHWISE, False, "cuda", "bf16"),
        (PLAIN, True, "mps", "fp32"),
    ],
)
def test_precision_follows_the_hardware_and_the_kind_of_network(
    monkeypatch, network, amx, device, precision
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": amx})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert usual_precision(device, network) == precision


@pytest.mark.parametrize("name", ["embedded", "test_resnet"])
def test_kinds_of_networks(monkeypatch, name):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    network, _, _ = build(NetworkSpec(name, 2, 32), pretrained=False)
    expected = {"embedded": "fp32", "test_resnet": "bf16"}[name]
    assert usual_precision("cpu", network) == expected


def test_fp16_needs_a_gpu():
    with pytest.raises(SecondhandError, match="--precision fp16 needs a CUDA GPU"):
        check_precision("fp16", "cpu")
    check_precision("fp16", "cuda:1")
    with pytest.raises(SecondhandError, match="--precision tf32 needs a CUDA GPU"):
        check_precision("tf32", "mps")
    check_precision("tf32", "cuda")
    with pytest.raises(SecondhandError, match="--precision bf16"):
        check_precision("bf16", "mps")


@pytest.mark.parametrize(
    ("device", "bs", "epochs", "items", "size", "pays"),
    [
        ("cuda", 64, 50, 40_000, 224, True),
        ("cuda:1", 64, 50, 40_000, 224, True),
        ("cuda", 64, 49, 40_000, 224, False),
        ("cuda", 64, 25, 40_000, 320, True),  # twice as many pixels
        ("cuda", 32, 500, 40_000, 224, False),
        ("cuda", 64, 5, 8000, 224, False),
        ("cpu", 64, 500, 40_000, 224, False),
        ("mps", 64, 500, 40_000, 224, False),
    ],
)
def test_long_trainings_in_large_batches_are_compiled_on_a_gpu(
    monkeypatch, device, bs, epochs, items, size, pays
):
    missing = ""
    monkeypatch.setattr(speed, "missing_to_compile", lambda device: missing)
    train, spec = TrainSettings(bs=bs, epochs=epochs), NetworkSpec("resnet50", 2, size)
    assert compiling_pays(device, train, items, spec) == pays
    missing = "a C compiler"
    assert not compiling_pays(device, train, items, spec)


def test_apples_gpu_trains_by_itself_and_answers_where_it_is_named(monkeypatch):
    with pytest.raises(SecondhandError, match=r"--device mps: .*no Apple GPU"):
        pick_device("mps")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [pick_device("auto", train=train) for train in (True, False)] == ["mps", "cpu"]
    assert pick_device("mps") == "mps"


@pytest.mark.parametrize(
    ("requested", "decoded", "device", "forks", "files", "workers"),
    [
        (None, True, "cpu", True, 350, 0), (None, False, "cpu", True, 350, 3), (3, True, "cpu", True, 1, 3),
        (None, True, "cuda", True, 350, 3), (None, False, "cpu", False, 350, 0), (2, False, "mps", False, 350, 2),
        (None, True, "cuda", True, 64, 2), (None, False, "cpu", True, 20, 1), (0, True, "cuda", True, 350, 0),
    ],
)  # fmt: skip
def test_decoded_pictures_need_no_workers_beside_a_network_on_the_cpu(
    monkeypatch, requested, decoded, device, forks, files, workers
):
    monkeypatch.setattr(processes, "FORKS", forks)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "4")
    chosen = SpeedSettings(workers=requested)
    assert workers_for(chosen, device, decoded=decoded, files=files) == workers


@pytest.mark.slow
def test_the_runs_settings_say_what_was_used(tmp_path, monkeypatch):
    pictures = write_pictures(tmp_path / "pictures", classes=2)
    out = tmp_path / "run"
    started, pool_of = [], processes._pool
    monkeypatch.setattr(processes, "FORKS", sys.platform == "linux")
    monkeypatch.setattr(
        processes, "_pool", lambda count, settle: started.append(count) or pool_of(count, settle)
    )
    before = {*multiprocessing.active_children()}
    assert main(["--data", str(pictures), "--out", str(out), *QUICK]) == 0
    if processes.FORKS:
        assert len(started) == 2, (
            "one to read the files, before torch is there, and one for the rest"
        )
    assert {*multiprocessing.active_children()} <= before
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["compile"] is config["deterministic"] is False
    assert config["workers"] is None, "it changes nothing, and another machine has its own"
    assert config["threads"] == torch.get_num_threads()
    assert config["precision"] in ("fp32", "bf16")
    assert f"cpu, {config['precision']}" in (out / "log.txt").read_text()
    assert not list(Path(out).rglob("*.part"))


def test_a_machine_that_cannot_compile_says_so_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "missing_to_compile", lambda device: "a C++ compiler")
    pictures = write_pictures(tmp_path / "pictures", classes=2)
    out = tmp_path / "run"
    words = ["--data", str(pictures), "--out", str(out), "--device", "cpu", *QUICK]
    with pytest.raises(SecondhandError, match="--compile on the device cpu needs a C"):
        main([*words, "--compile"])
    assert not (out / "items.csv").exists()
