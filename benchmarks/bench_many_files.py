"""Prediction of very many files, killed on the way: no answer is lost, given twice, or another one.

The digits of `demo:digits` are written again and again with noise, each file different, in folders of a thousand; one in
a thousand is damaged. ``python -m learners.predict`` is killed (SIGKILL) after a third of the answers, and the same
command goes on to the end. Then: each file has one row, exactly the damaged ones are listed as unusable, and the answers
for a sample of files equal those of a prediction of them alone. The memory is that of all its processes together.

    python benchmarks/bench_many_files.py runs/digits/model --count 100000
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import psutil
from PIL import Image

from benchmarks._shared import demo_files, demo_run, parse, software_and_hardware
from learners.outputs.journal import journal_file

SAMPLE = 500
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("--count", type=int, default=100_000)
    settings = parse(parser, count=2000)
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
