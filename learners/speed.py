"""``--speed auto``: what a training step takes in each way this machine has, and the quickest.

Settings that the user gave are never changed; only those left open are tried. A trial works on a
copy of the network, with a batch of its own, and leaves weights, BatchNorm's averages, optimizer and
random states as they were. It is kept short beside the training it is for, and what it found is kept
in the cache, for this machine, network, size and batch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from fastai.data.core import DataLoaders
from torch import Tensor, nn

from learners._trial import Trial
from learners.callbacks import resolve_precision
from learners.config import SpeedSettings
from learners.randomness import undisturbed_randomness

log = logging.getLogger(__name__)

SHORTEST = 60.0  # seconds of training below which nothing is tried
LONGEST_TRIAL = 20.0  # seconds, without compiling
PART = 0.03  # of the training, that a trial may take
ROUNDS = 4
GAIN = 0.05  # part of a step's time that another way must save: less may be chance
COMPILE_FROM = 1200.0  # seconds of training from which on compiling is tried
TRIED = ("channels_last", "precision", "threads")


@dataclass(frozen=True)
class Work:
    """What is to be trained, and how much of it.

    Parameters
    ----------
    steps : batches through forward and backward pass that the run will make.
    cache : the folder that remembers.
    kept : pictures lie decoded: to load one is to read it and cut it out.
    """

    backbone: str
    size: int
    device: str
    steps: int
    cache: Path
    kept: bool = False


def settle(speed: SpeedSettings, network: nn.Module, dls: DataLoaders, work: Work) -> SpeedSettings:
    """The settings with nothing left open, and in force: threads and loader workers are set.

    Parameters
    ----------
    network : logits [bs, classes] of float32 [bs, 3, size, size]; a copy of it is tried.
    dls : its loaders get the number of workers.
    """
    usual = _usual(speed, work.device)
    ways = _ways(speed, usual, work.device)
    chosen, said = usual, ""
    if speed.speed in ("auto", True) and (
        len(ways) > 1 or speed.workers is None or speed.compile is None
    ):
        file = work.cache / "speed" / f"{_key(speed, dls, work)}.json"
        remembered = _recall(file, ways)
        if remembered is not None:
            chosen, said = remembered, "as found before"
        else:
            with undisturbed_randomness(dls):
                chosen, said, found = _tried(speed, usual, ways, network, dls, work)
            if found:
                _remember(file, chosen, found)
    if speed.workers is None and work.kept and "cuda" not in work.device:
        # They would share the cores with the network, and cost more than they do: `decoded.keep`.
        chosen = replace(chosen, workers=0)
    _put_in_force(chosen, dls)
    if said:
        log.info("speed: %s; %s", _in_words(chosen), said)
    return chosen


def record(folder: Path, speed: SpeedSettings) -> None:
    """Put the settings into a run's ``config.yaml``, so that who repeats the run trains as it did."""
    file = folder / "config.yaml"
    text = file.read_text(encoding="utf-8")
    for name, value in asdict(speed).items():
        line = yaml.safe_dump({name: value}).strip()
        text = re.sub(rf"(?m)^{name}: .*$", line.replace("\\", r"\\"), text)
    _write(file, text)


# --- what there is to choose from ---------------------------------------------------------------


def _usual(speed: SpeedSettings, device: str) -> SpeedSettings:
    """What was left open as it is without a trial."""
    cores = len(os.sched_getaffinity(0))
    return replace(
        speed,
        precision=resolve_precision(speed.precision, device),  # type: ignore[arg-type]
        channels_last=True if speed.channels_last is None else speed.channels_last,
        compile=bool(speed.compile),
        workers=max(1, cores - 1) if speed.workers is None else speed.workers,
        threads=torch.get_num_threads() if speed.threads is None else speed.threads,
    )


