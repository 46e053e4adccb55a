"""An interrupted run continues as if uninterrupted: the weights are equal bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import timm
import torch
import yaml
from fastai.callback.fp16 import MixedPrecision
from PIL import Image
from safetensors.torch import load_file, save_file

from datasets.core.errors import SecondhandError
from learners.finetune import main
from learners.model.bundle import load_bundle
from learners.runs import stages
from learners.runs.folder import resume_command
from learners.runs.stages import report
from learners.training import checkpoints, learner, members
from tests.forks import Program
from tests.learners.stops import (
    QUICK,
    Stop,
    assert_same,
    interrupt,
    interrupt_in,
    newest_state,
    pictures,
    whole,
    with_callback,
)
from tests.pictures import write_pictures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]


__all__ = ["pictures", "whole"]  # fixtures

VARIANTS = {
    "all": ["--ema", "--mixup", "0.2", "--label-smoothing", "0.1", "--bs", "4",
            "--accumulate", "12", "--clip", "1"],
    "bf16": ["--precision", "bf16", "--keep", "last"],
}  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    ["all", pytest.param("bf16", marks=pytest.mark.long("`all` is tried"))],
)
def test_with_these_it_goes_on_bit_for_bit(pictures, tmp_path, monkeypatch, variant):
    """It is interrupted at the end of the first epoch of all weights, and during the next one."""
    words = ["--data", str(pictures), *QUICK, "--epochs", "3", *VARIANTS[variant]]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "run"
    batches = 10 if "--bs" in VARIANTS[variant] else 5
    interrupt(monkeypatch, Stop(2 * batches + 1), [*words, "--out", str(out)])
    assert json.loads(newest_state(out).read_text())["body"]["position"] == [1, 1]
    interrupt(monkeypatch, Stop(batches + 2), ["--resume", str(out)])
    assert json.loads(newest_state(out).read_text())["body"]["position"] == [1, 2]
    assert main(["--resume", str(out)]) == 0
    assert_same(tmp_path / "whole", out)


def test_frozen_features_come_again(pictures, tmp_path, monkeypatch):
    """A resumed run computes the features again, because they are not saved."""
    words = ["--data", str(pictures), *QUICK, "--freeze-epochs", "3", "--epochs", "1", "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    out = tmp_path / "run"
    interrupt(monkeypatch, Stop(1, "after_epoch"), [*words, str(out)])
    assert json.loads(newest_state(out).read_text())["body"]["position"] == [0, 1]
    assert main(["--resume", str(out)]) == 0
    assert_same(tmp_path / "whole", out)


def frame_count(run: Path, split: str) -> int:
    """Return the number of items of a split."""
    return int(pd.read_csv(run / "items.csv")["split"].eq(split).sum())


def test_behind_a_fitted_head(pictures, tmp_path, monkeypatch):
    """The probe is saved for blending; a run may be killed before the blends are tried."""
    body = timm.create_model("test_resnet", num_classes=5)
    save_file(body.state_dict(), tmp_path / "body.safetensors")
    words = ["--data", str(pictures), *QUICK, "--epochs", "1", "--ema",
             "--weights", str(tmp_path / "body.safetensors"), "--out"]  # fmt: skip
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert "way from the head-only model" in (tmp_path / "whole/log.txt").read_text()
    out = tmp_path / "run"
    interrupt(monkeypatch, Stop(2), [*words, str(out)])
    usable = load_bundle(out / "model")  # usable by another program while training goes on
    assert usable.provenance["kept"].startswith("the head-only model: ")
    assert usable.rule.calibrator.temperature.n == frame_count(out, "calibration") > 0
    probe = load_file(out / "checkpoint/best.safetensors")
    assert all(torch.equal(probe[name], t) for name, t in usable.network.state_dict().items())
    interrupt_in(monkeypatch, learner, "keep_blend", ["--resume", str(out)])
    assert main(["--resume", str(out)]) == 0
    assert_same(tmp_path / "whole", out)


class CpuScaler(MixedPrecision):
    """fastai's loss scaling without a GPU: the first losses overflow, then the scale grows."""

    def before_fit(self) -> None:
        super().before_fit()
        self.learn.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=6)
        self.autocast = torch.autocast("cpu", enabled=False)


def test_the_loss_scaler_goes_on(pictures, tmp_path, monkeypatch):
    words = ["--data", str(pictures), *QUICK, "--freeze-epochs", "0", "--epochs", "2"]
    monkeypatch.setattr(members.callbacks, "mixed_precision", lambda *args: [CpuScaler()])
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "run"
    interrupt(monkeypatch, Stop(7), [*words, "--out", str(out)])
    scaler = json.loads(newest_state(out).read_text())["body"]["scaler"]
    assert scaler["scale"] < 2.0**127, "it has overflowed"
    assert main(["--resume", str(out)]) == 0
    assert_same(tmp_path / "whole", out)


