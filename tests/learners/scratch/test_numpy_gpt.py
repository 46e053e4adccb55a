"""NumPy's gradients against torch's autograd, and its training against torch's."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from learners.scratch import gpt, numpy_gpt

RNG = np.random.default_rng(0)
TOLERANCE = 1e-6


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]


def check(out, expected, gradients, inputs, dy) -> None:
    """Compare the output and each gradient to 1e-6 of its largest number."""
    autograd = torch.autograd.grad(expected, inputs, torch.from_numpy(dy))
    for ours, theirs in zip([out, *gradients], [expected, *autograd], strict=True):
        theirs = theirs.detach().numpy()
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


def test_linear():
    x, w, b, dy = numbers(2, 3, 4), numbers(4, 5), numbers(5), numbers(2, 3, 5)
    t = tensors(x, w, b)
    out, gradients = numpy_gpt.linear(x, w, b), numpy_gpt.linear_backward(dy, x, w)
    check(out, t[0] @ t[1] + t[2], gradients, t, dy)


def test_layer_norm():
    x, w, b, dy = numbers(2, 3, 8) * 3 + 1, numbers(8), numbers(8) + 1, numbers(2, 3, 8)
    t = tensors(x, w, b)
    out, z, inverse = numpy_gpt.layer_norm(x, w, b)
    gradients = numpy_gpt.layer_norm_backward(dy, z, inverse, w)
    check(out, F.layer_norm(t[0], (8,), t[1], t[2]), gradients, t, dy)


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (7, 3)])
def test_batch_norm(shape):
    x, w, b, dy = numbers(*shape) * 3 + 1, numbers(3), numbers(3) + 1, numbers(*shape)[::-1]
    t = tensors(x, w, b)
    out, z, inverse = numpy_gpt.batch_norm(x, w, b)
    gradients = numpy_gpt.batch_norm_backward(dy, z, inverse, w)
    expected = F.batch_norm(t[0], None, None, t[1], t[2], training=True)
    check(out, expected, gradients, t, dy.copy())


def test_dropout():
    x, dy = numbers(50, 80) + 3, numbers(80, 50).T
    out, mask = numpy_gpt.dropout(x, 0.25, np.random.default_rng(0))
    assert np.unique(mask) == pytest.approx([0, 4 / 3])
    assert (mask == 0).mean() == pytest.approx(0.25, abs=0.03)
    t = tensors(x)
    kept = torch.from_numpy(mask > 0)
    expected = torch.where(kept, t[0] / 0.75, 0.0)
    check(out, expected, [numpy_gpt.dropout_backward(dy, mask)], t, dy.copy())


def test_gelu():
    x, dy = numbers(4, 50) * 3, numbers(4, 50)
    t = tensors(x)
    gradients = [numpy_gpt.gelu_backward(dy, x)]
    check(numpy_gpt.gelu(x), F.gelu(t[0], approximate="tanh"), gradients, t, dy)


def test_softmax():
    x, dy = numbers(3, 9) * 4, numbers(3, 9)
    t = tensors(x)
    y = numpy_gpt.softmax(x)
    check(y, t[0].softmax(-1), [numpy_gpt.softmax_backward(dy, y)], t, dy)


def test_attention():
    q, k, v, dy = (numbers(2, 3, 7, 4) * scale for scale in (2, 1, 0.5, 3))
    k, v, dy = k[..., ::-1].copy(), v[:, ::-1].copy(), dy[:, :, ::-1].copy()
    t = tensors(q, k, v)
    out, weights = numpy_gpt.attention(q, k, v)
    expected = F.scaled_dot_product_attention(*t, is_causal=True)
    check(out, expected, numpy_gpt.attention_backward(dy, q, k, v, weights), t, dy)


def test_embedding_adds_up_what_is_looked_up_twice():
    ids, w, dy = np.array([[1, 1, 4], [0, 1, 4]]), numbers(6, 3), numbers(2, 3, 3)
    t = tensors(w)
    gradients = [numpy_gpt.embedding_backward(dy, ids, w)]
    check(numpy_gpt.embedding(ids, w), F.embedding(torch.from_numpy(ids), t[0]), gradients, t, dy)


def test_cross_entropy():
    logits, targets = numbers(2, 3, 7) * 5, np.array([[0, 6, 3], [3, 3, 1]])
    t = tensors(logits)
    loss, gradient = numpy_gpt.cross_entropy(logits, targets)
    expected = F.cross_entropy(t[0].flatten(0, 1), torch.from_numpy(targets).flatten())
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    check(np.array(loss), expected, [gradient], t, np.array(1.0))


def pair(dtype: torch.dtype) -> tuple[gpt.GPT, numpy_gpt.GPT]:
    torch.manual_seed(0)
    config = gpt.GPTConfig(vocabulary=31, context=16, width=24, depth=2, heads=3)
    theirs = gpt.GPT(config).to(dtype)
    for name, value in theirs.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(value, mean=0.5, std=0.5)
        else:  # larger than usual, because fifty steps are few
            torch.nn.init.normal_(value, std=0.2)
    weights = {name: value.detach().numpy().copy() for name, value in theirs.state_dict().items()}
    return theirs, numpy_gpt.GPT(weights, heads=3)


def batches(n: int) -> np.ndarray:
    """Return tokens [n, 4, 13]: a walk that can be learnt, with some noise."""
    rng = np.random.default_rng(1)
    walk = rng.integers(31, size=(n, 4, 1)) + 3 * np.arange(13)
    return (walk + (rng.random(walk.shape) < 0.05)) % 31


def test_every_gradient_of_the_whole_decoder():
    theirs, ours = pair(torch.float64)
    ids = batches(1)[0]
    loss, gradients = ours.loss_and_gradients(ids[:, :-1], ids[:, 1:])
    expected = theirs.loss(torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:]))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert gradients.keys() == dict(theirs.named_parameters()).keys()
    for name, parameter in theirs.named_parameters():
        reference = parameter.grad.numpy()
        assert np.abs(gradients[name] - reference).max() <= TOLERANCE * np.abs(reference).max(), (
            name
        )
    logits = theirs(torch.from_numpy(ids)).detach().numpy()
    assert np.allclose(ours.logits(ids), logits, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "amsgrad"])
def test_fifty_steps_follow_torchs_training(name):
    theirs, ours = pair(torch.float32)
    if name == "sgd":
        peak, optimizer = 0.1, numpy_gpt.SGD(ours.parameters, momentum=0.9)
        reference = torch.optim.SGD(theirs.parameters(), momentum=0.9)
    else:
        peak, decay, amsgrad = 1e-2, 0.1 if name == "adamw" else 0.0, name == "amsgrad"
        optimizer = numpy_gpt.AdamW(ours.parameters, decay=decay, amsgrad=amsgrad)
        matrices = [p for p in theirs.parameters() if p.ndim > 1]
        rest = [p for p in theirs.parameters() if p.ndim <= 1]
        reference = torch.optim.AdamW([{"params": matrices, "weight_decay": decay},
                                       {"params": rest, "weight_decay": 0.0}],
                                      amsgrad=amsgrad)  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(
        reference, lambda step: numpy_gpt.cosine(step, 50, peak=1, floor=0.1, warmup=5)
    )
    for group, base in zip(reference.param_groups, schedule.base_lrs, strict=True):
        group["lr"] *= peak / base
    schedule.base_lrs = [peak] * len(schedule.base_lrs)
    first = last = 0.0
    for step, ids in enumerate(batches(50)):
        loss, gradients = ours.loss_and_gradients(ids[:, :-1], ids[:, 1:])
        reference.zero_grad()
        expected = theirs.loss(torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:]))
        expected.backward()
        assert loss == pytest.approx(expected.item(), abs=1e-4), step
        optimizer.step(gradients, numpy_gpt.cosine(step, 50, peak=peak, floor=0.1 * peak, warmup=5))
        reference.step()
        schedule.step()
        first, last = first or loss, loss
    assert last < 0.9 * first, (first, last)


def test_cosine_schedule():
    lrs = [numpy_gpt.cosine(step, 100, peak=2.0, floor=0.5, warmup=10) for step in range(120)]
    assert lrs[:10] == pytest.approx(np.linspace(0.2, 2.0, 10))
    assert lrs[10] == 2.0
    assert lrs[55] == pytest.approx(1.25)
    assert lrs[100] == lrs[119] == 0.5
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(
        torch.optim.SGD([torch.zeros(1)], lr=2.0), T_max=100, eta_min=0.5
    )
    for step in range(100):
        ours = numpy_gpt.cosine(step, 100, peak=2.0, floor=0.5)
        assert ours == pytest.approx(torchs.get_last_lr()[0], rel=1e-9)
        torchs.optimizer.step()
        torchs.step()


def test_amsgrad_remembers_a_rare_large_gradient():
    """The example of arXiv:1904.09237, section 3: Adam goes to the wrong end, +1, AMSGrad to -1."""
    ends = {}
    for amsgrad in (False, True):
        x = {"x": np.zeros(1)}
        theirs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = numpy_gpt.AdamW(x, decay=0.0, amsgrad=amsgrad)
        optimizer.betas = (0.0, 0.1)
        reference = torch.optim.AdamW(
            [theirs], lr=0.01, betas=(0.0, 0.1), weight_decay=0.0, amsgrad=amsgrad
        )
        for step in range(1500):
            gradient = 4.0 if step % 3 == 0 else -1.0  # the sum of three is 2: to the left
            optimizer.step({"x": np.array([gradient])}, 0.01)
            theirs.grad = torch.tensor([gradient], dtype=torch.float64)
            reference.step()
            assert x["x"][0] == pytest.approx(theirs.item(), abs=1e-9)
            np.clip(x["x"], -1, 1, out=x["x"])
            theirs.data.clamp_(-1, 1)
        ends[amsgrad] = x["x"][0]
    assert ends[False] > 0.9
    assert ends[True] < -0.9


@pytest.mark.parametrize("growth", [1, 2])
def test_cosine_with_restarts(growth):
    torchs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        torch.optim.SGD([torch.zeros(1)], lr=2.0), T_0=10, T_mult=growth, eta_min=0.5
    )
    rates = []
    for step in range(75):
        rates.append(numpy_gpt.cosine_restarts(step, 10, peak=2.0, floor=0.5, growth=growth))
        assert rates[-1] == pytest.approx(torchs.get_last_lr()[0], rel=1e-9)
        torchs.optimizer.step()
        torchs.step()
    starts = [step for step, rate in enumerate(rates) if rate == 2.0]
    assert starts == ([0, 10, 20, 30, 40, 50, 60, 70] if growth == 1 else [0, 10, 30, 70])


def test_it_is_numpy_alone():
    tree = ast.parse(Path(numpy_gpt.__file__).read_text())
    modules = {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "math", "typing", "numpy", "numpy.typing"}
