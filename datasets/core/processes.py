"""Parallel work in processes that may crash, hang or ask for too much memory without ending the run."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from datasets.core import progress
from datasets.core.address import read_ahead
from datasets.core.errors import BadFile, Rejected
from datasets.core.limits import check_open_files
from datasets.core.upstream import close_writer_of_results, threads_of

log = logging.getLogger(__name__)

T = TypeVar("T")
X = TypeVar("X")
R = TypeVar("R")

CRASHED = "the process that read it crashed or hung (a fault in the decoder, or out of memory)"
_CHUNK = 32  # files that a worker looks at before it reports
AHEAD = 2  # chunks handed to each worker: one at work, one waiting
TIMEOUT = 600.0  # seconds that are waited for a chunk, or for one file alone
LOOK = 1.0  # seconds between looks whether a worker that is waited for still lives
GRACE = (
    10.0  # seconds that workers have to end what nobody waits for any more, before they are killed
)
FORKS = sys.platform == "linux"
#: Bytes that a worker may take beyond what it starts with. What is within the other limits needs less: a picture of
#: the most pixels 1.4 GB, the longest sound that is read at once 3.2 GB with its resampling.
ROOM = 8 << 30
#: Files for which one more process pays in a run: it costs about as much to start as these to open.
FILES_EACH = 32
#: Initialiser of a process: it gets the inodes of its parent's connections.
Settle = Callable[[frozenset[int]], None]


def cores() -> int:
    """Number of cores this process may use; ``PYTHON_CPU_COUNT`` overrides it, as in Python 3.13."""
    if (requested := os.environ.get("PYTHON_CPU_COUNT", "")).isdecimal() and int(requested):
        return int(requested)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(
    task: Callable[[list[T]], list[R]],
    chunks: Sequence[list[T]],
    workers: int | None,
    crashed: R,
    settle: Settle | None = None,
) -> Iterator[tuple[int, list[R]]]:
    """Apply `task` to each chunk; yields (chunk number, results) in order.

    With one worker and no fork, the work is done in this process, because a new one takes seconds to start.

    Parameters
    ----------
    task : picklable; returns one result per item.
    chunks : lists of items.
    workers : number of processes; None for one per core.
    crashed : result of an item that crashes its process or takes longer than `TIMEOUT` seconds.
    settle : initialiser of each process; default: `init_worker`.
    """
    count = min(cores() if workers is None else workers, len(chunks))
    if count <= 1 and not FORKS:
        for number, chunk in enumerate(chunks):
            yield number, task(chunk)
        return
    calls: IsolatedCalls[list[T], list[R] | None] = IsolatedCalls(
        task, count, None, settle or init_worker
    )
    try:
        work = calls.ahead(enumerate(chunks), AHEAD * count, argument=lambda numbered: numbered[1])
        for (number, chunk), results in work:
            if results is None:
                results = [_run_alone(task, [item], [crashed])[0] for item in chunk]
            yield number, results
    finally:
        calls.close()


def check_files(look: Callable[[str], R], paths: Sequence[str]) -> list[R | Rejected]:
    """Call ``look`` for each file; return the results in order, with a Rejected for each BadFile."""
    results: list[R | Rejected] = []
    for path in read_ahead(paths, str):
        try:
            results.append(look(path))
        except BadFile as error:
            results.append(Rejected(path, error.reason))
    return results


def check_files_isolated(
    look: Callable[[str], R], paths: Sequence[str], workers: int | None = None
) -> list[R | Rejected]:
    """`check_files` in processes (default: one per core); a crash rejects only the file being read."""
    chunks = [[*paths[first : first + _CHUNK]] for first in range(0, len(paths), _CHUNK)]
    died: R | Rejected = Rejected("", CRASHED)
    results: list[R | Rejected] = []
    with progress.step("Checking files", len(paths)) as advance:
        for _, checked in in_parallel(partial(check_files, look), chunks, workers, died):
            results += checked
            advance(len(results))
    return [
        Rejected(path, result.reason) if isinstance(result, Rejected) else result
        for path, result in zip(paths, results, strict=True)
    ]


class Pending(NamedTuple, Generic[T, R]):
    """Items that were submitted to `IsolatedCalls` together, and their future."""

    items: list[T]
    future: Future[list[R]]
    pool: Executor


class IsolatedCalls(Generic[T, R]):
    """Calls of one function in processes whose crashes or hangs do not affect this process.

    Without fork, threads are used: a spawned process would import the caller's script. Within `kept_pools` the processes
    may be those of earlier calls, which know of this process what it was when they were started: all that a task needs
    travels with it.

    Parameters
    ----------
    task : picklable, with picklable results.
    workers : number of processes, started at the first call.
    crashed : result of an item that crashes its process or takes longer than `TIMEOUT` seconds.
    settle : initialiser of each process; default: `init_background_worker`.
    """

    def __init__(
        self,
        task: Callable[[T], R],
        workers: int,
        crashed: R,
        settle: Settle | None = None,
    ) -> None:
        self.task, self.workers, self.crashed = task, workers, crashed
        self._settle = settle or init_background_worker
        self._pool: Executor | None = None
        self._kept = _kept.get()
        self._passes = 0  # of `ahead`, under way
        self._submitted: WeakSet[Future[list[R]]] = WeakSet()
        self._died: WeakSet[Executor] = WeakSet()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the processes now; a fork inherits all open files, so start before many are open."""
        with self._lock:
            if self._started() is None:
                self._pool = self._start()
                _submit(self._pool, os.getpid)

    def ahead(
        self, items: Iterable[X], count: int, *, argument: Callable[[X], T], chunk: int = 1
    ) -> Generator[tuple[X, R], None, None]:
        """Yield each item with its result, in order; about `count` items are submitted ahead.

        Parameters
        ----------
        items : consumed as they are needed.
        argument : maps an item to the argument of the function.
        chunk : items per submission. Each submission wakes threads on both sides, which costs half as
            much as opening a picture.
        """
        remaining = iter(items)
        waiting: deque[tuple[list[X], Pending[T, R]]] = deque()
        self._passes += 1
        try:
            while True:
                while len(waiting) * chunk < count and (batch := list(islice(remaining, chunk))):
                    waiting.append((batch, self.submit([argument(item) for item in batch])))
                if not waiting:
                    return
                batch, pending = waiting.popleft()
                yield from zip(batch, self.result(pending), strict=True)
        finally:
            for _, pending in waiting:
                pending.future.cancel()
            self._passes -= 1
            if self._kept is not None and self._is_idle():
                self.close()  # who asks next may get the processes

    def submit(self, items: list[T]) -> Pending[T, R]:
        """Submit items together; `result` waits for their results."""
        with self._lock:
            pool = self._started() or self._start()
            try:
                future = _submit(pool, _run_each, self.task, items)
            except BrokenProcessPool:  # it died while nothing was waited for
                self._drop(pool)
                pool = self._start()
                future = _submit(pool, _run_each, self.task, items)
            self._pool = pool
            self._submitted.add(future)
            return Pending(items, future, pool)

    def _is_idle(self) -> bool:
        return not self._passes and all(future.done() for future in [*self._submitted])

    def _started(self) -> Executor | None:
        """The pool, unless none is started, or it has ended with the `kept_pools` that it was of."""
        if self._kept is not None and self._kept.ended:
            self._kept = self._pool = None
        return self._pool

    def _start(self) -> Executor:
        if not may_fork():
            return ThreadPoolExecutor(self.workers)
        if self._kept is not None:
            return self._kept.take(self.workers, self._settle)
        return _pool(self.workers, self._settle)

    def _drop(self, pool: Executor) -> None:
        """End a pool that nobody shall use again."""
        if self._kept is not None:
            self._kept.forget(pool)
        _end(pool)

    def close(self) -> None:
        """Stop the processes and wait for them, or hand them on within `kept_pools`; the next call starts new ones."""
        with self._lock:
            pool, self._pool = self._started(), None
            kept, submitted = self._kept, [*self._submitted]
        if pool is None:
            return
        under_way = [future for future in submitted if not future.cancel()]
        if kept is None or wait(under_way, GRACE).not_done:
            self._drop(pool)
        else:
            kept.give_back(pool)

    def __del__(self) -> None:
        self.close()

    def result(self, pending: Pending[T, R]) -> list[R]:
        """Wait for the results; items of a crashed pool, or one without memory, are tried once more, one process each."""
        with suppress(BrokenProcessPool, MemoryError):
            try:
                return _result(pending.future, pending.pool)
            except CancelledError:
                # Items that waited in a pool when others ended it; but not those of `close`.
                if pending.pool not in self._died:
                    raise
        with self._lock:
            is_current = self._pool is pending.pool
            if is_current:
                log.warning(
                    "a worker process died: the files that it was reading are tried again one by one"
                )
                self._pool = None
                self._died.add(pending.pool)
        if is_current:
            self._drop(pending.pool)
        forks = may_fork()
        return [
            _run_alone(self.task, item, self.crashed) if forks else self.crashed
            for item in pending.items
        ]


