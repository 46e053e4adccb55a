"""Very many files. A prediction that is killed on the way: no answer is lost, given twice, or another one.

The digits of `demo:digits` are written again and again with noise, each file different, in folders of a thousand; one in
a thousand is damaged. ``python -m learners.predict`` is killed (SIGKILL) after a third of the answers, and the same
command goes on to the end. Then: each file has one row, exactly the damaged ones are listed as unusable, and the answers
for a sample of files equal those of a prediction of them alone. The memory is that of all its processes together.

With ``--train`` a head is trained on as many pictures of 64 pixels, which are generated, at 32 pixels: for each message of
the run its second, and the memory (anonymous and most, in MB) that the command's own process and the largest other one
take then; and what a picture more takes. ``--stages`` gives the processor time of each stage of such a training beside that
of other numbers of files, and ``--read`` the stages before the training alone, which end with the tables of items.

    python benchmarks/bench_many_files.py runs/digits/model --count 100000
    python benchmarks/bench_many_files.py --train 2000 20000 100000
    python benchmarks/bench_many_files.py --train 3000 --classes 1000
    python benchmarks/bench_many_files.py --stages 2000 10000 --read 50000 100000
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import psutil
from PIL import Image

from benchmarks._shared import demo_files, demo_run, parse, software_and_hardware
from learners.outputs.journal import journal_file

SAMPLE = 500
#: Lines of /proc/PID/status.
MEMORY = ("RssAnon", "VmHWM")
DAMAGED_EVERY = 1000
#: Of each class, one picture in so many is a near-duplicate of the one before it.
COPIED_EVERY = 20
#: Seconds of a stage from which on it has a row of its own.
SHOWN = 0.05
#: Of each stage the functions, replaced by timed ones where they are called, as "module:function" of the module that calls
#: them. The steps of reading are in lists.
STAGES = {
    "near-duplicates": ["datasets.steps.near_duplicates:find_clusters"],
    "tables: items": [
        "learners.runs.run:record_inputs", "learners.runs.run:write_csv", "learners.runs.run:write_config",
    ],
    "loading PyTorch": ["learners.runs.finetuning:prepare"],
    "training, but for the stages below": ["learners.runs.stages:train_members"],
    "cache of pixels": ["learners.training.members:_build_loaders"],
    "features": ["learners.training.learner:frozen_features"],
    "head": ["learners.training.learner:fit_head"],
    "first model": ["learners.runs.stages:_write_model_so_far"],
    "cross-fitting": ["learners.runs.stages:cross_fit"],
    "calibration": ["learners.runs.stages:calibrate"],
    "prediction": ["learners.runs.stages:predict_held_out", "learners.runs.stages:predict_cross"],
    "figures": ["learners.runs.stages:predict"],
    "tables: predictions": ["learners.runs.stages:write_csv"],
    "model folder": ["learners.runs.stages:save_bundle"],
    "report": ["learners.runs.stages:report"],
    "ONNX": ["learners.runs.stages:write_onnx"],
}  # fmt: skip
#: Names of the steps of reading, where they are not their functions'.
READING = {"read_sources": "listing", "check": "opening and fingerprints"}
REST = "start and end"
#: In place of a command: what comes before a training.
READ = "read"


def write_files(folder: Path, count: int) -> set[str]:
    """Write the files. Returns the names of those that are damaged."""
    rng = np.random.default_rng(0)
    digits = [np.asarray(Image.open(file).convert("L")) for file in demo_files(400)]
    damaged = set()
    for number in range(count):
        file = folder / f"{number // 1000:04d}" / f"{number:07d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        digit = digits[number % len(digits)]
        noisy = digit + rng.integers(0, 30, digit.shape)
        Image.fromarray(noisy.clip(0, 255).astype("uint8")).save(file, compress_level=1)
        if number % DAMAGED_EVERY == DAMAGED_EVERY // 2:
            file.write_bytes(file.read_bytes()[:60])
            damaged.add(file.name)
    return damaged


def predict(words: list[str], out: Path, count: int, *, kill: bool = False) -> tuple[float, float]:
    """Run the command for ``count`` files, killed after a third of them if ``kill``.

    Returns seconds and the most memory of all its processes, in MB.
    """
    start, most = time.perf_counter(), 0.0
    words = [sys.executable, "-m", "learners.predict", *words, "--out", str(out)]
    with open(out.with_suffix(".log"), "w") as log:
        process = psutil.Popen(words, stderr=log)
    while process.poll() is None:
        family = [process]
        with suppress(psutil.Error):
            family += process.children(recursive=True)
            most = max(most, sum(one.memory_info().rss for one in family) / 1e6)
        journal = journal_file(out)
        if kill and journal.exists() and journal.read_bytes().count(b".png") > count / 3:
            process.kill()
            psutil.wait_procs(family, timeout=60)
        time.sleep(count / 200_000)
    if process.returncode != (-signal.SIGKILL if kill else 3):
        raise SystemExit(out.with_suffix(".log").read_text())
    return time.perf_counter() - start, most


def write_classes(folder: Path, count: int, classes: int) -> None:
    """Write smooth pictures that share 60 % with the others of their class, in a folder for each class. One in twenty is a
    darker copy of the one before it, with noise."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 256, (classes, 8, 8, 3))
    last = shared.astype(float)
    for number in range(count):
        of_class = shared[number % classes]
        if number >= classes and number // classes % COPIED_EVERY == 0:
            pixels = 0.95 * last[number % classes] + rng.uniform(0, 5, of_class.shape)
        else:
            pixels = 0.6 * of_class + 0.4 * rng.integers(0, 256, of_class.shape)
        last[number % classes] = pixels
        file = folder / f"{number % classes:04d}" / f"{number:07d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.astype("uint8"))
        picture.resize((64, 64), Image.Resampling.BILINEAR).save(file, quality=80)


