"""A workaround for fastxtend, whose average of the weights leaves some buffers out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fastxtend.callback.ema import EMACallback

#: Versions that it was checked with, by package.
CHECKED = {"fastxtend": "0.1.7"}


def untangled_buffers(ema: EMACallback) -> Callable[[], None]:
    """What copies the integer buffers of the network to its average, to be called after each step; call this when a fit
    begins.

    fastxtend pairs buffers of the network with themselves, so they never reach the average. This takes these pairs
    from it. Its floating-point buffers, such as BatchNorm's averages, are only right with ``foreach``.
    """
    ema.model_buffers, ema.ema_buffers = [], []
    pairs = zip(ema.learn.model.buffers(), ema.ema_model.buffers(), strict=True)
    whole = [pair for pair in pairs if not pair[0].is_floating_point()]
    if not whole:
        return lambda: None
    sources, averages = map(list, zip(*whole, strict=True))

    def copy() -> None:
        # One call for all of them, such as the counters of BatchNorm. There is no public name for it.
        torch._foreach_copy_(averages, sources)

    return copy
