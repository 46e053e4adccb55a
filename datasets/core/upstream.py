"""Workarounds for Python's pools of processes and threads, which have no public hook to end them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor, ProcessPoolExecutor


def close_writer_of_results(pool: ProcessPoolExecutor) -> None:
    """Leave the pipe of a pool's results to its workers, once they are forked.

    The pool keeps an end to write to, although it only reads. If a worker is killed half way through a result, the
    pool's thread would wait for the other half for ever, because that end stays open.
    """
    pool._result_queue._writer.close()  # type: ignore[attr-defined]


def threads_of(pool: Executor) -> list[threading.Thread]:
    """The threads that end with a pool, without the calling one, which cannot wait for itself: garbage may be collected
    in any thread. A pool's own ``shutdown`` waits for them without a limit."""
    threads = [getattr(pool, "_executor_manager_thread", None), *getattr(pool, "_threads", ())]
    here = threading.current_thread()
    return [one for one in threads if isinstance(one, threading.Thread) and one is not here]
