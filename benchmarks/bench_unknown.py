"""How models treat files of unknown classes, which they were not trained on.

``accepted``: for run folders of `learners.finetune --data PHOTOS`, a column each. Known photos used for
neither training nor calibration (split test of the run's `items.csv`, or valid, which did choose the
checkpoint): accuracy, ECE after calibration (15 equal-mass bins), and how many are accepted and how
rightly. Near unknown classes (a folder): AUROC of the model's score, how many are accepted by default, and
how many where half of the known photos are. Far out-of-distribution files, generated here, 40 (`--each`) of
each kind: how many are accepted.

``left out``: each class in turn is left out of the training, by the command that users run, and its files
are the unknown class; known are the validation files. AUROC of the model's score and of its probability,
and how many are accepted: by default, and where 60 and 80 % of the known files are. Existing trainings are not repeated.

``scores``: AUROC of each score on runs of `learners.finetune --epochs 0`, whose body is as published: each
class in turn is left out and the probe fitted to the others, so that the features have not seen the unknown
class. Then how many unknown files are accepted where 60 and 70 % of the known files are; and, as "errors",
the AUROC of right predictions against wrong ones among the known files.

``discover`` : what `secondhand discover` finds in known files and those of the run's unknown classes (a folder each).
Clusters: how many unknown classes have one in which they are at least 80 % of the files; how many are called new, and
how many of these are mostly of known classes. List: over `--mixtures` with 5 to 80 % unknown files, the mean fraction
of known files on it (FDR) and of unknown files that are on it. Known and calibration files are pooled and drawn anew
for each, because the rate is a mean over draws of the calibration files; with `--elsewhere`, known files from another
source, they are the model's, and nothing is guaranteed.

    python benchmarks/bench_unknown.py --runs runs/photos --near ../shared/data/pictures/unknown
    python benchmarks/bench_unknown.py --what left-out --data demo:glitches -- --size 96 --epochs 8
    python benchmarks/bench_unknown.py --runs runs/probe runs/sounds --what scores

Without runs: a model of the digits 0 to 7, to which 8 and 9 are near. What follows `--` goes to every
fine-tuning.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from learners.rule.rule import Rule

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import demo_files, demo_run, parse, software_and_hardware
from datasets.audio.settings import MelSettings
from datasets.core.part import PART_COLUMNS, parts_of
from datasets.core.scanning import files_below
from datasets.items.labels import UNKNOWN
from datasets.sources.demos import write_demo
from datasets.steps.reading import load_table
from fields.loop.discovery import benjamini_hochberg, find_discoveries
from learners.evaluation.auroc import auroc
from learners.evaluation.calibration_metrics import calibration_figures
from learners.inference.predictions import DetailedPrediction, stack_outputs
from learners.inference.predictor import Predictor
from learners.rule.base import AnyRule
from learners.rule.calibrators import cautious, fit_temperature
from learners.rule.decisions import Decisions
from learners.rule.numbers.arrays import Outputs, known_labels, softmax
from learners.rule.numbers.conformal import CalibrationScores
from learners.rule.scores.base import SCORES, Score
from learners.training.probe import fit_probe

WORDS = ["the", "of", "and", "to", "strange", "in", "picture", "is", "that", "shop", "for", "it"]
#: Fractions of unknown files in mixtures, and the false discovery rate.
SHARES, FDR = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8), 0.1
#: What leaving classes out trains by where nothing follows `--`: as `make demo` does.
SETTINGS = ["--size", "96", "--epochs", "8", "--calibration", "0.2"]


@dataclass
class Files:
    """Predictions of files, and their classes: the names of their folders."""

    predictions: list[DetailedPrediction]
    classes: list[str]

    def take(self, rows: Sequence[int]) -> Files:
        return Files([self.predictions[n] for n in rows], [self.classes[n] for n in rows])

    def __add__(self, other: Files) -> Files:
        return Files(self.predictions + other.predictions, self.classes + other.classes)

    def __len__(self) -> int:
        return len(self.classes)


class Run:
    """What a run's network makes of all its items; labels are -1 for strangers."""

    def __init__(self, folder: Path) -> None:
        self.predictor = Predictor(folder / "model")
        frame = pd.read_csv(
            folder / "items.csv",
            dtype={"label": str, "group": str},
            keep_default_na=False,  # a class may be called "NA"
            na_values={name: [""] for name in PART_COLUMNS},
        )
        answers = list(self.predictor.predict_detailed(parts_of(frame)))
        good = [n for n, answer in enumerate(answers) if answer.logits is not None]
        self.name = folder.name
        logits, self.features = stack_outputs([answers[n] for n in good])
        self.logits = logits.astype(np.float64)
        self.split = frame["split"].to_numpy()[good]
        self.answers = [answers[n] for n in good]
        numbers = {name: n for n, name in enumerate(self.predictor.classes)}
        labels = [numbers.get(label, -1) for label in frame["label"].iloc[good]]
        self.labels = np.where(self.split == "unknown", -1, labels).astype(np.int64)
        self.held = "test" if (self.split == "test").any() else "valid"

    def decided(self, split: str) -> tuple[NDArray[np.int64], Decisions]:
        """The labels of a part, and what the model says of it."""
        rows = self.split == split
        decide = self.predictor.rule.decide
        return self.labels[rows], decide(self.logits[rows], self.features[rows])

    def files(self, split: str) -> Files:
        return named([a for a, s in zip(self.answers, self.split, strict=True) if s == split])

    def without(self, left_out: int | None) -> tuple[dict[str, Outputs], Outputs]:
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
        logits = logits / cautious(fit_temperature(z, y)).value

        def items(rows: NDArray[np.bool_], known: bool = True) -> Outputs:
            return Outputs(logits[rows], labels[rows] if known else None, self.features[rows])

        parts = ("train", "calibration", self.held)
        return {p: items((self.split == p) & ~strange) for p in parts}, items(strange, False)

    def scores(self, left_out: int | None) -> pd.DataFrame:
        known, ood = self.without(left_out)
        held, rows = known[self.held], []
        right = held.logits.argmax(axis=1) == known_labels(held)
        for name, score in fit_scores(known["train"], known["calibration"]).items():
            a, b = (score.score(items.features, items.logits) for items in (held, ood))
            at = [accepted_at_coverage(a, b, part) for part in (0.6, 0.7)]
            rows.append((name, auroc(a, b)[0], *at, auroc(a[right], a[~right])[0]))
        return pd.DataFrame(rows, columns=["score", "AUROC", "at 60 %", "at 70 %", "errors"])


