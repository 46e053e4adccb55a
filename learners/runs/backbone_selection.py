"""Backbone selection (``--backbone auto``): ranks a few backbones by cross-validated linear probes.

A linear probe is fitted to each candidate's features of the training files, without augmentation, and
cross-validated. Validation, calibration and test files are not used, so their metrics stay unbiased. A few files are
tried first, and only the candidates that are not clearly worse on them see the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch.nn import functional

from datasets.core import progress
from datasets.core.checked import read_file
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from datasets.core.part import Part, parts_of
from datasets.items.facts import Seen
from datasets.items.items import Items
from datasets.items.splits import split_units, stratified_folds
from datasets.kinds.base import KINDS
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.spectrograms.windows import cut_windows, render_rows
from datasets.steps.spectrogram import infer_spectrogram, picture_cache
from learners.backbones.building import build, native_size, width_of
from learners.backbones.choices import SOUND_BACKBONE
from learners.backbones.hub import read_mel
from learners.backbones.names import SOUND
from learners.backbones.spec import NetworkSpec
from learners.cli.settings import Settings
from learners.evaluation.calibration_metrics import fraction
from learners.files.jsonable import jsonable
from learners.files.names import last_part
from learners.inference.embedding import extract_features
from learners.inference.options import Computing
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.rule.thresholds import clustered_error
from learners.runs.folder import BACKBONES
from learners.training.members import explain_errors
from learners.training.probe import fit_probe

log = logging.getLogger(__name__)

#: Most training items used, and most windows of them; more would hardly separate the candidates better.
ENOUGH, WINDOWS = 1000, 2000
#: Most items of the first comparison, or so many of each class where these are more.
FIRST, FIRST_OF_CLASS = 100, 6
#: Level of the one-sided paired test by which a candidate is worse than the best on these: about one standard error. Of
#: two equal ones it drops either in a sixth of the runs, which costs nothing; the second look at both would double the
#: time to a first model.
CLEARLY = 0.16
FOLDS = 3


@dataclass
class Candidate:
    """Result of one backbone.

    Attributes
    ----------
    backbone : name, as for ``--backbone``.
    accuracy, low, high : accuracy in [0, 1] and its exact 95 % confidence limits.
    nll : mean negative log-likelihood of the files, in nats.
    ms : milliseconds of a forward pass per file on this machine.
    files : number of training items that it was shown.
    why : why the backbone cannot be used (its metrics are then NaN); else "".
    """

    backbone: str
    accuracy: float = np.nan
    low: float = np.nan
    high: float = np.nan
    nll: float = np.nan
    ms: float = np.nan
    why: str = ""
    files: int = 0


@dataclass
class BackboneSelection:
    """Value of ``--backbone``, chosen backbone, number of training items it was shown, and results of the candidates."""

    requested: str
    chosen: str
    files: int
    candidates: list[Candidate]

    @property
    def summary(self) -> str:
        """Sentence for the report and the model card."""
        names = [shown(candidate.backbone) for candidate in self.candidates if not candidate.why]
        best = next(candidate for candidate in self.candidates if candidate.backbone == self.chosen)
        return (
            f"{shown(self.chosen)}, chosen from {', '.join(names)} by a linear probe, cross-validated "
            f"on {self.files} training items: NLL {best.nll:.3f}, accuracy {best.accuracy:.3f} "
            f"(95 % limits {best.low:.3f} to {best.high:.3f})"
        )


def select_backbone(
    folder: Path, table: Items, settings: Settings, device: str
) -> BackboneSelection | None:
    """The backbone that ``--backbone auto`` chooses; a resumed run keeps its backbone. None if the user named one.

    Raises
    ------
    SecondhandError : no candidate can be used.
    """
    backbone, record = settings.network.backbone, folder / BACKBONES
    selection = _read(record) if record.is_file() else None
    if selection is None or backbone not in (selection.requested, selection.chosen):
        if not settings.network.candidates:
            return None
        selection = compare(table, settings, device)
        write_beside(record, f"{json.dumps(jsonable(asdict(selection)), indent=1)}\n".encode())
    return selection


class Features(NamedTuple):
    """What a backbone makes of items.

    Attributes
    ----------
    x : [pictures, width].
    items : for each picture the number of its row.
    rows : the items.
    ms : milliseconds of a forward pass per item.
    """

    x: NDArray[np.float32]
    items: NDArray[np.int64]
    rows: pd.DataFrame
    ms: float

    def and_of(self, more: Features) -> Features:
        """These and those of other items, of which it may be that none could be read."""
        if not len(more.rows):
            return self
        items = np.concatenate([self.items, more.items + len(self.rows)])
        x = np.concatenate([self.x, more.x])
        return Features(x, items, pd.concat([self.rows, more.rows]), self.ms)


def choose(requested: str, files: int, candidates: Sequence[Candidate]) -> BackboneSelection:
    """The candidate with the lowest NLL, and all of them in this order; those that were shown fewer files follow, and last
    come those that cannot be used.

    ``requested`` : value of ``--backbone``. ``files`` : number of training items of the probes.
    """
    ranked = sorted(
        candidates,
        key=lambda candidate: (bool(candidate.why), -candidate.files, candidate.nll),
    )
    if ranked[0].why:
        raise SecondhandError(
            f"--backbone {requested}: no candidate can be used. "
            + "; ".join(f"{candidate.backbone}: {candidate.why}" for candidate in ranked)
        )
    return BackboneSelection(requested, ranked[0].backbone, files, ranked)


def compare(table: Items, settings: Settings, device: str) -> BackboneSelection:
    """Fit a probe to the features of each candidate, and `choose` by the results, which are logged."""
    seed, training = settings.train.seed, _training_items(table)
    rows = _sample(training, seed, ENOUGH).reset_index(drop=True)
    first = _sample(rows, seed, max(FIRST, FIRST_OF_CLASS * len(table.classes)))
    found, names = dict[str, Candidate](), settings.network.candidates
    seen = dict[str, Features]()
    for tried in [first, rows] if len(first) < len(rows) else [rows]:
        log.debug(
            "comparing %d backbones by a linear probe on %d training items (%d-fold cross-validation)",
            len(names), len(tried), FOLDS,
        )  # fmt: skip
        losses = dict[str, pd.Series]()
        for name in names:
            found[name], of_items = _tried(name, tried, table, settings, device, seen)
            if of_items is not None:
                losses[name] = of_items
        names = _not_clearly_worse(losses, split_units(tried))
        if len(names) < 2:
            break
    selection = choose(settings.network.backbone, len(tried), [*found.values()])
    for line in as_table(selection.candidates).to_string(index=False).splitlines():
        log.debug("%s", line)
    return selection


def _tried(
    name: str,
    rows: pd.DataFrame,
    table: Items,
    settings: Settings,
    device: str,
    seen: dict[str, Features],
) -> tuple[Candidate, pd.Series | None]:
    """The result of a backbone on the items ``rows``, and its NLL of each; None where it cannot be used, which is logged.

    ``seen`` : features of the backbones; those of items that are new to this one are added.
    """
    start = time.monotonic()
    try:
        # Naming the chosen backbone instead of auto must give the same training.
        with (
            progress.step(f"Comparing backbones: {shown(name)}"),
            explain_errors(),
            torch.random.fork_rng(),
        ):
            before = seen.get(name)
            if before is None:
                seen[name] = _features(name, rows, table, settings, device)
            else:
                new = rows.loc[rows.index.difference(before.rows.index)]
                more = _features(name, new, table, settings, device, timed=False)
                seen[name] = before.and_of(more)
            if not len(seen[name].rows):
                raise SecondhandError("none of the training files can be read")
            candidate, losses = _probed(name, seen[name], table.classes, settings)
    except SecondhandError as error:
        # Not every platform has the package of the second default; the third may be fetched later.
        by_default = settings.network.backbone == SOUND_BACKBONE
        level = logging.INFO if name == SOUND else logging.DEBUG
        log.log(
            level if by_default else logging.WARNING,
            "Backbone %s is left out: %s",
            shown(name),
            error,
        )
        return Candidate(name, why=str(error)), None
    log.debug("%s: NLL %.3f (%.0f s)", shown(name), candidate.nll, time.monotonic() - start)
    return replace(candidate, files=len(rows)), losses


def _not_clearly_worse(losses: Mapping[str, pd.Series], groups: pd.Series) -> list[str]:
    """Names of the candidates that a paired t-test between groups does not find worse than the best, in their order.

    ``losses`` : NLL by row of the items, of each candidate. ``groups`` : group number of each row.
    """
    if not losses:
        return []
    best = losses[min(losses, key=lambda name: losses[name].mean())]
    kept = []
    for name, of_items in losses.items():
        behind = (of_items - best).dropna()  # on the items that both could read
        error, freedom = clustered_error(behind.to_numpy(), groups[behind.index].to_numpy())
        if not freedom > 0 or behind.mean() <= stdtrit(freedom, 1 - CLEARLY) * error:
            kept.append(name)
    return kept


def as_table(candidates: Sequence[Candidate]) -> pd.DataFrame:
    """Table of the candidates' results, best first; candidates that cannot be used come last, with the reason."""
    rows = [
        {"backbone": shown(candidate.backbone), "left out": candidate.why}
        if candidate.why
        else {
            "backbone": shown(candidate.backbone),
            "accuracy": f"{candidate.accuracy:.3f} [{candidate.low:.3f}, {candidate.high:.3f}]",
            "NLL": f"{candidate.nll:.3f}",
            "items": str(candidate.files),
            "ms a file": f"{candidate.ms:.1f}",
            "left out": "",
        }
        for candidate in candidates
    ]
    return pd.DataFrame(rows).fillna("")


