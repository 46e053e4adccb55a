"""The command as a user runs it, on small pictures."""

from __future__ import annotations

import builtins
import errno
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from app.panels import resembling
from datasets.core import file_state
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from learners.cli.console import command_line
from learners.cli.flags import parse
from learners.cli.settings import Settings
from learners.evaluate import main as evaluate_main
from learners.evaluation.figures import CHOSE
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.machine.hardware import keep_thread_count
from learners.predict import main as predict
from learners.rule.reasons import OUT_OF_DISTRIBUTION
from learners.runs import finetuning, stages
from learners.runs.folder import resume_command, run_folder
from learners.runs.run import prepare
from tests.forks import Program
from tests.learners.calls import count_answering
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "2",
         "--workers", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_pictures(tmp_path_factory.mktemp("pictures"), unknown=6)
    (folder / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    """A run's folder, and counts of the calls that pass over all answers."""
    out = tmp_path_factory.mktemp("runs") / "first"
    words = ["--data", str(folder), "--out", str(out), "--lr", "1e-2", *QUICK]
    # The training loss and precision differ from those of the evaluation.
    words += ["--precision", "bf16", "--label-smoothing", "0.1", "--class-weights"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SECONDHAND_ONNX")
        calls = count_answering(patch)
        assert main(words) == 0
    return out, calls


@pytest.fixture(scope="module")
def finished(ran: tuple[Path, Counter[str]]) -> Path:
    return ran[0]


@pytest.mark.parametrize(
    ("setting", "device", "written"),
    [
        ("", "cpu", True), ("", "mps", True), ("", "cuda", False), ("", "cuda:1", False), ("0", "cpu", False),
        ("0", "cuda", False), ("1", "cpu", True), ("1", "cuda", True),
    ],
)  # fmt: skip
def test_the_export_is_left_out_where_predictions_run_on_a_gpu(setting, device, written):
    assert stages.writes_onnx(setting, device) is written


def test_where_the_export_is_left_out_the_command_for_it_is_said(caplog, monkeypatch):
    monkeypatch.delenv("SECONDHAND_ONNX")
    monkeypatch.setenv("SECONDHAND_COMMAND", "secondhand")
    on_gpu = SimpleNamespace(predictor=SimpleNamespace(device="cuda"), folder=Path("my runs"))
    with caplog.at_level(logging.INFO):
        stages.write_onnx(on_gpu)
    assert caplog.messages == [
        "For predictions on a CPU that start fast: secondhand export 'my runs/model' --inside"
    ]


def test_a_run_makes_a_predictor_of_the_first_model_and_of_the_last_and_judges_once(ran):
    assert ran[1] == {"predictors": 2, "judged": 1}


def test_a_file_is_opened_once_or_twice_where_its_pixels_are_not_kept_yet(tmp_path, monkeypatch):
    """It is opened once more by the first report that shows it."""
    folder = write_pictures(tmp_path / "pictures", unknown=4)
    for number, file in enumerate(sorted(folder.rglob("*.jpg"))):  # files of equal size are hashed
        file.write_bytes(file.read_bytes().ljust(20_000 + number, b"\0"))
    monkeypatch.setattr(file_state, "SETTLED", 0.0)  # treat them as written a while ago
    opened: Counter[str] = Counter()
    monkeypatch.setattr(
        builtins,
        "open",
        lambda file, *a, _open=open, **k: opened.update([str(file)]) or _open(file, *a, **k),
    )

    def run(name: str, *words: str) -> list[int]:
        opened.clear()
        assert main(["--data", str(folder), "--out", str(tmp_path / name), *words, *QUICK]) == 0
        return sorted(opened[str(file)] for file in folder.rglob("*.jpg"))

    with monkeypatch.context() as patch:
        patch.setattr(stages, "report", lambda run, answered: None)
        cold = run("first", "--seed", "1")
    assert set(cold) == {2}
    run("second")
    assert set(run("third")) == {1}


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the report, for tests of other parts of a run."""
    monkeypatch.setattr(stages, "report", lambda run, evaluation: None)


def test_who_waits_is_told_of_model_and_report_before_onnx_is_written(tmp_path, monkeypatch):
    done = []
    run = SimpleNamespace(settings=Settings(), interrupted=True)
    monkeypatch.setattr(finetuning, "prepare", lambda *args: run)
    for name in ("report", "result", "write_onnx"):
        monkeypatch.setattr(stages, name, lambda *args, name=name: done.append(name))
    for name in ("train", "calibrate"):
        monkeypatch.setattr(stages, name, lambda *args, name=name: done.append(name) or run)
    evaluation = SimpleNamespace(predictions=None)
    monkeypatch.setattr(
        stages, "predict", lambda *args: done.append("predict") or (run, evaluation)
    )
    finetuning.launch(
        Settings().but(out=tmp_path / "run"), announce=lambda run, result: done.append("told")
    )
    told = ["result", "told"]
    assert done == ["train", "calibrate", "predict", "report", *told, "write_onnx"]


def test_a_run_leaves_what_the_readme_lists(finished, folder):
    for name in ("config.yaml", "items.csv", "rejected.csv", "history.csv", "predictions.csv",
                 "log.txt", "model/config.json", "model/model.safetensors",
                 "model/reference.safetensors", "model/model.onnx", "model/README.md",
                 "report/index.html", "report/report.json"):  # fmt: skip
        assert (finished / name).stat().st_size, name
    mask = os.umask(0o022)
    os.umask(mask)
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in finished.rglob("*") if path.is_file()
    }
    assert {name: mode for name, mode in modes.items() if mode != 0o666 & ~mask} == {}
    items = pd.read_csv(finished / "items.csv")
    assert set(items.split) == {"train", "valid", "calibration", "unknown"}
    assert len(items) == 66
    rejected = pd.read_csv(finished / "rejected.csv")
    assert list(rejected.path) == [str(folder / "red" / "broken.jpg")]
    assert "broken.jpg" in (finished / "log.txt").read_text()
    assert not list(finished.rglob(".*")), "nothing half-written is left"


def test_an_answer_knows_the_training_files_that_it_resembles(finished, tmp_path):
    """This works while the model lies in its run; the shared folder names no training files."""
    items = pd.read_csv(finished / "items.csv")
    one = items.loc[items.split.eq("train")].iloc[3]
    near = Predictor(finished / "model").similar_files(one.path)
    assert (near[0].part.path, near[0].label) == (one.path, one.label)
    assert near[0].cosine == pytest.approx(1, abs=1e-3)
    assert len({item.part.path for item in near}) == 5
    assert [item.cosine for item in near] == sorted((f.cosine for f in near), reverse=True)
    cards = resembling(Predictor(finished / "model"), Part(one.path))
    assert cards[0]["name"] == Path(one.path).name
    assert cards[0]["picture"].startswith("data:image")
    shutil.copytree(finished / "model", tmp_path / "model")
    assert Predictor(tmp_path / "model").similar_files(one.path) == []


def test_training_files_and_their_re_encodings_are_not_unlike_the_training_data(finished, tmp_path):
    items = pd.read_csv(finished / "items.csv")
    files = items.loc[items.split.eq("train"), "path"].tolist()
    copies = [str(tmp_path / f"{n}.jpg") for n in range(len(files))]
    for file, copy in zip(files, copies, strict=True):
        Image.open(file).save(copy, quality=98, subsampling=0)
    predictor = Predictor(finished / "model")

    def out_of_distribution(distance):
        # Nine calibration items refuse nothing at 5 %.
        predictor.rule = replace(predictor.rule, distance=replace(distance, alpha=0.2))
        answers = predictor.predict([*files, *copies])
        return [one.path for one in answers if one.reason == OUT_OF_DISTRIBUTION]

    distance = predictor.rule.distance
    assert out_of_distribution(replace(distance, copy=-1.0)), (
        "by the distance to the classes alone some are"
    )
    assert out_of_distribution(distance) == []


def test_what_is_shared_of_a_run_names_no_folder_of_this_disk(finished, folder):
    """Neither the data's folder nor the program's; the run's own files do."""
    shared = [file for part in ("model", "report") for file in (finished / part).iterdir()]
    assert len(shared) == 7
    private = {
        str(folder.parent),
        str(finished.parent),
        str(Path.home()),
        str(Path.cwd()),
        sys.prefix,
    }
    for file in shared:
        content = file.read_bytes()
        assert not [name for name in private if f"{name}/".encode() in content], file
    assert f"`{folder.name}`" in (finished / "model/README.md").read_text()
    page = (finished / "report/index.html").read_text()
    assert '<td class="text">red/broken.jpg</td>' in page
    provenance = json.loads((finished / "model/config.json").read_text())["provenance"]
    assert f"--data {folder.name} --out {finished.name} " in provenance["command"]
    assert str(folder) in (finished / "config.yaml").read_text()


def test_it_learns_and_its_figures_agree_with_its_answers(finished):
    report = json.loads((finished / "report/report.json").read_text())
    metrics = report["metrics"]
    answers = pd.read_csv(finished / "predictions.csv")
    valid = answers[answers.split.eq("valid")]
    assert metrics["valid_accuracy"] == pytest.approx((valid.best == valid.truth).mean())
    assert metrics["valid_accuracy"] > 0.8
    ood = answers[answers.split.eq("unknown")]
    assert len(ood) == 6
    assert metrics["unknown_accepted"] == pytest.approx((ood.label != "unknown").mean())
    history = pd.read_csv(finished / "history.csv")
    # The saved model is the best epoch's: it answers as that epoch's validation did.
    best = json.loads((finished / "checkpoint/best.json").read_text())
    row = history[history.phase.eq(best["phase"]) & history.epoch.eq(best["epoch"])].iloc[0]
    assert row.valid_loss == history.valid_loss.min()
    assert metrics["valid_accuracy"] == pytest.approx(row.accuracy, abs=1e-5)
    nll = report["splits"]["valid"]["calibration"]["before"]["nll"]["value"]
    assert nll == pytest.approx(row.valid_loss, abs=1e-5)
    # The log says which epoch it is, and why.
    summary = f"epoch {best['epoch']} of {best['of']}, {best['phase']}: validation loss {row.valid_loss:.3g}"
    assert f"Kept {summary}, the lowest" in (finished / "log.txt").read_text()
    assert f"Kept {summary}" in (finished / "report/index.html").read_text()
    assert report["provenance"]["kept"].startswith(summary)
    # The report, the model card and the log say how the figures were measured.
    assert report["headline"] == {
        "split": "calibration",
        "message": CHOSE.format(figure="accuracy"),
    }
    for file in ("report/index.html", "model/README.md"):
        assert CHOSE.format(figure="accuracy") in (finished / file).read_text()
    protocol = report["protocol"]
    assert protocol.startswith("a random split of 3 classes; ")
    assert protocol.endswith("expect lower accuracy at other sites")
    for file in ("report/index.html", "model/README.md"):
        assert f"The figures rest on {protocol}." in (finished / file).read_text()


def test_the_tables_of_answers_are_one_format(finished, capsys):
    """Programs that read the rows of `learners.predict` can read those of a run."""
    saved = pd.read_csv(finished / "predictions.csv", dtype=str, keep_default_na=False)
    predict([str(finished / "model"), *saved.path])
    answers = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str, keep_default_na=False)
    assert list(saved)[: answers.shape[1]] == list(answers)
    columns = ["path", "label", "best", "reason", "start", "end"]
    pd.testing.assert_frame_equal(saved[columns], answers[columns])
    for ours, theirs in zip(saved.top.map(json.loads), answers.top.map(json.loads), strict=True):
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)


