"""What comes before the stages of a run: its settings checked, its files read, split and drawn.

torch is not imported for that, which takes seconds: what is wrong with the data is said soon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from datasets.core.errors import Rejected
from datasets.items import DataSettings, Loaded, SignalSettings, prepare_items
from datasets.recipes import recipe_from_dict
from datasets.spectrograms import Recipe
from learners import distributed
from learners.backbones import mel_of
from learners.cli.settings import Settings
from learners.inference import pick_device
from learners.model import WEIGHTS, Bundle, load_bundle
from learners.runs.folder import write_csv
from learners.runs.resume import begin
from learners.tasks.base import Task
from learners.tasks.choose import task_asked


@dataclass
class Begun:
    """What a training begins with.

    Attributes
    ----------
    settings : what was asked; with ``--from``, the network and the recipe of that model.
    device : that it computes on.
    loaded : the items with their splits, the rows to train on, and the recipe.
    task : what is learnt to be said of an item.
    origin : the model of ``--from``.
    at : the moment, of `time.monotonic`.
    """

    settings: Settings
    device: str
    loaded: Loaded
    task: Task
    origin: Bundle | None
    at: float


def read(folder: Path, settings: Settings) -> Begun:
    """What comes before the stages: the settings checked, the files read, split and drawn;
    ``items.csv`` and ``rejected.csv``.

    Raises
    ------
    SecondhandError : as `run` has it.
    """
    settings.check()
    at = time.monotonic()
    origin = None if settings.data.from_ is None else load_bundle(settings.data.from_)
    task = task_asked(settings.data, origin)
    task.check(settings)
    distributed.check_batch(settings.train.bs)
    device = pick_device(distributed.device(settings.speed.device), train=True)
    if settings.speed.precision == "fp16" or device == "mps":
        from learners.training import check_precision

        check_precision(settings.speed.precision, device)
    recipe = None if origin is None or origin.recipe is None else recipe_from_dict(origin.recipe)
    trained_on = mel_of(settings.network.backbone) if recipe is None else {}
    loaded = distributed.from_first(
        lambda: load_items(
            settings.data, settings.signal, settings.train.seed, folder, trained_on, recipe
        )
    )
    task = task.of_items(settings, loaded.table)
    return Begun(settings, device, loaded, task, origin, at)


def load_items(
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
    folder: Path,
    trained_on: Mapping[str, Any] = MappingProxyType({}),
    recipe: Recipe | None = None,
) -> Loaded:
    """`prepare_items`, and what the run begins with in its folder: ``items.csv``, ``rejected.csv``,
    with a background ``background.csv``.

    Raises
    ------
    SecondhandError : also for other data than those that a run which goes on began with.
    """
    loaded = prepare_items(data, signal, seed, trained_on, recipe)
    table = loaded.table
    items = pd.concat([table.frame, table.unknowns.assign(split="unknown")])
    weights = [] if data.from_ is None else [str(data.from_ / WEIGHTS)]
    begin(folder, {"items.csv": items, "background.csv": table.background}, weights)
    write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
    return loaded
