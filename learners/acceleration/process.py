"""What makes a whole process quicker: for commands to call, and programs that want it.

No import and no class does so by itself, and nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import os
import sys

from learners.machine import cuda_here

#: OpenMP's threads and, after 2^4 cycles, OpenBLAS's sleep while they wait. One that spins takes the
#: core that its fellows, or a worker that decodes pictures, need.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}


def is_on() -> bool:
    """Whether this room does anything: not with ``SECONDHAND_ACCELERATION=0`` in the environment."""
    return os.environ.get("SECONDHAND_ACCELERATION") != "0"


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
    if device == "cpu" or (device == "auto" and not cuda_here()):
        keep_memory()