class KeptPools:
    """Pools of processes that one user hands on to the next of the same kind, see `kept_pools`.

    Attributes
    ----------
    ended : whether all are ended, and none is started any more.
    """

    def __init__(self) -> None:
        self.ended = False
        self._most: int | None = None
        self._kinds: dict[Executor, tuple[Settle, int]] = {}
        self._idle: list[Executor] = []
        # Garbage may be collected, and give a pool back, in any line.
        self._lock = threading.RLock()

    def take(self, workers: int, settle: Settle) -> Executor:
        """A pool of at least so many processes, but of no more than `renew` has said."""
        with self._lock:
            count = min(workers, self._most or workers)
            idle = [pool for pool in self._idle if self._kinds[pool][0] is settle]
            for pool in idle:
                self._idle.remove(pool)
                if self._kinds[pool][1] >= count:
                    return pool
                self.forget(pool)
                _end(pool)  # a larger one follows
            pool = _pool(count, settle)
            self._kinds[pool] = settle, count
            return pool

    def give_back(self, pool: Executor) -> None:
        """Keep a pool for the next user, or end it if there will be none."""
        with self._lock:
            if not self.ended and pool in self._kinds:
                self._idle.insert(0, pool)
                return
        _end(pool)

    def forget(self, pool: Executor) -> None:
        """Keep a pool no longer."""
        with self._lock:
            self._kinds.pop(pool, None)

    def renew(self, most: int, settle: Settle) -> None:
        """End the pools that nobody uses, and start one of ``most`` processes, the most of each from now on."""
        with self._lock:
            self._most, idle = most, self._idle
            self._idle = []
            for pool in idle:
                self.forget(pool)
                _end(pool)
            pool = self.take(most, settle)
            _submit(pool, os.getpid)
            self.give_back(pool)

    def end(self, *, at_once: bool) -> None:
        """End all; ``at_once`` : without waiting for what they do."""
        with self._lock:
            self.ended, pools, self._kinds, self._idle = True, [*self._kinds], {}, []
        for pool in pools:
            if at_once:
                _kill(_workers(pool))
            _end(pool)