def test_after_an_epoch_it_goes_on_bit_for_bit(pictures, whole, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    interrupt(monkeypatch, Stop(7), words)
    assert json.loads(newest_state(out).read_text())["body"]["position"] == [1, 0]
    assert f"Resume it: {resume_command(out)}" in capsys.readouterr().err
    # The history is a row ahead of the checkpoint.
    interrupt_in(monkeypatch, checkpoints, "write_state", ["--resume", str(out)])
    assert len(pd.read_csv(out / "history.csv")) == 2
    interrupt(monkeypatch, Stop(1, "after_epoch"), ["--resume", str(out)])
    assert len(list(out.glob("checkpoint/state-*.json"))) == 2
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)
    assert not list(out.rglob(".*")), "nothing half-written is left"
    assert not list(out.rglob("state-*")), "what only a stopped run needs is gone"
    assert "--resume" not in json.loads((out / "model/config.json").read_text())["provenance"]["command"]  # fmt: skip
    assert "Resuming" in (out / "log.txt").read_text()


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    pictures, whole, tmp_path, monkeypatch, capsys
):
    out, copy = tmp_path / "run", tmp_path / "copy"
    interrupt(
        monkeypatch, Stop(2, "after_epoch"), ["--data", str(pictures), *QUICK, "--out", str(out)]
    )
    states = sorted(out.glob("checkpoint/state-*.safetensors"))
    assert len(states) == 2
    shutil.copytree(out, copy)
    content = bytearray(states[1].read_bytes())
    content[-100] ^= 1  # one bit
    states[1].write_bytes(content)
    assert main(["--resume", str(out)]) == 0
    output = capsys.readouterr().err
    assert f"{states[1]}: damaged. Resuming from the previous checkpoint" in output
    assert "Resuming: all layers, epoch 1" in output
    assert_same(whole, out)
    # Both are damaged: the run starts again.
    for name in ("state-000001.json", "state-000002.json"):
        file = copy / "checkpoint" / name
        file.write_text(file.read_text().replace("smooth", "smoth").replace("rate", "rite"))
    assert main(["--resume", str(copy)]) == 0
    assert "Resuming:" not in capsys.readouterr().err
    assert_same(whole, copy)


def test_what_would_make_another_run_is_refused_by_name(pictures, whole, tmp_path):
    with pytest.raises(
        SecondhandError, match=r"with --epochs --lr, .*--config .*config.yaml --out OTHER"
    ):
        main(["--resume", str(whole), "--epochs", "9", "--lr", "0.5", "--bs", "8"])
    with pytest.raises(SecondhandError, match="with --overwrite"):
        main(["--resume", str(whole), "--overwrite"])
    with pytest.raises(SecondhandError, match="with --out"):
        main(["--resume", str(whole), "--out", str(tmp_path / "other")])
    with pytest.raises(SecondhandError, match="is not a run folder"):
        main(["--resume", str(pictures)])
    with pytest.raises(SecondhandError, match="nix: there is no such folder"):
        main(["--resume", str(pictures / "nix")])
    with pytest.raises(SecondhandError, match=f"is the model of a run. Give {whole}$"):
        main(["--resume", str(whole / "model")])
    assert main(["--resume", str(whole), "--workers", "1", "--out", str(whole)]) == 0


def test_a_finished_run_says_so_and_is_left_alone(whole, capsys):
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("*")}
    assert main(["--resume", str(whole)]) == 0
    assert f"{whole}: this run is complete" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in whole.rglob("*")} == before


def test_before_its_first_checkpoint_it_begins_again(whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    shutil.copy(whole / "config.yaml", out)
    (out / "history.csv").write_text("phase,ep")
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)
    assert yaml.safe_load((out / "config.yaml").read_text())["out"] == str(out)


def test_after_the_training_nothing_is_trained_again(pictures, whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    interrupt_in(monkeypatch, stages, "calibrate", words)
    so_far = load_bundle(out / "model").provenance["kept"]
    assert so_far.startswith("epoch 1 of "), "written during the training"
    monkeypatch.setattr(members, "make_learner", None)
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)


def test_after_ctrl_c_it_goes_on(pictures, whole, tmp_path, monkeypatch, capsys):
    """Meanwhile the model folder holds the best epoch so far."""
    out = tmp_path / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    assert with_callback(monkeypatch, Stop(8, what=KeyboardInterrupt), words) == 130
    assert f"Resume the training: {resume_command(out)}" in capsys.readouterr().out
    load_bundle(out / "model")
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)


