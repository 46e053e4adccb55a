"""``--backbone auto``: a few backbones ranked by a linear probe, and the best of them taken.

Each candidate is shown the training files once, as validation shows its own; a linear layer is fitted
to what came out, and judged by cross-validation over them. Nothing that is held out is looked at, so
its figures stay what they are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from datasets.items import Loaded, stratified_folds, units_of
from datasets.spectrograms import (
    KeptFeatures,
    PictureCache,
    Source,
    cache_root,
    digest_of,
    source_of,
)
from learners.backbones import (
    NetworkSpec,
    build,
    first_member,
    mel_of,
    native_size,
    parameter_groups,
)
from learners.cli.settings import Settings
from learners.evaluation import fraction
from learners.files import jsonable, last_part
from learners.inference import Predictor, features_of
from learners.model import Bundle
from learners.training import fit_probe, in_plain_words, settle

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
    minutes : that its training is estimated to take here.
    why : it is left out; "" where it is not. The figures are NaN then.
    """

    backbone: str
    accuracy: float = np.nan
    low: float = np.nan
    high: float = np.nan
    nll: float = np.nan
    ms: float = np.nan
    minutes: float = np.nan
    why: str = ""


@dataclass
class Choice:
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


def settle_backbone(
    folder: Path, loaded: Loaded, settings: Settings, device: str
) -> tuple[Settings, Choice | None]:
    """The settings with the backbone that ``auto`` stands for, and how it was chosen.

    Of a run that goes on, the one that it chose before.

    Raises
    ------
    SecondhandError : no candidate can be used, or none fits the budget.
    """
    asked, record = settings.network.backbone, folder / RECORD
    choice = _read(record) if record.is_file() else None
    if choice is None or asked not in (choice.asked, choice.taken):
        if not settings.network.candidates:
            return settings, None
        choice = choose(loaded, settings, device)
        write_beside(record, f"{json.dumps(jsonable(asdict(choice)), indent=1)}\n".encode())
    return settings.but(backbone=choice.taken), choice


def choose(loaded: Loaded, settings: Settings, device: str) -> Choice:
    """Rank the candidates, tell how they did, and take the one of least NLL that fits the budget."""
    budget = settings.network.budget
    rows = _some(loaded.rows.loc[loaded.rows["split"].eq("train")], settings.train.seed)
    log.info(
        "choosing among %d backbones: a linear probe on %d training items, by %d folds of them",
        len(settings.network.candidates), len(rows), FOLDS,
    )  # fmt: skip
    pictures = _pictures(rows, loaded, settings)
    found = []
    for name in settings.network.candidates:
        began = time.monotonic()
        try:
            # Who names the backbone in place of auto is to have the same training.
            with in_plain_words(), torch.random.fork_rng():
                one = _judge(name, rows, pictures, loaded, settings, device)
        except SecondhandError as error:
            one = Candidate(name, why=str(error))
            log.warning("%s is left out: %s", shown(name), error)
        else:
            log.info("%s: NLL %.3f (%.0f s)", shown(name), one.nll, time.monotonic() - began)
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
    fitting = [one for one in usable if budget is None or one.minutes <= budget]
    if not fitting:
        least = min(usable, key=lambda one: one.minutes)
        raise SecondhandError(
            f"--budget {budget:g}: none fits; {shown(least.backbone)} would be the quickest, about "
            f"{least.minutes:.1f} minutes. Give it more, or fewer --epochs, a smaller --size or --probe"
        )
    choice = Choice(settings.network.backbone, fitting[0].backbone, len(rows), found)
    log.info("backbone: %s", choice.said)
    return choice


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
            "minutes": f"{one.minutes:.1f}",
            "left out": "",
        }
        for one in candidates
    ]
    return pd.DataFrame(rows).fillna("")


def shown(name: str) -> str:
    """A backbone's name for those who are given the report: of a folder its last part."""
    source, _, path = name.partition(":")
    return f"{source}:{last_part(path)}" if source == "local-dir" else name


def _read(record: Path) -> Choice | None:
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        return Choice(**{**found, "candidates": [Candidate(**c) for c in found["candidates"]]})
    except (ValueError, TypeError, KeyError):  # damaged: it is chosen again
        return None


