"""``kill -9`` at random moments of a run: every run must resume and reach the same weights bit for bit.

A small run on tones: drawn as spectrograms with two workers, the embedded backbone fine-tuned in two
phases with averaged weights, one thread and one loading worker, saved within epochs too, calibrated,
exported, reported. The moments are seeded: a fifth of them in the rendering, two fifths each in the
training and in what comes after it (calibration, answers, model folder, report), at times drawn
evenly over what each took in the run that was not killed. The signal goes to the whole process group,
workers included; a third of the runs get it twice. After each kill: every file under its final name is
whole (read through: JSON, YAML, CSV, safetensors, HTML, model folder) and the picture cache verifies. After
``--resume``: exit status 0, the weights and the answers are the uninterrupted run's, nothing
half-written is left.

    python benchmarks/bench_kills.py                        # 20 kills, 15 minutes on two cores
    python benchmarks/bench_kills.py --folder D --first 5 --count 5     # in parts
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import soundfile
import yaml
from safetensors.torch import load_file

from benchmarks._shared import parse, software_and_hardware
from datasets.spectrograms.pictures import PictureCache
from learners.model.bundle import load_bundle

RATE = 8000
FLAGS = ["--size", "64", "--epochs", "1", "--bs", "16", "--threads", "1", "--workers", "1", "--ema",
         "--lr", "3e-3", "--seed", "3"]  # fmt: skip
#: stage: the file with which it begins, and the one with which it ends.
STAGES = {
    "rendering": ("config.yaml", "items.csv"),
    "training": ("items.csv", "checkpoint/trained.json"),
    "exporting": ("checkpoint/trained.json", "checkpoint/finished.json"),
}
ORDER = ("rendering", "training", "exporting", "training", "exporting")


def write_tones(folder: Path, count: int) -> None:
    """Three classes of tones in noise, a second each."""
    rng = np.random.default_rng(0)
    t = np.arange(RATE) / RATE
    for number in range(count):
        label, hertz = (("low", 300), ("middle", 900), ("high", 2700))[number % 3]
        (folder / label).mkdir(parents=True, exist_ok=True)
        tone = 0.2 * np.sin(2 * np.pi * hertz * rng.uniform(0.8, 1.2) * t)
        sound = tone + 0.1 * rng.standard_normal(len(t))
        soundfile.write(folder / label / f"{number:03d}.wav", sound, RATE)


#: A network of no use is trained and saved in the same steps.
SMALL = ["--backbone", "test_resnet", "--weights", "none"]


def start(cache: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "learners.finetune", *words],
        env={**os.environ, "SECONDHAND_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def to_the_end(cache: Path, small: bool, *words: str) -> tuple[int, str]:
    """Its exit status, and what it said. ``small``: here, for to import takes far longer than to train."""
    if not small:
        process = start(cache, *words)
        output, _ = process.communicate()
        return process.returncode, output
    from learners.finetune import main as finetune

    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = finetune([*words, "--cache-dir", str(cache)])
    return status, output.getvalue()


def kill_at(process: subprocess.Popen[str], run: Path, stage: str, after: float) -> str:
    """Wait for the stage and so many seconds, then kill the group. Where it was, in words."""
    began = run / STAGES[stage][0]
    while not began.exists() and process.poll() is None:
        time.sleep(0.002)
    due = time.monotonic() + after
    while time.monotonic() < due and process.poll() is None:
        time.sleep(min(0.002, after))
    if process.poll() is not None:
        return "was over already"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    there = [name for name, (_, last) in STAGES.items() if not (run / last).exists()]
    writing = sorted({path.name[:24] for path in run.rglob(".*") if path.name != ".lock"})
    return f"killed in {there[0] if there else 'the end'}" + (f", writing {writing}" if writing else "")  # fmt: skip


def check_files(run: Path, cache: Path) -> int:
    """Read every file that has its final name; the number of pictures in the cache."""
    for path in run.rglob("*"):
        inside = path.relative_to(run)
        if not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".csv":
            assert not len(pd.read_csv(path)) or path.read_text().endswith("\n"), path
        elif path.suffix == ".yaml":
            assert len(yaml.safe_load(path.read_text())) > 50, path
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>"), path
    if (run / "model").exists():
        load_bundle(run / "model")
    right, wrong = PictureCache(cache).verify()
    assert not wrong, wrong
    return right


def one(number: int, folder: Path, whole: Path, took: dict[str, float], small: bool) -> bool:
    """Kill a run, once or twice, and go on with it. Whether it is the run that was not killed."""
    rng = random.Random(1000 + number)
    cache, run = folder / f"cache-{number}", folder / f"run-{number}"
    for old in (cache, run):
        shutil.rmtree(old, ignore_errors=True)
    stage = ORDER[number % len(ORDER)]
    words = ["--data", str(folder / "tones"), "--out", str(run), *FLAGS, *SMALL * small]
    kills, started = [], words
    for kill in range(2 if number % 3 == 0 else 1):
        if kill:
            stage = "exporting" if stage == "exporting" else "training"
        process = start(cache, *words)
        kills.append(kill_at(process, run, stage, rng.uniform(0, 0.8 * took[stage])))
        pictures = check_files(run, cache)
        # As the program says: what ended before it had settings is started again.
        words = ["--resume", str(run)] if (run / "config.yaml").is_file() else started
    status, output = to_the_end(cache, small, *words)
    went_on = [line for line in output.splitlines() if line.startswith("Resuming")]
    check_files(run, cache)
    leftovers = [path.name for path in (*run.rglob(".*"), *run.rglob("state-*"))]
    equal = status == 0 and all(
        (run / name).read_bytes() == (whole / name).read_bytes()
        for name in ("model/model.safetensors", "model/reference.safetensors", "predictions.csv")
    )
    print(
        f"{number:3} {'; '.join(kills)}; {pictures} pictures; {' '.join(went_on) or 'began again'}: "
        f"{'equal' if equal else 'DIFFERENT'}{f', leftovers {leftovers}' if leftovers else ''}",
        flush=True,
    )
    if not equal:
        print(output)
    else:
        for old in (cache, run):
            shutil.rmtree(old)
    return equal and not leftovers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="kept, for a run in parts")
    parser.add_argument("--files", type=int, default=200, help="of sound to train on")
    options = parse(parser, first=1, count=1, files=12)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    whole = folder / "whole"
    if not (whole / STAGES["exporting"][1]).exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_tones(folder / "tones", options.files)
        time.sleep(2.1)  # files just written are not trusted by their time
        words = [
            "--data",
            str(folder / "tones"),
            "--out",
            str(whole),
            *FLAGS,
            *SMALL * options.small,
        ]
        status, output = to_the_end(folder / "cache", options.small, *words)
        assert status == 0, output
    times = {name: os.stat(whole / name).st_mtime for pair in STAGES.values() for name in pair}
    # config.yaml is written again when the data are read: a second around it is tried.
    took = {s: max(1.0, times[last] - times[first]) for s, (first, last) in STAGES.items()}
    print("not killed:", ", ".join(f"{stage} {t:.1f} s" for stage, t in took.items()), flush=True)
    numbers = range(options.first, options.first + options.count)
    good = sum(one(number, folder, whole, took, options.small) for number in numbers)
    print(f"{good} of {len(numbers)} went on to the same weights and answers")
    print(software_and_hardware("fastai"))
    if options.folder is None:
        shutil.rmtree(folder)
    sys.exit(good != len(numbers))


if __name__ == "__main__":
    main()