def test_the_command_that_is_printed_works_as_it_stands(
    finished, folder, tmp_path, capsys, monkeypatch
):
    """With the same interpreter, without an activated environment, in a folder of any name."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    run = shutil.copytree(finished, tmp_path / "Jane's run")
    assert main(["--resume", str(run)]) == 0
    (line,) = re.findall(r"^Predict: +(.*)FILE\.\.\.$", capsys.readouterr().out, re.M)
    picture = folder / "red" / "red_000.jpg"
    completed = subprocess.run(
        line + str(picture), shell=True, capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines()[1].startswith(f"{picture},")
    assert shlex.split(resume_command(run))[1:] == ["-m", "learners.finetune", "--resume", str(run)]


def test_the_interpreter_is_named_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my env/bin/python"))
    monkeypatch.chdir(tmp_path)
    assert command_line("app", "a b") == f"'{tmp_path}/my env/bin/python' -m secondhand app 'a b'"
    (tmp_path / "my env/bin").mkdir(parents=True)
    (tmp_path / "my env/bin/python").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "my env/bin"))
    assert command_line("app", "a b") == "python -m secondhand app 'a b'", (
        "its environment is active"
    )


def test_the_settings_saved_repeat_the_run_bit_for_bit(finished, unreported, tmp_path):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["epochs"] == 2
    again = tmp_path / "again"
    assert main(["--config", str(finished / "config.yaml"), "--out", str(again)]) == 0
    first = load_file(finished / "model/model.safetensors")
    second = load_file(again / "model/model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_number_out_of_range_is_told_its_range(folder, tmp_path):
    words = ["--data", str(folder), "--out", str(tmp_path / "x"), "--target-accuracy", "99"]
    with pytest.raises(SecondhandError) as error:
        main([*words, "--bs", "0", "--epochs", "2"])
    assert str(error.value) == (
        "invalid settings: --bs 0 (must be 1 or more); "
        "--target-accuracy 99.0 (must be above 0 and below 1, such as 0.99)"
    )
    assert not (tmp_path / "x").exists()


def test_the_threads_of_a_run_end_with_it(finished, unreported, tmp_path):
    """Sums depend on the number of threads, so the next run in this process would differ."""
    with keep_thread_count(3):
        arguments = ["--config", str(finished / "config.yaml"), "--threads", "1"]
        assert main([*arguments, "--out", str(tmp_path / "one")]) == 0
        assert torch.get_num_threads() == 3


def test_another_seed_is_another_run(finished, folder, unreported, tmp_path):
    out = tmp_path / "other"
    main(["--data", str(folder), "--out", str(out), "--lr", "1e-2", "--seed", "1", *QUICK])
    splits = [pd.read_csv(run / "items.csv").set_index("path").split for run in (finished, out)]
    assert (splits[0] != splits[1].reindex(splits[0].index)).any()


def test_unknown_classes_a_score_and_sets(folder, tmp_path):
    unknown = tmp_path / "strange" / "deep"
    shutil.copytree(folder / "unknown", unknown)
    trained = folder / "blue" / "blue_000.jpg"
    shutil.copy(trained, unknown / "known.jpg")
    (unknown / "broken.jpg").write_bytes(b"no picture")
    # The folder's own unknown files are named a second time; each counts once.
    extra = Image.new("RGB", (40, 40), (250, 240, 10))
    extra.save(unknown / "extra.png")
    out = tmp_path / "run"
    main(["--data", str(folder), "--unknown", str(tmp_path / "strange"), "--out", str(out),
          "--score", "rmds", "--target-accuracy", "0.6", "--resize", "pad", *QUICK,
          "--epochs", "1"])  # fmt: skip
    items = pd.read_csv(out / "items.csv")
    ood = items.loc[items.split.eq("unknown")]
    assert len(ood) == 7
    assert str(unknown / "extra.png") in set(ood.path)
    rejected = pd.read_csv(out / "rejected.csv").set_index("path").reason
    assert rejected[str(unknown / "known.jpg")].startswith(f"a copy of {trained}, which is in ")
    assert str(unknown / "broken.jpg") in rejected.index
    config = json.loads((out / "model/config.json").read_text())
    assert config["confidence"]["threshold"]["on"] == "rmds"
    assert config["preprocessing"]["resize"] == "pad"
    assert "7 files of unknown classes" in (out / "report/index.html").read_text()
    measured = json.loads((out / "report/report.json").read_text())["unknown_classes"]
    assert measured["score"] == "rmds"
    assert measured["auroc"]["low"] <= measured["auroc"]["value"] <= measured["auroc"]["high"]
    # The run's own table can be evaluated, with its unknown classes.
    assert evaluate_main(
        [str(out / "model"), "--data", str(out / "items.csv"), "--out", str(tmp_path / "report")]
    ) == 0  # fmt: skip
    answers = pd.read_csv(tmp_path / "report" / "predictions.csv")
    assert answers.split.eq("unknown").sum() == 7


def test_no_unknown_files_where_they_were_named(folder, tmp_path):
    (tmp_path / "strange").mkdir()
    with pytest.raises(SecondhandError, match="no usable picture file"):
        main(["--data", str(folder), "--unknown", str(tmp_path / "strange"),
              "--out", str(tmp_path / "run"), *QUICK])  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "backbone",
    ["test_resnet", pytest.param("test_vit", marks=pytest.mark.long("test_resnet is tried"))],
)
def test_every_callback_at_once_through_the_command(folder, unreported, tmp_path, backbone):
    size = "160" if backbone == "test_vit" else "32"
    out = tmp_path / "all"
    status = main(
        ["--data", str(folder), "--out", str(out), *QUICK, "--backbone", backbone, "--size", size,
         "--precision", "bf16", "--ema", "--clip", "1", "--accumulate", "16",
         "--mixup", "0.2", "--label-smoothing", "0.1", "--class-weights", "--lr", "1e-3",
         "--track", "tensorboard", "--epochs", "1"]
    )  # fmt: skip
    assert status == 0
    assert list((out / "tensorboard").iterdir())
    assert not (out / "models").exists() or not list((out / "models").iterdir())
    saved = pd.read_csv(out / "predictions.csv")
    again = list(Predictor(out / "model").predict(saved.path))
    for row, answer in zip(saved.itertuples(), again, strict=True):
        assert answer.probability == pytest.approx(row.probability, abs=1e-5)


def test_each_stage_is_called_by_itself(finished, tmp_path):
    """They use what an earlier process trained, without training again."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("checkpoint", "items.csv", "history.csv"):
        copy = shutil.copytree if (finished / name).is_dir() else shutil.copy
        copy(finished / name, folder / name)
    settings = parse(["--config", str(finished / "config.yaml")])
    prepared = prepare(folder, settings, command="the stages")
    assert prepared.settings.train.lr_mult == 1  # the default for random weights
    one = stages.train(prepared)
    assert one.bundle.provenance["command"] == "the stages"
    assert one.bundle.rule.distance.reference is None
    one = stages.calibrate(one)
    reference = one.bundle.rule.distance.reference
    assert len(reference) == one.items.rows["split"].eq("train").sum()
    assert not (folder / "model").exists()
    one, answered = stages.predict(one)
    assert one.bundle.metrics["valid_accuracy"] > 0.8
    answers, before = (pd.read_csv(run / "predictions.csv") for run in (folder, finished))
    pd.testing.assert_frame_equal(answers, before, atol=1e-6)
    assert load_file(folder / "model/model.safetensors").keys()
    assert not (folder / "report").exists()
    stages.report(one, answered)
    assert (folder / "report/index.html").stat().st_size


