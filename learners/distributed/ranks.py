"""One run in several processes: ``accelerate launch -m learners.finetune …``, or ``torchrun -m``.

Each process (rank) trains on its share of every batch. The first one alone reads and draws the data,
decides, and writes the run folder; the others get from it what they need. A program that no launcher
began is one process, which is the first: then nothing here does anything, and nothing is imported.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from datasets.core.errors import SecondhandError
from datasets.core.program import extra
from datasets.core.upstream import as_single_process

if TYPE_CHECKING:
    from fastai.learner import Learner

T = TypeVar("T")

#: How long a process waits for another that draws or downloads. One that dies is noticed at once.
PATIENCE = timedelta(days=7)


def count() -> int:
    """Processes of the run."""
    launched = {"RANK", "LOCAL_RANK", "MASTER_ADDR", "WORLD_SIZE"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if launched else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def is_first() -> bool:
    """Whether this process decides and writes."""
    return rank() == 0


def device(wanted: str) -> str:
    """What ``--device`` means in this process: of several, each has a GPU of its own.

    Raises
    ------
    SecondhandError : one GPU named for all, or fewer GPUs than processes.
    """
    if count() == 1:
        return wanted
    import torch

    forced = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if wanted == "cpu" or (wanted == "auto" and (forced or not torch.cuda.is_available())):
        return "cpu"
    if wanted not in ("auto", "cuda"):
        raise SecondhandError(
            f"--device {wanted}: {count()} processes have a GPU each; leave it out, or give cpu"
        )
    local = int(os.environ["LOCAL_RANK"])
    if local >= torch.cuda.device_count():
        raise SecondhandError(
            f"process {local + 1} of this machine has no GPU: {torch.cuda.device_count()} are here; "
            "launch as many processes, or give --device cpu"
        )
    return f"cuda:{local}"


def check_batch(bs: int) -> None:
    """Refuse a batch that the processes cannot share equally.

    Raises
    ------
    SecondhandError : names the next sizes that they can.
    """
    if bs % count() or bs // count() < 2 <= count():
        below, above = max(2, bs // count()) * count(), max(2, -(-bs // count())) * count()
        sizes = str(above) if below >= above else f"{below} or {above}"
        raise SecondhandError(
            f"--bs {bs} is the batch of all processes together, and {count()} cannot share it "
            f"equally, 2 items or more each: give {sizes}"
        )


@contextmanager
def process_group(wanted: str) -> Iterator[None]:
    """The process group, for as long as the run needs it: NCCL between GPUs, gloo between CPUs.

    Raises
    ------
    SecondhandError : accelerate is not installed; or another process of the run has ended.
    """
    if count() == 1:
        yield
        return
    try:
        from accelerate import PartialState
    except ImportError:
        raise SecondhandError(
            f"{count()} processes were launched, and need accelerate: {extra('cluster')}"
        ) from None
    with end_together(lambda: "see what it said"):
        PartialState(cpu=device(wanted) == "cpu")
        yield


def leave() -> None:
    """No more is shared: the first goes on alone."""
    if count() > 1:
        import torch.distributed as dist

        _control.cache_clear()
        dist.destroy_process_group()


@contextmanager
def end_together(remedy: Callable[[], str]) -> Iterator[None]:
    """Where one process has died, and the others therefore end: that, in words.

    The dead one's partners see their connection break, or are told to end by the launcher.

    Raises
    ------
    SecondhandError : with the ``remedy``.
    """
    if count() == 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, _told_to_end)
    try:
        yield
    except (_Ended, RuntimeError) as error:
        if not (isinstance(error, _Ended) or _is_broken_connection(error)):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, so that all is said
        raise SecondhandError(
            f"process {rank() + 1} of {count()}: another process of this run has ended, or the "
            f"launcher was stopped, so this one ends too; {remedy()}"
        ) from None
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, before)


class _Ended(BaseException):
    """SIGTERM. No Exception: nobody is to handle it on the way."""


def _told_to_end(number: int, frame: object) -> None:
    raise _Ended


def _is_broken_connection(error: RuntimeError) -> bool:
    import torch.distributed as dist

    said = ("gloo", "connection closed by peer", "connection reset", "broken pipe", "nccl")
    return isinstance(error, dist.DistError) or any(text in str(error).lower() for text in said)


@cache
def _control() -> Any:
    """The group for words between the processes: on CPUs, and with patience."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=PATIENCE)


def share(value: T) -> T:
    """The first process's value, in all."""
    if count() == 1:
        return value
    import torch
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0, group=_control(), device=torch.device("cpu"))
    return values[0]


def first_process_value(function: Callable[[], T]) -> T:
    """What a function gives that the first process calls alone, in all."""
    if count() == 1:
        return function()
    if not is_first():
        return share(None)  # type: ignore[return-value]
    with as_single_process():
        value = function()
    return share(value)


def gathered(value: T) -> list[T]:
    """Every process's value, in the order of their numbers."""
    if count() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group=_control())
    return values


@contextmanager
def in_turn() -> Iterator[None]:
    """The block in the first process, then, when that is through, in the others."""
    if not is_first():
        share(None)
    yield
    if is_first():
        share(None)


@contextmanager
def training(learn: Learner) -> Iterator[None]:
    """fastai's distributed context, for a learner that is the same in all processes."""
    if count() == 1:
        yield
        return
    from learners.distributed.shards import shared_out

    with shared_out(learn, rank(), count()):
        yield


@contextmanager
def apart(learn: Learner) -> Iterator[None]:
    """Within `training`, the learner as that of one process, for what the first does alone; entered by
    all."""
    if count() == 1:
        yield
        return
    from learners.distributed.shards import unshared

    with unshared(learn, plain_loaders(learn)):
        yield


def plain_model(learn: Learner) -> Any:
    """The learner's network without what is around it in training: its names are the model's own."""
    return getattr(learn.model, "module", learn.model)


def this_process_part(loader: Any) -> Any:
    """This process's part of each batch of a loader; of one process the loader."""
    if count() == 1:
        return loader
    from learners.distributed.shards import Shard

    return Shard(loader, rank(), count())


def plain_loaders(learn: Learner) -> list[Any]:
    """The learner's loaders of all items, where in training each process has its part."""
    if count() == 1:
        return list(learn.dls.loaders)
    from learners.distributed.shards import Shard

    return [loader.dl if isinstance(loader, Shard) else loader for loader in learn.dls.loaders]
