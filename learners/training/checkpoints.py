"""Saves the state of a training, so that another process can resume it."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fastai.learner import Learner
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from datasets.core.errors import BadFile
from datasets.core.files import file_beside, write_beside
from learners.files.lock import disk_error
from learners.model.tensors import read_tensors, sha256, storable

log = logging.getLogger(__name__)

#: File in the checkpoint folder of a network whose training is complete.
TRAINED = "trained.json"
#: Number of states kept: the newest, and one more in case the newest is damaged.
KEPT = 2
FORMAT = 1

State = tuple[dict[str, Tensor], dict[str, Any]]


class Position(NamedTuple):
    """Next step of a fine-tuning: phase 0 (the head) or 1 (all weights), and the epoch in that phase."""

    phase: int = 0
    epoch: int = 0


class Checkpoints:
    """Saves ``state-N.safetensors`` and ``state-N.json``, and resumes from the newest.

    Attributes
    ----------
    position : where the training begins.
    rate : learning rate found by ``--lr auto``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.position = Position()
        self.rate: float | None = None
        self._pending: State | None = None

    @property
    def trained(self) -> bool:
        """Whether the training is already complete."""
        return (self.folder / TRAINED).is_file()

    def resume(self, network: nn.Module) -> dict[str, Any] | None:
        """Load the weights of the newest intact checkpoint; return its record, or None if there is none."""
        self._pending = read_state(self.folder)
        if self._pending is None:
            return None
        tensors, record = self._pending
        # Before the fit begins, because EMA starts as a copy of these weights.
        network.load_state_dict(_with_prefix(tensors, "model"))
        self.position, self.rate = Position(*record["position"]), record["rate"]
        return record

    def begin(self, learn: Learner, phase: int) -> None:
        """Restore the rest of the state of a learner that resumes within this phase."""
        if self._pending is not None and self.position.phase == phase:
            restore_state(learn, *self._pending)
            self._pending = None

    def save(
        self, position: Position, network: nn.Module, history: str, learn: Learner | None
    ) -> None:
        """Save the state of a training.

        Parameters
        ----------
        history : text of ``history.csv``; a resumed training restores it as it was here.
        learn : the learner, if the next step is in the same phase.
        """
        tensors, numbers = collect_state(network, learn)
        record = {"position": position, "rate": self.rate, "history": history, **numbers}
        write_state(self.folder, tensors, record)

    def finish(self) -> None:
        """Mark the training as complete and delete its states; the best weights stay."""
        write_beside(self.folder / TRAINED, b"{}")
        remove_states(self.folder)


def collect_state(network: nn.Module, learn: Learner | None) -> State:
    """Collect the tensors and numbers that the next step of a training depends on.

    Parameters
    ----------
    learn : the learner, if the next step is in the same phase. Then also collect the optimizer's moments (fastai drops
        them when a phase begins), the averaged weights, the loss scaler and the smoothed loss.
    """
    tensors = {f"model.{name}": value for name, value in network.state_dict().items()}
    numbers: dict[str, Any] = {}
    if learn is not None:
        tensors |= {
            f"optimizer.{key}.{name}": value
            for key, parameter in enumerate(_parameters(learn))
            for name, value in _optimizer_state(learn).get(parameter, {}).items()
        }
        if getattr(learn, "ema", None) is not None:
            average = learn.ema.ema_model.state_dict()
            tensors |= {f"average.{name}": value for name, value in average.items()}
        if getattr(learn, "scaler", None) is not None:
            numbers["scaler"] = learn.scaler.state_dict()
        smooth = learn.recorder.smooth_loss
        tensors["smooth"], numbers["smoothed"] = smooth.val.reshape(1), smooth.count
        numbers["train_iter"] = learn.train_iter
    return storable(tensors), numbers


def restore_state(learn: Learner, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Restore what `collect_state` collected, except the weights."""
    parameters, inner = _parameters(learn), _optimizer_state(learn)
    for name, value in _with_prefix(tensors, "optimizer").items():
        key, _, field = name.partition(".")
        inner[parameters[int(key)]][field] = _to_parameter(value, parameters[int(key)])
    if average := _with_prefix(tensors, "average"):
        learn.ema.ema_model.load_state_dict(average)
    if "scaler" in numbers:
        learn.scaler.load_state_dict(numbers["scaler"])
    if "smooth" in tensors:
        learn.recorder.smooth_loss.val = tensors["smooth"].reshape(())
        learn.recorder.smooth_loss.count = numbers["smoothed"]
        learn.train_iter = numbers["train_iter"]


def write_state(folder: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Save a state under the next number. It is valid once the JSON file is written, which comes last.

    Raises
    ------
    OSError : the disk is full or not writable.
    """
    earlier = state_numbers(folder)
    file = folder / f"state-{max(earlier, default=0) + 1:06}.safetensors"
    try:
        with file_beside(file) as beside:
            save_file(tensors, beside)
            body = {"format": FORMAT, "tensors": sha256(beside), **record}
    except SafetensorError as error:
        raise disk_error(file, error) from None
    text = json.dumps(body)
    signed = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}
    write_beside(file.with_suffix(".json"), json.dumps(signed).encode())
    for number in earlier[: 1 - KEPT]:
        _remove(folder, number)


def read_state(folder: Path) -> State | None:
    """Read the newest intact state, or None; damaged states are logged and removed."""
    for number in reversed(state_numbers(folder)):
        file = folder / f"state-{number:06}.json"
        try:
            return _read_state(file)
        except (BadFile, OSError) as error:
            log.warning("%s. Resuming from the previous checkpoint", error)
            _remove(folder, number)
    return None


def _read_state(file: Path) -> State:
    try:
        signed = json.loads(file.read_bytes())
        body, text = signed["body"], json.dumps(signed["body"])
        intact = hashlib.sha256(text.encode()).hexdigest() == signed["sha256"]
    except (ValueError, TypeError, KeyError):
        intact = False
    if not intact or body["format"] != FORMAT:
        raise BadFile(file, "damaged")
    tensors = file.with_suffix(".safetensors")
    if not tensors.is_file() or sha256(tensors) != body["tensors"]:
        raise BadFile(tensors, "damaged")
    return read_tensors(tensors), body


def state_numbers(folder: Path) -> list[int]:
    """Numbers of the states in a folder, ascending."""
    matches = (re.fullmatch(r"state-(\d{6,})\.json", file.name) for file in folder.glob("state-*"))
    return sorted(int(match[1]) for match in matches if match)


def remove_states(folder: Path) -> None:
    """Remove all states, when the training is complete or starts again."""
    for suffix in (".json", ".safetensors"):
        for file in folder.glob(f"state-*{suffix}"):
            file.unlink(missing_ok=True)


def _remove(folder: Path, number: int) -> None:
    for suffix in (".json", ".safetensors"):
        (folder / f"state-{number:06}{suffix}").unlink(missing_ok=True)


def _parameters(learn: Learner) -> list[Tensor]:
    return [parameter for group in learn.opt.param_lists for parameter in group]


def _optimizer_state(learn: Learner) -> Any:
    """State of the optimizer by parameter; fastai wraps torch's optimizers."""
    return learn.opt.opt.state


def _to_parameter(value: Tensor, parameter: Tensor) -> Tensor:
    """Copy a value to the device and memory format of its parameter."""
    if value.ndim == 0:  # a step count: fused optimizers need it on the device too
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _with_prefix(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"{kind}."
    return {name[len(start) :]: v for name, v in tensors.items() if name.startswith(start)}
