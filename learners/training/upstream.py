"""A workaround for fastxtend, whose average of the weights leaves some buffers out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from fastxtend.callback.ema import EMACallback

#: Versions that it was checked with, by package.
CHECKED = {"fastxtend": "0.1.7"}


def untangled_buffers(ema: EMACallback) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of an integer buffer of the network and of its average, to be copied after each step; call it when a fit
    begins.

    fastxtend pairs buffers of the network with themselves, so they never reach the average. This takes these pairs
    from it. Its floating-point buffers, such as BatchNorm's averages, are only right with ``foreach``.
    """
    ema.model_buffers, ema.ema_buffers = [], []
    pairs = zip(ema.learn.model.buffers(), ema.ema_model.buffers(), strict=True)
    return [(source, average) for source, average in pairs if not source.is_floating_point()]