def fit_scores(train: Outputs, calibration: Outputs) -> dict[str, Score]:
    """All scores, fitted to training items and calibrated."""
    scores = {name: score() for name, score in SCORES.items()}
    for score in scores.values():
        score.fit(train.features, train.logits, known_labels(train))
        score.calibrate(calibration.features, calibration.logits, {})
    return scores


def accepted_at_coverage(known: np.ndarray, unknown: np.ndarray, coverage: float) -> float:
    """Fraction of unknown items accepted at the threshold that accepts a fraction ``coverage`` of known ones."""
    return float((unknown >= CalibrationScores.of(known).floor(coverage)).mean())


def predicted(predictor: Predictor, paths: Sequence[str]) -> Files:
    return named([one for one in predictor.predict_detailed(paths) if one.logits is not None])


def named(answers: list[DetailedPrediction]) -> Files:
    return Files(answers, [Path(one.prediction.path).parent.name for one in answers])


def clusters(confidence: AnyRule, known: Files, hidden: Files) -> dict[str, float]:
    files = known + hidden
    refused = [n for n, one in enumerate(files.predictions) if one.prediction.label == UNKNOWN]
    _, features = stack_outputs(files.take(refused).predictions)
    found = find_discoveries(confidence, [f.prediction for f in files.predictions], features, FDR)
    class_of = {f.prediction.path: c for f, c in zip(files.predictions, files.classes, strict=True)}
    pure, wrong = set[str](), 0
    for cluster in found.clusters:
        counts = Counter(class_of[row.prediction.path] for row in cluster.rows)
        name, most = counts.most_common(1)[0]
        if name in hidden.classes and most >= 0.8 * len(cluster.rows):
            pure.add(name)
        wrong += cluster.new and name not in hidden.classes
    return {
        "hidden classes": len({*hidden.classes}),
        "hidden classes with a pure cluster": len(pure),
        "clusters": len(found.clusters),
        "clusters called new": sum(cluster.new for cluster in found.clusters),
        "of these known": wrong,
    }


