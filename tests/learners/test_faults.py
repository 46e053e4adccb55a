"""What may go wrong around a run: disks, files, processes, clocks, signals, a second run.

Each ends in a right result or in one message that names the file and the remedy. No existing file
is lost, and the run can continue.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.loaders.seeded import Opening
from datasets.spectrograms.pictures import PictureCache
from learners.cli import console
from learners.cli.settings import Settings
from learners.files.lock import LOCK, locked
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.runs import stages
from learners.runs.folder import resume_command, run_folder
from learners.runs.stages import report
from tests.forks import Program, until
from tests.learners.stops import (
    QUICK,
    Stop,
    assert_same,
    interrupt,
    pictures,
    whole,
    with_callback,
)
from tests.pictures import write_pictures

SPECTROGRAM_SETTINGS = MelSettings(rate=8000, window=0.5, size=(64, 64))


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]


__all__ = ["pictures", "whole"]  # fixtures


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(place: Path, leave: int = 0) -> Path:
    """Fill the file system, except for so many bytes."""
    ballast = place / "ballast"
    free = shutil.disk_usage(place).free
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - leave))
    return ballast


def tones(folder: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    for number in range(count):
        soundfile.write(folder / f"{number}.wav", 0.1 * rng.standard_normal(4000), 8000)
    return sorted(folder.glob("*.wav"))


def test_a_disk_that_fills_up_in_training(pictures, whole, disk, monkeypatch, capsys):
    """There is room for half a checkpoint; then, when the run continues, for nothing."""
    out = disk / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    for batches, leave in ((7, 3 << 20), (2, 0)):
        full = Stop(batches, what=lambda leave=leave: fill_disk(disk, leave))
        with pytest.raises(SystemExit) as end:
            console.run(lambda full=full, words=words: with_callback(monkeypatch, full, words))
        assert end.value.code == 1
        output = capsys.readouterr().err
        assert f"Resume it: {resume_command(out)}" in output
        last = output.strip().splitlines()[-1]
        assert last.startswith(f"error: {out}")
        assert "No space left on device. Free some space" in last
        assert not list(out.rglob("*.part"))
        (disk / "ballast").unlink()
        words = ["--resume", str(out)]
    assert main(words) == 0
    assert_same(whole, out)


def test_a_disk_that_is_full_when_the_model_is_saved(pictures, whole, disk, monkeypatch, capsys):
    out = disk / "run"
    real = stages.save_bundle
    monkeypatch.setattr(
        stages,
        "save_bundle",
        lambda *args, **kwargs: fill_disk(disk, 1 << 20) and real(*args, **kwargs),
    )
    with pytest.raises(SystemExit) as end:
        console.run(lambda: main(["--data", str(pictures), *QUICK, "--out", str(out)]))
    assert end.value.code == 1
    assert f"error: {out}/model: No space left on device" in capsys.readouterr().err
    assert not list(out.glob(".model*"))
    assert not (out / "model").exists()
    monkeypatch.undo()
    (disk / "ballast").unlink()
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)


@pytest.mark.forks
def test_a_full_disk_under_the_cache_makes_no_file_a_bad_one(disk, tmp_path):
    clips = tones(tmp_path, 60)
    store = PictureCache(disk / "cache")
    store.get(clips[0], SPECTROGRAM_SETTINGS)
    ballast = fill_disk(disk, 64 << 10)
    for workers in (1, 2):
        with pytest.raises(SecondhandError, match=r"the cache .*No space left.*--cache-dir"):
            PictureCache(disk / "cache").render_all(clips, SPECTROGRAM_SETTINGS, workers=workers)
    assert not list((disk / "cache/tmp").iterdir())
    assert PictureCache(disk / "cache").verify()[1] == []
    ballast.unlink()
    rendered, bad = PictureCache(disk / "cache").render_all(clips, SPECTROGRAM_SETTINGS, workers=1)
    assert (len(set(rendered)), bad) == (60, [])


def test_an_output_that_may_not_be_written(pictures, disk, capsys):
    (disk / "mine").write_text("years of work")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(SystemExit) as end:
        console.run(lambda: main(["--data", str(pictures), *QUICK, "--out", str(disk / "run")]))
    assert end.value.code == 1
    assert (
        f"error: {disk}/run: Read-only file system. Choose another --out" in capsys.readouterr().err
    )
    assert (disk / "mine").read_text() == "years of work"


@pytest.mark.forks
def test_a_cache_that_may_only_be_read_serves_what_it_has(disk, tmp_path):
    clips = tones(tmp_path, 3)
    for clip in clips:
        os.utime(clip, (1e9, 1e9))
    first, _ = PictureCache(disk / "cache").render_all(clips[:2], SPECTROGRAM_SETTINGS)
    for picture in first:
        assert picture
        os.utime(picture, (1e9, 1e9))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert PictureCache(disk / "cache").render_all(clips[:2], SPECTROGRAM_SETTINGS) == (first, [])
    with pytest.raises(SecondhandError, match=r"the cache .*Read-only file system"):
        PictureCache(disk / "cache").render_all(clips, SPECTROGRAM_SETTINGS)


@pytest.mark.forks
@pytest.mark.parametrize(
    "workers", [pytest.param("0", marks=pytest.mark.long("a worker is tried")), "1"]
)
def test_files_that_vanish_or_change_are_listed_and_the_run_ends_well(
    tmp_path, monkeypatch, workers
):
    monkeypatch.setattr(stages, "report", report)  # files are missing for the report too
    data, out = write_pictures(tmp_path / "data"), tmp_path / "run"
    words = ["--data", str(data), *QUICK, "--workers", workers, "--out", str(out)]
    split: dict[str, list[Path]] = {}

    def disturb() -> None:
        items = pd.read_csv(out / "items.csv")
        for name, rows in items.groupby("split"):
            split[str(name)] = [Path(path) for path in rows["path"]]
        for files in split.values():
            files[0].unlink()
            files[1].write_bytes(b"\xff\xd8\xff\xe0 cut short")

    assert with_callback(monkeypatch, Stop(1, "after_epoch", disturb), words) == 0
    log = (out / "log.txt").read_text()
    assert f"{split['train'][0]}: left out of this epoch, there is no such file" in log
    assert f"{split['valid'][1]}: left out of this epoch, damaged" in log
    answers = pd.read_csv(out / "predictions.csv").set_index("path")
    for name in ("valid", "calibration"):
        assert answers.loc[str(split[name][0]), "reason"] == "bad file: there is no such file"
        assert answers.loc[str(split[name][2]), "best"] in ("red", "green", "blue")
    assert (out / "report/index.html").exists()
    load_bundle(out / "model")


def test_a_folder_that_vanishes_ends_the_run_which_goes_on_when_it_is_back(
    tmp_path, monkeypatch, capsys
):
    data = write_pictures(tmp_path / "data")
    assert main(["--data", str(data), *QUICK, "--out", str(tmp_path / "whole")]) == 0
    out = tmp_path / "run"
    words = ["--data", str(data), *QUICK, "--out", str(out)]
    removal = Stop(1, "after_epoch", lambda: data.rename(tmp_path / "away"))
    with pytest.raises(SecondhandError, match=r"^No training file can be read any more"):
        with_callback(monkeypatch, removal, words)
    assert f"Resume it: {resume_command(out)}" in capsys.readouterr().err
    with pytest.raises(SecondhandError, match="there is no such folder"):
        main(["--resume", str(out)])
    assert list(out.glob("checkpoint/state-*.json")), "nothing is lost by trying"
    (tmp_path / "away").rename(data)
    assert main(["--resume", str(out)]) == 0
    assert_same(tmp_path / "whole", out)


@pytest.mark.forks
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"A process that opens files died.*--workers",
        ),
        (lambda: np.empty(1 << 50, dtype=np.uint8), r"perhaps for lack of memory.*--workers"),
    ],
    ids=["dies", "more memory than the machine has"],
)
def test_a_loading_worker_fails(pictures, whole, tmp_path, monkeypatch, fault, message):
    out = tmp_path / "run"
    change_workers(monkeypatch, out, fault)
    with pytest.raises(SecondhandError, match=message):
        main(["--data", str(pictures), *QUICK, "--workers", "1", "--out", str(out)])
    monkeypatch.undo()
    assert main(["--resume", str(out), "--workers", "0"]) == 0
    assert_same(whole, out)


def change_workers(monkeypatch: pytest.MonkeyPatch, out: Path, fault: Callable[[], object]) -> None:
    """Change what workers do from the second epoch on."""
    real = Opening.open

    def opened(self, number, item):
        if (out / "checkpoint/best.json").exists():
            fault()
        return real(self, number, item)

    monkeypatch.setattr(Opening, "open", opened)


@pytest.mark.forks
def test_a_rendering_worker_that_is_killed_costs_nothing(tmp_path, monkeypatch):
    """Another worker renders the files it was working on."""
    clips = tones(tmp_path, 40)
    killed: list[int] = []

    def progress(done: int, all_: int) -> None:
        if done and not killed:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            killed.append(int(children.split()[-1]))
            os.kill(killed[0], signal.SIGKILL)

    rendered, bad = PictureCache(tmp_path / "cache").render_all(
        clips, SPECTROGRAM_SETTINGS, workers=2, progress=progress
    )
    assert killed
    assert bad == []
    assert len(set(rendered)) == 40
    assert PictureCache(tmp_path / "cache").verify() == (40, [])


def test_clocks_may_jump(pictures, whole, tmp_path, monkeypatch):
    """By a day in either direction, also between a stop and the continuation."""
    rng, real = random.Random(0), time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice([-86400, 0, 86400]))
    out = tmp_path / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    interrupt(monkeypatch, Stop(8), words)
    assert len(list(out.glob("checkpoint/state-*.json"))) == 1
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)
    assert pd.read_csv(out / "history.csv")["seconds"].between(0, 120).all()


SIGNALLED = """
import os, sys
from learners import finetune
from learners.cli import console
from learners.model import bundle
real, number = bundle.save_file, int(sys.argv.pop(1))
def save_file(*given, **named):
    real(*given, **named)
    os.kill(os.getpid(), number)
