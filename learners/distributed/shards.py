"""Trains a learner in several processes: splits its batches and sums its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from fastai.callback.core import Callback
from fastai.data.load import DataLoader
from fastai.distributed import DistributedDL
from fastai.learner import Learner
from fastai.torch_core import to_detach
from fastcore.basics import chunked
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from datasets.core.errors import SecondhandError
from datasets.loaders import Repeatable


@contextmanager
def distribute(learn: Learner, rank: int, ranks: int) -> Iterator[None]:
    """``learn.distrib_ctx`` with loaders that give each process its part of each batch.

    All processes start from the first one's weights. BatchNorm statistics cover the whole batch on GPUs,
    and each process's part on CPUs, where torch cannot synchronise them.

    Raises
    ------
    SecondhandError : fewer than two training items per process.
    """
    on_gpu = torch.device(learn.dls.device).type == "cuda"
    if learn.dls.train.bs // ranks < 2:
        raise SecondhandError(
            f"A batch of {learn.dls.train.bs} training items is too small for {ranks} processes, which need 2 items "
            "each. Launch fewer processes"
        )
    _from_first(learn.model.state_dict().values())
    if on_gpu:
        from timm.layers.norm_act import convert_sync_batchnorm

        # torch's conversion, which fastai would use, drops the activation inside timm's BatchNorm.
        if learn.opt is None:
            learn.create_opt()  # before the conversion, because it recognises BatchNorm by class
        learn.model = convert_sync_batchnorm(learn.model)
    loaders = list(learn.dls.loaders)
    learn.dls.loaders = [Shard(loader, rank, ranks) for loader in loaders]
    try:
        with (
            learn.distrib_ctx(sync_bn=False, cpu=not on_gpu, mixed_precision="no"),
            learn.added_cbs(Gather()),
        ):
            yield
    finally:
        learn.dls.loaders = loaders


@contextmanager
def undistribute(learn: Learner, loaders: list[Any]) -> Iterator[None]:
    """Within `distribute`, use the learner with these loaders without synchronising processes."""
    group = dist.new_subgroups(1)[0]
    norms = [m for m in learn.model.modules() if isinstance(m, torch.nn.SyncBatchNorm)]
    distributed_loaders, learn.dls.loaders = learn.dls.loaders, loaders
    groups = [norm.process_group for norm in norms]
    for norm in norms:
        norm.process_group = group
    try:
        with learn.removed_cbs([learn.distributed_trainer, learn.gather]):
            yield
    finally:
        learn.dls.loaders = distributed_loaders
        for norm, process_group in zip(norms, groups, strict=True):
            norm.process_group = process_group


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


def _inner_property(name: str) -> Any:
    return property(
        lambda self: getattr(self.dl, name), lambda self, value: setattr(self.dl, name, value)
    )


class Shard(Repeatable, DistributedDL):
    """Loads a process's part of each batch of a loader.

    Together the processes load the same batches as a single one. (fastai's loader divides the epoch
    instead, which makes other batches, and pads the last part with items that validation counts twice.) In
    validation the parts may differ by one item.

    Parameters
    ----------
    loader : loader of all items, equal in all processes; its ``bs`` is the batch size of all processes together.
    """

    def __init__(self, loader: DataLoader, rank: int, ranks: int) -> None:
        super().__init__(loader, rank, ranks)
        self.bs = max(1, loader.bs // ranks)

    # Random order, seed and start are those of the wrapped loader.
    rng, seed, first = map(_inner_property, ("rng", "seed", "first"))

    def __len__(self) -> int:
        if self.drop_last:
            return self.dl.n // (self.bs * self.world_size)
        return -(-len(range(self.rank, self.dl.n, self.world_size)) // self.bs)

    def get_idxs(self) -> list[int]:
        order = list(self.dl.get_idxs())
        if not self.drop_last:
            return order[self.rank :: self.world_size]
        batch_size, offset = self.bs * self.world_size, self.bs * self.rank
        starts = range(offset, len(self) * batch_size, batch_size)
        return [number for start in starts for number in order[start : start + self.bs]]

    def create_batches(self, samps: Iterable[int]) -> Iterator[Any]:
        items = self._replace_unreadable(map(self.dl.do_item, samps))
        yield from map(self.dl.do_batch, chunked(items, self.bs, self.drop_last))

    def _replace_unreadable(self, items: Iterable[Any]) -> Iterator[Any]:
        """In training, replace unreadable items by copies of others, so that all processes have as many batches."""
        last, missing = None, 0
        for item in items:
            if item is None:
                missing += 1
            else:
                last = item
                yield item
            if self.drop_last and last is not None:
                yield from [last] * missing
                missing = 0

    def to_detach(self, b: Any, cpu: bool = True, gather: bool = True) -> Any:
        """Detach without gathering: `Gather` sums the metrics."""
        return to_detach(b, cpu, False)


class Gather(Callback):
    """Validates with the same network in all processes and sums the metrics over all items."""

    order = 12  # after EMA has set the averaged weights

    def before_validate(self) -> None:
        self.around = self.learn.model
        network = getattr(self.around, "module", self.around)
        # After training, the BatchNorm averages differ between processes.
        _from_first(network.buffers())
        # The wrapper would synchronise forward passes, but parts may differ in their number of batches.
        self.learn.model = network

    def after_validate(self) -> None:
        if isinstance(self.around, DistributedDataParallel):
            self.learn.model = self.around
        for metric in (self.recorder.loss, *self.learn.metrics):
            sums = torch.tensor([float(metric.total), float(metric.count)], dtype=torch.float64)
            sums = sums.to(self.dls.device)
            dist.all_reduce(sums)
            metric.total, metric.count = sums[0].cpu(), int(sums[1])
