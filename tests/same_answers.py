"""Compare two versions of the code by the answers of small models of every kind.

    python -m tests.same_answers write before/      # in one checkout
    python -m tests.same_answers write after/       # in the other
    python -m tests.same_answers compare before/ after/

Each run trains on one thread with a fixed seed. Its ``predictions.csv`` and ``report.json`` are
kept, and the output of ``learners.predict`` as CSV and JSON Lines. `compare` requires equal text and
numbers equal to 1e-6; its exit status is 1 if something differs.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pandas as pd

TOLERANCE = 1e-6
SMALL = ["--size", "48", "--epochs", "1", "--threads", "1", "--workers", "0", "--seed", "1"]
HEAD = ["--epochs", "0", "--target-accuracy"]
#: Flags of each run; ``{dir}`` is the output folder.
RUNS = {
    "digits": ["--data", "demo:digits", *SMALL, "--tta", "2", "--coverage", "0.9"],
    "sounds": ["--data", "demo:sounds", *SMALL, "--background", "{dir}/noise"],
    "glitches": ["--data", "demo:glitches", *SMALL, "--calibration", "0.2"],
    "scenes": ["--data", "demo:scenes", *SMALL],
    "tree": ["--data", "demo:digits", *SMALL, "--classes-table", "{dir}/tree.csv"],
    "target": ["--data", "demo:digits", *SMALL, *HEAD, "0.9", "--per-class", "--learning-curve"],
    "scenes-target": ["--data", "demo:scenes", *SMALL, *HEAD, "0.8"],
    "folds": ["--data", "{dir}/few.csv", *SMALL, "--epochs", "0", "--cv", "3"],
    "first": ["--data", "{dir}/few.csv", *SMALL],
    "second": ["--from", "{dir}/runs/first/model", "--data", "{dir}/more.csv", *SMALL],
}
ASKED = 24  # files of each run that `learners.predict` answers


def write(folder: Path) -> None:
    """Train all of `RUNS` and write their answers to ``folder/answers``."""
    os.environ |= {"SECONDHAND_CACHE": str(folder / "cache"), "SECONDHAND_ONNX": "0"}
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    _write_data(folder)
    for name, words in RUNS.items():
        run, answers_folder = folder / "runs" / name, folder / "answers" / name
        if answers_folder.is_dir():
            continue
        flags = [word.format(dir=folder) for word in words]
        _command(folder, "learners.finetune", *flags, "--out", run, "--overwrite", "--quiet")
        texts = {
            str(file.relative_to(run)).replace("/", "-"): file.read_text(encoding="utf-8")
            for pattern in ("**/predictions.csv", "**/report.json", "folds.csv")
            for file in sorted(run.glob(pattern))
        }
        if (run / "model").is_dir():
            for form in ("csv", "jsonl"):
                arguments = [run / "model", *_sample_files(run), "--format", form, "--quiet"]
                texts[f"answers.{form}"] = _command(folder, "learners.predict", *arguments)
        answers_folder.mkdir(parents=True)
        for file, text in texts.items():
            (answers_folder / file).write_text(text.replace(str(folder), "."), encoding="utf-8")
        print(name, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print each answer file that differs, and return how many do."""
    files = sorted(
        {p.relative_to(d) for d in (before, after) for p in (d / "answers").rglob("*.*")}
    )
    different = 0
    for file in files:
        if line := _difference(before / file, after / file):
            different += 1
            print(f"{file}: {line}")
    print(f"{len(files)} files, {different} different")
    return different


def _difference(before: Path, after: Path) -> str:
    """Return the first line in which two files differ, or ""."""
    if not (before.is_file() and after.is_file()):
        return "only in one of the two"
    lines = (
        [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if not _OF_ITS_TIME.match(line)
        ]
        for path in (before, after)
    )
    for number, (old, new) in enumerate(zip_longest(*lines, fillvalue=""), 1):
        if old != new and not _equal_but_for_last_digits(old, new):
            return f"line {number}\n  - {old[:300]}\n  + {new[:300]}"
    return ""


#: Report lines that differ from run to run: durations, dates and a hash of paths.
_OF_ITS_TIME = re.compile(r'\s*"(seconds|trained|evaluated|items_sha256)":')
_NUMBER = re.compile(r"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def _equal_but_for_last_digits(old: str, new: str) -> bool:
    a, b = _NUMBER.split(old), _NUMBER.split(new)
    return len(a) == len(b) and all(
        x == y if i % 2 == 0 else abs(float(x) - float(y)) <= TOLERANCE
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    )


def _command(folder: Path, module: str, *words: object) -> str:
    command = [sys.executable, "-m", module, *map(str, words)]
    completed = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    (folder / "log.txt").open("a", encoding="utf-8").write(f"$ {command}\n{completed.stderr}")
    if completed.returncode:
        sys.exit(f"{' '.join(command)}\n{completed.stdout[-500:]}{completed.stderr[-2000:]}")
    return completed.stdout


def _sample_files(run: Path) -> list[str]:
    """Return some files of each split of a run, including unknown ones."""
    items = pd.read_csv(run / "items.csv", dtype=str, keep_default_na=False)
    files = items.drop_duplicates("path").groupby("split")["path"]
    return [path for _, paths in files for path in paths.iloc[: ASKED // files.ngroups]]


def _write_data(folder: Path) -> None:
    """Write a tree above the digits, a small table, one with a further class, and noise."""
    if (folder / "tree.csv").is_file():
        return
    import numpy as np
    import soundfile

    from datasets.sources import write_demo

    folder.mkdir(parents=True, exist_ok=True)
    digits = write_demo("digits")[0]
    digits = digits.loc[digits["label"].ne("unknown")]
    few = digits.loc[digits["label"].isin(["0", "1", "2", "3"])].groupby("label").head(40)
    more = digits.loc[digits["label"].eq("4")].head(30)
    for name, rows in {"few": few, "more": more}.items():
        rows[["path", "label"]].to_csv(folder / f"{name}.csv", index=False)
    rows = [(n, "round" if n in "0689" else "straight") for n in sorted(set(digits["label"]))]
    rows += [("round", ""), ("straight", "")]
    with (folder / "tree.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("label", "parent"), *rows])
    rng, rate = np.random.default_rng(0), 16000
    (folder / "noise").mkdir()
    for number in range(40):
        noise = rng.normal(0, 0.02 * (1 + number % 4), 2 * rate).clip(-1, 1)
        soundfile.write(folder / "noise" / f"{number:02}.wav", noise.astype(np.float32), rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("write").add_argument("folder", type=Path)
    comparison = actions.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "write":
        write(arguments.folder.resolve())
        return 0
    return int(compare(arguments.before, arguments.after) > 0)


if __name__ == "__main__":
    sys.exit(main())
