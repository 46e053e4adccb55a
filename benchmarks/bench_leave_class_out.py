"""How well a model tells a class that it was never shown from those it was: leave one class out.

Each class in turn is taken out of training, validation and calibration; the network is fine-tuned
without it, by the command that users run, and its items are strangers. The score is the model's own
(`Confidence.decide(...).known`); the known items are those that chose the epoch, used for neither
training nor calibration. Prints a table, and writes it with the settings to `--out`:

    python benchmarks/bench_leave_class_out.py                       # 9 trainings of a minute
    python benchmarks/bench_leave_class_out.py --data demo:sounds --out runs/sounds -- --epochs 6

What follows `--` goes to every fine-tuning; the demo's settings if nothing does. A training that is
there already is not repeated. Items labelled `unknown` are taken for a class named like the folder
they lie in.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from benchmarks._record import parse

#: Those of `make demo`.
SETTINGS = ["--size", "96", "--epochs", "8", "--calibration", "0.2"]


def fine_tune(frame: pd.DataFrame, stranger: str, folder: Path, settings: list[str]) -> float:
    """Fine-tune without a class into `folder`; the seconds that took."""
    from learners.finetune import main as finetune

    items = folder.parent / f"{folder.name}.csv"
    frame = frame.assign(label=frame["label"].where(frame["label"].ne(stranger), "unknown"))
    frame.drop(columns=["split", "fold"]).to_csv(items, index=False)
    began = time.monotonic()
    finetune(["--data", str(items), "--out", str(folder), "--overwrite", *settings])
    return time.monotonic() - began


def measure(folder: Path) -> dict[str, float]:
    """AUROC of known against stranger by each score, and how much of either is accepted."""
    from datasets.drawings.pictures import Source
    from datasets.drawings.windows import items
    from datasets.tables.checks import TIME_COLUMNS
    from learners.confidence.thresholds import auroc
    from learners.prediction.predictor import Predictor

    table = pd.read_csv(
        folder / "items.csv",
        dtype={"label": str, "group": str},
        keep_default_na=False,  # a class may be called "NA"
        na_values={name: [""] for name in TIME_COLUMNS},
    )
    predictor = Predictor(folder / "model")

    def outputs(split: str) -> Any:
        rows = table.loc[table["split"].eq(split)]
        sources = [Source(row.path, row.start, row.end, row.gps) for row in items(rows)]
        names, logits, features = predictor.outputs(sources)
        return rows, predictor.confidence.decide(logits, features, paths=names), logits, features

    rows, known, known_logits, known_features = outputs("valid")
    _, strange, strange_logits, strange_features = outputs("unknown")
    best = [predictor.classes[i] for i in known.best]
    figures = {
        "known": len(known.known),
        "strangers": len(strange.known),
        "accuracy": float((rows["label"].to_numpy() == best).mean()),
        "accepted_known": float((known.label >= 0).mean()),
        "accepted_strangers": float((strange.label >= 0).mean()),
        "auroc": auroc(known.known, strange.known),
        "auroc_probability": auroc(known.probability, strange.probability),
    }
    knn = predictor.confidence._knn
    if knn is not None:
        figures["auroc_knn"] = auroc(
            knn.score(known_features, known_logits), knn.score(strange_features, strange_logits)
        )
    return figures


def show(rows: dict[str, dict[str, float]]) -> None:
    keys = ("accuracy", "accepted_known", "accepted_strangers", "auroc_probability", "auroc_knn")
    print(f"{'left out':24}{'AUROC':>8}", *(f"{key.replace('_', ' '):>20}" for key in keys))
    for name, figures in rows.items():
        others = (f"{figures.get(key, float('nan')):20.3f}" for key in keys)
        print(f"{name:24}{figures['auroc']:8.3f}", *others)
    mean = statistics.mean(figures["auroc"] for figures in rows.values())
    print(f"{'mean':24}{mean:8.3f}   load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="demo:glitches")
    parser.add_argument("--out", type=Path, default=Path("runs/leave-class-out"))
    parser.add_argument("--classes", nargs="*", help="only these")
    parser.add_argument("--items", type=int, help="of the table, to keep it short; all of them")
    parser.add_argument("settings", nargs="*", help="after --: flags of learners.finetune")
    arguments = parse(
        parser, data="demo:digits", classes=["0"], items=100,
        settings=["--backbone", "test_resnet", "--no-pretrained", "--size", "32", "--epochs", "0", "--freeze-epochs", "1"],
    )  # fmt: skip
    settings = arguments.settings or SETTINGS
    from datasets.tables.table import load_table

    table = load_table(arguments.data)
    strangers = table.unknowns
    named = strangers.assign(label=[Path(path).parent.name for path in strangers["path"]])
    frame = pd.concat([table.frame, named], ignore_index=True)
    frame["path"] = [os.path.abspath(path) for path in frame["path"]]
    frame = frame.head(arguments.items or len(frame))
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, float]] = {}
    for name in arguments.classes or sorted(frame["label"].unique()):
        folder = arguments.out / name
        seconds = float("nan")
        if not (folder / "model" / "config.json").exists():
            seconds = fine_tune(frame, name, folder, settings)
        rows[name] = {**measure(folder), "seconds": round(seconds, 1)}
        result = {"data": arguments.data, "settings": settings, "classes": rows}
        (arguments.out / "leave_class_out.json").write_text(json.dumps(result, indent=1))
        show(rows)


if __name__ == "__main__":
    sys.exit(main())