def test_an_existing_run_is_kept_unless_told_otherwise(finished, folder, tmp_path):
    out = tmp_path / "run"
    new = Settings().but(out=out)
    with run_folder(new) as written:
        (written / "config.yaml").write_text("first: 1")
    with pytest.raises(SecondhandError, match="--overwrite"), run_folder(new):
        pass
    # A new run that fails before training restores the old one.
    again = new.but(overwrite=True)
    with pytest.raises(ZeroDivisionError), run_folder(again) as written:
        (written / "config.yaml").write_text(f"half: {1 / 0}")
    assert (out / "config.yaml").read_text() == "first: 1"
    with run_folder(again) as written:
        (written / "config.yaml").write_text("second: 2")
    assert (out / "config.yaml").read_text() == "second: 2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_a_run_without_a_name_says_where_it_is_written(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    settings = Settings().but(data=["photos"])
    with run_folder(settings) as first:
        (first / "config.yaml").write_text("first: 1")
    assert (first, caplog.text) == (tmp_path / "runs/photos", "")
    with run_folder(settings) as second:
        (second / "config.yaml").write_text("second: 2")
    assert second == tmp_path / "runs/photos-2"
    assert "runs/photos exists, so this run is written to runs/photos-2" in caplog.text
    again = settings.but(overwrite=True)
    warm = again.but(**{"from": first / "model"})
    with pytest.raises(SecondhandError, match="holds the model of --from"), run_folder(warm):
        pass
    with run_folder(again) as folder:
        assert folder == first
    assert not (first / "config.yaml").exists()
    assert (second / "config.yaml").exists()