def test_the_rate_that_was_found_and_the_networks_that_are_trained_are_kept(
    pictures, tmp_path, monkeypatch
):
    words = ["--data", str(pictures), *QUICK, "--lr", "auto", "--seeds", "2", "--epochs", "1"]
    out = tmp_path / "run"
    calls: list[int] = []

    def found(learn):
        calls.append(1)
        rate = 0.01 if len(calls) == 1 else 0.005
        return learner.RangeTest(2 * rate, rate, [1e-7, rate, 1.0], [2.0, 1.0, 3.0])

    monkeypatch.setattr(learner, "find_lr", found)
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    calls.clear()
    # The second network is interrupted before its first checkpoint, then after it.
    interrupt_in(
        monkeypatch, checkpoints, "write_state", [*words, "--out", str(out)], of="member-2"
    )
    assert (out / "checkpoint/trained.json").exists()
    assert len(calls) == 2
    assert json.loads((out / "checkpoint/lr_find.json").read_text())["valley"] == 0.01
    interrupt(monkeypatch, Stop(1, "after_epoch"), ["--resume", str(out)])
    assert len(calls) == 3, "of the second network, once more"
    assert main(["--resume", str(out)]) == 0
    assert len(calls) == 3, "not searched again"
    assert_same(tmp_path / "whole", out)


def test_the_number_of_workers_changes_nothing(pictures, whole, tmp_path):
    out = tmp_path / "run"
    assert main(["--data", str(pictures), *QUICK, "--workers", "2", "--out", str(out)]) == 0
    assert_same(whole, out)


def test_other_data_are_listed(tmp_path, monkeypatch, capsys):
    data = write_pictures(tmp_path / "data")
    out = tmp_path / "run"
    interrupt(monkeypatch, Stop(1, "after_epoch"), ["--data", str(data), *QUICK, "--out", str(out)])
    missing, changed, touched = (data / "red" / f"red_00{n}.jpg" for n in range(3))
    contents = missing.read_bytes(), changed.read_bytes()
    missing.unlink()
    Image.new("RGB", (90, 90)).save(changed)
    Image.new("RGB", (90, 91)).save(data / "red/new.jpg")
    with pytest.raises(SecondhandError) as error:
        main(["--resume", str(out)])
    for part in (f"1 missing or unreadable: {missing};", f"1 changed: {changed};", "1 new: "):
        assert part in str(error.value)
    missing.write_bytes(contents[0])
    (data / "red/new.jpg").unlink()
    # Of equal size and time, as cp -p and rsync leave it.
    changed.write_bytes(contents[1][:15] + b"x" + contents[1][16:])  # in the header: the resolution
    record = json.loads((out / "checkpoint/begun.json").read_text())
    mtime = record["files"][str(changed)][0]
    os.utime(changed, ns=(mtime, mtime))
    with pytest.raises(SecondhandError, match=rf"\(1 changed: {changed}\)"):
        main(["--resume", str(out)])
    changed.write_bytes(contents[1])
    os.utime(touched, (1, 1))
    capsys.readouterr()
    assert main(["--resume", str(out)]) == 0
    assert "the files count as unchanged (3)" in capsys.readouterr().err


def test_folds_go_on_within_a_fold(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stages, "report", report)  # folds are compared by their own reports
    words = ["--data", str(pictures), *QUICK, "--cv", "2"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "cv"
    # Each fold has three epochs: this is the second epoch of the second fold.
    interrupt(monkeypatch, Stop(2, "after_epoch"), [*words, "--out", str(out)])
    assert newest_state(out / "fold-1").name == "state-000002.json"
    with pytest.raises(SecondhandError, match=r"lr was 0.01 and is now 0.02"):
        main([*words, "--out", str(out), "--lr", "0.02"])
    capsys.readouterr()
    assert main([*words, "--out", str(out)]) == 0
    assert "Resuming: all layers, epoch 2" in capsys.readouterr().err
    assert main(["--resume", str(out)]) == 0
    for fold in ("fold-1", "fold-2"):
        assert_same(tmp_path / "whole" / fold, out / fold)
    figures = [(folder / "folds.csv").read_text() for folder in (tmp_path / "whole", out)]
    assert figures[0] == figures[1]


def test_kill_nine_at_any_moment(pictures, whole, tmp_path):
    """The process group is killed at three seeded moments; then the run continues to its end."""
    out, rng = tmp_path / "run", random.Random(5)
    words = ["--data", str(pictures), *QUICK, "--workers", "1", "--out", str(out)]
    for started in ("config.yaml", "checkpoint/state-000002.json", "checkpoint/trained.json"):
        process = Program("-m", "learners.finetune", *words)
        deadline = time.monotonic() + 150
        while not (out / started).exists():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.err
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        for file in out.rglob("*.json"):
            if not any(part.startswith(".") for part in file.relative_to(out).parts):
                json.loads(file.read_text())
        words = ["--resume", str(out)]
    assert main(words) == 0
    assert_same(whole, out)
    assert not list(out.rglob(".*"))