_kept: ContextVar[KeptPools | None] = ContextVar("_kept", default=None)


@contextmanager
def kept_pools() -> Iterator[None]:
    """Keep the processes of `IsolatedCalls` and `in_parallel` that are made in the block by this thread, until its end.

    They start once instead of for each use. At the end none is left: after an error, or Ctrl-C, they are killed.
    """
    kept, failed = KeptPools(), True
    token = _kept.set(kept)
    try:
        yield
        failed = False
    finally:
        _kept.reset(token)
        kept.end(at_once=failed)


def renew_kept_pools(most: int) -> None:
    """Start the processes of `kept_pools` anew, ``most`` of each kind: now, because they have then what is imported, and
    a process forks fast before it uses a GPU. Without such a block, nothing is done."""
    if (kept := _kept.get()) is not None and may_fork():
        kept.renew(most, init_background_worker)


def processes_for(files: int, workers: int | None = None) -> int:
    """Number of processes that open the files of a run: ``workers`` if that is above 0, else one for each `FILES_EACH`
    files, at most one per core."""
    return workers or max(1, min(cores(), -(-files // FILES_EACH)))


def may_fork() -> bool:
    """Whether processes can be forked here; daemons such as a cluster's workers may not."""
    return FORKS and not multiprocessing.current_process().daemon


def call_isolated(task: Callable[[T], R], item: T, crashed: R) -> R:
    """Call a function in its own process, or in this one if fork is not available."""
    return _run_alone(task, item, crashed) if may_fork() else task(item)


def _run_each(task: Callable[[T], R], items: list[T]) -> list[R]:
    return [task(item) for item in items]


def _run_alone(task: Callable[[T], R], item: T, crashed: R) -> R:
    """Result for one item, computed in its own process."""
    pool = _pool(1, init_worker)
    try:
        return _result(_submit(pool, task, item), pool)
    except (BrokenProcessPool, MemoryError):
        return crashed
    finally:
        _end(pool)


def _submit(pool: Executor, task: Callable[..., R], *arguments: Any) -> Future[R]:
    if not isinstance(pool, ProcessPoolExecutor):
        return pool.submit(task, *arguments)
    try:
        future = pool.submit(_run, task, *arguments)
    except OSError:
        # Not all of its processes could be started. The interpreter would wait for the others.
        _kill(_workers(pool))
        raise
    close_writer_of_results(pool)  # its processes start with the first task
    return future


def _run(task: Callable[..., R], *arguments: Any) -> R:
    """Run a task in a worker; raises what its initialisation has raised."""
    if _unsettled is not None:
        check_open_files(_unsettled)
        raise _unsettled
    return task(*arguments)


def _result(future: Future[R], pool: Executor) -> R:
    """Wait for a result, at most `TIMEOUT` seconds.

    Raises
    ------
    BrokenProcessPool : it took longer, or a worker died; the others have been killed then. A worker that dies while it
        sends a result, or while it takes a task, leaves the lock of a queue behind that the others wait for, so the
        pool alone would not always notice. And a task that is handed over while a pool breaks may be forgotten.
    """
    workers, deadline, died = _workers(pool), time.monotonic() + TIMEOUT, False
    while True:
        try:
            return future.result(min(LOOK, max(0.0, deadline - time.monotonic())))
        except TimeoutError:
            if future.done():  # in this moment, or it is the task's own error
                return future.result()
        # A pool that has noticed a death itself has ended the future by the second look.
        if died or time.monotonic() >= deadline:
            _kill(workers)
            raise BrokenProcessPool("a worker died or hung")
        has_no_workers = not workers and isinstance(pool, ProcessPoolExecutor)
        died = has_no_workers or any(map(_has_ended, workers))


def _workers(pool: Executor) -> list[BaseProcess]:
    return [*(pool._processes or {}).values()] if isinstance(pool, ProcessPoolExecutor) else []


def _has_ended(process: BaseProcess) -> bool:
    """Whether a process has ended. Its end stays to be seen by the thread of its pool, which waits for it."""
    try:
        return (
            os.waitid(os.P_PID, process.pid or 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        )
    except ChildProcessError:  # it has been waited for already
        return True


def _end(pool: Executor) -> None:
    """Shut a pool down and wait for it; what its workers do is not waited for any longer than `GRACE` seconds.

    Otherwise the exiting interpreter wakes the pool's thread through a pipe that may be closed already:
    `OSError: [Errno 9] Bad file descriptor`.
    """
    workers, threads = _workers(pool), threads_of(pool)
    pool.shutdown(wait=False, cancel_futures=True)
    _join(threads)
    if any(thread.is_alive() for thread in threads):
        _kill(workers)
        _join(threads)


def _join(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _kill(workers: Iterable[BaseProcess]) -> None:
    """Kill workers that hang, or that wait for one that died; their pool is broken then."""
    for process in workers:
        with suppress(ValueError):  # it has ended, and its pool has closed it
            process.kill()


def _pool(count: int, settle: Settle) -> ProcessPoolExecutor:
    """Pool of workers, forked on Linux as torch's loaders are.

    A new interpreter would spend as long on imports as on a hundred pictures.
    """
    import threadpoolctl  # noqa: F401  (here, so that not every worker reads it)

    context = multiprocessing.get_context("fork" if FORKS else "spawn")
    inherited = frozenset(connections().values() if FORKS else ())  # before the pool has its own
    return ProcessPoolExecutor(
        count, mp_context=context, initializer=_initialise, initargs=(settle, inherited)
    )


#: Why this worker could not be initialised.
_unsettled: OSError | None = None


def _initialise(settle: Settle, inherited: frozenset[int]) -> None:
    """Initialise a worker. Its tasks raise an error of that: here it would end the worker, and read as a crash."""
    global _unsettled
    _kept.set(None)  # the parent's pools are not this process's to use
    try:
        settle(inherited)
    except OSError as error:
        _unsettled = error


#: A network's threads wait for the slowest of them, so background workers run at a lower priority and
#: use the time that is left.
NICENESS = 10


def init_worker(inherited: frozenset[int]) -> None:
    """Initialise a worker: one thread, so that workers do not compete; it ends with its parent."""
    from threadpoolctl import threadpool_limits

    _detach_connections(inherited)
    _limit_memory()
    threadpool_limits(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler inherited from the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _limit_memory() -> None:
    """Let this process take `ROOM` bytes more, so that a file that claims too much fails before the machine does."""
    if not FORKS:
        return
    import resource

    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = {pages * resource.getpagesize() + ROOM, soft, hard} - {resource.RLIM_INFINITY}
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))


def init_background_worker(inherited: frozenset[int]) -> None:
    """Initialise a worker that ignores Ctrl-C and runs at a lower priority than its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):  # not on Windows
        os.nice(NICENESS)
    init_worker(inherited)


def connections() -> dict[int, int]:
    """Inodes of the open sockets and pipes, by file descriptor."""
    inodes: dict[int, int] = {}
    if os.path.isdir("/proc/self/fd"):
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the descriptor of the listing itself is closed by now
                state = os.fstat(number)
                if number > 2 and (stat.S_ISSOCK(state.st_mode) or stat.S_ISFIFO(state.st_mode)):
                    inodes[number] = state.st_ino
    return inodes


def _detach_connections(inherited: frozenset[int]) -> None:
    """Close the parent's connections in a fork; otherwise their peers would wait for this process, too.

    The descriptors are redirected to the null device, so that objects that own them close nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number, connection in connections().items():
        if connection in inherited:
            try:
                os.dup2(null, number)
            except OSError:  # above the limit of open files, where no other file gets its number
                os.close(number)
    os.close(null)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
