"""The loss of several labels per item, their linear probe, and clips that sound at once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from torch.nn import functional

from datasets.core.errors import SecondhandError
from learners.cli.settings import TrainSettings
from learners.training import probe
from learners.training.objectives import MacroF1, MaskedLabelLoss, MixedClips, label_objective
from learners.training.probe import fit_multi_label_probe

NAN = float("nan")


def test_the_loss_is_of_what_is_known():
    logits = torch.tensor([[1.0, -2.0], [3.0, 0.5]], requires_grad=True)
    targets = torch.tensor([[1.0, NAN], [0.0, 1.0]])
    known = torch.tensor([1.0, 3.0, 0.5])
    expected = functional.binary_cross_entropy_with_logits(known, torch.tensor([1.0, 0.0, 1.0]))
    loss = MaskedLabelLoss()(logits, targets)
    assert torch.isclose(loss, expected)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0
    assert MaskedLabelLoss()(logits, torch.full((2, 2), NAN)) == 0


def test_easy_negatives_count_little_in_the_asymmetric_loss():
    loss = MaskedLabelLoss(asymmetric=True)
    z = torch.tensor([[2.0, -1.0, -4.0, 0.3]], requires_grad=True)
    value = loss(z, torch.tensor([[1.0, 0.0, 0.0, NAN]]))
    p = torch.sigmoid(torch.tensor([2.0, -1.0]))
    q = p[1] - 0.05
    assert torch.isclose(value, (-p[0].log() - q**4 * (1 - q).log()) / 3)
    (slope,) = torch.autograd.grad(value, z)
    assert slope[0, 0] < 0 < slope[0, 1]
    assert (slope[0, 2:] == 0).all()


def test_the_probe_is_a_logistic_regression_of_each_label(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 5))
    y = (x @ rng.normal(size=(5, 2)) + rng.normal(size=(150, 2)) > 0.5).astype(float)
    y[:40, 1] = np.nan
    targets = torch.from_numpy(y)
    with monkeypatch.context() as patch:
        patch.setattr(probe, "STRENGTHS", (0.1,))
        patch.setattr(probe, "ON_BIAS", 0.0)
        ours = fit_multi_label_probe(torch.from_numpy(x), targets, 2, MaskedLabelLoss())
    middle, spread = x.mean(0), np.sqrt(x.var(0) + x.var(0).mean() / 4)
    for k, rows in ((0, slice(None)), (1, slice(40, None))):
        scaled = (x[rows] - middle) / spread
        theirs = LogisticRegression(C=0.1, tol=1e-9).fit(scaled, y[rows, k])
        logits = x[rows] @ ours.weight[k].numpy() + ours.bias[k].numpy()
        np.testing.assert_allclose(logits, theirs.decision_function(scaled), atol=1e-3)
    for asymmetric in (False, True):
        weights = fit_multi_label_probe(
            torch.from_numpy(3 * x + 1), targets, 2, MaskedLabelLoss(asymmetric=asymmetric)
        )
        logits = torch.from_numpy(3 * x + 1).float() @ weights.weight.T + weights.bias
        assert roc_auc_score(y[:, 0], logits[:, 0]) > 0.9
        assert ((logits[:, 0] > 0).numpy() == y[:, 0]).mean() > (0.6 if asymmetric else 0.85)
        assert 0.01 < weights.loss < 0.6


def test_from_a_layer_the_probe_of_labels_changes_what_the_rows_say_otherwise(monkeypatch):
    """With a strong penalty it is the layer itself; else the logistic regression on what the layer leaves."""
    rng = np.random.default_rng(0)
    x, start = torch.from_numpy(rng.normal(size=(60, 5))), (torch.ones(2, 5), torch.zeros(2))
    y = torch.from_numpy((rng.random((60, 2)) < 0.5).astype(float))
    fits = {}
    for strength in (1e-9, 0.1):
        monkeypatch.setattr(probe, "STRENGTHS", (strength,))
        fits[strength] = fit_multi_label_probe(x, y, 2, MaskedLabelLoss(), start=start)
    assert torch.allclose(fits[1e-9].weight, start[0], atol=1e-4)
    spread = (x.var(0, correction=0) + x.var(0, correction=0).mean() / 4).sqrt()
    change = ((fits[0.1].weight - 1) * spread).double()
    slopes = (x @ fits[0.1].weight.double().T + fits[0.1].bias.double()).sigmoid() - y
    of_weight = 0.1 * slopes.T @ ((x - x.mean(0)) / spread)
    assert torch.allclose(of_weight, -change, atol=1e-3)
    assert change.abs().max() > 0.1


def test_two_clips_at_once_show_the_labels_of_both():
    torch.manual_seed(0)
    x = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 2, 2) / 8
    y = torch.eye(8)
    y[0, 5] = NAN
    both = MixedClips(0.4)
    learn = SimpleNamespace(x=x, y=y, xb=(x,), yb=(y,))
    both.learn = learn
    both.before_batch()
    (mixed,), (labels,) = learn.xb, learn.yb
    twice = (labels == 1).sum(1) == 2
    assert 1 <= twice.sum() <= 7
    for n in range(8):
        present = torch.nonzero(labels[n] == 1).flatten()
        assert n in present
        assert mixed[n, 0, 0, 0] == present.max() / 8  # the louder one is visible
    assert torch.isnan(labels[0, 5]) or labels[0, 5] == 1


def test_macro_f1_is_that_of_all_batches_together():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(50, 4)), rng.integers(3, size=50)
    expected = f1_score(targets, logits.argmax(1), average="macro")
    metric, z, y = MacroF1(), torch.from_numpy(logits), torch.from_numpy(targets)
    assert metric(z, y) == pytest.approx(expected)
    metric.reset()
    for rows in (slice(0, 7), slice(7, 50)):
        metric.accumulate(SimpleNamespace(pred=z[rows], y=y[rows]))
    assert metric.value == pytest.approx(expected)
    assert metric.name == "f1"


def test_several_labels_have_no_accuracy_to_keep_by():
    with pytest.raises(SecondhandError, match="--keep f1: files with several labels"):
        label_objective(TrainSettings(keep="f1"))
