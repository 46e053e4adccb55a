"""What is kept of a training: its best weights, and where it stands, taken up again by another process.

First the two callbacks, then what a state is (tensors and numbers), then its files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fastai.learner import Learner
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from datasets.core.errors import BadFile
from datasets.core.files import file_beside, write_beside
from learners import distributed
from learners.files import disk_error
from learners.model import read_tensors, save_weights, sha256, storable
from learners.training.callbacks import Ema, EpochEnd, phase_of

log = logging.getLogger(__name__)

#: Stands in a member's folder when its training is over.
TRAINED = "trained.json"
#: Files that are kept: the newest, and the one before in case that is damaged.
KEPT = 2
FORMAT = 1

#: Parts of the way from the linear probe to the last weights that are tried (2109.01903), and their names;
#: the first is preferred, for it answers files of other places and refuses unknown classes best.
BLENDS = {0.5: "half", 0.25: "a quarter"}
#: So many answers more or fewer are chance, whatever they are (sign test, two-sided, 5 %): 2 * 0.5^5 > 0.05.
CHANCE = 5

State = tuple[dict[str, Tensor], dict[str, Any]]


class KeepBest(EpochEnd):
    """The weights that validate best so far, in ``best.safetensors`` with ``best.json`` beside it.

    Or those of the last epoch, where what is validated may choose nothing: a published fold on which
    the figure is to be measured, a speaker nobody has heard.

    Over both phases of a fine_tune, and of the averaged weights where there are some: what is kept
    is what was validated. Written beside and renamed. Behind a fitted head the weights part of the way
    from that linear probe to the last ones are candidates as well (WiSE-FT, 2109.01903). A blend is kept
    whose validation loss is within a standard error of the lowest, half of the way before a quarter: few
    files cannot tell candidates apart that differ by less. Nothing is kept that validates clearly worse
    than the probe.

    Parameters
    ----------
    folder : where the files go.
    last : keep the last epoch, whatever its value.
    fitted : the head is fitted before the body learns: the frozen phase ends in a linear probe.
    """

    order = 65  # after the recorder has the epoch's values, and after EMA has put the model back

    def __init__(self, folder: Path, *, last: bool = False, fitted: bool = False) -> None:
        self.folder, self.last, self.fitted = folder, last, fitted
        self.kept: dict[str, Any] = {}

    def epoch_ends(self) -> None:
        phase = phase_of(self.learn)
        ends = phase == "frozen" or self.epoch + 1 == self.n_epoch
        if self.fitted and ends and not self.last:
            self._save("probe" if phase == "frozen" else "last", self._model(), {})
        self._offer(self.figures(), self._model(), phase, self.epoch + 1)

    def try_blends(self, epochs: int) -> None:
        """Validate the weights between the probe and the last ones, and keep the first of them whose loss
        is the lowest but for chance.

        The loss of an item is about as spread as it is large, so the standard error of a mean over n items
        is about the mean / sqrt(n). Both ends come from their files, which then go: a run that was stopped in between goes on here.
        """
        ends = [self.folder / f"{name}.safetensors" for name in ("probe", "last")]
        distributed.gathered(None)  # the first process has written them
        if not all(file.exists() for file in ends):  # nor where the last epoch was asked for
            return
        probe, last = map(load_file, ends)
        model = distributed.plain_model(self.learn)
        averages = [cb for cb in self.learn.cbs if isinstance(cb, Ema)]

        def blend(part: float) -> dict[str, Tensor]:
            return {
                n: torch.lerp(probe[n], t, part) if t.is_floating_point() else t
                for n, t in last.items()
            }

        tried = {}
        for part, name in BLENDS.items():
            model.load_state_dict(blend(part))
            with self.learn.removed_cbs(averages):  # it would begin another average
                values = map(float, self.learn.validate())
            names = [n for n in self.recorder.metric_names if n in ("valid_loss", "accuracy")]
            tried[part] = figures = distributed.share(dict(zip(names, values, strict=True)))
            shown = "  ".join(f"{n} {value:.4f}" for n, value in figures.items())
            log.info("%s of the way from the head-only model  %s", name, shown)
        lowest = min(self.kept["lowest"], *(one["valid_loss"] for one in tried.values()))
        enough = lowest * (1 + 1 / math.sqrt(len(self.dls.valid_ds)))
        for part, figures in tried.items():
            if figures["valid_loss"] <= enough:
                model.load_state_dict(blend(part))
                self._keep(figures, model, f"{BLENDS[part]} of the way", epochs, lowest)
                break
        distributed.gathered(None)  # all have read them
        if distributed.is_first():
            for file in ends:
                file.unlink()

    def _model(self) -> nn.Module:
        ema = getattr(self.learn, "ema", None)
        return distributed.plain_model(self.learn) if ema is None else ema.ema_model

    def _offer(self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int) -> None:
        """Keep these weights, unless others validated better: of equal ones the later have seen more."""
        value = figures["valid_loss"]
        if not self.kept or self.last or value <= self.kept["value"]:
            self._keep(figures, model, phase, epoch, value)

    def _keep(
        self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int, lowest: float
    ) -> None:
        reached = {n: v for n, v in figures.items() if n in ("valid_loss", "accuracy")}
        probe = reached if self.fitted and phase == "frozen" else None
        self.kept = {
            "value": figures["valid_loss"],
            "lowest": lowest,
            "epoch": epoch,
            "of": self.n_epoch,
            "phase": phase,
            "items": len(self.dls.valid_ds),
            "reached": reached,
            "probe": probe or self.kept.get("probe"),
        }
        if distributed.is_first():
            text = json.dumps(self.kept)
            self._save("best", model, {"best": text})
            write_beside(self.folder / "best.json", text.encode())

    def _save(self, name: str, model: nn.Module, said: dict[str, str]) -> None:
        if distributed.is_first():
            save_weights(model, self.folder / f"{name}.safetensors", said)

    def said(self) -> str:
        """Which weights are kept, and why; in a sentence."""
        kept, probe, n = self.kept, self.kept["probe"], self.kept["items"]
        what = f"epoch {kept['epoch']} of {kept['of']}, {kept['phase']}"
        if kept["phase"].endswith("way"):
            what = f"a blend, {kept['phase']} from the head-only model to epoch {kept['epoch']}"
        elif probe == kept["reached"]:
            what = "the head-only model"
        why = "the lowest"
        if self.last:
            why = "the last, as --keep last asks"
        elif kept["value"] > kept["lowest"]:
            why = f"the lowest but for chance ({kept['lowest']:.3g})"
        words = f"{what}: validation loss {kept['value']:.3g}, {why}"
        if "accuracy" not in kept["reached"]:
            return words
        right = round(n * kept["reached"]["accuracy"])
        words += f"; {right} of {n} right"
        if probe is None or probe == kept["reached"]:
            return words
        before = round(n * probe["accuracy"])
        words += f". Head-only: loss {probe['valid_loss']:.3g}, {before} right"
        if 0 < before - right <= CHANCE:
            words += f"; with {n} files {before - right} more may be chance"
        return words

    def resume_command(self) -> None:
        """Take the best epoch of an earlier process for the one to be surpassed.

        Raises
        ------
        BadFile : its weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if file.exists():
            try:
                with safe_open(file, "pt") as opened:
                    kept = dict(json.loads(opened.metadata()["best"]))
                    self.kept = kept | {"value": float(kept["value"])}
            except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
                raise BadFile(file, f"damaged ({error}); begin anew with --overwrite") from None

    def restore(self, model: nn.Module) -> bool:
        """Load the best weights. False where no epoch was finished; BadFile if they are damaged."""
        file = self.folder / "best.safetensors"
        if not file.exists():
            return False
        self.resume_command()
        try:
            model.load_state_dict(load_file(file))
        except (SafetensorError, OSError) as error:
            raise BadFile(file, f"damaged ({error}); begin anew with --overwrite") from None
        return True


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

    def resume(self, learn: Learner, best: KeepBest) -> bool:
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
        best.resume_command()
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
        restore_state(self.learn, *self.waiting)
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
        tensors |= {
            f"optimizer.{key}.{name}": value
            for key, parameter in enumerate(_parameters(learn))
            for name, value in _inner(learn).get(parameter, {}).items()
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
    """All that `gather` took, but the weights."""
    parameters, inner = _parameters(learn), _inner(learn)
    for name, value in _named(tensors, "optimizer").items():
        key, _, field = name.partition(".")
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


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """In the parameter's place and memory format."""
    if value.ndim == 0:  # a count of steps, which torch's fused optimizers want there as well
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _named(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    start = f"{kind}."
    return {name[len(start) :]: v for name, v in tensors.items() if name.startswith(start)}
