"""What a forked worker does first: one thread, no connections of its parent's, an end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import threading
from contextlib import suppress

#: A network's threads wait for the slowest among them: who works ahead of it takes the time that
#: they leave (a tenth of it, should the caller's cores be taken altogether by others).
BEHIND = 10


def settle_in(held: frozenset[int]) -> None:
    """One thread for each worker, or all of them contend for every core; and no orphans."""
    from threadpoolctl import threadpool_limits

    _let_go_of(held)
    threadpool_limits(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the parent does then is not for a worker
    threading.Thread(target=_end_with_parent, daemon=True).start()


def settle_quietly(held: frozenset[int]) -> None:
    """Ctrl-C is for the process that asks, which ends these; the processor is its own first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(BEHIND)
    settle_in(held)


def connections() -> dict[int, int]:
    """Sockets and pipes that are open here, by their descriptors: what identifies each."""
    found: dict[int, int] = {}
    if os.path.isdir("/proc/self/fd"):
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the listing's own is closed by now
                state = os.fstat(number)
                if number > 2 and (stat.S_ISSOCK(state.st_mode) or stat.S_ISFIFO(state.st_mode)):
                    found[number] = state.st_ino
    return found


def _let_go_of(held: frozenset[int]) -> None:
    """A fork holds what its parent is connected to: who waits for its end would wait for this one.

    The numbers stay taken, by the null device: objects that stand for them here close nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number, connection in connections().items():
        if connection in held:
            os.dup2(null, number)
    os.close(null)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
