"""Accuracy with few training files, of every class or of one rare class.

``few``: the defaults against `--epochs 0`, by the command that users run. So many files of each class are
drawn at random, and of those both sides hold 15 % and 15 % back as always. They are tested on the files
of `--test`; without any, on the data's fold of the seed's number (a fifth, where they name none), of which
nothing is drawn.

``rare``: simulated glitches split by time, each class rare in turn. The detector grows quieter, from the
first design curve to the latest: the first half of that time is trained on, the second is tested. With all
classes as frequent, then with ten events to learn from of one class after another.

    python benchmarks/bench_few.py --what few --work runs/few --plot few.svg --seeds 7 8 9 \\
        --data photos=../shared/data/pictures/known --test photos=../shared/data/pictures/elsewhere/known \\
        --data ESC-10=../shared/data/sounds/esc-10/items.csv
    python benchmarks/bench_few.py --what rare --work runs/rare -- --epochs 8 --class-weights

Results go to few.csv and rare.csv in WORK; what stands in few.csv is not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd

from benchmarks._shared import parse, software_and_hardware

COLUMNS = ("data", "files", "seed", "side", "accuracy", "seconds", "load")
SIDES: dict[str, list[str]] = {"defaults": [], "probe": ["--epochs", "0"]}
#: So many events of a rare class, of which 15 % validate and 15 % calibrate: ten are learnt from.
RARE = 14


def finetuned(table: Path, out: Path, size: int, seed: int, more: list[str]) -> pd.DataFrame:
    """The answers of a run for its test part: truth, best, label."""
    from learners.finetune import main as finetune

    words = ["--data", str(table), "--size", str(size), "--seed", str(seed), "--out", str(out),
             "--overwrite", *more]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        finetune(words)
    rows = pd.read_csv(out / "predictions.csv", dtype=str, keep_default_na=False)
    return rows[rows["split"].eq("test")]


def drawn(data: str, test: str | None, files: int, seed: int) -> pd.DataFrame:
    """So many files of each class, and the test part beside them."""
    from datasets.steps.reading import load_table

    frame = load_table(data).frame
    if test is None:
        fold = frame["fold"].where(frame["fold"].ne(""), (frame.index % 5).astype(str))
        folds = sorted(set(fold))
        apart = fold.eq(folds[seed % len(folds)])
        frame, test_rows = frame[~apart], frame[apart]
    else:
        test_rows = load_table(test).frame
    some = frame.groupby("label").sample(frac=1, random_state=seed).groupby("label").head(files)
    all_rows = pd.concat([some.assign(split=""), test_rows.assign(split="test")])
    all_rows["path"] = all_rows["path"].map(os.path.abspath)
    return all_rows[["path", "label", "group", "split"]]


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


def few(options: argparse.Namespace) -> None:
    kept, tests = options.work / "few.csv", dict(one.split("=", 1) for one in options.test)
    rows = pd.read_csv(kept).to_dict("records") if kept.exists() else []
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    for files in options.files:
        for name, data in (one.split("=", 1) for one in options.data):
            for seed in options.seeds:
                table = options.work / "items.csv"
                drawn(data, tests.get(name), files, seed).to_csv(table, index=False)
                for side, more in SIDES.items():
                    if (name, files, seed, side) in done:
                        continue
                    began = time.perf_counter()
                    answers = finetuned(
                        table, options.work / "run", options.size, seed, more + options.flags
                    )
                    right = float(answers["best"].eq(answers["truth"]).mean())
                    took = round(time.perf_counter() - began, 1)
                    values = (name, files, seed, side, right, took, round(os.getloadavg()[0], 1))
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
                    print(*values, flush=True)
                    pd.DataFrame(rows).to_csv(kept, index=False)
    frame = pd.DataFrame(rows)
    means = frame.pivot_table("accuracy", ["data", "files"], "side", sort=False)
    print(means[list(SIDES)].round(3).to_string())
    if options.plot:
        plot(frame, options.plot)


def written(
    folder: Path, part: str, labels: list[str], each: int, ages: tuple[float, float]
) -> pd.DataFrame:
    """So many events of each: path, label, GPS time of the trigger (s) and ``part``, a row each. Their
    detector's ``ages`` run with the time: 1 is the first design curve, 0 the latest."""
    from datasets.sources.glitches import CLASSES, GPS, simulate, write_hdf5

    rows = []
    for index, label in enumerate(labels):
        for number, age in enumerate(np.linspace(*ages, each)):
            file = folder / label / f"{part}-{number:04d}.hdf5"
            seed = np.random.default_rng([CLASSES.index(label), number, part == "test"])
            gps = GPS + 1e6 * (1 - age) + 64 * index
            if not file.is_file():
                strain = simulate(label, rng=seed, gps=gps, age=float(age))
                file.parent.mkdir(parents=True, exist_ok=True)
                write_hdf5(file, strain, f"SIMULATED, not measured: {label}")
            rows.append((os.path.abspath(file), label, gps + 16, part))
    return pd.DataFrame(rows, columns=["path", "label", "gps", "split"])


