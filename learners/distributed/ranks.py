"""Distributed runs: ``accelerate launch -m learners.finetune …`` or ``torchrun -m``.

Each process trains on its part of every batch. Only the first one reads and renders the data, makes decisions and
writes the run folder; it sends the others what they need. Without a launcher there is one process, and the functions
here do nothing and import nothing.
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

#: How long a process waits for another that renders or downloads; a crash is noticed at once.
PATIENCE = timedelta(days=7)


def count() -> int:
    """Number of processes of the run."""
    launched = {"RANK", "LOCAL_RANK", "MASTER_ADDR", "WORLD_SIZE"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if launched else 1


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def is_first() -> bool:
    """Whether this is the first process, which decides and writes."""
    return rank() == 0


def device(device_setting: str) -> str:
    """Device of this process for a value of ``--device``; each of several processes has its own GPU.

    Raises
    ------
    SecondhandError : a single GPU is named for several processes, or there are too few GPUs.
    """
    if count() == 1:
        return device_setting
    import torch

    cpu_forced = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if device_setting == "cpu" or (
        device_setting == "auto" and (cpu_forced or not torch.cuda.is_available())
    ):
        return "cpu"
    if device_setting not in ("auto", "cuda"):
        raise SecondhandError(
            f"--device {device_setting}: one GPU cannot serve {count()} processes, which use one each. Leave it out, or "
            "use --device cpu"
        )
    local = int(os.environ["LOCAL_RANK"])
    if local >= torch.cuda.device_count():
        raise SecondhandError(
            f"process {local + 1} on this machine has no GPU, because there are only {torch.cuda.device_count()}. Launch "
            "as many processes as GPUs, or use --device cpu"
        )
    return f"cuda:{local}"


def check_batch(bs: int) -> None:
    """Check that the processes can share a batch equally, at least two items each.

    Raises
    ------
    SecondhandError : they cannot; the message gives the nearest batch sizes.
    """
    if bs % count() or bs // count() < 2 <= count():
        below, above = max(2, bs // count()) * count(), max(2, -(-bs // count())) * count()
        sizes = str(above) if below >= above else f"{below} or {above}"
        raise SecondhandError(
            f"--bs {bs} is the batch size of all processes together, and {count()} processes cannot share it equally "
            f"with at least 2 items each. Use --bs {sizes}"
        )


@contextmanager
def process_group(device_setting: str) -> Iterator[None]:
    """Open the process group for the block: NCCL between GPUs, gloo between CPUs.

    Raises
    ------
    SecondhandError : accelerate is not installed, or another process has ended.
    """
    if count() == 1:
        yield
        return
    try:
        from accelerate import PartialState
    except ImportError:
        raise SecondhandError(
            f"{count()} processes were launched, which needs the package accelerate. Install it: {extra('cluster')}"
        ) from None
    with end_together(lambda: "Its message says why"):
        PartialState(cpu=device(device_setting) == "cpu")
        yield


def close_group() -> None:
    """Close the process group; the first process continues alone."""
    if count() > 1:
        import torch.distributed as dist

        _control.cache_clear()
        dist.destroy_process_group()


@contextmanager
def end_together(remedy: Callable[[], str]) -> Iterator[None]:
    """Within the block, turn the death of another process into a SecondhandError.

    The other processes see a broken connection, or a SIGTERM from the launcher.

    Raises
    ------
    SecondhandError : another process has ended; the message contains ``remedy()``.
    """
    if count() == 1:
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    except (_Ended, RuntimeError) as error:
        if not (isinstance(error, _Ended) or _is_broken_connection(error)):
            raise
        # So that the message is printed before the launcher kills.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SecondhandError(
            f"Process {rank() + 1} of {count()} ends, because another process of this run or the launcher has ended. "
            f"{remedy()}"
        ) from None
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, previous_handler)


class _Ended(BaseException):
    """SIGTERM arrived. It is a BaseException, so that no handler catches it."""


def _on_sigterm(number: int, frame: object) -> None:
    raise _Ended


def _is_broken_connection(error: RuntimeError) -> bool:
    import torch.distributed as dist

    phrases = ("gloo", "connection closed by peer", "connection reset", "broken pipe", "nccl")
    return isinstance(error, dist.DistError) or any(text in str(error).lower() for text in phrases)


@cache
def _control() -> Any:
    """Process group for Python objects: gloo, with the timeout `PATIENCE`."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=PATIENCE)


def share(value: T) -> T:
    """Return the first process's value in all processes."""
    if count() == 1:
        return value
    import torch
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0, group=_control(), device=torch.device("cpu"))
    return values[0]


def first_process_value(function: Callable[[], T]) -> T:
    """Call a function in the first process only; return its value in all processes."""
    if count() == 1:
        return function()
    if not is_first():
        return share(None)  # type: ignore[return-value]
    with as_single_process():
        value = function()
    return share(value)


def all_values(value: T) -> list[T]:
    """Return the values of all processes, in the order of their ranks."""
    if count() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group=_control())
    return values


@contextmanager
def in_turn() -> Iterator[None]:
    """Run the block in the first process, and then in the others."""
    if not is_first():
        share(None)
    yield
    if is_first():
        share(None)


@contextmanager
def training(learn: Learner) -> Iterator[None]:
    """fastai's distributed training for a learner that is the same in all processes."""
    if count() == 1:
        yield
        return
    from learners.distributed.shards import distribute

    with distribute(learn, rank(), count()):
        yield


@contextmanager
def single_process(learn: Learner) -> Iterator[None]:
    """Within `training`, use the learner as in a single process; all processes must enter this block."""
    if count() == 1:
        yield
        return
    from learners.distributed.shards import undistribute

    with undistribute(learn, plain_loaders(learn)):
        yield


def plain_model(learn: Learner) -> Any:
    """The learner's network without the wrapper of distributed training."""
    return getattr(learn.model, "module", learn.model)


def this_process_part(loader: Any) -> Any:
    """Loader of this process's part of each batch; the loader itself for a single process."""
    if count() == 1:
        return loader
    from learners.distributed.shards import Shard

    return Shard(loader, rank(), count())


def plain_loaders(learn: Learner) -> list[Any]:
    """The learner's loaders of all items, without `Shard`."""
    if count() == 1:
        return list(learn.dls.loaders)
    from learners.distributed.shards import Shard

    return [loader.dl if isinstance(loader, Shard) else loader for loader in learn.dls.loaders]
