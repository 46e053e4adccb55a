"""Small models for the page that train in seconds and can tell their classes apart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import soundfile
import torch
from torch import nn

from datasets.audio.settings import MelSettings
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.strain.settings import QScanSettings
from learners.backbones.building import NetworkSpec, build
from learners.evaluation.figures import score_items
from learners.evaluation.held_out import Evaluation
from learners.evaluation.rules import operating_points
from learners.files.jsonable import jsonable
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle, save_bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.learners.rules import plain_rule
from tests.pictures import write_pictures

SIZE = 64
RATE = 4096
START = 1_126_259_446.0
MOMENT = START + 20
TONES = {"high": 2000.0, "low": 400.0}


def tone(path: Path, *names: str, rate: int = 8000, level: float = 0.3) -> Path:
    """Write a second of these tones in faint noise, or of silence."""
    rng = np.random.default_rng(len(names))
    t = np.arange(rate) / rate
    parts = [
        np.zeros(rate) if name == "silence"
        else level * np.sin(2 * np.pi * TONES[name] * t) + rng.normal(0, 0.003, rate)
        for name in names
    ]  # fmt: skip
    soundfile.write(path, np.concatenate(parts), rate)
    return path


def strain(path: Path, frequency: float = 200.0) -> Path:
    """Write 32 s of white noise at 4096 Hz with a burst at `MOMENT`, in GWOSC's HDF5 layout."""
    rng = np.random.default_rng(int(frequency))
    t = np.arange(32 * RATE) / RATE - (MOMENT - START)
    burst = 40 * np.exp(-((t / 0.02) ** 2)) * np.sin(2 * np.pi * frequency * t)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=1e-21 * (rng.normal(size=len(t)) + burst))
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)
        file["meta/Detector"], file["meta/GPSstart"] = "H1", int(START)
    return path


@cache
def colours() -> Bundle:
    """Return a model of blue, green and red pictures that is unsure about grey ones."""
    rng = np.random.default_rng(0)
    middle = np.array([(40, 60, 220), (40, 200, 60), (220, 40, 40)])
    labels = np.arange(48) % 3
    centres = np.concatenate([middle[labels], np.full((16, 3), 128)])
    noise = rng.normal(0, 40, (64, SIZE, SIZE, 3)) + centres[:, None, None]
    targets = np.concatenate([np.eye(3)[labels], np.full((16, 3), 1 / 3)])
    return _trained(noise.clip(0, 255).astype(np.uint8), targets, ["blue", "green", "red"])


@cache
def tones() -> Bundle:
    """Return a model that tells high from low tones of a second."""
    spectrogram = MelSettings(rate=8000, window=1.0, size=(SIZE, SIZE))
    t = np.arange(8000) / 8000
    rng = np.random.default_rng(1)
    names = sorted(TONES)
    labels = np.arange(24) % 2
    pictures = [
        spectrogram.render(
            0.3 * np.sin(2 * np.pi * TONES[names[k]] * t * rng.uniform(0.9, 1.1))
            + rng.normal(0, 0.003, 8000)
        )
        for k in labels
    ]
    return _trained(np.stack(pictures), np.eye(2)[labels], names, spectrogram)


@cache
def bursts(layout: str = "grid") -> Bundle:
    """Return an untrained model for Q-scans: its answers do not matter here."""
    spectrogram = QScanSettings(context=16.0, fmax=1200.0, size=(SIZE, SIZE), layout=layout)
    pictures = np.random.default_rng(2).integers(0, 256, (8, SIZE, SIZE, 3), dtype=np.uint8)
    return _trained(pictures, np.eye(2)[np.arange(8) % 2], ["burst", "line"], spectrogram)


def _trained(
    pictures: np.ndarray,
    targets: np.ndarray,
    classes: list[str],
    spectrogram: SpectrogramSettings | None = None,
) -> Bundle:
    torch.manual_seed(0)
    network, spec, preprocessing = build(
        NetworkSpec("test_resnet", len(classes), size=SIZE), pretrained=False
    )
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    x = (torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255 - mean) / std
    y = torch.from_numpy(targets).float()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    network.train()
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    for module in network.modules():  # the running averages lag behind after so few steps
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        network(x)
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=classes,
        preprocessing=replace(preprocessing, resize="crop" if spectrogram is None else "squash"),
        spectrogram=None if spectrogram is None else spectrogram.to_dict(),
        rule=plain_rule(len(classes), threshold=0.8),
        provenance={
            "data": "made by a test",
            "protocol": "a random split of tests",
            "kind": "picture",
        },
        metrics={"valid_accuracy": 0.9},
    )


def write_run(folder: Path, *, target_accuracy: float | None = None) -> Path:
    """Write a run folder around the model of colours: items, held-out answers and a report.

    The rule is the model's own. With a target, it cuts the combined score instead of the
    probability.
    """
    bundle = colours()
    pictures = write_pictures(folder / "data", per_class=12, classes=3, unknown=4)
    rows = [
        {"path": str(path), "label": path.parent.name, "split": "calibration", "gps": ""}
        for path in sorted(pictures.glob("*/*.jpg"))
    ]
    items = pd.DataFrame(rows)
    items.loc[items["label"].eq("unknown"), "split"] = "unknown"
    items.to_csv(folder / "items.csv", index=False)
    _, logits, features = Predictor(bundle).outputs(items["path"])
    if target_accuracy is not None:
        known = items["split"].eq("calibration").to_numpy()
        labels = items.loc[known, "label"].map(bundle.classes.index).to_numpy()
        held_out = Outputs(logits[known], labels, features[known])
        options = ConfidenceSettings(target_accuracy=target_accuracy)
        half = Outputs(held_out.logits[::2], labels[::2], held_out.features[::2])
        fitted = fit_rule(held_out, half, options)
        bundle = replace(bundle, rule=fitted)
    save_bundle(bundle, folder / "model")
    answers = list(Predictor(folder / "model").predict(items["path"]))
    frame = pd.DataFrame([answer.record() for answer in answers]).drop(columns="windows")
    frame["truth"], frame["split"] = items["label"], items["split"]
    frame.to_csv(folder / "predictions.csv", index=False, float_format="%.6f")
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("<p>the figures of this run</p>")
    return folder / "model"


def with_points(files: list[Path], truths: np.ndarray, tree: Tree | None = None) -> Bundle:
    """Return the model of colours with a rule fitted to these files, and its operating points.

    The other files of their folders serve as training files.
    """
    held_out = _outputs_of(files)
    reference = [file for file in files[0].parents[1].glob("[bgr]*/*") if file not in files]
    known = held_out.labels >= 0
    calibration = Outputs(held_out.logits[known], held_out.labels[known], held_out.features[known])
    fitted = with_tree(fit_rule(calibration, _outputs_of(reference)), tree)
    bundle = replace(colours(), rule=fitted)
    answers = Predictor(bundle).predict(map(str, files))
    frame = pd.DataFrame([answer.record() for answer in answers])
    frame = frame.assign(truth=truths, split=np.where(known, "calibration", "unknown"))
    evaluation = Evaluation(frame, held_out.logits, held_out.features)
    table = operating_points(evaluation, score_items(evaluation, bundle.classes, bundle.rule))
    return replace(bundle, metrics={"operating_points": jsonable(table)})


def _outputs_of(files: list[Path]) -> Outputs:
    _, logits, features = Predictor(colours()).outputs(map(str, files))
    numbers = {name: number for number, name in enumerate(colours().classes)}
    labels = [numbers.get(file.parent.name, -1) for file in files]
    return Outputs(logits, np.array(labels), features)
