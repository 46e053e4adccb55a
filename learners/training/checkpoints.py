"""Saves the best weights of a training and its state, so that another process can resume it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.learner import Learner
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from scipy.special import stdtrit
from torch import Tensor, nn

from datasets.core.errors import BadFile
from datasets.core.files import file_beside, write_beside
from datasets.core.upstream import restore_modules
from learners import distributed
from learners.files.lock import disk_error
from learners.model.tensors import read_tensors, save_weights, sha256, storable
from learners.training.callbacks import (
    Ema,
    EpochEnd,
    ShowProgress,
    phase_of,
    undisturbed_randomness,
)

log = logging.getLogger(__name__)

#: File in the checkpoint folder of a network whose training is complete.
TRAINED = "trained.json"
#: Number of states kept: the newest, and one more in case the newest is damaged.
KEPT = 2
FORMAT = 1

#: Shares of the way from the linear probe (0) to the last weights (1), interpolated (WiSE-FT, arXiv:2109.01903). Half
#: way is best on data from another source and at refusing unknown classes, so only clear evidence replaces it.
HALF_WAY, OTHERS = 0.5, (0.0, 0.25, 1.0)
#: With n < FEW validation files the share is 0.5 n / FEW: with as few training files the last weights are worse than
#: the probe (docs/decisions.md).
FEW = 30
#: Levels of the one-sided paired test by which another share is better: two standard errors, and one for the head
#: alone, which a learning rate that is too high cannot have damaged.
LEVEL, LEVEL_OF_PROBE = 0.025, 0.16
#: A difference of up to this many correct files may be chance (two-sided sign test, 5 %): 2 * 0.5^5 > 0.05.
CHANCE = 5

#: Why weights are kept, in words.
WHY = {
    "lowest": "the lowest",
    "last": "the last epoch (--keep last)",
    "expected": "no others on the way are clearly better",
    "better": "clearly lower than half way to the last epoch",
}

State = tuple[dict[str, Tensor], dict[str, Any]]


class KeepBest(EpochEnd):
    """Keeps the weights of lowest validation loss in ``best.safetensors``, described in ``best.json``.

    With ``last`` it keeps the last epoch instead, for validation files that must not select anything:
    a published fold, an unseen speaker.

    The epochs of both phases are candidates. With EMA the averaged weights are validated, and kept. After a fitted
    head the choice is another one: the weights half way from that linear probe to the last weights, unless validation
    shows clearly that others on this way are better (`choose_share`). A few dozen files cannot choose among a dozen
    candidates.

    Parameters
    ----------
    folder : folder of the files.
    last : keep the last epoch, whatever its loss.
    fitted : the head is fitted as a linear probe in the frozen phase.
    """

    order = 65  # after the recorder has the epoch's values and EMA has restored the model

    def __init__(self, folder: Path, *, last: bool = False, fitted: bool = False) -> None:
        self.folder, self.last, self.fitted = folder, last, fitted
        self.kept: dict[str, Any] = {}

    def epoch_ends(self) -> None:
        phase = phase_of(self.learn)
        ends = phase == "frozen" or self.epoch + 1 == self.n_epoch
        if self.fitted and ends and not self.last:
            self._save("probe" if phase == "frozen" else "last", self.model, {})
        self._offer(self.figures(), self.model, phase, self.epoch + 1)

    def try_blends(self, epochs: int) -> None:
        """Validate interpolations between linear probe and last weights, and keep the one of `choose_share`.

        Both are read from files that are deleted at the end, so a run that stops here resumes here.
        """
        files = [self.folder / f"{name}.safetensors" for name in ("probe", "last")]
        if not all(file.exists() for file in files):  # also with --keep last
            return
        probe, last = map(load_file, files)
        model = self.learn.model
        # EMA would start another average, and the progress would look like an epoch that is broken off.
        silent = [cb for cb in self.learn.cbs if isinstance(cb, Ema | ShowProgress)]

        def blend(share: float) -> dict[str, Tensor]:
            return {
                n: torch.lerp(probe[n], t, share) if t.is_floating_point() else t
                for n, t in last.items()
            }

        expected = HALF_WAY * min(1.0, len(self.dls.valid_ds) / FEW)
        figures, losses = dict[float, dict[str, float]](), dict[float, NDArray[np.float64]]()
        for share in dict.fromkeys((expected, *OTHERS)):
            model.load_state_dict(blend(share))
            items = ItemLosses()
            with self.learn.removed_cbs(silent), self.learn.added_cbs(items):
                values = map(float, self.learn.validate())
            names = [n for n in self.recorder.metric_names if n in ("valid_loss", "accuracy")]
            figures[share] = dict(zip(names, values, strict=True))
            losses[share] = items.losses
            shown = "  ".join(f"{n} {value:.4f}" for n, value in figures[share].items())
            log.debug("Blend, %.0f %% of the way from the head-only model: %s", 100 * share, shown)
        share = choose_share(losses, expected)
        phase = {0.0: "frozen", 1.0: "unfrozen"}.get(share, f"{100 * share:.0f} % of the way")
        model.load_state_dict(blend(share))
        self._keep(
            figures[share], model, phase, epochs if share else 1,
            "expected" if share == expected else "better",
        )  # fmt: skip
        for file in files:
            file.unlink()

    @property
    def model(self) -> nn.Sequential:
        """The network that is validated, with averaged weights if there is EMA."""
        ema = getattr(self.learn, "ema", None)
        return self.learn.model if ema is None else ema.ema_model

    def _offer(self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int) -> None:
        """Keep these weights if none has a lower validation loss; of equal ones the later."""
        value = figures["valid_loss"]
        if not self.kept or self.last or value <= self.kept["value"]:
            self._keep(figures, model, phase, epoch, "last" if self.last else "lowest")

    def _keep(
        self, figures: dict[str, float], model: nn.Module, phase: str, epoch: int, why: str
    ) -> None:
        reached = {n: v for n, v in figures.items() if n in ("valid_loss", "accuracy")}
        probe = reached if self.fitted and phase == "frozen" else None
        self.kept = {
            "value": figures["valid_loss"],
            "why": why,
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

    def _save(self, name: str, model: nn.Module, metadata: dict[str, str]) -> None:
        if distributed.is_first():
            save_weights(model, self.folder / f"{name}.safetensors", metadata)

    def summary(self) -> str:
        """Sentence on which weights are kept, and why."""
        kept, probe, n = self.kept, self.kept["probe"], self.kept["items"]
        what = f"epoch {kept['epoch']} of {kept['of']}, {kept['phase']}"
        if kept["phase"].endswith("way"):
            what = f"a blend, {kept['phase']} from the head-only model to epoch {kept['epoch']}"
        elif probe == kept["reached"]:
            what = "the head-only model"
        sentence = f"{what}: validation loss {kept['value']:.3g}, {WHY[kept['why']]}"
        if "accuracy" not in kept["reached"]:
            return sentence
        right = round(n * kept["reached"]["accuracy"])
        sentence += f"; {right} of {n} right"
        if probe is None or probe == kept["reached"]:
            return sentence
        before = round(n * probe["accuracy"])
        sentence += f". Head-only: loss {probe['valid_loss']:.3g}, {before} right"
        if 0 < before - right <= CHANCE:
            sentence += f"; with {n} items a difference of {before - right} may be chance"
        return sentence

    def read_best(self) -> None:
        """Read which epoch an earlier process kept.

        Raises
        ------
        BadFile : the kept weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if file.exists():
            try:
                with safe_open(file, "pt") as opened:
                    kept = dict(json.loads(opened.metadata()["best"]))
                    self.kept = kept | {"value": float(kept["value"])}
            except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
                raise BadFile(file, f"damaged ({error}). Start again with --overwrite") from None

    def restore(self, model: nn.Module) -> bool:
        """Load the best weights into ``model``; return False if no epoch was finished.

        Raises
        ------
        BadFile : the weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if not file.exists():
            return False
        self.read_best()
        try:
            model.load_state_dict(load_file(file))
        except (SafetensorError, OSError) as error:
            raise BadFile(file, f"damaged ({error}). Start again with --overwrite") from None
        return True


class ItemLosses(Callback):
    """Notes the loss of each validation item, float64 [items], in the order of the loader."""

    def __init__(self) -> None:
        self.losses = np.empty(0)

    def after_loss(self) -> None:
        rows = zip(self.pred, *self.yb, strict=True)
        values = [float(self.learn.loss_func(pred[None], y[None])) for pred, y in rows]
        self.losses = np.append(self.losses, values)


def choose_share(losses: Mapping[float, NDArray[np.float64]], expected: float) -> float:
    """Choose a share of the way from the linear probe to the last weights.

    Parameters
    ----------
    losses : validation losses by share, each float64 [items], of the same items.
    expected : the share to keep without evidence against it.

    Returns
    -------
    The share of the lowest mean loss among those that a paired t-test finds better than ``expected``, at `LEVEL`, or
    `LEVEL_OF_PROBE` for 0; ``expected`` if there is none.
    """
    clear = {expected: 0.0}
    for share, of_share in losses.items():
        gains = losses[expected] - of_share
        n = len(gains)
        error = gains.std(ddof=1) / math.sqrt(n) if n > 1 else math.inf
        level = LEVEL if share else LEVEL_OF_PROBE
        if gains.mean() > stdtrit(n - 1, 1 - level) * error:
            clear[share] = float(gains.mean())
    return max(clear, key=lambda share: clear[share])


class Improvements(EpochEnd):
    """Passes a copy of the network to ``write`` after epochs that improved it, so that it can be used at once.

    The first kept weights are written at once. Later ones are written if the last writing took no more than ``share``
    of the time since then. The last epoch is left out, because the finished model follows it.

    Parameters
    ----------
    best : callback that decides which weights are kept.
    last_phase : the phase after which the training ends, see `phase_of`.
    write : called with the network in eval mode, and with `KeepBest.summary`.
    share : largest fraction of the training time to spend on writing, in (0, 1].
    """

    order = 80  # after the state has been saved, so that a kill during the writing costs no epoch

    def __init__(
        self,
        best: KeepBest,
        last_phase: str,
        write: Callable[[nn.Sequential, str], object],
        *,
        share: float = 0.1,
    ) -> None:
        self.best, self.last_phase, self.write, self.share = best, last_phase, write, share
        self.next_time = -math.inf

    def epoch_ends(self) -> None:
        phase, kept = phase_of(self.learn), self.best.kept
        over = phase == self.last_phase and self.epoch + 1 == self.n_epoch
        if over or (kept["phase"], kept["epoch"]) != (phase, self.epoch + 1):
            return
        start = time.monotonic()
        if start < self.next_time:
            return
        network = deepcopy(self.best.model).eval()
        restore_modules(network.modules())  # the body does not run while the head is trained
        with undisturbed_randomness(self.learn.dls):
            self.write(network, self.best.summary())
        end = time.monotonic()
        self.next_time = end + (end - start) / self.share


class Position(NamedTuple):
    """Next step of a fine-tuning: phase 0 (the head) or 1 (all weights), and the epoch in that phase."""

    phase: int = 0
    epoch: int = 0


class Checkpoints(EpochEnd):
    """Saves ``state-N.safetensors`` and ``state-N.json`` after each epoch, and resumes from the newest.

    Parameters
    ----------
    folder : checkpoint folder, which also holds the best weights.
    history : ``history.csv``; a resumed training restores it as it was at the checkpoint.
    """

    order = 75  # after the epoch's values, the best weights and the history have been written

    def __init__(self, folder: Path, history: Path) -> None:
        self.folder, self.history = folder, history
        self.position = Position()
        self.rate: float | None = None  # learning rate found by --lr auto
        self.pending: State | None = None

    @property
    def trained(self) -> bool:
        """Whether the training is already complete."""
        return (self.folder / TRAINED).is_file()

    def resume(self, learn: Learner, best: KeepBest) -> bool:
        """Resume from the newest intact checkpoint, at `position`; return False if there is none.

        Raises
        ------
        BadFile : the weights of the best epoch are damaged.
        """
        self.pending = read_state(self.folder)
        if self.pending is None:
            if distributed.is_first():
                self.history.unlink(missing_ok=True)
            return False
        tensors, record = self.pending
        best.read_best()
        # Before the fit begins, because EMA starts as a copy of these weights.
        learn.model.load_state_dict(_with_prefix(tensors, "model"))
        self.position, self.rate = Position(*record["position"]), record["rate"]
        if distributed.is_first():
            write_beside(self.history, record["history"].encode())
        return True

    def finish(self) -> None:
        """Mark the training as complete and delete its states; the best weights stay."""
        if not distributed.is_first():
            return
        write_beside(self.folder / TRAINED, json.dumps({"at": list(self.position)}).encode())
        remove_states(self.folder)

    def before_fit(self) -> None:
        super().before_fit()
        if not self.run:
            return
        phase = 0 if phase_of(self.learn) == "frozen" else 1
        if self.pending is None or self.position.phase != phase:
            self.position = Position(phase)
            return
        restore_state(self.learn, *self.pending)
        self.pending = None

    def epoch_ends(self) -> None:
        phase, over = self.position.phase, self.epoch + 1 == self.n_epoch
        self._save(Position(phase + 1) if over else Position(phase, self.epoch + 1))

    def _save(self, position: Position) -> None:
        tensors, numbers = collect_state(self.learn, within=position.epoch > 0)
        if not distributed.is_first():
            return
        written = self.history.read_bytes().decode() if self.history.exists() else ""
        record = {"position": position, "rate": self.rate, "history": written, **numbers}
        write_state(self.folder, tensors, record)


def collect_state(learn: Learner, *, within: bool) -> State:
    """Collect the tensors and numbers of a learner that its next step depends on.

    Parameters
    ----------
    within : the next step is in the same phase. Then also collect the optimizer's moments (fastai drops them when
        a phase begins), the averaged weights, the loss scaler and the smoothed loss.
    """
    tensors = {f"model.{name}": value for name, value in learn.model.state_dict().items()}
    numbers: dict[str, Any] = {}
    if within:
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
