"""Which score tells strangers from known files best, on features that no stranger had a part in.

For run folders of `python -m learners.finetune --probe`, whose body is as it was published: each
class in turn is left out, the probe is fitted anew to the others' training files (the temperature to
their calibration files), and the files of the class are the strangers. Files in split `unknown` are
strangers of another kind, for the probe of all classes. `known` are the files of split test, or
valid. Prints each score's AUROC for each set, its mean and mean rank; how many strangers are accepted
where 60 and 70 % of the known files are; and, as "errors", the AUROC of right answers against wrong
ones among the known.

    python benchmarks/bench_scores.py runs/probe runs/sounds
    python benchmarks/bench_scores.py                       # a model of the digits 0 to 7

A fine-tuned body has learnt to set the class apart, so of a run without `--probe` only its own
strangers count (`--no-left-out`); bench_leave_class_out.py trains one for each class.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._demo import demo_run
from benchmarks._record import parse
from datasets.tables.checks import TIME_COLUMNS
from learners.confidence.detectors import SCORES, Items, fit_scores, known_labels
from learners.confidence.temperature import cautious, fit_temperature
from learners.confidence.thresholds import accepted_at_coverage, auroc
from learners.evaluation.held_out import sources
from learners.prediction.answers import stacked
from learners.prediction.predictor import Predictor
from learners.training.probe import fit_probe


class Run:
    """What a run's network makes of all its items; labels are -1 for strangers."""

    def __init__(self, folder: Path) -> None:
        predictor = Predictor(folder / "model")
        frame = pd.read_csv(
            folder / "items.csv",
            dtype={"label": str, "group": str},
            keep_default_na=False,  # a class may be called "NA"
            na_values={name: [""] for name in TIME_COLUMNS},
        )
        answers = list(predictor.answers(sources(frame)))
        good = [n for n, answer in enumerate(answers) if answer.logits is not None]
        self.name = folder.name
        logits, self.features = stacked([answers[n] for n in good])
        self.logits = logits.astype(np.float64)
        self.split = frame["split"].to_numpy()[good]
        numbers = {name: n for n, name in enumerate(predictor.classes)}
        labels = [numbers.get(label, -1) for label in frame["label"].iloc[good]]
        self.labels = np.where(self.split == "unknown", -1, labels).astype(np.int64)
        self.held = "test" if (self.split == "test").any() else "valid"

    def without(self, left_out: int | None) -> tuple[dict[str, Items], Items]:
        """Train, calibration and known items; and the strangers: a class, or those of the run."""
        strange = self.labels == (-1 if left_out is None else left_out)
        logits, labels = self.logits, self.labels
        if left_out is not None:
            labels = np.where(labels > left_out, labels - 1, labels)
            train = (self.split == "train") & ~strange
            found = fit_probe(
                torch.from_numpy(self.features[train]), torch.from_numpy(labels[train]),
                self.logits.shape[1] - 1,
            )  # fmt: skip
            logits = (self.features @ found.weight.numpy().T + found.bias.numpy()).astype(float)
        own = (self.split == "calibration") & ~strange
        z, y = logits[own], labels[own]
        logits = logits / cautious(fit_temperature(z, y), z, y).value

        def items(rows: NDArray[np.bool_], known: bool = True) -> Items:
            return Items(logits[rows], labels[rows] if known else None, self.features[rows])

        parts = ("train", "calibration", self.held)
        return {p: items((self.split == p) & ~strange) for p in parts}, items(strange, False)

    def figures(self, left_out: int | None) -> pd.DataFrame:
        known, strangers = self.without(left_out)
        held, rows = known[self.held], []
        right = held.logits.argmax(axis=1) == known_labels(held)
        for name, score in fit_scores(known["train"], known["calibration"]).items():
            a, b = (score.score(items.features, items.logits) for items in (held, strangers))
            at = [accepted_at_coverage(a, b, part) for part in (0.6, 0.7)]
            rows.append((name, auroc(a, b), *at, auroc(a[right], a[~right])))
        return pd.DataFrame(rows, columns=["score", "AUROC", "at 60 %", "at 70 %", "errors"])


def table(runs: list[Run], left_out: bool) -> pd.DataFrame:
    """A row a score; sets are means over the classes left out."""
    found: list[pd.DataFrame] = []
    for run in runs:
        sets: dict[str, list[int | None]] = {}
        if (run.labels < 0).any():
            sets[f"{run.name}: strangers"] = [None]
        if left_out:
            sets[f"{run.name}: left out"] = list(range(run.logits.shape[1]))
        for name, classes in sets.items():
            found += [run.figures(c).assign(set=name) for c in classes]
    each = pd.concat(found)
    area = each.pivot_table("AUROC", "score", "set")
    out = area.assign(mean=area.mean(axis=1), rank=area.rank(ascending=False).mean(axis=1))
    for name in ("at 60 %", "at 70 %", "errors"):
        out[name] = each.pivot_table(name, "score", "set").mean(axis=1)
    return out.loc[sorted(SCORES, key=lambda name: -out["mean"][name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument(
        "--left-out", action=argparse.BooleanOptionalAction, default=True,
        help="leave each class out in turn",
    )  # fmt: skip
    words = parse(parser)
    runs = [Run(folder) for folder in words.runs or [demo_run(words.small)]]
    print(table(runs, words.left_out).to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
