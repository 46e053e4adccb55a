"""The same network twice, with one set of random weights: do they say and learn the same?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learners.scratch.names import translate


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every tensor unlike a fresh one's (norms are not 1 and 0, heads not 0), its scale kept sane."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim == 1:
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            else:
                value.copy_(noise / max(1, value[0].numel()) ** 0.5)
    return model


def without_chance(model: nn.Module) -> nn.Module:
    """Every dropout off: two networks draw differently."""
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    return model


def check_agreement(
    arch: str, ours: nn.Module, theirs: nn.Module, x: Tensor, *, training: bool, tolerance: float
) -> str:
    """Copies the weights by the table; compares outputs, and gradients of a loss, to ``tolerance``.

    Relative to the largest number of each tensor. Returns the library that the table names.
    """
    randomise(theirs)
    state, library = translate(arch, theirs.state_dict(), ours.state_dict())
    ours.load_state_dict(state)
    without_chance(ours).train(training)
    without_chance(theirs).train(training)
    target = torch.linspace(-1, 1, 1000)
    outputs = [model(x) for model in (ours, theirs)]
    close(outputs[0], outputs[1], tolerance, "output")
    for out in outputs:
        (out - target[: out.shape[-1]]).square().mean().backward()
    gradients, _ = translate(
        arch, {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}, ["none"]
    )
    own = dict(ours.named_parameters())
    assert gradients.keys() == own.keys()
    for name, gradient in gradients.items():
        mine = own[name].grad
        assert mine is not None, name
        close(mine, gradient, tolerance, name)
    return library


def close(mine: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    assert mine.shape == theirs.shape, name
    worst = (mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)
    assert worst <= tolerance, f"{name}: {worst:.1e} off"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
