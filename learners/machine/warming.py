"""The first use of a GPU, while files are read.

It takes seconds: libraries are loaded, and each kernel when it first runs.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from learners.machine.acceleration import is_on

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

#: Pictures that pass through the network: as few as take little memory.
PICTURES = 2


def warm_up(
    network: nn.Module, shape: Sequence[int], precision: str, device: str
) -> threading.Thread | None:
    """Pass a few black pictures through a copy of a network, in a thread; nothing on another device than a CUDA GPU.

    What goes wrong is logged, and met again in the training, which says what to do.

    Parameters
    ----------
    shape : height and width of its input.
    precision : of training steps, fp32, fp16 or bf16.

    Returns
    -------
    The thread, which need not be waited for; None without one.
    """
    if not device.startswith("cuda"):
        return None
    return start(copy.deepcopy(network), shape, precision, device)


def start(
    network: nn.Module, shape: Sequence[int], precision: str, device: str
) -> threading.Thread:
    """`pass_through` in a thread."""

    def run() -> None:
        try:
            pass_through(network, shape, precision, device)
        except Exception as error:
            log.debug("The first use of %s failed: %r", device, error)

    thread = threading.Thread(target=run, name="warm-up")
    thread.start()
    return thread


def pass_through(network: nn.Module, shape: Sequence[int], precision: str, device: str) -> None:
    """Pass black pictures forward and backward through a network as a training step does, and forward as a prediction
    does. It is in eval mode: no random numbers are drawn, which the training would miss."""
    import torch

    layout = torch.channels_last if is_on() else torch.contiguous_format
    network.eval().to(device).to(memory_format=layout)
    pictures = torch.zeros(PICTURES, 3, *shape, device=device).contiguous(memory_format=layout)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    kind = torch.device(device).type
    with torch.enable_grad(), torch.autocast(kind, half) if half else nullcontext():
        loss = network(pictures).float().sum()
    loss.backward()
    with torch.no_grad():
        network(pictures)
    if kind == "cuda":
        torch.cuda.synchronize(device)
