"""Where a training stands: saved as each epoch ends, and taken up again by another process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from fastai.callback.core import Callback, CancelEpochException
from fastai.learner import Learner
from torch import Tensor

from datasets.files import write_beside
from learners import distributed
from learners.training import state as _state
from learners.training.callbacks import KeepBest

#: Stands in a member's folder when its training is over.
TRAINED = "trained.json"


class Position(NamedTuple):
    """The next step of a fine-tuning: phase 0 (the head) or 1 (everything), epoch and batch in it."""

    phase: int = 0
    epoch: int = 0
    batch: int = 0


class Checkpoints(Callback):
    """``state-N.safetensors`` and ``state-N.json`` after each epoch; the last two are kept.

    Parameters
    ----------
    folder : of the checkpoint, the best epoch's weights beside.
    history : the file of the epochs' figures; what it says of epochs that are to come again is cut.
    minutes : save within an epoch as well, as often.
    """

    order = 75  # after the epoch's values, the best weights and the history are where they belong

    def __init__(self, folder: Path, history: Path, minutes: float | None = None) -> None:
        self.folder, self.history, self.minutes = folder, history, minutes
        self.position = Position()
        self.rate: float | None = None  # what --lr auto found
        self.waiting: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    @property
    def trained(self) -> bool:
        """Whether the training was over already."""
        return (self.folder / TRAINED).is_file()

    def take_up(self, learn: Learner, best: KeepBest) -> Position | None:
        """Go on where the newest whole checkpoint was made; None where there is none.

        Raises
        ------
        BadFile : the best epoch's weights are damaged.
        """
        # fastai's loop begins at 0; and it is taken hold of before any callback is called.
        learn._do_fit = self._epochs
        with distributed.in_turn():
            self.waiting = _state.read(self.folder)
        if self.waiting is None:
            if distributed.is_first():
                self.history.unlink(missing_ok=True)
            return None
        tensors, record = self.waiting
        best.go_on()
        _state.fill_model(learn, tensors)
        self.position, self.rate = Position(*record["position"]), record["rate"]
        if distributed.is_first():
            write_beside(self.history, record["history"].encode())
        return self.position

    def finish(self) -> None:
        """The training is over: only its best weights are still needed."""
        if not distributed.is_first():
            return
        write_beside(self.folder / TRAINED, json.dumps({"at": list(self.position)}).encode())
        _state.clear(self.folder)

    def before_fit(self) -> None:
        if self._elsewhere():
            return
        self.saved = time.monotonic()
        phase = 0 if self.opt.frozen_idx else 1
        first = 0
        if self.waiting is not None and self.position.phase == phase:
            first = self.position.epoch
            _state.put_back(self.learn, *self.waiting)
            if not self.position.batch:
                self.waiting = None
        self.position = Position(phase, first, self.position.batch if self.waiting else 0)

    def _epochs(self) -> None:
        learn = self.learn
        first = 0 if self._elsewhere() else self.position.epoch
        for epoch in range(first, learn.n_epoch):
            learn.epoch = epoch
            learn._with_events(learn._do_epoch, "epoch", CancelEpochException)

    def before_epoch(self) -> None:
        if self.waiting is None or self._elsewhere():
            return
        learn, loader, done = self.learn, self.dls.train, self.position.batch
        order = loader.get_idxs
        loader.get_idxs = lambda: order()[done * loader.bs :]

        def all_batches() -> None:
            learn.n_iter = len(learn.dl)
            for number, batch in enumerate(learn.dl, done):
                learn.one_batch(number, batch)

        learn.all_batches = all_batches

    def before_train(self) -> None:
        if self.waiting is not None and not self._elsewhere():
            tensors, record = self.waiting
            self.waiting = None
            self.learn.pct_train = record["pct_train"]
            _state.put_generators_back(tensors, record)

    def after_train(self) -> None:
        for owner, name in ((self.learn, "all_batches"), (self.dls.train, "get_idxs")):
            if name in vars(owner):
                delattr(owner, name)

    def after_batch(self) -> None:
        due = self.minutes is not None and self.training and not self._elsewhere()
        if not due or self.iter + 1 == self.n_iter:
            return
        if distributed.share(time.monotonic() - self.saved >= 60 * (self.minutes or 0)):
            self._save(Position(self.position.phase, self.epoch, self.iter + 1))

    def after_epoch(self) -> None:
        if self._elsewhere():
            return
        over = self.epoch + 1 == self.n_epoch
        phase = self.position.phase
        self._save(Position(phase + 1) if over else Position(phase, self.epoch + 1))

    def _save(self, position: Position) -> None:
        inside = position.batch > 0
        tensors, numbers = _state.gather(
            self.learn, within=inside or position.epoch > 0, inside=inside
        )
        others = distributed.gathered(_state.generators())[1:] if inside else []
        if not distributed.is_first():
            return
        written = self.history.read_bytes().decode() if self.history.exists() else ""
        record = {"position": position, "rate": self.rate, "history": written, **numbers}
        _state.add_others(tensors, record, others)
        _state.write(self.folder, tensors, record)
        self.saved = time.monotonic()

    def _elsewhere(self) -> bool:
        """Whether this is no training: the search for a learning rate, or predictions."""
        return hasattr(self.learn, "lr_finder") or hasattr(self.learn, "gather_preds")
