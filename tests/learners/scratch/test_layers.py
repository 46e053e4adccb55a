"""Each layer against torch's, timm's or transformers' own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from learners.scratch import layers


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def agree(ours: nn.Module, theirs: nn.Module, x: torch.Tensor) -> None:
    """Copy the weights; outputs and gradients of input and weights are equal to 1e-5."""
    ours.load_state_dict(theirs.state_dict())
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [model(given) for model, given in zip((ours, theirs), inputs, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    target = torch.randn_like(outputs[0])
    gradients = [
        torch.autograd.grad((out * target).mean(), [given, *model.parameters()])
        for model, given, out in zip((ours, theirs), inputs, outputs, strict=True)
    ]
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)


def conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(3, 5)


def glu(activation: type[nn.Module], *, gate_last: bool = False) -> nn.Module:
    from timm.layers import GluMlp

    return GluMlp(5, 20, act_layer=activation, bias=False, gate_last=gate_last)


def mlp() -> nn.Module:
    from timm.layers import Mlp

    return Mlp(5, 10)


def changed(norm: nn.Module) -> nn.Module:
    """A norm whose weights do something."""
    for weight in norm.parameters():
        nn.init.normal_(weight, mean=1.0)
    return norm


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: layers.Linear(5, 3), lambda: nn.Linear(5, 3)),
        (lambda: layers.Linear(5, 3, bias=False), lambda: nn.Linear(5, 3, bias=False)),
        (lambda: layers.Conv1D(5, 3), conv1d),
        (lambda: layers.LayerNorm(5), lambda: changed(nn.LayerNorm(5))),
        (lambda: layers.LayerNorm(5, bias=False), lambda: changed(nn.LayerNorm(5, bias=False))),
        (lambda: layers.RMSNorm(5), lambda: changed(nn.RMSNorm(5, eps=1e-5))),
        (lambda: layers.FFN(5, 10), mlp),
        (lambda: layers.GeGLU(5, 10), lambda: glu(nn.GELU)),
        (lambda: layers.GeGLU(5, 10, gate_last=True), lambda: glu(nn.GELU, gate_last=True)),
        (lambda: layers.SwiGLU(5, 10), lambda: glu(nn.SiLU)),
    ],
)
def test_layers_of_a_position(ours, theirs):
    agree(ours(), theirs(), torch.randn(2, 4, 5) * 3 + 1)


def test_weights_of_linear_start_as_torchs():
    ours, theirs = layers.Linear(400, 300), nn.Linear(400, 300)
    assert ours.weight.std().item() == pytest.approx(theirs.weight.std().item(), rel=0.02)
    assert ours.weight.abs().max().item() == pytest.approx(1 / 20, rel=0.01)


@pytest.mark.parametrize(
    ("library", "shape"),
    [(nn.BatchNorm2d, (4, 3, 5, 6)), (nn.BatchNorm1d, (4, 3)), (nn.BatchNorm1d, (4, 3, 7))],
)
def test_batch_norm_follows_torchs_through_training_and_after(library, shape):
    ours, theirs = layers.BatchNorm(3), changed(library(3))
    ours.load_state_dict(theirs.state_dict())
    for step in range(4):
        x = torch.randn(shape) * (step + 1) + step
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(ours(a), theirs(b), rtol=1e-5, atol=1e-5)
        (ours(a) ** 3).sum().backward()
        (theirs(b) ** 3).sum().backward()
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert ours.num_batches_tracked == 8
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    assert ours.num_batches_tracked == 8


@pytest.mark.parametrize("norm", [layers.LayerNorm, layers.RMSNorm])
def test_half_precision_is_normalised_in_single(norm):
    x = torch.randn(2, 4096) * 300  # the sum of 4096 such squares is beyond float16
    y = norm(4096)(x.half())
    assert y.dtype == torch.float16
    assert torch.allclose(y.float(), norm(4096)(x), atol=0.02)


def test_activations():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert torch.allclose(layers.gelu(x), F.gelu(x), atol=1e-12)
    assert torch.allclose(layers.gelu_tanh(x), F.gelu(x, approximate="tanh"), atol=1e-12)
    assert torch.allclose(layers.silu(x), F.silu(x), atol=1e-12)
    assert torch.allclose(layers.sigmoid(x), torch.sigmoid(x), atol=1e-12)
    off = (layers.gelu(x) - layers.gelu_tanh(x)).abs().max()
    assert 1e-4 < off < 5e-4


def test_sigmoid_and_its_gradient_far_from_0():
    values = [-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0]
    ours, theirs = (torch.tensor(values, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(layers.sigmoid(ours), torch.sigmoid(theirs))
    layers.sigmoid(ours).sum().backward()
    torch.sigmoid(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_embedding_is_a_linear_layer_on_one_hot_vectors():
    ids = torch.tensor([[2, 0], [1, 2]])
    vectors = layers.one_hot(ids, 3)
    assert torch.equal(vectors, F.one_hot(ids, 3).float())
    embedding, linear = layers.Embedding(3, 4), layers.Linear(3, 4, bias=False)
    linear.load_state_dict({"weight": embedding.weight.T})
    assert torch.equal(linear(vectors), embedding(ids))
    for wrong in (3, -1):
        with pytest.raises(RuntimeError, match="out of bounds"):
            layers.one_hot(torch.tensor([wrong]), 3)


def test_softmax_with_temperature_and_its_logarithm():
    x = torch.randn(4, 9) * 50
    for temperature in (0.5, 1.0, 3.0):
        expected = F.softmax(x / temperature, dim=-1)
        assert torch.allclose(layers.softmax(x, temperature=temperature), expected, atol=1e-6)
    assert torch.allclose(layers.log_softmax(x), F.log_softmax(x, -1), atol=1e-4)
    assert torch.allclose(layers.softmax(x, dim=0), F.softmax(x, 0), atol=1e-6)
    far = torch.tensor([[0.0, 1000.0]])
    assert layers.log_softmax(far).tolist() == [[-1000.0, 0.0]]
    assert layers.softmax(far).tolist() == [[0.0, 1.0]]


def test_cross_entropy_and_its_gradient():
    logits, targets = torch.randn(6, 5, requires_grad=True), torch.randint(5, (6,))
    loss, expected = layers.cross_entropy(logits, targets), F.cross_entropy(logits, targets)
    assert torch.allclose(loss, expected)
    (ours,) = torch.autograd.grad(loss, logits)
    (theirs,) = torch.autograd.grad(expected, logits)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_dropout_keeps_the_mean_and_is_off_afterwards():
    dropout, x = layers.Dropout(0.25), torch.ones(100_000)
    y = dropout(x)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (y == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    assert y.mean() == pytest.approx(1, abs=0.01)
    assert dropout.eval()(x) is x


@pytest.mark.parametrize(("scaled", "factor"), [(False, 1.0), (True, 3.0)])
def test_embedding(scaled, factor):
    ours = layers.Embedding(7, 9, scaled=scaled)
    ids = torch.tensor([[1, 1], [6, 0]])
    assert torch.allclose(ours(ids), factor * F.embedding(ids, ours.weight))


def test_sinusoidal_positions_are_the_papers_formula():
    table = layers.sinusoidal_positions(50, 8)
    assert table.shape == (50, 8)
    assert table.dtype == torch.float32
    for t, i in ((0, 0), (7, 2), (49, 3)):
        angle = t / 10_000 ** (2 * i / 8)
        assert table[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_rotary_turns_pairs_as_complex_numbers():
    x = torch.randn(2, 3, 10, 8, dtype=torch.float64)
    pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)))
    frequency = 10_000 ** (-torch.arange(4, dtype=torch.float64) / 4)
    angle = torch.arange(10, dtype=torch.float64)[:, None] * frequency
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert torch.allclose(layers.rotate(x), expected, atol=1e-12)
    assert torch.equal(layers.rotate(x)[:, :, 4:], layers.rotate(x[:, :, 4:], start=4))


@pytest.mark.parametrize("shift", [1, 17, 100_000])
def test_rotary_products_depend_on_the_distance_alone(shift):
    q, k = torch.randn(2, 1, 2, 6, 16, dtype=torch.float64).unbind(0)
    here = layers.rotate(q) @ layers.rotate(k).transpose(-2, -1)
    there = layers.rotate(q, shift) @ layers.rotate(k, shift).transpose(-2, -1)
    assert torch.allclose(here, there, atol=1e-9)
    apart = layers.rotate(q, shift) @ layers.rotate(k).transpose(-2, -1)
    assert not torch.allclose(here, apart, atol=1e-2)
