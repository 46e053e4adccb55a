"""Optimizers and schedules against plain loops of torch."""

from __future__ import annotations

import pytest
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn

from learners.training.schedules import OPTIMIZERS, fit

EPOCHS, BATCHES, BATCH = 4, 5, 8
X = torch.randn(BATCHES * BATCH, 3, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


def learner(optimizer: str, wd: float = 0.0) -> Learner:
    data = list(zip(X, Y, strict=True))
    dls = DataLoaders(*(DataLoader(data, bs=BATCH, shuffle=False, num_workers=0) for _ in range(2)))
    return Learner(
        dls, model(), loss_func=nn.MSELoss(), opt_func=OPTIMIZERS[optimizer], wd=wd,
        splitter=lambda network: [[*network[0].parameters()], [*network[2].parameters()]],
    )  # fmt: skip


def fitted(
    learn: Learner, schedule: str, lrs: slice | float, **options: float
) -> list[torch.Tensor]:
    with learn.no_bar(), learn.no_logging():
        fit(learn, schedule, EPOCHS, lrs, **options)
    return [weight.detach() for weight in learn.model.parameters()]


@pytest.mark.parametrize("optimizer", ["adadelta", "adamw"])
def test_the_step_schedule_is_torchs_with_its_optimizer(optimizer: str) -> None:
    """With Adadelta at rate 1 the recipe of PyTorch's MNIST example."""
    rate = 1.0 if optimizer == "adadelta" else 0.01
    ours = fitted(learner(optimizer, wd=0.02), "step", slice(rate / 4, rate))
    theirs = model()
    groups = [
        {"params": theirs[0].parameters(), "lr": rate / 4},
        {"params": theirs[2].parameters()},
    ]
    cls = torch.optim.Adadelta if optimizer == "adadelta" else torch.optim.AdamW
    reference = cls(groups, lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(reference, step_size=1, gamma=0.7)
    for _ in range(EPOCHS):
        for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
            reference.zero_grad()
            nn.functional.mse_loss(theirs(x), y).backward()
            reference.step()
        schedule.step()
    for mine, expected in zip(ours, theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, expected.detach(), rtol=1e-5, atol=1e-6)


def test_adadelta_takes_the_one_cycle_rates_of_adamw() -> None:
    rates = []
    for optimizer in OPTIMIZERS:
        learn = learner(optimizer)
        fitted(learn, "one-cycle", 0.5, pct_start=0.3, div=5.0)
        rates.append(learn.recorder.lrs)
    assert rates[0] == pytest.approx(rates[1])
    assert max(rates[1]) == pytest.approx(0.5, rel=0.05)
    assert rates[1][0] == pytest.approx(0.1)


def test_a_step_schedule_goes_on_where_it_was() -> None:
    whole, later = learner("adamw"), learner("adamw")
    fitted(whole, "step", 0.01)
    fitted(later, "step", 0.01, first=2)
    assert later.recorder.lrs == pytest.approx(whole.recorder.lrs[2 * BATCHES :])
