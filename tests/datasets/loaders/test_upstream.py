"""What we rely on in fastai's loader."""

from __future__ import annotations

import torch
from fastai.data.load import DataLoader

from datasets.loaders import upstream


def test_the_workers_seed_comes_from_the_loaders_generator() -> None:
    def moves(loader: DataLoader) -> bool:
        before = torch.get_rng_state()
        list(loader)
        return not torch.equal(before, torch.get_rng_state())

    loader = DataLoader(list(range(4)), bs=2)
    assert moves(loader), (
        "torch draws no seed of its own any more: datasets/loaders/upstream.py is not needed for it"
    )
    upstream.seed_workers_from(loader, torch.Generator().manual_seed(0))
    assert not moves(loader), "torch draws the workers' seed from elsewhere than loader.generator"
