"""Speeds up computing on a CPU without changing results.

docs/decisions.md, "Speed", gives the gain of each part. ``SECONDHAND_ACCELERATION=0`` in the environment
turns all of them off. Importing this module changes nothing and does not import torch: commands call the
functions for a whole process before torch is loaded.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from learners.machine.hardware import has_cuda, keep_thread_count

if TYPE_CHECKING:
    from fastai.learner import Learner
    from torch import nn

T = TypeVar("T")
R = TypeVar("R")

#: Waiting threads of OpenMP sleep, and those of OpenBLAS after 2^4 cycles. Spinning threads would take
#: the cores of threads that compute and of workers that decode pictures.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}


def is_on() -> bool:
    """Whether acceleration is on: not with ``SECONDHAND_ACCELERATION=0`` in the environment."""
    return os.environ.get("SECONDHAND_ACCELERATION") != "0"


@contextmanager
def few_collections() -> Iterator[Callable[[], None]]:
    """Collect no garbage until what is given is called, and do not look through what there is then.

    What importing modules and loading a model makes stays; to look through it again and again takes a tenth of the time of an
    answer.
    """
    if not (gc.isenabled() and is_on()):
        yield lambda: None
        return

    def loaded() -> None:
        gc.freeze()
        gc.enable()

    gc.disable()
    try:
        yield loaded
    finally:
        gc.unfreeze()
        gc.enable()


def accelerate(model: Learner | nn.Module) -> None:
    """Use the channels-last memory format, which is faster with the same results.

    A network is changed in place; a learner gets a callback that does so, before its first fit.
    """
    if not is_on():
        return
    import torch  # here, for commands that need no torch start faster
    from torch import nn

    if isinstance(model, nn.Module):
        model.to(memory_format=torch.channels_last)
        return
    from fastxtend.callback.channelslast import ChannelsLast

    model.add_cb(ChannelsLast())


class SingleThreadPool:
    """Runs the chunks of a batch in parallel, each computing on a single thread.

    Threads that share a batch wait for the slowest of them after every layer; chunks wait only once.

    Parameters
    ----------
    start : makes a pool of the given number of threads; by default torch uses one thread in each.
    """

    def __init__(self, start: Callable[[int], ThreadPoolExecutor] | None = None) -> None:
        self._start = start or _single_threads
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._lock = threading.Lock()

    def map(self, task: Callable[[T], R], chunks: Sequence[T]) -> list[R]:
        """Results of ``task`` in the order of the chunks; use at most `learners.machine.hardware.threads` chunks."""
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
        torch.get_num_threads()  # the first call would overwrite a number set before
        torch.set_num_threads(1)
        begun.wait()

    with keep_thread_count():  # torch gives new threads the number that was set last
        pool = ThreadPoolExecutor(count, initializer=begin)
        for done in [pool.submit(int) for _ in range(count)]:
            done.result()
    return pool


def let_waiting_threads_sleep() -> None:
    """Set the variables `SLEEPING` unless the user has; call this before torch and NumPy are imported."""
    if is_on():
        for name, value in SLEEPING.items():
            os.environ.setdefault(name, value)


def keep_memory() -> bool:
    """Let glibc keep the memory of activations between batches; return whether that worked.

    By default glibc returns large blocks to the system at once, and each batch pays a page fault per
    4 KiB. Does nothing on other systems.
    """
    if not is_on():
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6" if sys.platform == "linux" else None).mallopt
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return False
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
    # One arena: those of other threads are too small for activations and return them.
    settings = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_arena_max: 1}
    return all(mallopt(*setting) for setting in settings.items())


def keep_memory_on_cpu(device: str) -> None:
    """Call `keep_memory` where ``--device`` means the CPU."""
    if device == "cpu" or (device == "auto" and not has_cuda()):
        keep_memory()