def shown(name: str) -> str:
    """Name of a backbone for the report; of a path it shows only the last part."""
    source, _, path = name.partition(":")
    return f"{source}:{last_part(path)}" if source == "local-dir" else name


def _read(record: Path) -> BackboneSelection | None:
    try:
        return read_file(BackboneSelection, record)
    except BadFile:  # damaged: select again
        return None


def _sample(rows: pd.DataFrame, seed: int, most: int) -> pd.DataFrame:
    """A stratified random sample of at most ``most`` rows."""
    mixed = rows.sample(frac=1, random_state=seed)
    of_class = mixed.groupby("label")["label"]
    place = (of_class.cumcount() + 0.5) / of_class.transform("size")
    kept = place.sort_values(kind="stable").index[:most]
    return rows.loc[sorted(kept)]


def _training_items(table: Items) -> pd.DataFrame:
    return table.frame.loc[table.frame["split"].eq("train")]


def _pictures(
    name: str, rows: pd.DataFrame, table: Items, settings: Settings
) -> tuple[list[Part], NDArray[np.int64], SpectrogramSettings | None]:
    """Pictures of the items ``rows`` as this backbone is shown them, for each the number of its item, and how they are
    rendered.

    Of signals these are spectrograms, with the settings of the backbone's training, if it brings any. Long
    recordings are cut into windows, of which at most `WINDOWS` are used.

    Raises
    ------
    SecondhandError : a backbone of sound for other files.
    """
    mel = read_mel(name)
    kind = KINDS[table.kind]
    if not kind.takes(mel):
        raise SecondhandError(
            f"--backbone {name}: it is trained on sound, and these are {table.kind} files. Leave it out."
        )
    if kind.settings() is None:
        return parts_of(rows), np.arange(len(rows)), None
    spectrogram = infer_spectrogram(table.kind, _training_items(table), settings.signal, mel)
    cache = picture_cache(settings.signal)
    windows, _ = cut_windows(rows, spectrogram, overlap=settings.signal.overlap)
    if len(windows) > WINDOWS:
        windows = windows.sample(WINDOWS, random_state=settings.train.seed).sort_index()
    windows, _ = render_rows(windows.reset_index(drop=True), spectrogram, cache)
    pictures = [cache.get(window, spectrogram) for window in parts_of(windows)]
    parts = [Part(str(picture)) for picture in pictures]
    return parts, windows["item"].to_numpy(), spectrogram


