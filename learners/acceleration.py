"""A network or a learner -> the same numbers sooner on a CPU.

What each part brings stands in docs/decisions.md, "Speed". With ``SECONDHAND_ACCELERATION=0`` in the
environment none of them does anything: the tests pass either way. No import does anything by itself, and
none of torch: commands call what is for a whole process before torch is loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from learners.machine import has_cuda, keep_thread_count

if TYPE_CHECKING:
    from fastai.learner import Learner
    from torch import nn

T = TypeVar("T")
R = TypeVar("R")

#: OpenMP's threads and, after 2^4 cycles, OpenBLAS's sleep while they wait. One that spins takes the
#: core that its fellows, or a worker that decodes pictures, need.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}


def is_on() -> bool:
    """Whether anything here is done: not with ``SECONDHAND_ACCELERATION=0`` in the environment."""
    return os.environ.get("SECONDHAND_ACCELERATION") != "0"


def accelerate(model: Learner | nn.Module) -> None:
    """Keep a network's feature maps channels-last, which computes the same sooner.

    A learner is given a callback that does so, before its first fit; a network is changed in place.
    """
    if not is_on():
        return
    import torch  # not before: what is answered without it is answered sooner
    from torch import nn

    if isinstance(model, nn.Module):
        model.to(memory_format=torch.channels_last)
        return
    from fastxtend.callback.channelslast import ChannelsLast

    model.add_cb(ChannelsLast())


class SingleThreadPool:
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

    with keep_thread_count():  # a thread's number becomes that of every later one
        pool = ThreadPoolExecutor(count, initializer=begin)
        for done in [pool.submit(int) for _ in range(count)]:
            done.result()
    return pool


def let_waiting_threads_sleep() -> None:
    """Sets `SLEEPING` where the user has not. Read as torch and NumPy are loaded: call it before."""
    if is_on():
        for name, value in SLEEPING.items():
            os.environ.setdefault(name, value)


def keep_memory() -> bool:
    """Let the C library keep the memory of activations from one batch to the next. True if it does.

    It gives large blocks back to the system as soon as they are free, and every batch then touches
    them anew, a page fault each 4 KiB. glibc only; elsewhere nothing is done.
    """
    if not is_on():
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6" if sys.platform == "linux" else None).mallopt
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return False
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
    # One arena: those of other threads are too small for activations, and give them back.
    wanted = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_arena_max: 1}
    return all(mallopt(*setting) for setting in wanted.items())


def keep_memory_on_cpu(device: str) -> None:
    """`keep_memory`, where ``--device`` means the CPU. Each command calls it that computes."""
    if device == "cpu" or (device == "auto" and not has_cuda()):
        keep_memory()
