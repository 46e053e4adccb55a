"""A training run over 1 000 files of which 200 are bad, against the same run without the 200.

Both finish; the first lists 200 reasons; their accuracies differ by less than the seeds do.

    python benchmarks/bench_bad_files.py --seeds 3 --epochs 3
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse


def main() -> None:
    from learners.finetune import main as finetune
    from tests.bad_files import write_digits

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--good", type=int, default=800)
    parser.add_argument("--bad", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    settings = parse(parser, good=80, bad=16, seeds=1, epochs=1)
    accuracy: dict[str, list[float]] = {"mixed": [], "good": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        damaged = write_digits(root / "mixed", settings.good, settings.bad)
        write_digits(root / "good", settings.good, 0)
        for seed in range(settings.seeds):
            for data in accuracy:
                out, began = root / f"{data}{seed}", time.monotonic()
                words = f"--backbone scratch/digits_cnn --no-pretrained --size 32 --seed {seed} --lr 1e-2"
                words += f" --epochs {settings.epochs} --freeze-epochs 0 --no-flip --min-scale 0.8 --workers 0"
                assert (
                    finetune(["--data", str(root / data), "--out", str(out), *words.split()]) == 0
                )
                figures = json.loads((out / "model" / "config.json").read_text())["metrics"]
                accuracy[data].append(held_out(figures))
                print(
                    f"{data} seed {seed}: {accuracy[data][-1]:.4f}, {time.monotonic() - began:.0f} s"
                )
                if data == "mixed":
                    with open(out / "rejected.csv", newline="") as stream:
                        listed = {row["path"]: row["reason"] for row in csv.DictReader(stream)}
                    assert listed.keys() == damaged.keys(), "others were left out than the bad ones"
    print(f"{len(listed)} files listed, of {Counter(damaged.values())}")
    means = {data: statistics.mean(values) for data, values in accuracy.items()}
    spread = statistics.stdev(accuracy["good"]) if settings.seeds > 1 else float("nan")
    print(
        f"accuracy with {settings.bad} bad files {means['mixed']:.4f}, without them "
        f"{means['good']:.4f}; standard deviation over {settings.seeds} seeds {spread:.4f}"
    )


def held_out(figures: dict[str, float]) -> float:
    """The accuracy of items that training has not seen, by whichever name the run gave it."""
    return float(next(value for key, value in figures.items() if "accuracy" in key))


if __name__ == "__main__":
    main()