def p_values(rule: Rule, calibration: Files | None, files: Files) -> np.ndarray:
    """P-values of files, with the model's calibration files or others."""

    def arrays(some: Files) -> tuple[np.ndarray, np.ndarray]:
        logits, features = stack_outputs(some.predictions)
        return features, rule.calibrator.scaled(logits.astype(float))

    if calibration is None:
        return rule.known_scores.p(np.array([f.prediction.known for f in files.predictions]))
    score = rule.floor.score
    known = CalibrationScores.of(score.calibrate(*arrays(calibration), {}))
    floor = replace(rule.floor, calibration=known)
    return replace(rule, floor=floor).known_scores.p(score.score(*arrays(files)))


def mixtures(
    confidence: AnyRule, calibration: Files, known: Files, hidden: Files, count: int, same: bool
) -> dict[str, float]:
    rng = np.random.default_rng(0)
    pool = calibration + known if same else known
    rates, powers = [], []
    for n in range(count):
        order = [int(row) for row in rng.permutation(len(pool))]
        drawn = pool.take(order[: len(calibration)]) if same else None
        rest = pool.take(order[len(calibration) :] if same else order)
        share = SHARES[n % len(SHARES)]
        unknown = min(len(hidden), max(1, round(len(rest) * share / (1 - share))))
        rest = rest.take(range(min(len(rest), round(unknown * (1 - share) / share))))
        strange = hidden.take([int(row) for row in rng.permutation(len(hidden))[:unknown]])
        new = benjamini_hochberg(p_values(confidence, drawn, rest + strange), FDR)
        rates.append(new[: len(rest)].sum() / max(1, new.sum()))
        powers.append(new[len(rest) :].mean())
    return {
        "FDR": float(np.mean(rates)),
        "its standard error": float(np.std(rates) / np.sqrt(count)),
        "hidden files listed": float(np.mean(powers)),
        "hidden files listed, half are hidden": float(np.mean(powers[4 :: len(SHARES)] or 0)),
    }


def discovered(run: Run, elsewhere: Path | None, count: int) -> dict[str, float]:
    """What is found among the known and unknown files of a run, and among known files from elsewhere."""
    parts = {part: run.files(part) for part in (UNKNOWN, "calibration", run.held)}
    strange, calibration, known = parts.values()
    confidence = run.predictor.rule
    out = clusters(confidence, known, strange)
    out |= mixtures(confidence, calibration, known, strange, count, True)
    if elsewhere:
        other = predicted(run.predictor, files_below(elsewhere)[0])
        more = clusters(confidence, other, strange)
        more |= mixtures(confidence, calibration, other, strange, count, False)
        out |= {f"elsewhere: {name}": value for name, value in more.items()}
    return out


