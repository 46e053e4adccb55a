"""The state of a training as tensors and numbers, and its files."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from datasets.errors import BadFile
from datasets.files import file_beside, write_beside
from learners import distributed
from learners.files import disk_error
from learners.model import read_tensors, sha256, storable

log = logging.getLogger(__name__)

#: Files that are kept: the newest, and the one before in case that is damaged.
KEPT = 2
FORMAT = 1


def gather(
    learn: Learner, *, within: bool, inside: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a learner holds that the next step depends on.

    Parameters
    ----------
    within : the phase has begun: also the optimizer's moments (which fastai forgets as a phase
        begins), the averaged weights, the loss scaler, the smoothed loss.
    inside : an epoch has begun: also the generators.
    """
    tensors = {
        f"model.{name}": value
        for name, value in distributed.plain_model(learn).state_dict().items()
    }
    numbers: dict[str, Any] = {}
    accumulation = getattr(learn, "gradient_accumulation", None)
    if accumulation is not None:
        if within:
            numbers["accumulated"] = accumulation.count
        for key, parameter in enumerate(_parameters(learn)):
            if parameter.grad is not None:
                tensors[f"gradient.{key}"] = parameter.grad
    if within:
        for key, name, value in _moments(learn):
            into = tensors if isinstance(value, Tensor) else numbers
            into[f"optimizer.{key}.{name}"] = value
        if getattr(learn, "ema", None) is not None:
            average = learn.ema.ema_model.state_dict()
            tensors |= {f"average.{name}": value for name, value in average.items()}
        if getattr(learn, "scaler", None) is not None:
            numbers["scaler"] = learn.scaler.state_dict()
        smooth = learn.recorder.smooth_loss
        tensors["smooth"], numbers["smoothed"] = smooth.val.reshape(1), smooth.count
        numbers["train_iter"] = learn.train_iter
    if inside:
        numbers["pct_train"] = learn.pct_train
        states, drawn = generators()
        tensors |= states
        numbers |= drawn
    return storable(tensors), numbers


def generators() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The random states of this process."""
    python, array = random.getstate(), np.random.get_state(legacy=False)
    array["state"]["key"] = array["state"]["key"].tolist()
    tensors = {"generator": torch.get_rng_state()}
    if torch.cuda.is_available():
        for number in _devices():
            tensors[f"cuda.{number}"] = torch.cuda.get_rng_state(number)
    return tensors, {"python": [python[0], list(python[1]), python[2]], "numpy": array}


def add_others(
    tensors: dict[str, Tensor],
    numbers: dict[str, Any],
    others: Sequence[tuple[dict[str, Tensor], dict[str, Any]]],
) -> None:
    """The random states of the second process and those after it, beside the first one's."""
    for rank, (states, drawn) in enumerate(others, 1):
        tensors |= {f"rank{rank}.{name}": state for name, state in states.items()}
        numbers[f"rank{rank}"] = drawn


def _devices() -> range:
    """The GPUs that this process may draw on: its own where there are several processes."""
    if distributed.count() == 1:
        return range(torch.cuda.device_count())
    return range(torch.cuda.current_device(), torch.cuda.current_device() + 1)


