"""Compare two implementations of a network with the same random weights: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Randomise every tensor (norms are not 1 and 0, heads not 0) at a reasonable scale."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim == 1:
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            else:
                value.copy_(noise / max(1, value[0].numel()) ** 0.5)
    return model


def disable_dropout(model: nn.Module) -> nn.Module:
    """Switch every dropout off, because two networks draw differently."""
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
    """Copy the weights, under renamed names, and compare outputs and gradients of a loss to
    ``tolerance``, relative to the largest number of each tensor."""
    randomise(theirs)
    ours.load_state_dict(renamed(theirs.state_dict()))
    disable_dropout(ours).train(training)
    disable_dropout(theirs).train(training)
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
    parameters = dict(ours.named_parameters())
    assert expected.keys() == parameters.keys()
    for name, gradient in expected.items():
        actual = parameters[name].grad
        assert actual is not None, name
        close(actual, gradient, tolerance, name)


def close(ours: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    assert ours.shape == theirs.shape, name
    worst = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)
    assert worst <= tolerance, f"{name}: {worst:.1e} off"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
