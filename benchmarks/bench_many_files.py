"""Very many files. A prediction that is killed on the way: no answer is lost, given twice, or another one.

The digits of `demo:digits` are written again and again with noise, each file different, in folders of a thousand; one in
a thousand is damaged. ``python -m learners.predict`` is killed (SIGKILL) after a third of the answers, and the same
command goes on to the end. Then: each file has one row, exactly the damaged ones are listed as unusable, and the answers
for a sample of files equal those of a prediction of them alone. The memory is that of all its processes together.

With ``--train`` a head is trained on as many pictures of 64 pixels, which are generated, at 32 pixels: for each message of
the run its second, and the memory (anonymous and most, in MB) that the command's own process and the largest other one
take then; and what a picture more takes.

    python benchmarks/bench_many_files.py runs/digits/model --count 100000
    python benchmarks/bench_many_files.py --train 2000 20000 100000
    python benchmarks/bench_many_files.py --train 3000 --classes 1000
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

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
    """Write smooth pictures that share 60 % with the others of their class, in a folder for each class."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 256, (classes, 8, 8, 3))
    for number in range(count):
        of_class = shared[number % classes]
        pixels = 0.6 * of_class + 0.4 * rng.integers(0, 256, of_class.shape)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--train", type=int, nargs="+", help="numbers of files to train on")
    parser.add_argument("--classes", type=int, default=10)
    settings = parse(parser, count=2000)
    if settings.train:
        train_all(settings.train, settings.classes)
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