def _features(
    name: str,
    rows: pd.DataFrame,
    table: Items,
    settings: Settings,
    device: str,
    *,
    timed: bool = True,
) -> Features:
    """Features of a backbone, which is ``timed``, of the items that can be read.

    Raises
    ------
    SecondhandError : it cannot be loaded, or does not suit the files or the size.
    """
    pictures, items, spectrogram = _pictures(name, rows, table, settings)
    size, width = settings.network.size or native_size(name), width_of(name, spectrogram)
    network, spec, preprocessing = build(
        NetworkSpec(name, len(table.classes), size, head="linear", width=width)
    )
    assert settings.network.resize is not None
    samples = None if (seen := table.get(Seen)) is None else seen.settings
    preprocessing = replace(preprocessing, resize=settings.network.resize, samples=samples)
    bundle = Bundle(network.eval(), spec, table.classes, preprocessing)
    predictor = Predictor(bundle, computing=Computing(device=device))
    try:
        features, _ = extract_features(predictor, pictures)  # NaN where a picture cannot be read
        good = ~np.isnan(features).any(axis=1) & (features.shape[1] > 0)
        ms = _ms_a_picture(predictor, spec.shape) if timed else np.nan
    finally:
        predictor.close()
    numbers, items = np.unique(items[good], return_inverse=True)
    ms *= len(items) / max(1, len(numbers))
    return Features(features[good], items, rows.iloc[numbers], ms)