def test_a_folder_that_is_no_run_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    settings = Settings().but(out=tmp_path, overwrite=True)
    with pytest.raises(SecondhandError, match="not a run folder"), run_folder(settings):
        pass
    assert (tmp_path / "thesis.tex").exists()


def test_a_run_that_was_killed_before_its_training_begins_anew(tmp_path):
    """Its lock distinguishes it from a folder of the user."""
    settings = Settings().but(out=tmp_path / "run")
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    (tmp_path / "run/items.csv").write_text("path,label")
    with pytest.raises(SecondhandError, match="already exists"), run_folder(settings):
        pass
    (tmp_path / "run/.lock").write_text("process 1 on here")
    with run_folder(settings) as folder:
        assert [file.name for file in folder.iterdir()] == [".lock"]


def test_an_error_leaves_no_run_folder(folder, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(SecondhandError, match="nearest names"):
        main(["--data", str(folder), "--out", str(out), "--backbone", "resnet81"])
    assert not out.exists()


def test_all_wrong_numbers_are_named_at_once(folder, tmp_path):
    with pytest.raises(
        SecondhandError,
        match=r"--overlap 1\.5.*--epochs -1.*--bs 0.*--threshold 1\.5.*--keep-known 1\.5",
    ):
        main(["--data", str(folder), "--out", str(tmp_path / "r"), "--epochs", "-1", "--bs", "0",
              "--threshold", "1.5", "--keep-known", "1.5", "--overlap", "1.5"])  # fmt: skip


def test_no_room_is_found_out_before_training(folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here: needs root")
    try:
        with pytest.raises(OSError, match=r"MiB are free .*disk/run") as found:
            main(["--data", str(folder), "--out", str(disk / "run"), *QUICK])
        assert found.value.errno == errno.ENOSPC
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_ctrl_c_keeps_the_best_epoch(folder, tmp_path):
    out = tmp_path / "run"
    words = ["--data", str(folder), "--out", str(out), *QUICK, "--epochs", "500"]
    process = Program("-m", "learners.finetune", *words)
    deadline = time.monotonic() + 120
    while not (out / "checkpoint/best.json").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.err
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "best epoch so far" in errors
    assert "Traceback" not in errors
    assert len(list(Predictor(out / "model").predict(folder.rglob("green_000.jpg")))) == 1


def test_a_wrong_call_prints_one_line_and_leaves_with_2(tmp_path):
    process = Program("-m", "learners.finetune", "--data", str(tmp_path / "nothing"))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "there is no such folder or file" in errors
    assert "Traceback" not in errors
    assert not output
