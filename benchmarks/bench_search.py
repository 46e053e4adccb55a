"""How well, and how fast, `learners.search` finds more like a file.

Precision: each class in turn is left out of a fine-tuning, and its files are what is searched for, each
among the files that were held out and all others of its class. Of the ten nearest, how many are of the
class; beside it the same by the features of the backbone as it was published, and by chance.

Time: the search of `--rows` embeddings of `--width` features, drawn at random, kept in a file under
`--out`.

    python benchmarks/bench_search.py --data photos -- --size 96 --epochs 1
    python benchmarks/bench_search.py --rows 1000000                    # the time alone; 2.6 GB of disk

What follows `--` goes to every fine-tuning. A training that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse, record
from benchmarks.bench_leave_class_out import fine_tune
from datasets.recipes import recipe_from_dict
from datasets.tables import load_table
from learners.model import load_bundle
from learners.pool import Embeddings, embeddings
from learners.prediction import Predictor, embed

NEAREST = 10


def precision(features: np.ndarray, own: np.ndarray) -> float:
    """Of the nearest to each row of a class, but for itself, the part that is of it."""
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = features[own] @ features.T
    cosines[np.arange(len(cosines)), np.flatnonzero(own)] = -np.inf
    return float(own[np.argsort(-cosines, axis=1)[:, :NEAREST]].mean())


def left_out(frame: pd.DataFrame, name: str, folder: Path, settings: list[str]) -> list[float]:
    """The precisions of the model, of its backbone and of chance, for a class it has not seen."""
    if not (folder / "model" / "config.json").exists():
        fine_tune(frame, name, folder, settings)
    items = pd.read_csv(folder / "items.csv", dtype=str, keep_default_na=False)
    pool = items.loc[items["split"].isin(["valid", "calibration", "unknown"])]
    own = pool["split"].eq("unknown").to_numpy()
    bundle = load_bundle(folder / "model")
    paths, _, tuned = Predictor(bundle).outputs(pool["path"])
    assert len(paths) == len(pool), "a file could not be read"
    plain = own.astype(np.float32)[:, None] + 1
    if "--no-pretrained" not in settings:
        recipe = None if bundle.recipe is None else recipe_from_dict(bundle.recipe)
        plain, _ = embed(
            pool["path"], backbone=bundle.spec.backbone, size=bundle.spec.size, recipe=recipe
        )
    chance = (own.sum() - 1) / (len(own) - 1)
    return [precision(tuned, own), precision(plain, own), float(chance)]


def searched(out: Path, rows: int, width: int, rounds: int) -> tuple[float, float, float]:
    """Seconds to make the file and to search it, the median; and GB of memory that the search took."""
    import pyarrow as pa

    kept = Embeddings.__new__(Embeddings)  # of no model: what is timed asks none
    kept.file, kept.model = out / f"{rows}.parquet", "0" * 64
    rng = np.random.default_rng(0)
    schema = embeddings._schema(2 * width)

    def drawn(first: int) -> pa.Table:
        count = min(embeddings.ROWS, rows - first)
        vectors = rng.standard_normal((count, width), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cells = [row.tobytes() for row in vectors.astype("<f2")]
        paths = [f"/pool/{n % 1000:04d}/picture_{n:08d}.jpg" for n in range(first, first + count)]
        nothing = [None] * count
        columns = [paths, nothing, nothing, nothing, cells, [kept.model] * count]
        columns += [[0] * count, [0] * count]
        typed = (pa.array(c, field.type) for c, field in zip(columns, schema, strict=True))
        return pa.table([*typed], schema=schema)

    began = time.perf_counter()
    if not kept.file.exists():
        tables = (drawn(first) for first in range(0, rows, embeddings.ROWS))
        embeddings._write(kept.file, tables, schema)
    made = time.perf_counter() - began
    asked, before, times = rng.standard_normal((1, width)), _memory(), []
    for _ in range(rounds + 1):  # the first one reads the file from the disk
        began = time.perf_counter()
        assert len(kept.nearest(asked, top=20)) == 20
        times.append(time.perf_counter() - began)
    print(f"the first time {times[0]:.2f} s")
    return made, statistics.median(times[1:]), _memory() - before


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", help="a folder or a table, as for learners.finetune")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--classes", nargs="*", help="only these")
    parser.add_argument("--items", type=int, help="of the table, to keep it short; all of them")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("settings", nargs="*", help="after --: flags of learners.finetune")
    words = parse(
        parser, data="demo:digits", classes=["0"], items=100, rows=20_000, width=64, rounds=1,
        settings=["--backbone", "test_resnet", "--no-pretrained", "--size", "32", "--epochs", "0", "--freeze-epochs", "1"],
    )  # fmt: skip
    words.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, float] = {}
    if words.data:
        frame = load_table(words.data).frame
        frame["path"] = [os.path.abspath(path) for path in frame["path"]]
        frame = frame.head(words.items or len(frame))
        print(f"{'left out':20}{'model':>8}{'backbone':>10}{'chance':>8}")
        rows = []
        for name in words.classes or sorted(frame["label"].unique()):
            rows.append(left_out(frame, name, words.out / name, words.settings))
            print(f"{name:20}{rows[-1][0]:8.3f}{rows[-1][1]:10.3f}{rows[-1][2]:8.3f}", flush=True)
        means = np.mean(rows, axis=0)
        print(f"{'mean':20}{means[0]:8.3f}{means[1]:10.3f}{means[2]:8.3f}")
        for what, value in zip(("model", "backbone", "chance"), means, strict=True):
            figures[f"precision at {NEAREST}, {what}"] = round(float(value), 3)
    if words.rows:
        made, seconds, memory = searched(words.out, words.rows, words.width, words.rounds)
        print(
            f"{words.rows} rows of {words.width}: searched in {seconds:.2f} s, {memory:.2f} GB of memory; "
            f"written in {made:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        figures |= {"rows": words.rows, "seconds": round(seconds, 2), "GB": round(memory, 2)}
    record("search", figures)


if __name__ == "__main__":
    main()
