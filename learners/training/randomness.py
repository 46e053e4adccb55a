"""Draws that change nothing of what is drawn afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from fastai.data.core import DataLoaders


@contextmanager
def generators_kept() -> Iterator[None]:
    """Puts the states of Python's, NumPy's and torch's generators back at the end."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def undisturbed_randomness(dls: DataLoaders | None = None) -> Iterator[None]:
    """The same with CUDA's and the loaders' generators, for a look ahead as at a learning rate."""
    loaders = list(dls.loaders) if dls is not None else []
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    orders = [loader.rng.getstate() for loader in loaders]
    rngs = [loader.rng for loader in loaders]
    try:
        with generators_kept():
            yield
    finally:
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for loader, rng, order in zip(loaders, rngs, orders, strict=True):
            rng.setstate(order)
            loader.rng = rng  # fastai draws a new generator for every epoch
