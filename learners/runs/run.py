"""Prepares a run: its settings, its files read, split and rendered, and its network.

torch takes seconds to import. It is imported after the files are read, so that errors in the data appear early.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from datasets.core import progress
from datasets.core.errors import Rejected
from datasets.core.processes import processes_for, renew_kept_pools
from datasets.images.decoded import DecodedPictures
from datasets.items.columns import without_empty
from datasets.items.facts import Inputs, Looks
from datasets.items.items import Items
from datasets.items.loaded import Loaded
from datasets.items.settings import WarmStartSettings
from datasets.kinds.base import KINDS, spectrogram_from_dict
from datasets.kinds.views import TTAView
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.steps.base import Asked
from datasets.steps.reading import read_items, render_items
from learners.backbones.hub import read_mel
from learners.backbones.spec import HEAD_ONLY
from learners.cli.settings import Settings
from learners.inference.engine import pick_device
from learners.machine.hardware import (
    check_compile,
    check_precision,
    keep_float32,
    keep_thread_count,
    repeat_exactly,
)
from learners.machine.warming import warm_up
from learners.model.bundle import WEIGHTS, Bundle
from learners.model.tta import tta_views_for
from learners.runs.before_training import check_items
from learners.runs.folder import BACKBONES, read_command, record_inputs, write_config, write_csv
from learners.runs.resolve import Machine, resolve
from learners.runs.warm_start import check_empties, inherited, start_from
from learners.tasks.base import Task
from learners.tasks.choose import check_task, choose_task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from datasets.images.opening import Preprocessing
    from learners.backbones.building import Network
    from learners.backbones.spec import NetworkSpec
    from learners.inference.predictor import Predictor
    from learners.rule.numbers.arrays import Outputs
    from learners.rule.scores.knn import KNN
    from learners.rule.scores.rmds import RMDS
    from learners.runs.backbone_selection import BackboneSelection

#: Fraction of the typical photo outside of its centre square, which the network sees by default, from which on the user is
#: told: 3:2 has 0.33, 16:9 0.44.
LOST = 0.4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """All that a training starts from.

    Attributes
    ----------
    settings : resolved settings, as in ``config.yaml``.
    command : command line that started the run.
    device : device to compute on.
    task : single-label or multi-label.
    items : item table with splits, rows to train on, and spectrogram settings.
    network, spec, preprocessing : the network to train (the first of several), and what describes it.
    decoded : cache of decoded pixels that all stages share.
    origin : model of ``--from``, or None.
    selection : result of ``--backbone auto``; None if the user named the backbone.
    began : start of the run, in seconds of `time.monotonic`.
    """

    folder: Path
    settings: Settings
    command: str
    device: str
    task: Task
    items: Loaded
    network: nn.Sequential
    spec: NetworkSpec
    preprocessing: Preprocessing
    decoded: DecodedPictures
    origin: Bundle | None
    selection: BackboneSelection | None
    began: float

    @property
    def tta_views(self) -> tuple[TTAView, ...]:
        """Views of each input over which predictions are averaged."""
        augment = self.settings.augment
        return tta_views_for(
            KINDS[self.items.table.kind],
            augment.tta,
            flip=augment.flip,
            min_scale=augment.min_scale,
            strength=augment.augment_strength,
        )

    def model(self, network: Network, spec: NetworkSpec, provenance: dict[str, Any]) -> Bundle:
        """The model of a trained network, not yet calibrated."""
        items = self.items
        return Bundle(
            built=network,
            spec=spec,
            classes=items.table.classes,
            preprocessing=self.preprocessing,
            spectrogram=None if items.spectrogram is None else items.spectrogram.to_dict(),
            overlap=self.settings.signal.overlap,
            tta_views=self.tta_views,
            provenance=provenance,
        )


@dataclass(frozen=True)
class CrossFit:
    """What a cross-fitted run knows of its folds.

    Attributes
    ----------
    folds : fold of each row of the item table, or -1 (`learners.training.cross_fit.IN_ALL`), which also test items have.
    predictors : of each fold the network with the head that has not seen it, before or after calibration.
    reference : outputs of the training items, without labels.
    truths : their labels.
    of_reference : their folds.
    taught_body : whether the body has learnt from files, which are in no fold.
    distances : of each fold that has a body of its own, the distances to the files that this body has learnt from.
    by_body : of each of these folds the numbers of these files among the training items.
    """

    folds: NDArray[np.int64]
    predictors: dict[int, Predictor]
    reference: Outputs
    truths: list[str]
    of_reference: NDArray[np.int64]
    taught_body: bool
    distances: Mapping[int, tuple[KNN, RMDS | None]] = field(default_factory=dict)
    by_body: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Whether each row of the item table is measured by a head that has not seen it."""
        return self.folds >= 0


@dataclass(frozen=True)
class Run(Prepared):
    """A run whose training is over.

    Attributes
    ----------
    predictor : that of the trained model.
    interrupted : Ctrl-C ended the training early.
    cross : the folds, if the head is fitted to all files and they measure it; else None.
    """

    predictor: Predictor
    interrupted: bool
    cross: CrossFit | None = None

    @property
    def bundle(self) -> Bundle:
        """The model; the stages calibrate it and add its metrics."""
        return self.predictor.bundle


