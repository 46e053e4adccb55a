"""``--backbone auto``: a few backbones ranked by a linear probe, and the best of them taken.

Each candidate is shown the training files once, as validation shows its own; a linear layer is fitted
to what came out, and judged by cross-validation over them. Nothing that is held out is looked at, so
its figures stay what they are.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from datasets.items import Loaded, picture_cache, split_units, stratified_folds
from datasets.spectrograms import Source, source_of
from learners.backbones import NetworkSpec, build, mel_of, native_size
from learners.cli.settings import Settings
from learners.evaluation import fraction
from learners.files import jsonable, last_part
from learners.inference import Predictor, features_of
from learners.model import Bundle
from learners.training import explain_errors, fit_probe

log = logging.getLogger(__name__)

RECORD = "backbones.json"
#: Training files that are looked at: more would tell the candidates apart little better.
ENOUGH = 1000
FOLDS = 3


@dataclass
class Candidate:
    """How a backbone did.

    Attributes
    ----------
    backbone : its name, as ``--backbone`` takes it.
    accuracy, low, high : part of the items told right, 0 to 1, and its exact 95 % limits.
    nll : mean over the files, in nats: accuracy and calibration in one figure.
    ms : milliseconds a file that a forward pass takes here.
    why : it is left out; "" where it is not. The figures are NaN then.
    """

    backbone: str
    accuracy: float = np.nan
    low: float = np.nan
    high: float = np.nan
    nll: float = np.nan
    ms: float = np.nan
    why: str = ""


@dataclass
class BackboneSelection:
    """What was asked for, what was taken, how many files were looked at, and how each did."""

    asked: str
    taken: str
    files: int
    candidates: list[Candidate]

    @property
    def said(self) -> str:
        """The sentence of report and model card."""
        names = [shown(one.backbone) for one in self.candidates if not one.why]
        best = next(one for one in self.candidates if one.backbone == self.taken)
        return (
            f"{shown(self.taken)}, chosen among {', '.join(names)} by a linear probe, cross-validated "
            f"over {self.files} training items: NLL {best.nll:.3f}, accuracy {best.accuracy:.3f} "
            f"({best.low:.3f} to {best.high:.3f})"
        )


def select_backbone(
    folder: Path, loaded: Loaded, settings: Settings, device: str
) -> tuple[Settings, BackboneSelection | None]:
    """The settings with the backbone that ``auto`` stands for, and how it was chosen.

    Of a run that goes on, the one that it chose before.

    Raises
    ------
    SecondhandError : no candidate can be used.
    """
    asked, record = settings.network.backbone, folder / RECORD
    selection = _read(record) if record.is_file() else None
    if selection is None or asked not in (selection.asked, selection.taken):
        if not settings.network.candidates:
            return settings, None
        selection = choose(loaded, settings, device)
        write_beside(record, f"{json.dumps(jsonable(asdict(selection)), indent=1)}\n".encode())
    return settings.but(backbone=selection.taken), selection


def choose(loaded: Loaded, settings: Settings, device: str) -> BackboneSelection:
    """Rank the candidates, tell how they did, and take the one of least NLL."""
    rows = _some(loaded.rows.loc[loaded.rows["split"].eq("train")], settings.train.seed)
    log.info(
        "Comparing %d backbones by a linear probe on %d training items (%d-fold cross-validation)",
        len(settings.network.candidates), len(rows), FOLDS,
    )  # fmt: skip
    pictures = _pictures(rows, loaded, settings)
    found = []
    for name in settings.network.candidates:
        began = time.monotonic()
        try:
            # Who names the backbone in place of auto is to have the same training.
            with explain_errors(), torch.random.fork_rng():
                one = _judge(name, rows, pictures, loaded, settings, device)
        except SecondhandError as error:
            one = Candidate(name, why=str(error))
            log.warning("backbone %s is left out: %s", shown(name), error)
        else:
            log.debug("%s: NLL %.3f (%.0f s)", shown(name), one.nll, time.monotonic() - began)
        found.append(one)
    found.sort(key=lambda one: (bool(one.why), one.nll))
    usable = [one for one in found if not one.why]
    if not usable:
        raise SecondhandError(
            f"--backbone {settings.network.backbone}: none of them can be used; "
            + "; ".join(f"{one.backbone}: {one.why}" for one in found)
        )
    for line in as_table(usable).drop(columns="left out").to_string(index=False).splitlines():
        log.info("%s", line)
    selection = BackboneSelection(settings.network.backbone, usable[0].backbone, len(rows), found)
    log.info("Backbone: %s", selection.said)
    return selection


def as_table(candidates: Sequence[Candidate]) -> pd.DataFrame:
    """What each reached, the best first; those that are left out last, with the reason."""
    rows = [
        {"backbone": shown(one.backbone), "left out": one.why}
        if one.why
        else {
            "backbone": shown(one.backbone),
            "accuracy": f"{one.accuracy:.3f} [{one.low:.3f}, {one.high:.3f}]",
            "NLL": f"{one.nll:.3f}",
            "ms a file": f"{one.ms:.1f}",
            "left out": "",
        }
        for one in candidates
    ]
    return pd.DataFrame(rows).fillna("")


def shown(name: str) -> str:
    """A backbone's name for those who are given the report: of a folder its last part."""
    source, _, path = name.partition(":")
    return f"{source}:{last_part(path)}" if source == "local-dir" else name


