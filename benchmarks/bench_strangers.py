"""What fine-tuned models of photos make of photos they know, of near strangers and of far ones.

For runs of ``python -m learners.finetune --data PHOTOS``, one line each and their mean:

- known photos used for neither training nor calibration (split test of the run's ``items.csv``, or
  valid, which did choose the checkpoint): ECE after calibration (15 equal-mass bins), accuracy of
  what is accepted at the model's threshold and how much that is;
- near strangers (a folder): AUROC of the model's score, and how many are accepted where half of the
  known photos are: with the score cut at the known photos' own median, and with the threshold that
  ``--target-coverage 0.5`` finds on the calibration photos;
- far strangers, drawn here, 40 (`--each`) of each kind: how many are accepted at the model's threshold.

Peer: plain fastai with the same weights and size accepts 26 % of near strangers at 51 % coverage,
AUROC 0.66. To reach: ECE 0.04, accuracy 0.96; near 18 %, AUROC 0.75; far 2 %.

    python benchmarks/bench_strangers.py runs/photos --near strange/
    python benchmarks/bench_strangers.py        # a model of the digits 0 to 7; near are 8 and 9
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._demo import demo_files, demo_run
from benchmarks._record import parse
from datasets.demos.sets import write_demo
from datasets.sound.recipe import AudioRecipe
from datasets.tables.checks import TIME_COLUMNS
from learners.confidence.arrays import softmax
from learners.confidence.decision import Decisions
from learners.confidence.thresholds import accepted_at_coverage, auroc, threshold_for_target
from learners.evaluation.calibration_metrics import calibration_figures
from learners.evaluation.held_out import known_items
from learners.prediction.predictor import Predictor

WORDS = ["the", "of", "and", "to", "strange", "in", "picture", "is", "that", "shop", "for", "it"]


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
        recipe = AudioRecipe.infer(pd.Series(files))
        for n in rng.choice(len(files), each, replace=False):
            keep("spectrogram", recipe.image(recipe.read(files[n])).convert("RGB"))
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


def judged(predictor: Predictor, paths: list[str]) -> Decisions:
    _, logits, features = predictor.outputs(paths)
    return predictor.confidence.decide(logits, features)


def figures(run: Path, near: list[str], far: dict[str, list[str]]) -> dict[str, float]:
    predictor = Predictor(run / "model")
    confidence = predictor.confidence
    frame = pd.read_csv(
        run / "items.csv",
        dtype={"label": str, "group": str},
        keep_default_na=False,  # a class may be called "NA"
        na_values={name: [""] for name in TIME_COLUMNS},
    )
    held = "test" if frame["split"].eq("test").any() else "valid"
    known, _ = known_items(predictor, frame.loc[frame["split"].eq(held)], 32)
    own, _ = known_items(predictor, frame.loc[frame["split"].eq("calibration")], 32)
    assert known.labels is not None
    assert own.labels is not None
    decided = confidence.decide(known.logits, known.features)
    right, accepted = decided.best == known.labels, decided.label >= 0
    probabilities = softmax(known.logits, confidence.temperature.value)
    error = calibration_figures(probabilities, known.labels)
    strangers = judged(predictor, near)
    at_calibration = confidence.decide(own.logits, own.features)
    cut = threshold_for_target(
        at_calibration.known,
        at_calibration.best == own.labels,
        at_calibration.distance_p >= confidence.alpha,
        None,
        0.5,
    ).value

    def passed(items: Decisions) -> float:
        return float(((items.known >= cut) & ~(items.distance_p < confidence.alpha)).mean())

    out = {
        f"known ({held})": len(known),
        "accuracy": float(right.mean()),
        "ECE": error.ece.value,
        "ECE by chance": error.ece_by_chance,
        "known accepted": float(accepted.mean()),
        "accuracy of accepted": float(right[accepted].mean()),
        "near: AUROC": auroc(decided.known, strangers.known),
        "near accepted, half of known": accepted_at_coverage(decided.known, strangers.known, 0.5),
        "target 0.5: known accepted": passed(decided),
        "target 0.5: near accepted": passed(strangers),
        "near accepted, default": float((strangers.label >= 0).mean()),
    }
    refused = []
    for kind, paths in far.items():
        decision = judged(predictor, paths)
        out[f"far accepted: {kind}"] = float((decision.label >= 0).mean())
        refused += list(decision.label < 0)
    return out | {"far accepted: all": 1 - float(np.mean(refused))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--near", type=Path)
    parser.add_argument("--sounds", type=Path)
    parser.add_argument("--each", type=int, default=40, help="far strangers of each kind")
    words = parse(parser, each=2)
    if words.runs and words.near is None:
        parser.error("--near FOLDER is missing: photos of what these runs are not to know")
    runs = words.runs or [demo_run(words.small)]
    near = sorted(map(str, words.near.rglob("*.jpg"))) if words.near else demo_files(200, "unknown")
    with tempfile.TemporaryDirectory() as folder:
        far = draw_far(Path(folder), words.sounds, words.each)
        if not words.runs:
            del far["digit"]  # which that model knows
        table = pd.DataFrame({run.name: figures(run, near, far) for run in runs})
    table["mean"] = table.mean(axis=1)
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
