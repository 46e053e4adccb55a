"""Randomness that does not depend on what ran before, and items that may drop out.

Every epoch draws from generators seeded by (seed, phase, epoch), and every item from such as are
seeded by its number as well. An epoch can therefore be begun, or gone on with, by a process that has
seen nothing of those before; and the number of workers changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.torch_core import set_seed

from datasets.errors import BadFile, SecondhandError
from learners import distributed
from learners.training.randomness import generators_kept

log = logging.getLogger(__name__)


def seed_of(*parts: int | str | None) -> int:
    """32 bits that follow from the parts."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


class Seeds(Callback):
    """Seeds each epoch, and each item in it; leaves out files that can no longer be read.

    Parameters
    ----------
    seed : the network's own.
    """

    order = -8  # before anything that draws

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen = False

    def before_fit(self) -> None:
        for loader in self.dls.loaders:
            if not isinstance(loader.do_item, Door):
                loader.do_item = Door(loader.do_item)

    def before_train(self) -> None:
        self.seen = False
        if hasattr(self.learn, "lr_finder"):
            return
        seed = seed_of(self.seed, "frozen" if self.opt.frozen_idx else "unfrozen", self.epoch)
        # Dropout and the like differ between processes; the order of the items does not.
        set_seed(seed if distributed.is_first() else seed_of(seed, distributed.rank()))
        loader = self.dls.train
        loader.rng = random.Random(seed)
        # Else torch draws the workers' seed from the generator that dropout draws from.
        loader.fake_l.generator = torch.Generator().manual_seed(seed)
        if isinstance(loader.do_item, Door):
            loader.do_item.seed = seed

    def before_batch(self) -> None:
        self.seen = True

    def after_train(self) -> None:
        self._check("training")

    def before_validate(self) -> None:
        self.seen = False

    def after_validate(self) -> None:
        self._check("validation")

    def _check(self, part: str) -> None:
        if not hasattr(self.learn, "lr_finder") and not distributed.any_of(self.seen):
            raise SecondhandError(
                f"no file of the {part} part can be read any more: is their folder still there?"
            )


class Door:
    """Where a loader's items come in, in the training process or in a worker.

    Each has its own seed. One that cannot be read any more is left out of its batch, and said.
    """

    def __init__(self, through: Callable[[int | None], Any], seed: int = 0) -> None:
        self.through, self.seed = through, seed

    def __call__(self, number: int | None) -> Any:
        with _drawing_from(seed_of(self.seed, number)):
            try:
                return self.through(number)
            except BadFile as error:
                log.warning("%s: left out of this epoch, %s", error.path, error.reason)
                return None


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Generators seeded for the block; those of the rest of the program go on as if it were not."""
    with generators_kept():
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would wake CUDA in a worker
        yield