def draw_far(folder: Path, sounds: Path | None, each: int) -> dict[str, list[str]]:
    """Pictures that are no photos, by kind."""
    rng = np.random.default_rng(0)
    far: dict[str, list[str]] = {}

    def keep(kind: str, picture: Image.Image) -> None:
        path = folder / f"{kind}-{len(far.setdefault(kind, [])):02d}.png"
        picture.save(path)
        far[kind].append(str(path))

    if sounds is not None:
        files = sorted(str(path) for path in sounds.rglob("*.wav"))
        spectrogram = MelSettings.infer(pd.Series(files))
        for n in rng.choice(len(files), each, replace=False):
            keep("spectrogram", spectrogram.image(spectrogram.read(files[n])).convert("RGB"))
    digits = write_demo("digits")[0]["path"]
    for path in digits.iloc[rng.choice(len(digits), each, replace=False)]:
        with Image.open(path) as picture:
            keep("digit", picture.convert("RGB"))
    for n in range(each):
        if n % 2:
            values = rng.integers(0, 256, (256, 256, 3))
        else:  # grey, about one level, as a camera in the dark
            values = rng.normal(rng.uniform(40, 200), 30, (256, 256, 1)).repeat(3, axis=2)
        keep("noise", Image.fromarray(values.clip(0, 255).astype(np.uint8)))
        level = tuple(rng.integers(0, 256, 3)) if n else (255, 255, 255)
        keep("blank", Image.new("RGB", (300, 240), tuple(int(v) for v in level)))
        keep("text", _page(rng))
    return far


def _page(rng: np.random.Generator) -> Image.Image:
    page = Image.new("RGB", (420, 594), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=int(rng.integers(9, 22)))
    for y in range(30, 560, int(rng.integers(16, 34))):
        line = " ".join(rng.choice(WORDS, int(rng.integers(4, 14))))
        draw.text((30, y), line, fill="black", font=font)
    return page


def accepted(run: Run, near: list[str], far: dict[str, list[str]]) -> dict[str, float]:
    labels, known = run.decided(run.held)
    right, answered = known.best == labels, known.label >= 0
    logits = run.logits[run.split == run.held]
    probabilities = softmax(logits, run.predictor.rule.calibrator.temperature.value)
    error = calibration_figures(probabilities, labels)

    def judged(paths: list[str]) -> Decisions:
        _, logits, features = run.predictor.outputs(paths)
        return run.predictor.rule.decide(logits, features)

    ood = judged(near)
    out = {
        f"known ({run.held})": len(labels),
        "accuracy": float(right.mean()),
        "ECE": error.ece.value,
        "ECE by chance": error.ece_by_chance,
        "known accepted": float(answered.mean()),
        "accuracy of accepted": float(right[answered].mean()),
        "near: AUROC": auroc(known.known, ood.known)[0],
        "near accepted": float((ood.label >= 0).mean()),
        "near accepted, half of known": accepted_at_coverage(known.known, ood.known, 0.5),
    }
    kinds = {kind: judged(paths).label >= 0 for kind, paths in far.items()}
    out |= {f"far accepted: {kind}": float(passed.mean()) for kind, passed in kinds.items()}
    return out | {"far accepted: all": float(np.concatenate([*kinds.values()]).mean())}


def left_out(asked: argparse.Namespace) -> pd.DataFrame:
    """A row a class: how well the model that never saw it tells it."""
    from learners.finetune import main as finetune

    table = load_table(asked.data)
    # Strangers of the data are a class named like the folder they lie in.
    named = table.unknown_items.assign(
        label=[Path(path).parent.name for path in table.unknown_items["path"]]
    )
    frame = pd.concat([table.frame, named], ignore_index=True)
    frame["path"] = [os.path.abspath(path) for path in frame["path"]]
    frame = frame.head(asked.items or len(frame)).drop(columns=["split", "fold"])
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in asked.classes or sorted(frame["label"].unique()):
        folder = asked.out / name
        if not (folder / "model" / "config.json").exists():
            items = asked.out / f"{name}.csv"
            labels = frame["label"].where(frame["label"].ne(name), "unknown")
            frame.assign(label=labels).to_csv(items, index=False)
            words = ["--data", str(items), "--out", str(folder), "--overwrite"]
            finetune([*words, *(asked.settings or SETTINGS)])
        run = Run(folder)
        (labels, known), (_, strange) = run.decided("valid"), run.decided("unknown")
        rows[name] = {
            "AUROC": auroc(known.known, strange.known)[0],
            "AUROC of probability": auroc(known.probability, strange.probability)[0],
            "accuracy": float((known.best == labels).mean()),
            "known accepted": float((known.label >= 0).mean()),
            "strangers accepted": float((strange.label >= 0).mean()),
            "at 60 % of known": accepted_at_coverage(known.known, strange.known, 0.6),
            "at 80 % of known": accepted_at_coverage(known.known, strange.known, 0.8),
        }
        print(pd.DataFrame(rows).T.tail(1).to_string(float_format="{:.3f}".format), flush=True)
    out = pd.DataFrame(rows).T
    out.loc["mean"] = out.mean()
    return out


