"""Trains a learner in several processes: shares its batches and averages its gradients.

fastai's ``distrib_ctx`` divides the epoch into parts instead of each batch, counts some validation files twice, and
needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from fastai.callback.core import Callback
from fastai.learner import Learner
from fastai.torch_core import set_seed
from torch import Tensor

from datasets.core.errors import SecondhandError
from datasets.loaders.seeded import derive_seed
from learners import distributed


@contextmanager
def distribute(learn: Learner) -> Iterator[None]:
    """Within the block all processes train as one: each loads its part of each training batch.

    All processes start from the first one's weights. BatchNorm statistics cover the whole batch on GPUs,
    and each process's part on CPUs, where torch cannot synchronise them.

    Raises
    ------
    SecondhandError : fewer than two training items per process.
    """
    rank, count = distributed.rank(), distributed.count()
    if count == 1:
        yield
        return
    loader = learn.dls.train
    if loader.bs // count < 2:
        raise SecondhandError(
            f"Batches of {loader.bs} items are too small for {count} processes, which need 2 each. Launch fewer processes"
        )
    if torch.device(learn.dls.device).type == "cuda":
        from timm.layers.norm_act import convert_sync_batchnorm

        # torch's conversion drops the activation inside timm's BatchNorm.
        learn.model = convert_sync_batchnorm(learn.model)
    _from_first(learn.model.state_dict().values())
    loader.part = (rank, count)
    try:
        with learn.added_cbs(MeanGradients()):
            yield
    finally:
        loader.part = (0, 1)


def _from_first(tensors: Iterable[Tensor]) -> None:
    """Copy the first process's values to all processes.

    Tensors are made contiguous, because broadcast sends raw memory and the weights of the first process are
    channels-last after the learning rate search.
    """
    for tensor in tensors:
        values = tensor.detach().contiguous()
        dist.broadcast(values, 0)
        with torch.no_grad():
            tensor.copy_(values)


class MeanGradients(Callback):
    """Gives all processes the mean of their gradients, and validates with the same network in all of them."""

    order = 12  # after EMA has set the averaged weights

    def before_train(self) -> None:
        if rank := distributed.rank():  # dropout differs; the order of the items must not
            set_seed(derive_seed(torch.initial_seed(), rank))

    def after_backward(self) -> None:
        gradients = [p.grad for p in self.learn.model.parameters() if p.grad is not None]
        total = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(total)
        parts = total.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient) / distributed.count())

    def before_validate(self) -> None:
        # After training, the BatchNorm averages differ between processes.
        _from_first(self.learn.model.buffers())