def rare(options: argparse.Namespace) -> None:
    from sklearn.metrics import f1_score

    from datasets.sources.demos import UNKNOWN_CLASS
    from datasets.sources.glitches import CLASSES

    classes = options.classes or [name for name in CLASSES if name != UNKNOWN_CLASS]
    files = options.work / "events"
    events = written(files, "train", classes, options.events, (1.0, 0.5)).assign(split="")
    later = written(files, "test", classes, options.tested, (0.5, 0.0))
    table, rows = options.work / "items.csv", []
    for seed in options.seeds:
        for name in ["", *(options.rare or classes)]:
            mixed = events.sample(frac=1, random_state=seed)
            kept = mixed["label"].ne(name) | (mixed.groupby("label").cumcount() < RARE)
            pd.concat([mixed[kept].sort_index(), later]).to_csv(table, index=False)
            answers = finetuned(table, options.work / "run", options.size, seed, options.flags)
            scores = f1_score(answers["truth"], answers["best"], labels=classes, average=None)
            each = dict(zip(classes, map(float, scores), strict=True))
            answered = answers["label"].ne("unknown")[answers["truth"].eq(name)].mean()
            rows.append(
                {"seed": seed, "rare": name, "macro F1": float(np.mean(scores)),
                 "its F1": each.get(name, np.nan), "its answered": answered}
            )  # fmt: skip
            print(pd.DataFrame(rows[-1:]).round(3).to_string(index=False), flush=True)
            pd.DataFrame(rows).to_csv(options.work / "rare.csv", index=False)
    found = pd.DataFrame(rows)
    macro, mean = found.loc[found["rare"].eq(""), "macro F1"].mean(), found["its F1"].mean()
    print(
        f"split by time: macro F1 {macro:.3f}; ten events of a class: its F1 {mean:.3f} on average"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--what", nargs="+", choices=["few", "rare"], default=["few"])
    parser.add_argument("--data", action="append", help="few: NAME=DATA, several times")
    parser.add_argument("--test", action="append", default=[], help="NAME=DATA to test that on")
    parser.add_argument("--files", type=int, nargs="+", default=[5, 10, 20, 50, 100])
    parser.add_argument("--plot", type=Path, help="of few")
    parser.add_argument("--events", type=int, default=64, help="rare: of each class to learn from")
    parser.add_argument("--tested", type=int, default=40, help="of each class")
    parser.add_argument("--classes", nargs="+", help="those of the demo")
    parser.add_argument("--rare", nargs="+", help="of these, in turn; all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--work", type=Path, default=Path("runs/few"))
    parser.add_argument("flags", nargs="*", help="after --: flags of learners.finetune")
    options = parse(
        parser, what=["few", "rare"], data=["sounds=demo:sounds"], files=[8], size=32, events=6, tested=1,
        classes=["Blip_sim", "Power_Line_sim"], rare=["Blip_sim"],
        flags=["--epochs", "1", "--near-duplicates", "ignore"],
    )  # fmt: skip
    if "few" in options.what and not options.data:
        parser.error("--data NAME=DATA is missing")
    options.work.mkdir(parents=True, exist_ok=True)
    for name, measure in (("few", few), ("rare", rare)):
        if name in options.what:
            measure(options)
    print(software_and_hardware("fastai", "scikit-learn"))


if __name__ == "__main__":
    main()
