"""A workaround for fastai, which does not pass on from which generator torch seeds its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fastai.data.load import DataLoader

#: Versions that it was checked with, by package.
CHECKED = {"fastai": "2.8.12", "torch": "2.15.0"}


def seed_workers_from(loader: DataLoader, generator: torch.Generator) -> None:
    """Seed the workers of a fastai DataLoader from this generator.

    Otherwise torch uses the global generator, which dropout uses too (pytorch#20749, also without
    workers). torch's loader has an argument for it that fastai does not pass on.
    """
    loader.fake_l.generator = generator


def draw_seed_of_workers(loader: DataLoader) -> None:
    """Take the number that torch's loader draws for the seeds of its workers when a pass begins, so that random numbers are
    the same without it."""
    torch.empty((), dtype=torch.int64).random_(generator=loader.fake_l.generator)
