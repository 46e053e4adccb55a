"""A run as it begins: its settings resolved, its files read, split and drawn, its network built.

torch is imported once the files are read, which takes seconds: what is wrong with the data is said soon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from datasets.core import progress
from datasets.core.errors import Rejected
from datasets.items import DataSettings, Loaded, SignalSettings, prepare_items
from datasets.spectrogram_kinds import spectrogram_from_dict
from datasets.spectrograms import DecodedPictures, SpectrogramSettings
from learners import distributed
from learners.backbones import mel_of
from learners.cli.settings import Settings
from learners.inference import pick_device
from learners.machine import keep_thread_count
from learners.model import WEIGHTS, Bundle, tta_views_for
from learners.runs.folder import command_of, record_inputs, write_config, write_csv
from learners.runs.warm_start import apply_warm_start
from learners.tasks.base import Task
from learners.tasks.choose import choose_task

if TYPE_CHECKING:
    from learners.inference import Predictor
    from learners.runs.backbone_selection import BackboneSelection


@dataclass
class Run:
    """A run: its folder, what it was asked, and what its stages have made of that so far.

    Attributes
    ----------
    settings : resolved, as ``config.yaml`` has them.
    command : that it was begun by.
    device : that it computes on.
    task : what is learnt to be said of an item.
    items : the table with its splits, the rows to train on, and the recipe.
    bundle : the model: its network as it begins, later trained; then calibrated; then with its figures.
    origin : the model of ``--from``.
    choice : how ``--backbone auto`` chose; None where the backbone was named.
    began : the moment, of `time.monotonic`.
    interrupted : Ctrl-C ended the training early.
    """

    folder: Path
    settings: Settings
    command: str
    device: str
    task: Task
    items: Loaded
    bundle: Bundle
    origin: Bundle | None
    selection: BackboneSelection | None
    began: float
    interrupted: bool = False

    @cached_property
    def predictor(self) -> Predictor:
        """Answers with the model. Made where it is first asked: of several processes, in one."""
        from learners.inference import Predictor

        return Predictor(self.bundle, device=self.settings.speed.device, decoded=self.decoded)

    @cached_property
    def decoded(self) -> DecodedPictures:
        """The pixels of the items, which all stages share: each file is decoded once for them."""
        from learners.training import decoded_pictures

        return decoded_pictures(self.items, self.bundle.preprocessing, self.settings)


def prepare(
    folder: Path, asked: Settings, typed: Mapping[str, Any] | None = None, command: str = ""
) -> Run:
    """The settings resolved, once for the whole run; the files read, split and drawn; the network built:
    ``items.csv``, ``rejected.csv``, ``config.yaml``.

    What is ``asked`` is made of defaults < preset < file < flags, or by ``--resume`` of the run's own. It
    is overruled by what a model of ``--from`` brings, and what it leaves open is settled by the data, then
    by the machine.

    Parameters
    ----------
    typed : of the settings those that somebody chose, by their names; those other than their defaults
        if not given.
    command : what was typed.

    Raises
    ------
    SecondhandError : a setting or the data make the run impossible.
    """
    began = time.monotonic()
    if asked.run.resume is not None:
        command = command_of(folder) or command
    settings, origin = apply_warm_start(asked, typed)
    settings.check()
    task = choose_task(settings.data, origin)
    task.check(settings)
    distributed.check_batch(settings.train.bs)
    device = pick_device(distributed.device(settings.speed.device), train=True)
    if settings.speed.precision == "fp16" or device == "mps":
        from learners.training import check_precision

        check_precision(settings.speed.precision, device)
    drawn = (
        None
        if origin is None or origin.spectrogram is None
        else spectrogram_from_dict(origin.spectrogram)
    )
    trained_on = mel_of(settings.network.backbone) if drawn is None else {}
    data, signal, seed = settings.data, settings.signal, settings.train.seed
    with keep_thread_count(settings.speed.threads), progress.step("Reading the files"):
        items = distributed.first_process_value(
            lambda: load_items(data, signal, seed, folder, trained_on, drawn)
        )
    task = task.of_items(settings, items.table)
    fits, kind = settings.network.fits, items.table.kind
    settings = replace(settings, train=settings.train.of(kind, fits=fits))

    with progress.step("Loading PyTorch"):
        from fastai.torch_core import set_seed

        from learners.runs.backbone_selection import select_backbone
        from learners.training import build_network, resolve_speed

    with keep_thread_count(settings.speed.threads):
        set_seed(seed, reproducible=True)
        settings, selection = distributed.first_process_value(
            lambda: select_backbone(folder, items, settings, device)
        )
        network, spec, preprocessing = build_network(folder, items, settings, task, origin)
        settings = replace(settings, speed=resolve_speed(settings.speed, network, device))
    write_config(folder, settings, command)
    augment = settings.augment
    bundle = Bundle(
        network=network,
        spec=spec,
        classes=items.table.classes,
        preprocessing=preprocessing,
        spectrogram=None if items.spectrogram is None else items.spectrogram.to_dict(),
        overlap=settings.signal.overlap,
        tta_views=tta_views_for(
            kind,
            augment.tta,
            flip=augment.flip,
            min_scale=augment.min_scale,
            strength=augment.augment_strength,
        ),
        confidence=task.uncalibrated(items.table.classes),
    )
    return Run(folder, settings, command, device, task, items, bundle, origin, selection, began)


def load_items(
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
    folder: Path,
    trained_on: Mapping[str, Any] = MappingProxyType({}),
    spectrogram: SpectrogramSettings | None = None,
) -> Loaded:
    """`prepare_items`, and what the run begins with in its folder: ``items.csv``, ``rejected.csv``,
    with a background ``background.csv``.

    Raises
    ------
    SecondhandError : also for other data than those that a run which goes on began with.
    """
    loaded = prepare_items(data, signal, seed, trained_on, spectrogram)
    table = loaded.table
    items = pd.concat([table.frame, table.unknown_items.assign(split="unknown")])
    weights = [] if data.from_ is None else [str(data.from_ / WEIGHTS)]
    tables = {"items.csv": items, "background.csv": table.background}
    record_inputs(
        folder, tables, weights, {path: look.state for path, look in table.picture_info.items()}
    )
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    return loaded
