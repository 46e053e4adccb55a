"""Few files a class: the defaults against `--probe`, by the command that users run, as a table and a plot.

    python benchmarks/bench_few.py --work runs/few --plot few.svg \\
        --data photos=../shared/data/pictures/known --test photos=../shared/data/pictures/elsewhere/known \\
        --data ESC-10=../shared/data/sounds/esc-10/items.csv

So many files of each class are drawn at random, and of those both sides hold 15 % and 15 % back as
always. They are tested on the files of `--test`; without any, on the data's fold of the seed's number
(a fifth, where they name none), of which nothing is drawn. Results go to WORK/few.csv; what stands there is not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from benchmarks._record import parse

COLUMNS = ("data", "files", "seed", "side", "accuracy", "seconds", "load")
SIDES: dict[str, list[str]] = {"defaults": [], "probe": ["--probe"]}


def drawn(data: str, test: str | None, files: int, seed: int) -> pd.DataFrame:
    """So many files of each class, and the test part beside them."""
    from datasets.tables import load_table

    frame = load_table(data).frame
    if test is None:
        fold = frame["fold"].where(frame["fold"].ne(""), (frame.index % 5).astype(str))
        folds = sorted(set(fold))
        apart = fold.eq(folds[seed % len(folds)])
        frame, other = frame[~apart], frame[apart]
    else:
        other = load_table(test).frame
    some = frame.groupby("label").sample(frac=1, random_state=seed).groupby("label").head(files)
    both = pd.concat([some.assign(split=""), other.assign(split="test")])
    both["path"] = both["path"].map(os.path.abspath)
    return both[["path", "label", "group", "split"]]


def trained(table: Path, out: Path, size: int, seed: int, more: list[str]) -> float:
    """Accuracy on the test part of a run."""
    from learners.finetune import main as finetune
    from learners.model import load_bundle

    words = ["--data", str(table), "--size", str(size), "--seed", str(seed), "--out", str(out),
             "--overwrite", *more]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        finetune(words)
    return float(load_bundle(out / "model").metrics["test_accuracy"])


def told(rows: pd.DataFrame) -> str:
    """The table: the mean over seeds."""
    lines = ["| data | files a class | defaults | `--probe` |", "|---|---|---|---|"]
    for (data, files), some in rows.groupby(["data", "files"], sort=False):
        means = [statistics.mean(some.loc[some["side"].eq(s), "accuracy"]) for s in SIDES]
        lines.append(f"| {data} | {files} | " + " | ".join(f"{m:.3f}" for m in means) + " |")
    return "\n".join(lines)


def plot(rows: pd.DataFrame, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for colour, (data, some) in zip(
        ("C0", "C1", "C2"), rows.groupby("data", sort=False), strict=False
    ):
        for line, side in zip("-:", SIDES, strict=True):
            means = some[some["side"].eq(side)].groupby("files")["accuracy"].mean()
            axes.plot(means.index, means, colour, ls=line, marker=".", label=f"{data}, {side}")
    counts = sorted(set(rows["files"]))
    axes.set(xscale="log", xlabel="files a class", ylabel="accuracy on the test part")
    axes.set_xticks(counts, counts)
    axes.minorticks_off()
    axes.grid(color="0.92")
    axes.legend()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="append", help="NAME=DATA, several times")
    parser.add_argument("--test", action="append", default=[], help="NAME=DATA to test that on")
    parser.add_argument("--files", type=int, nargs="+", default=[5, 10, 20, 50, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--work", type=Path, default=Path("runs/few"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("flags", nargs="*", help="after --: flags of learners.finetune")
    asked = parse(
        parser, data=["sounds=demo:sounds"], files=[8], size=32,
        flags=["--epochs", "1", "--near-duplicates", "ignore"],
    )  # fmt: skip
    if not asked.data:
        parser.error("--data NAME=DATA is missing")
    asked.work.mkdir(parents=True, exist_ok=True)
    kept, tests = asked.work / "few.csv", dict(one.split("=", 1) for one in asked.test)
    rows = pd.read_csv(kept).to_dict("records") if kept.exists() else []
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    for files in asked.files:
        for name, data in (one.split("=", 1) for one in asked.data):
            for seed in asked.seeds:
                table = asked.work / "items.csv"
                drawn(data, tests.get(name), files, seed).to_csv(table, index=False)
                for side, more in SIDES.items():
                    if (name, files, seed, side) in done:
                        continue
                    began = time.perf_counter()
                    found = trained(table, asked.work / "run", asked.size, seed, more + asked.flags)
                    took = round(time.perf_counter() - began, 1)
                    values = (name, files, seed, side, found, took, round(os.getloadavg()[0], 1))
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
                    print(*values, flush=True)
                    pd.DataFrame(rows).to_csv(kept, index=False)
    frame = pd.DataFrame(rows)
    print(told(frame))
    if asked.plot:
        plot(frame, asked.plot)


if __name__ == "__main__":
    main()
