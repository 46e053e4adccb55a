"""Distributed runs: ``accelerate launch -m learners.finetune …`` or ``torchrun -m``.

All processes do the same, except that each trains on its part of every batch once the body is trained, too. Only the
first one reads and renders the data, makes decisions and writes the run folder; it sends the others what they need.
Without a launcher there is one process, and the functions here do nothing and import nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from datasets.core.errors import SecondhandError
from learners.upstream import as_single_process

T = TypeVar("T")

#: How long a process waits for another that renders or downloads. After a crash the launcher ends the others at once.
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
    no_gpu = cpu_forced or not torch.cuda.is_available()
    if device_setting == "cpu" or (device_setting == "auto" and no_gpu):
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
    SecondhandError : they cannot; the message gives the next larger size that they can.
    """
    if bs % count() or bs // count() < 2 <= count():
        larger = max(2, -(-bs // count())) * count()
        raise SecondhandError(
            f"--bs {bs} is the batch size of all processes together, and {count()} processes cannot share it equally "
            f"with at least 2 items each. Use --bs {larger}"
        )


@contextmanager
def process_group(device_setting: str) -> Iterator[None]:
    """Open the process group for the block: NCCL between GPUs, gloo between CPUs and for Python objects.

    Raises
    ------
    SecondhandError : another process has ended.
    """
    if count() == 1:
        yield
        return
    import torch

    if (own := device(device_setting)) != "cpu":
        torch.cuda.set_device(own)
    try:
        torch.distributed.init_process_group(timeout=PATIENCE)
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error).lower():
            raise
        raise SecondhandError(
            f"Process {rank() + 1} of {count()} ends, because another process of this run or the launcher has ended. "
            "Its message says why"
        ) from None


def close_group() -> None:
    """Close the process group; the first process continues alone."""
    if count() > 1:
        import torch

        torch.distributed.destroy_process_group()


def first_process_value(function: Callable[[], T]) -> T:
    """Call a function in the first process only; return its value in all processes."""
    if count() == 1:
        return function()
    import torch

    values: list[Any] = [None]
    if is_first():
        with as_single_process():
            values = [function()]
    torch.distributed.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]
