"""What we rely on in fastxtend."""

from __future__ import annotations

import pytest
import torch
from fastai.callback import schedule  # noqa: F401  (adds fit_one_cycle to Learner)
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastxtend.callback.ema import EMACallback
from torch import nn

from learners.training import upstream


@pytest.mark.parametrize("repaired", [True, False])
def test_counts_reach_the_average(repaired: bool) -> None:
    """Counts of a BatchNorm, by fastxtend's callback after a step."""
    ema = EMACallback(0.5, foreach=True)
    rows = [(torch.rand(3), torch.rand(3)) for _ in range(8)]
    loaders = DataLoaders.from_dsets(rows, rows, bs=4)
    learn = Learner(loaders, nn.BatchNorm1d(3), nn.MSELoss(), cbs=[ema])
    copies = []

    class Copy(Callback):
        order = 90

        def before_fit(self) -> None:
            copies.extend([upstream.untangled_buffers(ema)] if repaired else [])

        def after_batch(self) -> None:
            for copy in copies:
                copy()

    with learn.no_bar(), learn.no_logging(), learn.added_cbs(Copy()):
        learn.fit(1)
    reached = int(learn.model_ema.num_batches_tracked)
    assert (reached == int(learn.model.num_batches_tracked) == 2) == repaired, (
        "fastxtend copies them: learners/training/upstream.py is not needed for it"
    )