bundle.save_file = save_file
console.run(finetune.main)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_model_is_saved(pictures, whole, tmp_path, number, status):
    out = tmp_path / "run"
    words = ["--data", str(pictures), *QUICK, "--out", str(out)]
    program = Program("-c", SIGNALLED, str(int(number)), *words)
    _, output = program.communicate(timeout=200)
    assert program.returncode == status, output
    assert "Traceback" not in output
    assert f"Resume it: {resume_command(out)}" in output
    assert not (out / "model").exists()
    assert not list(out.glob(".*")), "nothing half-written is left"
    assert main(["--resume", str(out)]) == 0
    assert_same(whole, out)


HOLDS = """
import os, sys, time
from pathlib import Path
from learners.files.lock import locked
with locked(Path(sys.argv[1])):
    if not os.fork():
        time.sleep(60)  # a worker that outlives its parent
    print("locked", flush=True)
    time.sleep(60)
"""


def test_of_two_runs_in_a_folder_the_second_is_refused(pictures, whole, tmp_path):
    """The lock is released when its owner dies, even if a child process survives."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "checkpoint/finished.json").unlink()
    owner = Program("-c", HOLDS, str(run))
    try:
        until(lambda: owner.out == "locked\n")
        before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
        message = rf"{run} is in use by process {owner.pid} on .*Wait"
        words = ["--data", str(pictures), *QUICK, "--out", str(run), "--overwrite"]
        for call in (words, words[:-1], ["--resume", str(run)]):
            with pytest.raises(SecondhandError, match=message):
                main(call)
        assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before
        owner.kill()
        owner.wait()
        assert main(["--resume", str(run)]) == 0
        assert_same(whole, run)
        assert not (run / LOCK).exists()
    finally:
        os.killpg(owner.pid, signal.SIGKILL)


def test_where_there_are_no_locks_it_says_so_and_goes_on(tmp_path, monkeypatch, caplog):
    def none(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", none)
    with caplog.at_level("WARNING"), locked(tmp_path):
        assert f"{tmp_path} cannot be locked" in caplog.text


def test_what_was_set_aside_by_a_killed_overwrite_comes_back(tmp_path):
    """A killed run had replaced an old run; a later run that fails restores it."""
    out = tmp_path / "run"
    (out / "report").mkdir(parents=True)
    (out / "config.yaml").write_text("mine: 1")
    (out / "report/index.html").write_text("<html></html>")
    os.rename(out, tmp_path / ".run.old")
    out.mkdir()
    (out / "config.yaml").write_text("killed: 1")
    with pytest.raises(ZeroDivisionError), run_folder(Settings().but(out=out, overwrite=True)):
        _ = 1 / 0
    assert (out / "config.yaml").read_text() == "mine: 1"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_half_made_folder_does_not_stand_in_the_way(pictures, whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name in (LOCK, ".config.yaml.part"):
        (out / name).write_text("killed before it wrote anything")
    assert main(["--data", str(pictures), *QUICK, "--out", str(out)]) == 0
    assert_same(whole, out)
    assert len(list(Predictor(out / "model").predict(pictures.rglob("red_000.jpg")))) == 1