def _probed(
    name: str, features: Features, classes: Sequence[str], settings: Settings
) -> tuple[Candidate, pd.Series]:
    """The result of a backbone: of a linear probe, cross-validated on its features; and the NLL by row of the items."""
    nll, right = _cross_validated(features, classes, settings)
    rows = features.rows
    accuracy, low, high = fraction(right, split_units(rows).to_numpy())
    candidate = Candidate(name, accuracy, low, high, float(nll.mean()), features.ms)
    return candidate, pd.Series(nll, rows.index)


def _cross_validated(
    features: Features, classes: Sequence[str], settings: Settings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Cross-validated NLL (nats) of each item, and whether its class was predicted.

    Groups stay together. The log-probabilities of an item's pictures are averaged. The strength of the penalty is chosen
    once, by a cross-validation of all items.
    """
    train, items, rows = settings.train, features.items, features.rows
    targets = torch.tensor(pd.Categorical(rows["label"], list(classes)).codes.astype(np.int64))
    groups = split_units(rows).to_numpy()
    folds = stratified_folds(rows["label"].to_numpy(), groups, FOLDS, seed=train.seed)
    x, owner = torch.from_numpy(features.x), torch.from_numpy(items)
    scores = torch.zeros(len(rows), len(classes), dtype=torch.float64)
    probe = partial(fit_probe, balanced=train.class_weights, seed=train.seed)
    whole = probe(x, targets[owner], len(classes), groups=groups[items])
    for fold in np.unique(folds):
        in_fold = torch.from_numpy(folds == fold)[owner]
        layer = probe(x[~in_fold], targets[owner[~in_fold]], len(classes), like=whole)
        logits = functional.linear(x[in_fold], layer.weight, layer.bias).double()
        scores.index_add_(0, owner[in_fold], logits.log_softmax(1))
    scores /= torch.bincount(owner, minlength=len(rows))[:, None]
    losses = functional.cross_entropy(scores, targets, reduction="none")
    return losses.numpy(), (scores.argmax(1) == targets).numpy()


def _ms_a_picture(predictor: Predictor, shape: tuple[int, int]) -> float:
    """Milliseconds of a forward pass per picture: the shortest of three, after a warm-up.

    Batches are small, so that the timing costs less than the comparison.
    """
    batch, times = np.full((2, 3, *shape), 128, np.uint8), []
    for _ in range(4):
        began = time.perf_counter()
        predictor.forward(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1000 * min(times[1:]) / len(batch)
