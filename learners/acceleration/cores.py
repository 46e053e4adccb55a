"""Calls side by side, each on a core of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from learners.machine import threads_kept

T = TypeVar("T")
R = TypeVar("R")


class CoreEach:
    """Calls side by side, each with one thread to compute on: the chunks of a batch.

    Threads that share a batch wait for the slowest of them after every layer, and all of them where
    a core is taken from one; chunks wait once.

    Parameters
    ----------
    start : makes a pool of so many threads; by default such that torch computes on one in each.
    """

    def __init__(self, start: Callable[[int], ThreadPoolExecutor] | None = None) -> None:
        self._start = start or _single_threads
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._lock = threading.Lock()

    def map(self, task: Callable[[T], R], chunks: Sequence[T]) -> list[R]:
        """The results in order; at most `learners.machine.threads` chunks make sense."""
        with self._lock:
            if self._pool is None or self._threads < len(chunks):
                if self._pool is not None:
                    self._pool.shutdown(wait=False)
                self._pool, self._threads = self._start(len(chunks)), len(chunks)
            return list(self._pool.map(task, chunks))


def _single_threads(count: int) -> ThreadPoolExecutor:
    import torch

    begun = threading.Barrier(count)

    def begin() -> None:
        torch.get_num_threads()  # the first question gives a thread the number of the process
        torch.set_num_threads(1)
        begun.wait()

    with threads_kept():  # a thread's number becomes that of every later one
        pool = ThreadPoolExecutor(count, initializer=begin)
        for done in [pool.submit(int) for _ in range(count)]:
            done.result()
    return pool
