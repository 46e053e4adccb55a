"""Work spread over processes, of which one may die without taking the rest with it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CRASHED = "the process that read it died (a fault in the decoder, or out of memory)"
AHEAD = 2  # chunks handed to each worker: one at work, one waiting


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
    left = deque(range(len(chunks)))
    while left:
        running: dict[Future[list[R]], int] = {}
        pool = _pool(count)
        try:
            while left or running:
                while left and len(running) < AHEAD * count:
                    running[pool.submit(task, chunks[left[0]])] = left[0]
                    left.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answers = future.result()
                    yield running.pop(future), answers
        except BrokenProcessPool:
            suspects = sorted(running.values())
            log.warning("a worker died; what it may have read is tried one file at a time")
        else:
            suspects = []
        finally:
            pool.shutdown(cancel_futures=True)
        for number in suspects:
            yield number, [_alone(task, item, crashed) for item in chunks[number]]


def _alone(task: Callable[[list[T]], list[R]], item: T, crashed: R) -> R:
    """The answer for one item from a process that may die."""
    with _pool(1) as pool:
        try:
            return pool.submit(task, [item]).result()[0]
        except BrokenProcessPool:
            return crashed


def _pool(count: int) -> ProcessPoolExecutor:
    """Workers; on Linux forked, as torch's loaders are: they are at work at once.

    A fresh interpreter first imports for as long as a hundred pictures take.
    """
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_settle_in)


def _settle_in() -> None:
    """One thread for each worker, or all of them contend for every core; and no orphans."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the parent does then is not for a worker
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
