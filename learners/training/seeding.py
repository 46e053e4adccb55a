"""Randomness that does not depend on what ran before.

Every epoch draws from generators seeded by (seed, phase, epoch), and every item from such as are
seeded by its number as well. An epoch can therefore be begun, or gone on with, by a process that has
seen nothing of those before; and the number of workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.torch_core import get_random_states, set_random_states, set_seed

from datasets.core.errors import SecondhandError
from datasets.loaders import seed_of
from learners import distributed
from learners.training.callbacks import phase_of


class Seeds(Callback):
    """Seeds each epoch and each item in it; ends a training of which no file can be read any more.

    Parameters
    ----------
    seed : the network's own.
    """

    order = -8  # before anything that draws

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen = self.searching = False

    def before_fit(self) -> None:
        self.searching = hasattr(self.learn, "lr_finder")
        for loader in self.dls.loaders:
            if loader.seed is None:
                loader.seed = 0

    def before_train(self) -> None:
        self.seen = False
        if self.searching:
            return
        seed = seed_of(self.seed, phase_of(self.learn), self.epoch)
        # Dropout and the like differ between processes; the order of the items does not.
        set_seed(seed if distributed.is_first() else seed_of(seed, distributed.rank()))
        self.dls.train.begin(seed)

    def before_batch(self) -> None:
        self.seen = True

    def after_train(self) -> None:
        self._check("training")

    def before_validate(self) -> None:
        self.seen = False

    def after_validate(self) -> None:
        self._check("validation")

    def _check(self, part: str) -> None:
        if not self.searching and not any(distributed.gathered(self.seen)):
            raise SecondhandError(
                f"no file of the {part} part can be read any more: is their folder still there?"
            )


@contextmanager
def undisturbed_randomness(dls: DataLoaders | None = None) -> Iterator[None]:
    """Puts back all generators, CUDA's and the loaders' too, after a look ahead as at a learning rate."""
    loaders = list(dls.loaders) if dls is not None else []
    orders = [(loader, loader.rng, loader.rng.getstate()) for loader in loaders]
    states = get_random_states()
    try:
        yield
    finally:
        set_random_states(**states)
        for loader, rng, state in orders:
            rng.setstate(state)
            loader.rng = rng  # fastai draws a new generator for every epoch
