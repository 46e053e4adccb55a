"""Reproducible DataLoaders, which also skip items that can no longer be read."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from fastai.data.core import TfmdDL
from fastai.data.load import DataLoader

from datasets.core.errors import BadFile
from datasets.loaders.upstream import seed_workers_from

log = logging.getLogger(__name__)


def derive_seed(*parts: int | str | None) -> int:
    """Hash the parts to a 32-bit seed."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@contextmanager
def generators_preserved() -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's random generators at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class Repeatable(DataLoader):
    """A fastai DataLoader with reproducible epochs.

    Attributes
    ----------
    seed : seed of the items; None uses the global generators.
    order : item numbers of the current epoch, in order.
    """

    seed: int | None = None
    order: Sequence[int] = ()
    _places: Sequence[int] | None = None

    def take_turns(self, places: Sequence[int]) -> None:
        """Load one of the items with the same place in each epoch, at random.

        ``places`` : place of each item, such as a call of which several items show other surroundings.
        """
        self._places, self.n = places, len({*places})

    def begin(self, seed: int) -> None:
        """Seed the order of the next epoch and the augmentation of its items."""
        self.seed, self.rng = seed, random.Random(seed)
        seed_workers_from(self, torch.Generator().manual_seed(seed))

    def get_idxs(self) -> list[int]:
        if self._places is None:
            order = list(super().get_idxs())
        else:  # the first of each place in a random order is a random one of it
            of_place: dict[int, int] = {}
            for number in self.shuffle_fn(range(len(self._places))):
                of_place.setdefault(self._places[number], number)
            order = [*of_place.values()]
        self.order = order
        return order


class SeededDL(Repeatable, TfmdDL):
    """A DataLoader that seeds each item by (seed, item number), in any process.

    So earlier random numbers and the number of workers do not matter. An item that can no longer be read
    is left out of its batch, with a warning.
    """

    def do_item(self, number: int | None) -> Any:
        if self.seed is None:
            return super().do_item(number)
        with generators_preserved():
            seed = derive_seed(self.seed, number)
            random.seed(seed)
            np.random.seed(seed)
            # torch.manual_seed would initialise CUDA in a worker.
            torch.default_generator.manual_seed(seed)
            try:
                return super().do_item(number)
            except BadFile as error:
                log.warning("%s: left out of this epoch, %s", error.path, error.reason)
                return None
