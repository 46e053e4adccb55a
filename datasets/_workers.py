"""Work spread over processes, of which one may die without taking the rest with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CRASHED = "the process that read it died (a fault in the decoder, or out of memory)"


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(
    task: Callable[[list[T]], list[R]], chunks: Sequence[list[T]], workers: int | None, crashed: R
) -> Iterator[tuple[int, list[R]]]:
    """Apply `task` to each chunk: yields (number of the chunk, its answers) as they come.

    Parameters
    ----------
    task : picklable; gives one answer an item.
    chunks : lists of items.
    workers : processes; None for one a core, 1 for none but this one.
    crashed : the answer for an item that kills its process.
    """
    count = min(cores() if workers is None else workers, len(chunks))
    if count <= 1:
        for number, chunk in enumerate(chunks):
            yield number, task(chunk)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = list(range(len(chunks)))
    while left:
        try:
            # One thread each: workers that all use every core slow one another down.
            with parallel_config("loky", n_jobs=count, inner_max_num_threads=1):
                run = Parallel(return_as="generator_unordered", batch_size=1)
                for number, answers in run(
                    delayed(_numbered)(task, number, chunks[number]) for number in tuple(left)
                ):
                    left.remove(number)
                    yield number, answers
        except TerminatedWorkerError:
            # Chunks are handed out in order, at most two a worker ahead: one of these did it.
            suspects = left[: 3 * count]
            log.warning("a worker died; its %d chunks are tried one file at a time", len(suspects))
            for number in suspects:
                left.remove(number)
                yield number, [_alone(task, item, crashed) for item in chunks[number]]


def _numbered(
    task: Callable[[list[T]], list[R]], number: int, chunk: list[T]
) -> tuple[int, list[R]]:
    return number, task(chunk)


def _alone(task: Callable[[list[T]], list[R]], item: T, crashed: R) -> R:
    """The answer for one item from a process that may die."""
    from concurrent.futures.process import BrokenProcessPool

    from joblib.externals.loky import get_reusable_executor

    try:
        return get_reusable_executor(max_workers=1).submit(task, [item]).result()[0]
    except BrokenProcessPool:
        return crashed
