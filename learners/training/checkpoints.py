"""Where a training stands: saved as each epoch ends, and taken up again by another process.

First the callback, then what a state is (tensors and numbers), then its files.
"""

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
from torch import Tensor

from datasets.core.errors import BadFile
from datasets.core.files import file_beside, write_beside
from learners import distributed
from learners.files import disk_error
from learners.model import read_tensors, sha256, storable
from learners.training.callbacks import EpochEnd, KeepBest, phase_of

log = logging.getLogger(__name__)

#: Stands in a member's folder when its training is over.
TRAINED = "trained.json"
#: Files that are kept: the newest, and the one before in case that is damaged.
KEPT = 2
FORMAT = 1

State = tuple[dict[str, Tensor], dict[str, Any]]


class Position(NamedTuple):
    """The next step of a fine-tuning: phase 0 (the head) or 1 (everything), and the epoch in it."""

    phase: int = 0
    epoch: int = 0


class Checkpoints(EpochEnd):
    """``state-N.safetensors`` and ``state-N.json`` after each epoch; the last two are kept.

    Parameters
    ----------
    folder : of the checkpoint, the best epoch's weights beside.
    history : the file of the epochs' figures; what it says of epochs that are to come again is cut.
    """

    order = 75  # after the epoch's values, the best weights and the history are where they belong

    def __init__(self, folder: Path, history: Path) -> None:
        self.folder, self.history = folder, history
        self.position = Position()
        self.rate: float | None = None  # what --lr auto found
        self.waiting: State | None = None

    @property
    def trained(self) -> bool:
        """Whether the training was over already."""
        return (self.folder / TRAINED).is_file()

    def take_up(self, learn: Learner, best: KeepBest) -> bool:
        """Go on where the newest whole checkpoint was made, at `position`; False where there is none.

        Raises
        ------
        BadFile : the best epoch's weights are damaged.
        """
        with distributed.in_turn():
            self.waiting = read(self.folder)
        if self.waiting is None:
            if distributed.is_first():
                self.history.unlink(missing_ok=True)
            return False
        tensors, record = self.waiting
        best.go_on()
        # Now, before the fit begins: averages start as a copy of them.
        learn.model.load_state_dict(_named(tensors, "model"))
        self.position, self.rate = Position(*record["position"]), record["rate"]
        if distributed.is_first():
            write_beside(self.history, record["history"].encode())
        return True

    def finish(self) -> None:
        """The training is over: only its best weights are still needed."""
        if not distributed.is_first():
            return
        write_beside(self.folder / TRAINED, json.dumps({"at": list(self.position)}).encode())
        clear(self.folder)

    def before_fit(self) -> None:
        super().before_fit()
        if not self.run:
            return
        phase = 0 if phase_of(self.learn) == "frozen" else 1
        if self.waiting is None or self.position.phase != phase:
            self.position = Position(phase)
            return
        put_back(self.learn, *self.waiting)
        self.waiting = None

    def epoch_ends(self) -> None:
        phase, over = self.position.phase, self.epoch + 1 == self.n_epoch
        self._save(Position(phase + 1) if over else Position(phase, self.epoch + 1))

    def _save(self, position: Position) -> None:
        tensors, numbers = gather(self.learn, within=position.epoch > 0)
        if not distributed.is_first():
            return
        written = self.history.read_bytes().decode() if self.history.exists() else ""
        record = {"position": position, "rate": self.rate, "history": written, **numbers}
        write(self.folder, tensors, record)


def gather(learn: Learner, *, within: bool) -> State:
    """What a learner holds that the next step depends on.

    Parameters
    ----------
    within : the phase has begun: also the optimizer's moments (which fastai forgets as a phase
        begins), the averaged weights, the loss scaler, the smoothed loss.
    """
    tensors = {
        f"model.{name}": value
        for name, value in distributed.plain_model(learn).state_dict().items()
    }
    numbers: dict[str, Any] = {}
    if within:
        for key, parameter in enumerate(_parameters(learn)):
            for name, value in _inner(learn).get(parameter, {}).items():
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
    return storable(tensors), numbers


def put_back(learn: Learner, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """All that `gather` took, but the weights."""
    parameters = _parameters(learn)
    inner = _inner(learn)
    for name, value in [*tensors.items(), *numbers.items()]:
        kind, _, rest = name.partition(".")
        key, _, field = rest.partition(".")
        if kind == "optimizer":
            inner[parameters[int(key)]][field] = _like(value, parameters[int(key)])
    if average := _named(tensors, "average"):
        learn.ema.ema_model.load_state_dict(average)
    if "scaler" in numbers:
        learn.scaler.load_state_dict(numbers["scaler"])
    if "smooth" in tensors:
        learn.recorder.smooth_loss.val = tensors["smooth"].reshape(())
        learn.recorder.smooth_loss.count = numbers["smoothed"]
        learn.train_iter = numbers["train_iter"]


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


def read(folder: Path) -> State | None:
    """The newest state that is whole; None where there is none. Damaged ones are said and removed."""
    for number in reversed(numbers_of(folder)):
        file = folder / f"state-{number:06}.json"
        try:
            return _read(file)
        except (BadFile, OSError) as error:
            log.warning("%s; going on from the checkpoint before it", error)
            _remove(folder, number)
    return None


def _read(file: Path) -> State:
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
    for suffix in (".json", ".safetensors"):
        for file in folder.glob(f"state-*{suffix}"):
            file.unlink(missing_ok=True)


def _remove(folder: Path, number: int) -> None:
    for suffix in (".json", ".safetensors"):
        (folder / f"state-{number:06}{suffix}").unlink(missing_ok=True)


def _parameters(learn: Learner) -> list[Tensor]:
    return [parameter for group in learn.opt.param_lists for parameter in group]


def _inner(learn: Learner) -> Any:
    """What the optimizer keeps for each parameter: torch's own optimizers are wrapped."""
    return learn.opt.opt.state


def _like(value: Any, parameter: Tensor) -> Any:
    """In the parameter's place and memory format."""
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:  # a count of steps, which torch's fused optimizers want there as well
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _named(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"{kind}."
    return {name[len(start) :]: v for name, v in tensors.items() if name.startswith(start)}