def put_back(learn: Learner, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """All that `gather` took, but the weights and the generators."""
    parameters = _parameters(learn)
    inner = learn.opt.opt.state if isinstance(learn.opt, OptimWrapper) else learn.opt.state
    for name, value in [*tensors.items(), *numbers.items()]:
        kind, _, rest = name.partition(".")
        key, _, field = rest.partition(".")
        if kind == "optimizer":
            inner[parameters[int(key)]][field] = _like(value, parameters[int(key)])
        elif kind == "gradient":
            parameters[int(key)].grad = _like(value, parameters[int(key)])
    if "accumulated" in numbers:
        learn.gradient_accumulation.count = numbers["accumulated"]
    if average := _named(tensors, "average"):
        learn.ema.ema_model.load_state_dict(average)
    if "scaler" in numbers:
        learn.scaler.load_state_dict(numbers["scaler"])
    if "smooth" in tensors:
        learn.recorder.smooth_loss.val = tensors["smooth"].reshape(())
        learn.recorder.smooth_loss.count = numbers["smoothed"]
        learn.train_iter = numbers["train_iter"]


def fill_model(learn: Learner, tensors: dict[str, Tensor]) -> None:
    """The weights, before the fit begins: averages start as a copy of them."""
    learn.model.load_state_dict(_named(tensors, "model"))


def put_generators_back(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """The random states in the middle of an epoch, each process its own."""
    if not distributed.is_first():
        own = f"rank{distributed.rank()}"
        if own not in numbers:
            return  # saved by fewer processes: as the epoch's seed has it
        tensors, numbers = _named(tensors, own), numbers[own]
    version, words, gauss = numbers["python"]
    random.setstate((version, tuple(words), gauss))
    array = numbers["numpy"]
    array["state"]["key"] = np.array(array["state"]["key"], dtype=np.uint32)
    np.random.set_state(array)
    torch.set_rng_state(tensors["generator"])
    for name, state in _named(tensors, "cuda").items():
        if torch.cuda.is_available() and int(name) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(name))


def write(folder: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Save a state under the next number. The JSON file comes last: with it the state is there.

    Raises
    ------
    OSError : the disk is full, or may not be written to.
    """
    there = numbers_of(folder)
    file = folder / f"state-{max(there, default=0) + 1:06}.safetensors"
    try:
        with file_beside(file) as beside:
            save_file(tensors, beside)
            body = {"format": FORMAT, "tensors": sha256(beside), **record}
    except SafetensorError as error:
        raise disk_error(file, error) from None
    text = json.dumps(body)
    whole = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}
    write_beside(file.with_suffix(".json"), json.dumps(whole).encode())
    for number in there[: 1 - KEPT]:
        _remove(folder, number)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest state that is whole; None where there is none. Damaged ones are said and removed."""
    for number in reversed(numbers_of(folder)):
        file = folder / f"state-{number:06}.json"
        try:
            return _read(file)
        except (BadFile, OSError) as error:
            log.warning("%s; going on from the checkpoint before it", error)
            _remove(folder, number)
    return None


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        whole = json.loads(file.read_bytes())
        body, text = whole["body"], json.dumps(whole["body"])
        right = hashlib.sha256(text.encode()).hexdigest() == whole["sha256"]
    except (ValueError, TypeError, KeyError):
        right = False
    if not right or body["format"] != FORMAT:
        raise BadFile(file, "damaged")
    tensors = file.with_suffix(".safetensors")
    if not tensors.is_file() or sha256(tensors) != body["tensors"]:
        raise BadFile(tensors, "damaged")
    return read_tensors(tensors), body


def numbers_of(folder: Path) -> list[int]:
    """The numbers of the states in a folder, rising."""
    found = (re.fullmatch(r"state-(\d{6,})\.json", file.name) for file in folder.glob("state-*"))
    return sorted(int(match[1]) for match in found if match)


def clear(folder: Path) -> None:
    """Remove all states: the training is over, or begins anew."""
    for file in folder.glob("state-*.json"):
        file.unlink(missing_ok=True)
    for file in folder.glob("state-*.safetensors"):
        file.unlink(missing_ok=True)


def _remove(folder: Path, number: int) -> None:
    for suffix in (".json", ".safetensors"):
        (folder / f"state-{number:06}{suffix}").unlink(missing_ok=True)


def _parameters(learn: Learner) -> list[Tensor]:
    return [parameter for group in learn.opt.param_lists for parameter in group]


def _moments(learn: Learner) -> Iterator[tuple[int, str, Any]]:
    """(number of the parameter, name, value) of all that the optimizer keeps for the parameters."""
    inner = learn.opt.opt.state if isinstance(learn.opt, OptimWrapper) else learn.opt.state
    for key, parameter in enumerate(_parameters(learn)):
        for name, value in inner.get(parameter, {}).items():
            yield key, name, value


def _like(value: Any, parameter: Tensor) -> Any:
    """In the parameter's place and memory format; counts of steps stay where torch wants them."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _named(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"{kind}."
    return {name[len(start) :]: v for name, v in tensors.items() if name.startswith(start)}