def memory(process: psutil.Process) -> tuple[int, int]:
    """Anonymous and most memory of a process until now, in MB; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        of = {
            name: int(line.split()[1]) for line in lines if (name := line.split(":")[0]) in MEMORY
        }
        return of.get("RssAnon", 0) // 1024, of.get("VmHWM", 0) // 1024
    return 0, 0


def train(count: int, classes: int) -> int:
    """Train on this many pictures. Prints the curve, and returns the most memory of the command's process in MB."""
    with tempfile.TemporaryDirectory() as passing:
        files, run = Path(passing) / "files", Path(passing) / "run"
        write_classes(files, count, classes)
        words = ["--data", str(files), "--epochs", "0", "--size", "32", "--out", str(run)]
        process = psutil.Popen(
            [sys.executable, "-m", "learners.finetune", *words, "--quiet"],
            env={**os.environ, "SECONDHAND_CACHE": str(Path(passing) / "cache")},
        )
        start, log, shown, own, others = time.perf_counter(), run / "log.txt", 0, (0, 0), 0
        print(f"{count} files of {classes} classes\n     s   cpu s  anonymous   most  others")
        while process.poll() is None:
            with suppress(psutil.Error):
                family = process.children(recursive=True)
                worked = sum(sum(one.cpu_times()[:2]) for one in family)
                worked += sum(process.cpu_times()[:4])
                others = max([others, *(memory(one)[1] for one in family)])
            own = max(own, memory(process), key=lambda of: of[1])
            lines = log.read_text("utf-8").splitlines() if log.exists() else []
            for line in lines[shown:]:
                text = line.partition(" INFO ")[2]
                if text and text[0] != " ":  # a row of the table of the classes
                    print(
                        f"{time.perf_counter() - start:6.0f} {worked:7.0f} {memory(process)[0]:10} {own[1]:6} {others:7}  "
                        f"{text[:70]}",
                        flush=True,
                    )
            shown = len(lines)
            time.sleep(0.2)
        if process.returncode:
            raise SystemExit(process.returncode)
        print(
            f"{time.perf_counter() - start:6.0f} {worked:7.0f} {'':10} {own[1]:6} {others:7}  done"
        )
    return own[1]


def train_all(counts: Sequence[int], classes: int) -> None:
    most = [train(count, classes) for count in counts]
    for few, many in pairwise(range(len(counts))):
        kilobytes = 1024 * (most[many] - most[few]) / (counts[many] - counts[few])
        print(f"{counts[few]} to {counts[many]} files: {kilobytes:.1f} kB a file")


class Stages:
    """Seconds of the stages."""

    def __init__(self) -> None:
        self.seconds = dict[str, tuple[float, float]]()
        self._open = [REST]
        self._last = (0.0, time.monotonic())

    def _count(self) -> None:
        now = (worked(), time.monotonic())
        before = self.seconds.get(self._open[-1], (0.0, 0.0))
        passed = zip(before, now, self._last, strict=True)
        work, clock = (so_far + to - since for so_far, to, since in passed)
        self.seconds[self._open[-1]], self._last = (work, clock), now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is the stage's."""

        @functools.wraps(function)
        def of_stage(*args: Any, **kwargs: Any) -> Any:
            self._count()
            self._open.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._count()
                self._open.pop()

        return of_stage

    def end(self) -> dict[str, tuple[float, float]]:
        """Of each stage the processor time and the time by the clock."""
        self._count()
        return self.seconds


def worked() -> float:
    """Processor time of this process and all that it has started."""
    seconds = sum(os.times()[:4])
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                seconds += sum(child.cpu_times()[:4])
    return seconds


def read(data: str, folder: str) -> None:
    """Read, split and write the tables of a training on these files."""
    from datasets.items.settings import DataSettings
    from datasets.steps.base import Asked
    from learners.runs.run import load_items, read_items

    Path(folder).mkdir(parents=True)
    asked = Asked.by(DataSettings(data=data))
    load_items(read_items(asked), asked, Path(folder))