def _some(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """At most `ENOUGH` of them, of each class its part."""
    mixed = rows.sample(frac=1, random_state=seed)
    of_class = mixed.groupby("label")["label"]
    place = (of_class.cumcount() + 0.5) / of_class.transform("size")
    kept = place.sort_values(kind="stable").index[:ENOUGH]
    return rows.loc[sorted(kept)].reset_index(drop=True)


class _Shown(NamedTuple):
    """The pictures that networks are shown, and a hash of the content of each; "" of no picture."""

    sources: list[Source]
    contents: list[str]


def _pictures(rows: pd.DataFrame, loaded: Loaded, settings: Settings) -> _Shown:
    if loaded.recipe is None:
        with ThreadPoolExecutor() as pool:
            hashes = list(pool.map(_digest, rows["path"]))
        return _Shown([Source(path) for path in rows["path"]], hashes)
    # Drawings lie in the cache, each under a hash of what it was drawn from.
    signal = settings.signal
    cache = PictureCache(signal.cache_dir, max_bytes=int(signal.cache_limit * 2**30))
    drawn = []
    for row in rows.to_dict("records"):
        item = source_of(row)
        try:
            drawn.append(cache.get(item.path, loaded.recipe, item.start, item.end, item.at))
        except BadFile:  # gone since it was drawn
            drawn.append(Path(""))
    return _Shown([Source(str(picture)) for picture in drawn], [picture.stem for picture in drawn])


def _digest(path: str) -> str:
    try:
        return digest_of(path)
    except BadFile:
        return ""


def _judge(
    name: str, rows: pd.DataFrame, pictures: _Shown, loaded: Loaded, settings: Settings, device: str
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
    preprocessing = replace(preprocessing, squish=loaded.recipe is not None)
    predictor = Predictor(Bundle(network.eval(), spec, classes, preprocessing), device=device)
    try:
        features = _features(predictor, pictures, settings)
        good = ~np.isnan(features).any(axis=1)
        if not good.any():
            raise SecondhandError("none of the training files can be read")
        nll, right = _cross_validated(
            features[good], rows.iloc[np.flatnonzero(good)], classes, settings
        )
        forward = _seconds(lambda: predictor.forward(_batch(size)), 3) / len(_batch(size))
    finally:
        predictor.close()
    step = _seconds(_step(first_member(network), size, settings, device), 2) / settings.train.bs
    accuracy, low, high = fraction(right, units_of(rows).to_numpy()[good])
    return Candidate(
        name,
        accuracy,
        low,
        high,
        float(nll.mean()),
        1000 * forward,
        _minutes(forward, step, loaded, settings),
    )


def _features(predictor: Predictor, pictures: _Shown, settings: Settings) -> NDArray[np.float32]:
    """Float32 [files, width], from the cache as far as they are there; NaN where there is none."""
    kept = KeptFeatures(settings.signal.cache_dir or cache_root())
    bundle = predictor.bundle
    body = hashlib.sha256(repr((bundle.spec.backbone, bundle.preprocessing)).encode())
    for name, value in first_member(bundle.network)[0].state_dict().items():
        body.update(name.encode())
        body.update(value.detach().cpu().contiguous().numpy().data)
    keys = [hashlib.sha256(body.digest() + c.encode()).hexdigest() for c in pictures.contents]
    found = [kept.get(key) if c else None for key, c in zip(keys, pictures.contents, strict=True)]
    new = [i for i, vector in enumerate(found) if vector is None and pictures.contents[i]]
    vectors, _ = features_of(predictor, [pictures.sources[i] for i in new])
    for i, vector in zip(new, vectors, strict=True):
        if not np.isnan(vector).any():
            kept.add(keys[i], vector)
            found[i] = vector
    width = next((len(vector) for vector in found if vector is not None), 1)
    blank = np.full(width, np.nan, np.float32)
    return np.stack([blank if vector is None else vector for vector in found])


def _cross_validated(
    features: NDArray[np.float32], rows: pd.DataFrame, classes: Sequence[str], settings: Settings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of each file the NLL in nats, and whether it was told right, by a probe fitted to others.

    What is one group stays together.
    """
    train = settings.train
    targets = torch.tensor(pd.Categorical(rows["label"], list(classes)).codes.astype(np.int64))
    groups = units_of(rows).to_numpy()
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


def _batch(size: int) -> NDArray[np.uint8]:
    return np.full((32, 3, size, size), 128, np.uint8)


def _seconds(act: Callable[[], object], times: int) -> float:
    """The least that it took, after once for nothing."""
    took = []
    for _ in range(times + 1):
        began = time.perf_counter()
        act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return min(took[1:])


def _step(
    network: nn.Sequential, size: int, settings: Settings, device: str
) -> Callable[[], object]:
    """A training step, the optimizer's part apart."""
    train = settings.train
    if train.freeze_epochs == "fit" and train.lr_mult is None:  # `learners.training.learner.thaw`
        for group in parameter_groups(network)[:-2][:1]:
            for parameter in group:
                parameter.requires_grad_(False)
    speed = settle(settings.speed, network, device)
    layout = torch.channels_last if speed.channels_last else torch.contiguous_format
    network.to(device).to(memory_format=layout)
    x = torch.randn(train.bs, 3, size, size, device=device).to(memory_format=layout)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(str(speed.precision))

    def act() -> None:
        with torch.autocast(torch.device(device).type, half, enabled=half is not None):
            logits = network(x)
        logits.float().logsumexp(1).sum().backward()

    return act


def _minutes(forward: float, step: float, loaded: Loaded, settings: Settings) -> float:
    """What the training is estimated to take, of seconds a file in a forward pass and in a step."""
    train = settings.train
    sizes = loaded.rows["split"].value_counts()
    files, held = int(sizes.get("train", 0)), int(sizes.get("valid", 0))
    looks = 1.0  # at each file, by the body alone
    if isinstance(train.freeze_epochs, int):
        looks = min(train.frozen_views or train.freeze_epochs, train.freeze_epochs)
    each = train.epochs * (files * step + held * forward) + (looks * files + held) * forward
    return train.seeds * each / 60