def _ways(speed: SpeedSettings, usual: SpeedSettings, device: str) -> list[SpeedSettings]:
    """Every combination of what was left open, the usual one first."""
    cuda, cores = device.startswith("cuda"), len(os.sched_getaffinity(0))
    options: dict[str, list[Any]] = {name: [getattr(usual, name)] for name in TRIED}
    if speed.channels_last is None:
        options["channels_last"] = [True, False]
    if speed.precision == "auto" and usual.precision != "fp32":
        options["precision"].append("fp16" if cuda and usual.precision == "bf16" else "fp32")
    # A number given to OpenMP is the user's as well.
    if speed.threads is None and not cuda and "OMP_NUM_THREADS" not in os.environ:
        options["threads"] += [n for n in (cores, max(1, cores // 2)) if n != usual.threads]
    ways = product(*(dict.fromkeys(options[name]) for name in TRIED))
    return [replace(usual, **dict(zip(TRIED, way, strict=True))) for way in ways]


def _put_in_force(chosen: SpeedSettings, dls: DataLoaders) -> None:
    torch.set_num_threads(chosen.threads or 1)
    for loader in dls.loaders:
        loader.fake_l.num_workers = chosen.workers


def _in_words(chosen: SpeedSettings) -> str:
    parts = [
        "channels-last" if chosen.channels_last else "channels first",
        str(chosen.precision),
        *(["compiled"] if chosen.compile else []),
        f"{chosen.threads} thread{'s'[: chosen.threads != 1]}",
        f"{chosen.workers} worker{'s'[: chosen.workers != 1]}",
    ]
    return ", ".join(parts)


# --- trying -------------------------------------------------------------------------------------


def _tried(
    speed: SpeedSettings,
    usual: SpeedSettings,
    ways: list[SpeedSettings],
    network: nn.Module,
    dls: DataLoaders,
    work: Work,
) -> tuple[SpeedSettings, str, dict[str, Any]]:
    """The quickest way, why, and the figures; no figures where the training is too short."""
    if not work.steps:
        return usual, "", {}
    began = time.monotonic()
    x, y = (part.as_subclass(Tensor) for part in dls.train.one_batch())
    loading = time.monotonic() - began
    trial = Trial(network, x, y, work.device)
    first = min(trial.seconds(usual), trial.seconds(usual))
    expected = work.steps * first
    if expected < SHORTEST:
        return usual, "as usual, too short a training to try others", {}
    ends = time.monotonic() + min(LONGEST_TRIAL, PART * expected)
    found = dict.fromkeys(range(len(ways)), math.inf)
    found[0] = first
    for _ in range(ROUNDS):
        for number in list(found):
            if time.monotonic() < ends:
                found[number] = min(found[number], trial.seconds(ways[number]))
        best = min(found.values())
        # What is far behind needs no second look.
        found = {n: s for n, s in found.items() if n == 0 or s < 1.3 * best}
    number = min(found, key=lambda n: found[n])
    if found[number] > (1 - GAIN) * found[0]:
        number = 0
    chosen, step = ways[number], found[number]
    if speed.compile is None and work.steps * step > COMPILE_FROM:
        chosen, step = _compiled(trial, chosen, step, work.steps)
    if speed.workers is None:
        # Loaded on one core, or as many as needed so that the network never waits.
        most = max(1, len(os.sched_getaffinity(0)) - (0 if "cuda" in work.device else 1))
        chosen = replace(chosen, workers=min(most, max(1, math.ceil(1.2 * loading / step))))
    slowest = max(trial.all)
    said = f"{step:.3g} s a step, 1/{slowest / step:.2g} of the slowest of {len(ways)} ways tried"
    if len(ways) == 1:
        said = f"{step:.3g} s a step"
    seconds = time.monotonic() - began
    log.debug("tried for %.1f s", seconds)
    return chosen, said, {"seconds a step": step, "trial": seconds, "slowest": slowest}


def _compiled(
    trial: Trial, chosen: SpeedSettings, step: float, steps: int
) -> tuple[SpeedSettings, float]:
    """The same compiled, if the steps to come win back what compiling takes."""
    compiled, began = replace(chosen, compile=True), time.monotonic()
    try:
        trial.seconds(compiled)
        cost = time.monotonic() - began
        quicker = min(trial.seconds(compiled) for _ in range(3))
    except Exception as error:  # no C++ compiler, an operator that inductor does not know
        log.info("speed: compiling fails here (%s)", str(error).strip().splitlines()[0][:100])
        return chosen, step
    wins = quicker < (1 - GAIN) * step and steps * (step - quicker) > 2 * cost
    return (compiled, quicker) if wins else (chosen, step)


# --- remembering --------------------------------------------------------------------------------


def _key(speed: SpeedSettings, dls: DataLoaders, work: Work) -> str:
    """A name for this machine, this work, and what was left open."""
    facts = [
        _processor(),
        len(os.sched_getaffinity(0)),
        os.environ.get("OMP_NUM_THREADS", ""),
        torch.cuda.get_device_name(work.device) if work.device.startswith("cuda") else "",
        torch.__version__,
        work.backbone,
        work.size,
        dls.train.bs,
        # A long training may be worth compiling, where a short one was not.
        math.floor(math.log10(max(1, work.steps))),
        asdict(speed),
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _recall(file: Path, ways: list[SpeedSettings]) -> SpeedSettings | None:
    """What was chosen before, if it is there whole and is one of the ways."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text(encoding="utf-8"))["chosen"]
        workers, compiled = known["workers"], known["compile"]
        if type(workers) is int and 0 <= workers <= 1024 and type(compiled) is bool:
            for way in ways:
                if all(known[name] == getattr(way, name) for name in TRIED):
                    return replace(way, workers=workers, compile=compiled)
    return None


def _remember(file: Path, chosen: SpeedSettings, found: dict[str, Any]) -> None:
    names = (*TRIED, "workers", "compile")
    kept = {"chosen": {name: getattr(chosen, name) for name in names}, **found}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, json.dumps(kept, indent=1))
    except OSError as error:
        log.warning("speed: what was found cannot be kept: %s", error)


def _write(file: Path, text: str) -> None:
    """The whole file or nothing: beside it, then renamed."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
