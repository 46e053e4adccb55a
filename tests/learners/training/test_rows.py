"""Rows that a layer is fitted to: both ways to the same minimum, that of scikit-learn and of a far stricter search."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

from learners.training import probe, rows
from learners.training.features import StoredFeatures
from learners.training.objectives import MaskedLabelLoss
from learners.training.probe import fit_multi_label_probe, fit_probe
from learners.training.rows import HeldRows, Rows, fp32_products
from tests.learners.training.test_probe import Scaler, centred, logits

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("kind", [Rows, HeldRows])


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:600], dtype=torch.float32), torch.tensor(y[:600])


@BOTH
@pytest.mark.parametrize("width", [64, 1500])
@pytest.mark.parametrize("strength", [0.001, 1.0])
def test_each_penalty_is_fitted_to_its_optimum(digits, kind, strength, width):
    x, y = digits
    x = torch.cat(
        [x, torch.rand(len(x), width - 64, generator=torch.Generator().manual_seed(0))], 1
    )
    of_x, everything = kind(x), torch.arange(len(x))

    def loss(logits: Tensor, numbers: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, y[numbers], reduction="sum")

    fitted = of_x.regress(everything, loss, 10, strength)
    model = LogisticRegression(C=strength, max_iter=20_000, tol=1e-9)
    theirs = make_pipeline(Scaler(), model).fit(x.double().numpy(), y.numpy())
    weight, bias = of_x.for_features(fitted)
    ours = (x.double() @ weight.T + bias).numpy()
    assert (
        np.abs(centred(ours) - centred(theirs.decision_function(x.double().numpy()))).max() < 2e-3
    )
    again = of_x.regress(everything, loss, 10, strength, initial=fitted)
    assert torch.allclose(again, fitted, atol=1e-4), "an optimum is where it ends"
    assert torch.allclose(of_x.of_features(weight, bias), fitted, atol=1e-9), "there and back"


class Problem(NamedTuple):
    """Features, targets, and the summed loss of logits and targets."""

    x: Tensor
    y: Tensor
    classes: int
    loss: Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, y, reduction="sum")


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    weight = torch.linspace(0.1, 3, logits.shape[1]).double()
    return nn.functional.cross_entropy(logits, y, weight, reduction="sum")


def of_labels(asymmetric: bool) -> Callable[[Tensor, Tensor], Tensor]:
    criterion = MaskedLabelLoss(asymmetric=asymmetric)
    return lambda logits, y: (~y.isnan()).sum() * criterion(logits, y)


def problem(name: str) -> Problem:
    """Features as those behind a ReLU, whose spreads differ by a factor of 30."""
    rng = np.random.default_rng(0)
    count, width, classes, loss = {
        "few": (60, 300, 5, cross_entropy),
        "many": (5000, 48, 6, cross_entropy),  # of several blocks
        "classes": (900, 64, 300, cross_entropy),
        "weighted": (400, 60, 8, weighted),
        "labels": (500, 80, 9, of_labels(False)),
        "rare labels": (500, 80, 9, of_labels(True)),
        "wide": (400, 120, 4, cross_entropy),
    }[name]
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, count - classes)])
    noise = rng.normal(size=(count, width)) * np.logspace(0.5, -1, width)
    x = np.maximum(0, 0.5 * rng.normal(size=(classes, width))[y] + noise)
    targets = torch.from_numpy(y)
    if "labels" in name:
        of_one, of_other = (
            nn.functional.one_hot(t, classes) for t in (targets, targets[rng.permutation(count)])
        )
        targets = torch.maximum(of_one, of_other).double()
        targets[torch.from_numpy(rng.random(targets.shape) < 0.2)] = torch.nan
    return Problem(torch.from_numpy(x).float(), targets, classes, loss)


@pytest.mark.parametrize("strength", [0.001, 0.1, 1.0])
@pytest.mark.parametrize(
    "name", ["few", "many", "classes", "weighted", "labels", "rare labels", "wide"]
)
def test_float32_products_lead_to_the_minimum_of_float64(monkeypatch, name, strength):
    """Probabilities within 1e-5 of a search in float64 to a thousandth of the tolerance."""
    if name == "wide":
        monkeypatch.setattr(rows, "MOST_AXES", 100)
    x, y, classes, loss = problem(name)
    everything, on_bias = torch.arange(len(x)), 0.01 if y.ndim == 2 else 0.0

    def probabilities(of_x: Rows, tolerance: float) -> Tensor:
        layer = of_x.regress(
            everything, lambda z, numbers: loss(z, y[numbers]), classes, strength,
            on_bias=on_bias, tolerance=tolerance,
        )  # fmt: skip
        weight, bias = of_x.for_features(layer)
        z = x.double() @ weight.T + bias
        return z.sigmoid() if y.ndim == 2 else z.softmax(1)

    exact = probabilities(Rows(x), 3e-9)
    assert (probabilities(HeldRows(x), rows.EXACT) - exact).abs().max() < 1e-5


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_a_held_fit_is_that_of_rows_as_they_are(digits, monkeypatch, balanced, warm):
    """With a class that has no row, which is left out of the fit, or keeps the layer that it starts from."""
    x, y = digits
    generator = torch.Generator().manual_seed(0)
    start = (0.01 * torch.randn(11, 64, generator=generator), torch.zeros(11)) if warm else None
    monkeypatch.setattr(rows, "EXACT", 1e-8)
    monkeypatch.setattr(probe, "EXACT", 1e-8)
    plain = fit_probe(x, y, 11, balanced=balanced, start=start, last=0.5)
    monkeypatch.setattr(probe, "MANY", 0)
    held = fit_probe(x, y, 11, balanced=balanced, start=start, last=0.5)
    assert held.strength == plain.strength
    assert held.loss == pytest.approx(plain.loss, rel=1e-3)
    ours, expected = (logits(fitted, x).softmax(1) for fitted in (held, plain))
    assert (ours - expected).abs().max() < 1e-5
    like = fit_probe(x[:500], y[:500], 11, balanced=balanced, start=start, like=held)
    monkeypatch.setattr(probe, "MANY", float("inf"))
    monkeypatch.setattr(probe, "NEAR", 1e-8)
    expected = fit_probe(x[:500], y[:500], 11, balanced=balanced, start=start, like=held)
    assert (logits(like, x).softmax(1) - logits(expected, x).softmax(1)).abs().max() < 1e-5


def test_labels_are_fitted_to_held_rows(monkeypatch):
    x, y, classes, _ = problem("labels")
    monkeypatch.setattr(probe, "EXACT", 1e-8)
    plain = fit_multi_label_probe(x, y, classes, MaskedLabelLoss())
    monkeypatch.setattr(probe, "MANY", 0)
    held = fit_multi_label_probe(x, y, classes, MaskedLabelLoss())
    assert held.strength == plain.strength
    assert (logits(held, x).sigmoid() - logits(plain, x).sigmoid()).abs().max() < 1e-5


@BOTH
def test_the_size_of_a_block_changes_nothing(digits, monkeypatch, kind):
    x, y = digits
    everything = torch.arange(len(x))

    def fit() -> Tensor:
        def loss(z: Tensor, numbers: Tensor) -> Tensor:
            return cross_entropy(z, y[numbers])

        of_x = kind(x)
        weight, bias = of_x.for_features(of_x.regress(everything, loss, 10, 0.1, tolerance=1e-7))
        return (x.double() @ weight.T + bias).softmax(1)

    whole = fit()
    monkeypatch.setattr(rows, "BLOCK", 64)
    assert (fit() - whole).abs().max() < 1e-5


@BOTH
def test_features_that_are_not_finite_end_in_no_finite_logits(kind, tmp_path):
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    x[3, 2] = torch.inf
    y = torch.arange(50) % 2
    stored = StoredFeatures(tmp_path)
    stored.append(x.numpy())
    of_x = kind(stored)
    layer = of_x.regress(torch.arange(50), lambda z, n: cross_entropy(z, y[n]), 2, 0.1)
    weight, bias = of_x.for_features(layer)
    assert not (x.double() @ weight.T + bias).isfinite().all()


def test_rows_are_held_where_the_fit_is_large_and_memory_does(monkeypatch):
    x = torch.randn(100, 20, generator=torch.Generator().manual_seed(0))
    cpu = torch.device("cpu")
    assert not probe.rows_for(x, 3, cpu).held
    monkeypatch.setattr(probe, "MANY", 100 * 20 * 3)
    assert probe.rows_for(x, 3, cpu).held
    assert not probe.rows_for(x[:99], 3, cpu).held
    monkeypatch.setattr(probe, "HELD", 100 * (20 + 3 * probe.OF_A_LOGIT) - 1)
    assert not probe.rows_for(x, 3, cpu).held


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_cannot_leaves_the_fit_to_the_cpu(digits, monkeypatch, caplog, device):
    """A stand-in for a GPU without memory; Apple's has no float64."""
    x, y = digits

    def full(features: Tensor, device: torch.device = rows.CPU) -> Rows:
        if device.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return HeldRows(features, device)

    monkeypatch.setattr(probe, "MANY", 0)
    monkeypatch.setattr(probe, "HeldRows", full)
    expected = fit_probe(x, y, 10)
    with caplog.at_level(logging.DEBUG, probe.log.name):
        fitted = fit_probe(x, y, 10, device=torch.device(device))
    assert torch.equal(fitted.weight, expected.weight)
    assert "The head is fitted on the CPU" in caplog.text


def test_float32_is_float32_during_a_fit_and_the_setting_comes_back():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for setting in ("tf32", "ieee"):
            matmul.fp32_precision = setting
            with fp32_products():
                assert matmul.fp32_precision == "ieee"
            assert matmul.fp32_precision == setting
    finally:
        matmul.fp32_precision = before