def measured(words: list[str]) -> dict[str, Any]:
    """Run ``python -m learners.WORDS``, or `read`. Returns its stages, and the most memory of its own process in MB."""
    stages = Stages()
    reading = importlib.import_module("datasets.steps.reading")
    for steps in ("TABLE", "GROUPS", "SPLITS", "PICTURES"):
        timed = [
            stages.timed(READING.get(step.__name__, step.__name__), step)
            for step in getattr(reading, steps)
        ]
        setattr(reading, steps, tuple(timed))
    for name, functions in STAGES.items():
        for place in functions:
            module, _, function = place.partition(":")
            of = importlib.import_module(module)
            setattr(of, function, stages.timed(name, getattr(of, function)))
    if words[0] == READ:
        read(*words[1:])
    elif status := importlib.import_module(f"learners.{words[0]}").main(words[1:]):
        raise SystemExit(status)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"stages": stages.end(), "most": most // 1024}


def measure_stages(count: int, classes: int, *, train: bool) -> dict[str, Any]:
    """Stages of a training on this many pictures, or of what comes before it: see `STAGES`."""
    with tempfile.TemporaryDirectory() as passing:
        files, run, found = (Path(passing) / name for name in ("files", "run", "stages.json"))
        write_classes(files, count, classes)
        words = ["finetune", "--data", files, "--epochs", "0", "--size", "32", "--out", run]
        subprocess.run(
            [sys.executable, __file__, "--timed", found, *([*words, "--quiet"] if train else [READ, files, run])],
            env={**os.environ, "SECONDHAND_CACHE": str(Path(passing) / "cache")},
            stdout=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        stages: dict[str, Any] = json.loads(found.read_text())
    return stages


def print_stages(columns: dict[str, dict[str, Any]]) -> None:
    """Print processor time of each stage and most memory; a column for each number of files, by its title."""
    print(f"{'processor time, s':36}" + "".join(f"{title:>14}" for title in columns))
    for name in dict.fromkeys(name for column in columns.values() for name in column["stages"]):
        seconds = [column["stages"].get(name, (0.0, 0.0))[0] for column in columns.values()]
        if max(seconds) >= SHOWN:
            print(f"{name:36}" + "".join(f"{value:14.2f}" for value in seconds))
    most = "".join(f"{column['most']:14}" for column in columns.values())
    print(f"{'most memory of its own process, MB':36}{most}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--train", type=int, nargs="+", help="numbers of files to train on")
    parser.add_argument("--stages", type=int, nargs="+", default=[], help="stages of a training")
    parser.add_argument("--read", type=int, nargs="+", default=[], help="stages before a training")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--timed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    settings = parse(parser, count=2000)
    if settings.timed:
        file, *words = settings.timed
        Path(file).write_text(json.dumps(measured(words)))
        return
    if settings.train:
        train_all(settings.train, settings.classes)
        print(software_and_hardware())
        return
    if settings.stages or settings.read:
        asked = [*((n, True) for n in settings.stages), *((n, False) for n in settings.read)]
        columns = {
            f"{count}{'' if whole else ' read'}": measure_stages(
                count, settings.classes, train=whole
            )
            for count, whole in asked
        }
        print_stages(columns)
        print(software_and_hardware())
        return
    model = settings.model or str(demo_run(settings.small) / "model")
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing) / "files"
        damaged = write_files(folder, settings.count)
        out, again = Path(passing) / "all.csv", Path(passing) / "sample.csv"
        words = [model, str(folder)]
        first, memory = predict(words, out, settings.count, kill=True)
        second, more = predict(words, out, settings.count)
        rows = pd.read_csv(out, keep_default_na=False)
        names = rows["path"].map(lambda path: Path(path).name)
        print(
            f"{len(rows)} rows for {settings.count} files, {names.nunique()} of them different; killed after "
            f"{first:.0f} s, ended after {second:.0f} s more; {settings.count / (first + second):.0f} files/s, at "
            f"most {max(memory, more):.0f} MB"
        )
        listed = set(names[rows["reason"].str.startswith("bad file")])
        print(
            f"{len(listed & damaged)} of {len(damaged)} damaged files listed, {len(listed - damaged)} others"
        )
        sample = pd.concat([rows[rows["reason"].str.startswith("bad file")], rows]).head(1)
        sample = pd.concat([sample, rows.sample(min(SAMPLE, len(rows)), random_state=0)])
        predict([model, *sample["path"]], again, len(sample))
        alone = pd.read_csv(again, keep_default_na=False)
        same = (alone["best"].to_numpy() == sample["best"].to_numpy()).all() and np.allclose(
            *(pd.to_numeric(table["probability"]).fillna(-1) for table in (alone, sample)),
            atol=1e-5,
        )
        print(f"{len(sample)} predicted alone: {'the same' if same else 'OTHER'} answers")
    print(software_and_hardware("onnxruntime"))
    if not (len(rows) == names.nunique() == settings.count and listed == damaged and same):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