def prepare(folder: Path, asked: Settings, command: str = "") -> Prepared:
    """Resolve the settings, read, split and render the files, and build the network of a run.

    Writes ``items.csv``, ``rejected.csv`` and ``config.yaml``.

    Parameters
    ----------
    asked : settings with those that the user chose, see `learners.runs.resolve.resolve`.
    command : command line of the run.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible.
    """
    start_time = time.monotonic()
    if asked.run.resume is not None:
        command = read_command(folder) or command
    asked, origin = start_from(asked)
    handed_on = {} if asked.run.resume is not None else inherited(asked, origin)
    known = partial(resolve, asked, handed_on)
    first = known()
    first.check()
    check_task(first, origin)
    device = pick_device(first.speed.device, train=True)
    check_precision(first.speed.precision, device)
    check_compile(first.speed.compile, device)
    repeat_exactly(device, first.speed.deterministic)
    keep_float32(device)
    if handed_on and "epochs" not in asked.chosen and not first.train.epochs:
        log.info("Warm start: only the head is trained. To train the body as well: --epochs 2")
    spectrogram = None
    if origin is not None and origin.spectrogram is not None:
        spectrogram = spectrogram_from_dict(origin.spectrogram)
    seed = first.train.seed
    reading = Asked.by(*first.sections.values(), seed=seed)
    with keep_thread_count(first.speed.threads), progress.step("Reading the files"):
        table = read_items(reading)
    check_empties(origin, first, table.classes)
    check_items(origin, table)
    if origin is None and asked.network.resize is None and (lost := lost_by_crop(table)) >= LOST:
        log.info(
            "The network sees the centre square of each photo; %.0f %% of the typical photo lies outside. If subjects "
            "may be there, compare with --resize squash",
            100 * lost,
        )
    selection = _select_backbone(folder, table, known(table), device)
    backbone = None if selection is None else selection.chosen
    to_build = known(table, backbone)
    trained_on = read_mel(to_build.network.backbone) if spectrogram is None else {}
    with keep_thread_count(first.speed.threads):
        items = load_items(table, reading, folder, trained_on, spectrogram)
    if selection is not None:
        log.info("Backbone: %s", selection.summary)
    if to_build.network.backbone in HEAD_ONLY and to_build.train.epochs < first.train.epochs:
        log.info(
            "%s: only the head is trained. To train the body as well: --epochs %d",
            to_build.network.backbone, first.train.epochs,
        )  # fmt: skip
    task = choose_task(to_build, items.table, origin)

    with progress.step("Loading PyTorch"):
        import torch
        from fastai.torch_core import set_seed

        from learners.training.members import build_network, decoded_pictures
        from learners.training.speed import compiling_pays, usual_precision

    renew_kept_pools(processes_for(len(items.rows), first.speed.workers))
    with keep_thread_count(first.speed.threads):
        set_seed(seed)
        network, spec, preprocessing = build_network(folder, items, to_build, task, origin)
        precision = usual_precision(device, network)
        taught = int(items.rows["split"].eq("train").sum())
        pays = compiling_pays(device, to_build.train, taught, spec)
        machine = Machine(precision, torch.get_num_threads(), pays)
    settings = known(table, backbone, machine)
    if spec.takes_pixels:
        warm_up(network, preprocessing.shape, str(settings.speed.precision), device)
    write_config(folder, settings, command)
    return Prepared(
        folder, settings, command, device, task, items, network, spec, preprocessing,
        decoded_pictures(items, preprocessing, settings), origin, selection, start_time,
    )  # fmt: skip


def lost_by_crop(items: Items) -> float:
    """Median fraction of the photos outside of their centre square; 0 without photos.

    Boxes in pictures do not count: they are cut out as squares.
    """
    whole = items.frame["path"][items.frame["x"].isna()]
    looks = items.fact(Looks).of
    sizes = [looks[path].size for path in whole if path in looks]
    return float(np.median([1 - min(size) / max(size) for size in sizes] or [0.0]))


def _select_backbone(
    folder: Path, table: Items, settings: Settings, device: str
) -> BackboneSelection | None:
    """`select_backbone`, which imports torch, so only where backbones are or were compared."""
    if not settings.network.candidates and not (folder / BACKBONES).is_file():
        return None
    with progress.step("Loading PyTorch"):
        from learners.runs.backbone_selection import select_backbone

    with keep_thread_count(settings.speed.threads):
        return select_backbone(folder, table, settings, device)


def load_items(
    table: Items,
    reading: Asked,
    folder: Path,
    trained_on: Mapping[str, Any] = MappingProxyType({}),
    spectrogram: SpectrogramSettings | None = None,
) -> Loaded:
    """Render the items of a table with `render_items` and write them to the run's folder.

    The files are ``items.csv``, ``rejected.csv`` and, with a background class, ``background.csv``.

    Raises
    ------
    SecondhandError : as in `render_items`; or a resumed run's data have changed.
    """
    loaded = render_items(table, reading, trained_on, spectrogram)
    table, model = loaded.table, reading.of(WarmStartSettings).from_
    items = pd.concat([table.frame, table.unknown_items.assign(split="unknown")])
    others = [] if model is None else [str(model / WEIGHTS)]
    tables = {"items.csv": without_empty(items), "background.csv": table.background}
    if lookup := table.fact(Inputs).lookup:  # the items' own files are not opened
        record_inputs(folder, tables, [*lookup.files, *others], opened=False)
    else:
        states = {path: look.state for path, look in table.fact(Looks).of.items()}
        record_inputs(folder, tables, others, states)
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    return loaded
