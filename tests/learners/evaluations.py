"""Evaluations and bundles as runs make them, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from datasets.core.part import Part
from datasets.items.items import Items
from learners.backbones.building import NetworkSpec, build
from learners.evaluation.held_out import Evaluation
from learners.inference.predictions import FIELDS, Prediction
from learners.model.bundle import Bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings

WIDTH = 8


def make_bundle(
    classes: Sequence[str] = ("a", "b", "c"),
    *,
    distance: bool = True,
    size: int = 32,
    seed: int = 0,
) -> Bundle:
    """Return a network with random weights, calibrated on made-up items."""
    torch.manual_seed(seed)
    spec = NetworkSpec("test_resnet", len(classes), size=size)
    network, spec, preprocessing = build(spec, pretrained=False)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(classes), 150)
    logits, features = outputs(labels, len(classes), rng)
    held_out = Outputs(1.5 * logits, labels, features if distance else None)  # too confident
    kinds = rng.integers(0, len(classes), 200)
    near, body = outputs(kinds, len(classes), rng)
    fitted = fit_rule(
        held_out, Outputs(near, kinds, body), ConfidenceSettings(threshold=0.8, keep_known=0.8)
    )
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=list(classes),
        preprocessing=preprocessing,
        rule=fitted,
        provenance={"data": "made up", "command": "python -m learners.finetune --data made-up"},
    )


def outputs(
    labels: np.ndarray, classes: int, rng: np.random.Generator, *, strange: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that are mostly right, and features that cluster by class."""
    logits = rng.normal(0, 1.5, (len(labels), classes)).astype(np.float32)
    features = rng.normal(0, 0.5, (len(labels), WIDTH)).astype(np.float32)
    if not strange:
        logits[np.arange(len(labels)), labels] += 3
        features[np.arange(len(labels)), labels % WIDTH] += 3
    return logits, features


def make_evaluation(
    bundle: Bundle,
    *,
    valid: int = 60,
    calibration: int = 60,
    ood: int = 30,
    silent: int = 3,
    seed: int = 1,
    paths: Sequence[Path] | None = None,
) -> Evaluation:
    """Return answers as the predictor gives them; the last ``silent`` of each part lack logits."""
    rng = np.random.default_rng(seed)
    rule = bundle.rule
    names = rule.names(bundle.classes)
    rows, all_logits, all_features = [], [], []
    for split, count in (("valid", valid), ("calibration", calibration), ("unknown", ood)):
        labels = rng.integers(0, len(bundle.classes), count)
        unknown = split == "unknown"
        logits, features = outputs(labels, len(bundle.classes), rng, strange=unknown)
        decided = rule.decide(logits, None if rule.distance.reference is None else features)
        for n in range(count):
            path = str(paths[len(rows)]) if paths is not None else f"{split}/{n:03d}.jpg"
            best = bundle.classes[decided.best[n]]
            label = names[decided.label[n]] if decided.label[n] >= 0 else "unknown"
            row = Prediction(
                Part(path), label, best, float(decided.probability[n]), decided.reason[n], [],
                float(decided.distance_p[n]),
            ).record()  # fmt: skip
            if n >= count - silent:
                row |= {"label": "unknown", "best": "", "probability": np.nan}
                row |= {"reason": "no signal", "distance_p": np.nan}
                logits[n] = features[n] = np.nan
            truth = "unknown" if unknown else bundle.classes[labels[n]]
            rows.append(row | {"truth": truth, "split": split, "gps": None})
        all_logits.append(logits)
        all_features.append(features)
    columns = [*FIELDS, "truth", "split", "gps"]
    frame = pd.DataFrame(rows, columns=columns).drop(columns=["windows"])
    if ancestors := rule.ancestors:
        frame["ancestors"] = ["|".join(ancestors.get(truth, ())) for truth in frame["truth"]]
    return Evaluation(frame, np.concatenate(all_logits), np.concatenate(all_features))


def make_table(evaluation: Evaluation, *, source: str = "made-up") -> Items:
    """Return the item table of an evaluation's answers."""
    frame = evaluation.predictions.rename(columns={"truth": "label"})
    frame = frame[["path", "split"]].assign(label=evaluation.predictions["truth"])
    frame = frame.assign(group="", fold="", start=np.nan, end=np.nan, gps=np.nan)
    unknown = frame["split"].eq("unknown")
    return Items(frame.loc[~unknown], frame.loc[unknown], "picture", source)
