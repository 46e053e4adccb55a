"""Glitches split by time, and each class rare in turn: F1 on later events than those learnt from.

    python benchmarks/bench_rare.py --work runs/rare -- --class-weights

The simulated detector grows quieter, from the first design curve to the latest: the first half of that
time is trained on, the second is tested. With all classes as frequent, then with ten events to learn
from of one class after another. Results go to WORK/rare.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd

from benchmarks._record import parse, record

#: So many events of a rare class, of which 15 % validate and 15 % calibrate: ten are learnt from.
RARE = 14


def known() -> list[str]:
    """The classes that `demo:glitches` learns."""
    from datasets.demos.glitches import CLASSES
    from datasets.demos.sets import STRANGER

    return [name for name in CLASSES if name != STRANGER]


def written(
    folder: Path, part: str, labels: list[str], each: int, ages: tuple[float, float]
) -> pd.DataFrame:
    """So many events of each: path, label, GPS time of the trigger (s) and ``part``, a row each. Their
    detector's ``ages`` run with the time: 1 is the first design curve, 0 the latest."""
    from datasets.demos.glitches import CLASSES, GPS, simulate, write_hdf5

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


def f1(table: Path, out: Path, words: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """F1 of each class on the test part of a run, and the part of it that was answered."""
    from sklearn.metrics import f1_score

    from learners.finetune import main as finetune

    with contextlib.redirect_stdout(io.StringIO()):
        finetune(["--data", str(table), "--out", str(out), "--overwrite", *words])
    rows = pd.read_csv(out / "predictions.csv", keep_default_na=False)
    rows = rows[rows["split"].eq("test")]
    classes = sorted(set(rows["truth"]))
    scores = f1_score(rows["truth"], rows["best"], labels=classes, average=None)
    answered = rows["label"].ne("unknown").groupby(rows["truth"]).mean()
    return dict(zip(classes, map(float, scores), strict=True)), answered.to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--work", type=Path, default=Path("runs/rare"))
    parser.add_argument("--events", type=int, default=64, help="of each class to learn from")
    parser.add_argument("--tested", type=int, default=40, help="of each class")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--classes", nargs="+", help="those of the demo")
    parser.add_argument("--rare", nargs="+", help="of these, in turn; all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("flags", nargs="*", help="after --: flags of learners.finetune")
    asked = parse(
        parser, events=6, tested=1, size=32, epochs=1, classes=["Blip_sim", "Power_Line_sim"], rare=["Blip_sim"],
        flags=["--near-duplicates", "ignore"],
    )  # fmt: skip
    classes = asked.classes or known()
    files = asked.work / "events"
    events = written(files, "train", classes, asked.events, (1.0, 0.5)).assign(split="")
    later = written(files, "test", classes, asked.tested, (0.5, 0.0))
    table, rows = asked.work / "items.csv", []
    for seed in asked.seeds:
        words = ["--size", str(asked.size), "--epochs", str(asked.epochs), "--seed", str(seed)]
        for rare in ["", *(asked.rare or classes)]:
            mixed = events.sample(frac=1, random_state=seed)
            kept = mixed["label"].ne(rare) | (mixed.groupby("label").cumcount() < RARE)
            pd.concat([mixed[kept].sort_index(), later]).to_csv(table, index=False)
            scores, answered = f1(table, asked.work / "run", [*words, *asked.flags])
            macro = float(np.mean(list(scores.values())))
            rows.append(
                {"seed": seed, "rare": rare, "macro F1": macro, "its F1": scores.get(rare, np.nan),
                 "its answered": answered.get(rare, np.nan)}
            )  # fmt: skip
            print(pd.DataFrame(rows[-1:]).round(3).to_string(index=False), flush=True)
            pd.DataFrame(rows).to_csv(asked.work / "rare.csv", index=False)
    found = pd.DataFrame(rows)
    macro = float(found.loc[found["rare"].eq(""), "macro F1"].mean())
    mean = float(found["its F1"].mean())
    print(
        f"split by time: macro F1 {macro:.3f}; ten events of a class: its F1 {mean:.3f} on average"
    )
    record(
        "rare",
        {"macro F1": macro, "F1 of a rare class": mean, "least": float(found["its F1"].min())},
    )


if __name__ == "__main__":
    main()
