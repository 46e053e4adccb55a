"""A learner among several processes: its batches shared out, its figures gathered."""

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
def shared_out(learn: Learner, rank: int, ranks: int) -> Iterator[None]:
    """``learn.distrib_ctx`` over loaders that give each process its part of each batch.

    The weights are the first process's. BatchNorm's statistics are of the whole batch on GPUs, of
    each process's own part on CPUs, where torch has no other.

    Raises
    ------
    SecondhandError : fewer than two training items for each process.
    """
    on_gpu = torch.device(learn.dls.device).type == "cuda"
    if learn.dls.train.bs // ranks < 2:
        raise SecondhandError(
            f"a batch of {learn.dls.train.bs} training items is too small for {ranks} processes, "
            "which need 2 each: launch fewer"
        )
    _from_first(learn.model.state_dict().values())
    if on_gpu:
        from timm.layers.norm_act import convert_sync_batchnorm

        # torch's own, which fastai would take, loses the activation inside of timm's BatchNorm.
        if learn.opt is None:
            learn.create_opt()  # which knows BatchNorm by its class
        learn.model = convert_sync_batchnorm(learn.model)
    plain = list(learn.dls.loaders)
    learn.dls.loaders = [Shard(loader, rank, ranks) for loader in plain]
    try:
        with (
            learn.distrib_ctx(sync_bn=False, cpu=not on_gpu, mixed_precision="no"),
            learn.added_cbs(Gather()),
        ):
            yield
    finally:
        learn.dls.loaders = plain


@contextmanager
def unshared(learn: Learner, loaders: list[Any]) -> Iterator[None]:
    """Within `shared_out`, the learner over these loaders without what waits for another process."""
    group = dist.new_subgroups(1)[0]
    norms = [m for m in learn.model.modules() if isinstance(m, torch.nn.SyncBatchNorm)]
    shared, learn.dls.loaders = learn.dls.loaders, loaders
    groups = [norm.process_group for norm in norms]
    for norm in norms:
        norm.process_group = group
    try:
        with learn.removed_cbs([learn.distributed_trainer, learn.gather]):
            yield
    finally:
        learn.dls.loaders = shared
        for norm, own in zip(norms, groups, strict=True):
            norm.process_group = own


def _from_first(tensors: Iterable[Tensor]) -> None:
    """The first process's values in all; contiguous on the way, for what is sent is the memory.

    The search for a learning rate leaves the first one's weights channels-last.
    """
    for tensor in tensors:
        values = tensor.detach().contiguous()
        dist.broadcast(values, 0)
        with torch.no_grad():
            tensor.copy_(values)


def _of_inner(name: str) -> Any:
    return property(
        lambda self: getattr(self.dl, name), lambda self, value: setattr(self.dl, name, value)
    )


class Shard(Repeatable, DistributedDL):
    """A process's part of each batch of a loader, in the loader's own order.

    fastai's cuts the order itself into parts: other batches than one process has, and the last part
    is filled up with items that validation then counts twice. Here the batches are the same, and
    the parts of a validation may differ by an item.

    Parameters
    ----------
    loader : its ``bs`` is that of all processes together; the same in all of them.
    """

    def __init__(self, loader: DataLoader, rank: int, ranks: int) -> None:
        super().__init__(loader, rank, ranks)
        self.bs = max(1, loader.bs // ranks)

    # The order, where it begins and the items are those of the loader inside.
    rng, seed, first = map(_of_inner, ("rng", "seed", "first"))

    def __len__(self) -> int:
        if self.drop_last:
            return self.dl.n // (self.bs * self.world_size)
        return -(-len(range(self.rank, self.dl.n, self.world_size)) // self.bs)

    def get_idxs(self) -> list[int]:
        order = list(self.dl.get_idxs())
        if not self.drop_last:
            return order[self.rank :: self.world_size]
        whole, first = self.bs * self.world_size, self.bs * self.rank
        starts = range(first, len(self) * whole, whole)
        return [number for start in starts for number in order[start : start + self.bs]]

    def create_batches(self, samps: Iterable[int]) -> Iterator[Any]:
        items = self._whole(map(self.dl.do_item, samps))
        yield from map(self.dl.do_batch, chunked(items, self.bs, self.drop_last))

    def _whole(self, items: Iterable[Any]) -> Iterator[Any]:
        """In training, another stands in for an item that cannot be read any more.

        A process with fewer batches than the others would leave them waiting for it.
        """
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
        """A process's own: what is gathered, and how items count, is `Gather`'s."""
        return to_detach(b, cpu, False)


class Gather(Callback):
    """Validation over all processes: the same network in each, and the figures of all items."""

    order = 12  # after the averaged weights have taken the place of the network

    def before_validate(self) -> None:
        self.around = self.learn.model
        network = getattr(self.around, "module", self.around)
        # Between two steps each process has BatchNorm averages of its own.
        _from_first(network.buffers())
        # The parts may be of different numbers of batches: none waits for another within.
        self.learn.model = network

    def after_validate(self) -> None:
        if isinstance(self.around, DistributedDataParallel):
            self.learn.model = self.around
        for metric in (self.recorder.loss, *self.learn.metrics):
            sums = torch.tensor([float(metric.total), float(metric.count)], dtype=torch.float64)
            sums = sums.to(self.dls.device)
            dist.all_reduce(sums)
            metric.total, metric.count = sums[0].cpu(), int(sums[1])
