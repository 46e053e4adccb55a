"""A workaround for fastai, which waits for the other processes of a distributed run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Versions that it was checked with, by package.
CHECKED = {"fastai": "2.8.12"}


@contextmanager
def as_single_process() -> Iterator[None]:
    """Make fastai treat this as the only process of a distributed run.

    Otherwise its learning rate search, which saves and loads weights, waits for the other processes
    (fastai#3132, fastai#3688).
    """
    size = os.environ["WORLD_SIZE"]
    os.environ["WORLD_SIZE"] = "1"
    try:
        yield
    finally:
        os.environ["WORLD_SIZE"] = size
