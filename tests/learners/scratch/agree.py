"""The same network twice, with one set of random weights: do they say and learn the same?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]


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
    ours: nn.Module,
    theirs: nn.Module,
    x: Tensor,
    *,
    training: bool,
    tolerance: float,
    renamed: Callable[[Named], Named] = dict,
) -> None:
    """Copies the weights, under the names that ``renamed`` gives them; compares outputs, and gradients of
    a loss, to ``tolerance``, relative to the largest number of each tensor."""
    randomise(theirs)
    ours.load_state_dict(renamed(theirs.state_dict()))
    without_chance(ours).train(training)
    without_chance(theirs).train(training)
    target = torch.linspace(-1, 1, 1000)
    outputs = [model(x) for model in (ours, theirs)]
    close(outputs[0], outputs[1], tolerance, "output")
    for out in outputs:
        (out - target[: out.shape[-1]]).square().mean().backward()
    check_gradients(ours, theirs, tolerance, renamed)


def check_gradients(
    ours: nn.Module, theirs: nn.Module, tolerance: float, renamed: Callable[[Named], Named]
) -> None:
    expected = renamed({n: p.grad for n, p in theirs.named_parameters() if p.grad is not None})
    own = dict(ours.named_parameters())
    assert expected.keys() == own.keys()
    for name, gradient in expected.items():
        mine = own[name].grad
        assert mine is not None, name
        close(mine, gradient, tolerance, name)


def close(mine: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    assert mine.shape == theirs.shape, name
    worst = (mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)
    assert worst <= tolerance, f"{name}: {worst:.1e} off"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