def scores(runs: list[Run]) -> pd.DataFrame:
    """A row a score; sets are means over the classes left out."""
    found: list[pd.DataFrame] = []
    for run in runs:
        sets: dict[str, list[int | None]] = {
            f"{run.name}: left out": list(range(run.logits.shape[1]))
        }
        if (run.labels < 0).any():
            sets[f"{run.name}: strangers"] = [None]
        for name, classes in sets.items():
            found += [run.scores(c).assign(set=name) for c in classes]
    each = pd.concat(found)
    area = each.pivot_table("AUROC", "score", "set")
    out = area.assign(mean=area.mean(axis=1), rank=area.rank(ascending=False).mean(axis=1))
    for name in ("at 60 %", "at 70 %", "errors"):
        out[name] = each.pivot_table(name, "score", "set").mean(axis=1)
    return out.loc[sorted(SCORES, key=lambda name: -out["mean"][name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", nargs="+", type=Path, help="folders of learners.finetune")
    kinds = ["accepted", "left-out", "scores", "discover"]
    parser.add_argument("--what", nargs="+", choices=kinds, default=["accepted"])
    parser.add_argument("--near", type=Path, help="accepted: photos of no class")
    parser.add_argument("--sounds", type=Path, help="whose spectrograms are far strangers, too")
    parser.add_argument("--each", type=int, default=40, help="far strangers of each kind")
    parser.add_argument("--data", default="demo:glitches", help="left-out: what is trained on")
    parser.add_argument("--out", type=Path, default=Path("runs/left-out"))
    parser.add_argument("--classes", nargs="*", help="only these")
    parser.add_argument("--mixtures", type=int, default=200, help="discover")
    parser.add_argument(
        "--elsewhere", type=Path, help="discover: known classes from another source"
    )
    parser.add_argument("--items", type=int, help="of the table, to keep it short; all of them")
    parser.add_argument("settings", nargs="*", help="after --: flags of learners.finetune")
    asked = parse(
        parser, what=kinds, each=2, data="demo:digits", classes=["0"], items=100, mixtures=6,
        settings=["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--epochs", "0", "--freeze-epochs", "1"],
    )  # fmt: skip
    if asked.runs and "accepted" in asked.what and asked.near is None:
        parser.error("--near FOLDER is missing: photos of what these runs are not to know")
    runs = []
    if {"accepted", "scores", "discover"} & set(asked.what):
        runs = [Run(folder) for folder in asked.runs or [demo_run(asked.small)]]
    if "accepted" in asked.what:
        near = sorted(map(str, asked.near.rglob("*.jpg"))) if asked.near else demo_files(200, "unknown")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            far = draw_far(Path(folder), asked.sounds, asked.each)
            if not asked.runs:
                del far["digit"]  # which that model knows
            table = pd.DataFrame({run.name: accepted(run, near, far) for run in runs})
        print(table.assign(mean=table.mean(axis=1)).to_string(float_format="{:.3f}".format))
    if "left-out" in asked.what:
        print(left_out(asked).to_string(float_format="{:.3f}".format))
    if "scores" in asked.what:
        print(scores(runs).to_string(float_format="{:.3f}".format))
    if "discover" in asked.what:
        found = pd.DataFrame(
            {run.name: discovered(run, asked.elsewhere, asked.mixtures) for run in runs}
        )
        print(found.assign(mean=found.mean(axis=1)).to_string(float_format="{:.3f}".format))
    print(software_and_hardware("timm", "scikit-learn"))


if __name__ == "__main__":
    main()
