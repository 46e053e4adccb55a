"""Which weights of a training are kept: the choice, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from scipy.special import stdtrit
from torch import Tensor, nn

from datasets.core.checked import read_as
from datasets.core.errors import BadFile
from datasets.core.files import write_beside
from learners.model.tensors import save_weights
from learners.rule.numbers.arrays import Groups
from learners.rule.thresholds import clustered_error

#: Shares of the way from the linear probe (0) to the last weights (1), interpolated (WiSE-FT, arXiv:2109.01903). Half
#: way is best on data from another source and at refusing unknown classes, so only clear evidence replaces it.
HALF_WAY, OTHERS = 0.5, (0.0, 0.25, 1.0)
#: With n < FEW validation files the share is 0.5 n / FEW: with as few training files the last weights are worse than
#: the probe (docs/decisions.md).
FEW = 30
#: Levels of the one-sided paired test by which another share is better: two standard errors, and one for the head
#: alone, which a learning rate that is too high cannot have damaged.
LEVEL, LEVEL_OF_PROBE = 0.025, 0.16


class Choice(NamedTuple):
    """A share of the way from the linear probe to the last weights, and why: "expected", or "better" than that."""

    share: float
    why: str


def shares(n_valid: int) -> list[float]:
    """The shares to compare with this number of validation files; the first is expected to be best."""
    return [*dict.fromkeys((HALF_WAY * min(1.0, n_valid / FEW), *OTHERS))]


def choose(
    candidates: Mapping[float, NDArray[np.float64]],
    n_valid: int,
    groups: Groups = None,
    *,
    cross_fitted: bool = False,
) -> Choice:
    """Choose among `shares`.

    The t-test compares groups, not items: losses of a recording or burst go up and down together. The error of the mean
    gain is that of a sum over groups (`clustered_error`), with m - 1 degrees of freedom for m equivalent groups.

    Parameters
    ----------
    candidates : validation losses by share, each float64 [items], of the same items.
    groups : group number of each item [items]; None if items are independent.
    cross_fitted : the head alone will learn from all files, and all will measure it. With fewer than `FEW` validation
        files it is expected to be best.

    Returns
    -------
    The share of the lowest mean loss among those that a paired t-test finds better than the expected one, at `LEVEL`,
    or `LEVEL_OF_PROBE` for 0; the expected one if there is none, as with a single group.
    """
    expected = 0.0 if cross_fitted and n_valid < FEW else shares(n_valid)[0]
    clear = {expected: 0.0}
    for share, losses in candidates.items():
        gains = candidates[expected] - losses
        error, freedom = clustered_error(gains, groups)
        level = LEVEL if share else LEVEL_OF_PROBE
        if freedom > 0 and gains.mean() > stdtrit(freedom, 1 - level) * error:
            clear[share] = float(gains.mean())
    best = max(clear, key=lambda share: clear[share])
    return Choice(best, "expected" if best == expected else "better")


def blend(
    probe: Mapping[str, Tensor], last: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Weights at this share of the way from the probe to the last ones."""
    return {
        name: probe[name].lerp(tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in last.items()
    }


@dataclass(frozen=True)
class Kept:
    """Facts on the weights that are kept.

    Attributes
    ----------
    why : "lowest" validation loss, "highest" value of the metric of `Keep`, "last" epoch, as in `Choice`, or "bodies": no validation, but the choice of bodies that
        were trained without some of the files.
    phase, epoch, of : phase of the training, number of the epoch in it, from 1, and its number of epochs.
    share : share of a blend with this epoch; None if the weights are those of the epoch.
    items : number of validation items.
    reached : ``valid_loss``, ``accuracy`` and, if it was measured, ``f1`` of the weights; empty without validation.
    probe : the same of the fitted head; None if none was fitted.
    """

    why: str
    phase: str
    epoch: int
    of: int
    share: float | None
    items: int
    reached: dict[str, float]
    probe: dict[str, float] | None

    @property
    def loss(self) -> float:
        return self.reached["valid_loss"]

    @property
    def way(self) -> float:
        """Share of the way from the head-only model to the last epoch."""
        whole = 1.0 if self.phase == "unfrozen" else 0.0
        return whole if self.share is None else self.share

    @property
    def place(self) -> tuple[bool, int, float]:
        """What grows with the changes to the body: the phase, the epoch, and the share of the way."""
        return self.phase == "unfrozen", self.epoch, self.way


def middle(kept: Sequence[Kept]) -> Kept:
    """The middle one of what several trainings kept, in the order of `Kept.place`; of an even number the lower one."""
    return sorted(kept, key=lambda one: one.place)[(len(kept) - 1) // 2]


class Epoch(NamedTuple):
    """A finished epoch.

    Attributes
    ----------
    phase : "frozen" or "unfrozen", see `learners.training.callbacks.phase_of`.
    number, of : its number in the phase, from 1, and their number.
    figures : ``train_loss``, ``valid_loss`` and the metrics, by name.
    items : number of validation items.
    lr : learning rate of the head.
    """

    phase: str
    number: int
    of: int
    figures: Mapping[str, float]
    items: int
    lr: float = 0.0
    seconds: float = 0.0


class Keep:
    """Keeps weights in ``best.safetensors``, described in ``best.json``.

    With ``last`` it keeps those of the last epoch, for validation files that must not select anything: a published
    fold, an unseen speaker. Otherwise the epochs of both phases are candidates, and the lowest validation loss decides.

    After a fitted head the choice is another one: the weights half way from that linear probe to the last weights,
    unless validation shows clearly that others on this way are better (`choose`). A few dozen files cannot choose among
    a dozen candidates. The two ends are kept until then, so a run that stops in between resumes there.

    Parameters
    ----------
    folder : folder of the files.
    last : keep the last epoch, whatever its loss.
    metric : the figure of validation that decides instead of the loss, the higher the better; "" for the loss. Of equal
        values that of the lower loss is kept.
    fitted : the head is fitted as a linear probe in the frozen phase.
    chosen : what was kept of trainings that could be validated, of which this one keeps the same: the epoch, or the share
        of the way. All files teach it, so its validation says nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        last: bool = False,
        metric: str = "",
        fitted: bool = False,
        chosen: Kept | None = None,
    ) -> None:
        self.folder, self.metric, self.fitted, self.chosen = folder, metric, fitted, chosen
        self.last = last and chosen is None
        self.kept: Kept | None = None

    def offer(self, network: nn.Module, epoch: Epoch) -> bool:
        """Keep the weights of an epoch if none are better; of equal ones the later. Return whether they are kept."""
        if self.fitted and not self.last and (epoch.phase == "frozen" or epoch.number == epoch.of):
            save_weights(network, self._end("probe" if epoch.phase == "frozen" else "last"), {})
        if self.chosen is not None:
            unfrozen = epoch.phase == "unfrozen"
            if not self.fitted and (unfrozen, epoch.number) > self.chosen.place[:2]:
                return False
            self.keep(network, epoch, "bodies")
            return True
        if (
            self.kept is not None
            and not self.last
            and self.rank(epoch.figures) < self.rank(self.kept.reached)
        ):
            return False
        self.keep(network, epoch, "last" if self.last else "highest" if self.metric else "lowest")
        return True

    def rank(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """What is higher for better figures of validation."""
        return figures[self.metric] if self.metric else 0.0, -figures["valid_loss"]

    def keep(self, network: nn.Module, epoch: Epoch, why: str, share: float | None = None) -> None:
        """Keep the weights of an epoch, or of a blend with it; ``why`` and ``share`` as in `Kept`."""
        validated = () if self.chosen is not None else ("valid_loss", "accuracy", "f1")
        reached = {n: v for n, v in epoch.figures.items() if n in validated}
        probe = None if self.kept is None else self.kept.probe
        if self.fitted and epoch.phase == "frozen":
            probe = reached or None
        self.kept = Kept(
            why, epoch.phase, epoch.number, epoch.of, share, epoch.items, reached, probe
        )
        text = json.dumps(asdict(self.kept))
        save_weights(network, self.folder / "best.safetensors", {"best": text})
        write_beside(self.folder / "best.json", text.encode())

    def ends(self) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Weights of the linear probe and of the last epoch; None if there is nothing to choose between them."""
        probe, last = self._end("probe"), self._end("last")
        return (load_file(probe), load_file(last)) if probe.exists() and last.exists() else None

    def drop_ends(self) -> None:
        """Delete the two ends, because the choice is made."""
        for name in ("probe", "last", "unseen"):
            self._end(name).unlink(missing_ok=True)

    def keep_unseen(self, losses: NDArray[np.float64]) -> None:
        """Keep the losses of `learners.training.cross_fit.unseen_losses` until the choice."""
        write_beside(self._end("unseen"), save({"losses": torch.from_numpy(losses)}))

    def unseen(self) -> NDArray[np.float64] | None:
        """The losses of `keep_unseen`; None if there are none."""
        file = self._end("unseen")
        return load_file(file)["losses"].numpy() if file.exists() else None

    def _end(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def read(self) -> Kept | None:
        """What an earlier process kept.

        Raises
        ------
        BadFile : the kept weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if file.exists():
            try:
                with safe_open(file, "pt") as opened:
                    self.kept = read_as(Kept, json.loads(opened.metadata()["best"]), "best")
            except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
                raise BadFile(file, f"damaged ({error}). Start again with --overwrite") from None
        return self.kept

    def restore(self, model: nn.Module) -> Kept | None:
        """Load the kept weights into ``model``; return None if no epoch was finished.

        Raises
        ------
        BadFile : the weights are damaged.
        """
        file = self.folder / "best.safetensors"
        if not file.exists():
            return None
        kept = self.read()
        try:
            model.load_state_dict(load_file(file))
        except (SafetensorError, OSError) as error:
            raise BadFile(file, f"damaged ({error}). Start again with --overwrite") from None
        return kept
