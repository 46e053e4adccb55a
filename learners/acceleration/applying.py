"""`accelerate`: the one place where a network or a learner is made quicker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learners import distributed
from learners.acceleration.process import is_on
from learners.machine import SpeedSettings

if TYPE_CHECKING:
    from fastai.learner import Learner
    from torch import nn


def accelerate(model: Learner | nn.Module, speed: SpeedSettings, device: str) -> None:
    """Make a training or a network quicker without changing what it computes.

    Parameters
    ----------
    model : a learner is given callbacks, before its first fit; a network is changed in place.
    speed : ``channels_last`` False leaves the memory format. A compiled training has no chunks.
    device : chunks are for "cpu", and for a run of a single process.
    """
    if not is_on():
        return
    import torch  # not before: what is answered without it is answered sooner
    from torch import nn

    channels_last = speed.channels_last is not False
    if isinstance(model, nn.Module):
        if channels_last:
            model.to(memory_format=torch.channels_last)
        return
    from fastxtend.callback.channelslast import ChannelsLast

    from learners.acceleration.chunks import Chunks

    if channels_last:
        model.add_cb(ChannelsLast())
    if device == "cpu" and not speed.compile and distributed.count() == 1:
        model.add_cb(Chunks())