def _read(record: Path) -> BackboneSelection | None:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        return BackboneSelection(
            **{**found, "candidates": [Candidate(**c) for c in found["candidates"]]}
        )
    except (ValueError, TypeError, KeyError):  # damaged: it is chosen again
        return None


def _some(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """At most `ENOUGH` of them, of each class its part."""
    mixed = rows.sample(frac=1, random_state=seed)
    of_class = mixed.groupby("label")["label"]
    place = (of_class.cumcount() + 0.5) / of_class.transform("size")
    kept = place.sort_values(kind="stable").index[:ENOUGH]
    return rows.loc[sorted(kept)].reset_index(drop=True)


def _pictures(rows: pd.DataFrame, loaded: Loaded, settings: Settings) -> list[Source]:
    """The pictures that networks are shown; a signal's spectrograms lie in the cache."""
    if loaded.spectrogram is None:
        return [Source(path) for path in rows["path"]]
    cache = picture_cache(settings.signal)
    drawn = []
    for row in rows.to_dict("records"):
        item = source_of(row)
        try:
            drawn.append(cache.get(item.path, loaded.spectrogram, item.start, item.end, item.at))
        except BadFile:  # gone since it was drawn
            drawn.append(Path(""))
    return [Source(str(picture)) for picture in drawn]


def _judge(
    name: str,
    rows: pd.DataFrame,
    pictures: list[Source],
    loaded: Loaded,
    settings: Settings,
    device: str,
) -> Candidate:
    """Probe a backbone, and time it.

    Raises
    ------
    SecondhandError : it cannot be had, or does not suit the size.
    """
    if mel_of(name):
        raise SecondhandError(
            f"{name} brings the mel recipe that it was trained with, and the others are shown "
            f"another: give it alone, as --backbone {name}"
        )
    classes = loaded.table.classes
    size = settings.network.size or native_size(name)
    network, spec, preprocessing = build(NetworkSpec(name, len(classes), size, head="linear"))
    preprocessing = replace(preprocessing, squish=loaded.spectrogram is not None)
    predictor = Predictor(Bundle(network.eval(), spec, classes, preprocessing), device=device)
    try:
        features, _ = features_of(predictor, pictures)  # NaN of one that cannot be read
        good = ~np.isnan(features).any(axis=1)
        if not good.any():
            raise SecondhandError("none of the training files can be read")
        nll, right = _cross_validated(
            features[good], rows.iloc[np.flatnonzero(good)], classes, settings
        )
        ms = _ms_a_file(predictor, size)
    finally:
        predictor.close()
    accuracy, low, high = fraction(right, split_units(rows).to_numpy()[good])
    return Candidate(name, accuracy, low, high, float(nll.mean()), ms)


def _cross_validated(
    features: NDArray[np.float32], rows: pd.DataFrame, classes: Sequence[str], settings: Settings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of each file the NLL in nats, and whether it was told right, by a probe fitted to others.

    What is one group stays together.
    """
    train = settings.train
    targets = torch.tensor(pd.Categorical(rows["label"], list(classes)).codes.astype(np.int64))
    groups = split_units(rows).to_numpy()
    folds = stratified_folds(rows["label"].to_numpy(), groups, FOLDS, seed=train.seed)
    x, losses, right = torch.from_numpy(features), np.zeros(len(rows)), np.zeros(len(rows), bool)
    for fold in np.unique(folds):
        held = torch.from_numpy(folds == fold)
        found = fit_probe(
            x[~held], targets[~held], len(classes),
            balanced=train.class_weights, seed=train.seed, groups=groups[~held.numpy()],
        )  # fmt: skip
        logits = functional.linear(x[held], found.weight, found.bias).double()
        losses[held.numpy()] = functional.cross_entropy(logits, targets[held], reduction="none")
        right[held.numpy()] = logits.argmax(1) == targets[held]
    return losses, right


def _ms_a_file(predictor: Predictor, size: int) -> float:
    """Milliseconds a file that a forward pass takes: the least of three, after one for nothing."""
    batch, times = np.full((32, 3, size, size), 128, np.uint8), []
    for _ in range(4):
        began = time.perf_counter()
        predictor.forward(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1000 * min(times[1:]) / len(batch)
