"""What a training writes after each epoch: its history, the kept weights, a checkpoint, and a model for use at once."""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastai.learner import Learner
from torch import nn

from datasets.core.files import write_beside
from learners.training.checkpoints import Checkpoints, Position
from learners.training.keep import Epoch, Keep, Kept
from learners.training.probe import ByPart

log = logging.getLogger(__name__)

#: Name of an epoch on the terminal, by phase.
EPOCH = {"frozen": "Head only, epoch", "unfrozen": "Epoch"}


class History:
    """Appends a row per epoch to ``history.csv``, over both phases.

    Columns: phase, epoch, train_loss, valid_loss, the metrics, lr (of the head), seconds. Figures of validation are empty
    where all files teach.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def text(self) -> str:
        return self.file.read_bytes().decode() if self.file.exists() else ""

    def add(self, epoch: Epoch) -> None:
        row: dict[str, Any] = {"phase": epoch.phase, "epoch": epoch.number, **epoch.figures}
        row |= {"lr": epoch.lr, "seconds": epoch.seconds}
        # The file is rewritten and renamed, so that no reader sees half a row.
        lines = io.StringIO(self.text, newline="")
        writer = csv.DictWriter(lines, row.keys())
        if not lines.seek(0, os.SEEK_END):
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})
        write_beside(self.file, lines.getvalue().encode())
        shown = ", ".join(
            f"{name.replace('train_', 'training ').replace('valid_', 'validation ')} {value:.3f}"
            for name, value in epoch.figures.items()
            if not math.isnan(value)
        )
        name, seconds = EPOCH[epoch.phase], epoch.seconds
        log.info("%s %d of %d: %s  (%.1f s)", name, epoch.number, epoch.of, shown, seconds)


def _cell(value: Any) -> Any:
    """A value as it is written; what was not measured is empty."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.9g}"


class Improvements:
    """Passes a copy of the network to ``write`` after epochs that improved it, so that it can be used at once.

    The first kept weights are written at once. Later ones are written if the last writing took no more than ``share``
    of the time since then. The last epoch is left out, because the finished model follows it.

    Parameters
    ----------
    last_phase : the phase after which the training ends.
    write : called with the network in eval mode, what is kept, and the features of its body, as far as they are known.
    share : largest fraction of the training time to spend on writing, in (0, 1].
    """

    def __init__(
        self,
        last_phase: str,
        write: Callable[[nn.Sequential, Kept, ByPart], object],
        *,
        share: float = 0.1,
    ) -> None:
        self.last_phase, self.write, self.share = last_phase, write, share
        self.next_time = -math.inf

    def add(self, epoch: Epoch, network: nn.Sequential, kept: Kept, features: ByPart) -> None:
        start = time.monotonic()
        over = epoch.phase == self.last_phase and epoch.number == epoch.of
        if over or start < self.next_time:
            return
        # A plain Sequential, because the network may take features while the head is trained.
        self.write(nn.Sequential(*deepcopy(network)).eval(), kept, features)
        end = time.monotonic()
        self.next_time = end + (end - start) / self.share


@dataclass
class Records:
    """The records of a training.

    ``frozen`` : the features of the frozen body on which a head was fitted.
    """

    history: History
    keep: Keep
    checkpoints: Checkpoints
    improvements: Improvements | None = None
    frozen: ByPart = field(default_factory=list)

    def add(self, epoch: Epoch, network: nn.Sequential, learn: Learner | None = None) -> None:
        """Record an epoch, in an order in which a kill costs no epoch.

        Parameters
        ----------
        network : the network that was validated.
        learn : the learner, if the next epoch of this phase continues with its state; None for a fitted head.
        """
        if self.keep.chosen is not None:  # the validation files teach this network, too
            nothing = {name: math.nan for name in epoch.figures if name != "train_loss"}
            epoch = epoch._replace(figures={**epoch.figures, **nothing})
        self.history.add(epoch)
        kept = self.keep.offer(network, epoch)
        phase = 0 if epoch.phase == "frozen" else 1
        over = epoch.number == epoch.of
        position = Position(phase + 1) if over else Position(phase, epoch.number)
        model = network if learn is None else learn.model
        self.checkpoints.save(position, model, self.history.text, None if over else learn)
        if kept and self.improvements is not None and self.keep.kept is not None:
            self.improvements.add(epoch, network, self.keep.kept, self.features)

    @property
    def features(self) -> ByPart:
        """The features of the body of the weights that are kept, as far as they are known."""
        kept = self.keep.kept
        return self.frozen if kept is not None and kept.phase == "frozen" else []

    def resume(self, network: nn.Module) -> bool:
        """Resume from the newest intact checkpoint; return False if there is none.

        Raises
        ------
        BadFile : the weights that were kept are damaged.
        """
        record = self.checkpoints.resume(network)
        if record is not None:
            self.keep.read()
        if record is None:
            self.history.file.unlink(missing_ok=True)
        else:
            write_beside(self.history.file, record["history"].encode())
        return record is not None
