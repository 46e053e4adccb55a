"""Work on a Dask cluster: chunks go to its workers, answers are gathered as they come.

    dask scheduler --host 10.0.0.1                                  # on one machine
    dask worker tcp://10.0.0.1:8786 --nworkers 8 --nthreads 1       # on each that shall work
    python -m datasets.render calls/ --out pictures/ --cache-dir /shared/cache --cluster tcp://10.0.0.1:8786

`--cluster local` is Dask's own `LocalCluster` of processes on this machine, that listen on loopback
alone and let nobody in without this run's own TLS certificate.

- All of them need this program at the same version, and see the files under the same paths.
- A chunk is a pure task named by its content. If its worker dies, another one does it again, and
  each item has one answer. A chunk that has outlived as many workers as the scheduler allows
  (`distributed.scheduler.allowed-failures`, 3; of a local cluster 1) is tried one item at a time
  with nothing else under way: the item that kills them is a bad file, the others are answered.
- Pictures are written by the workers into the cache folder, beside and then renamed, and only
  their names come back: what a lost worker had drawn is found there and not drawn again. So the
  cache has to lie in a folder that all see (`--cache-dir`), which is checked.

Dask's protocol runs code: who reaches a scheduler runs programs as its user, and as the users of
its workers. Connect to schedulers that you trust, let them listen on trusted networks alone, or use
`tls://` with certificates in Dask's own configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import pickle
import re
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from os.path import exists
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from datasets import RENDERER_VERSION
from datasets.core.errors import SecondhandError
from datasets.core.processes import cores
from datasets.core.program import extra
from datasets.core.upstream import logger_levels

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CONNECT = 10.0  # seconds for a scheduler to answer
PATIENCE = 60.0  # seconds without any worker
POLL = 2.0  # seconds between looks at whether there are workers
AHEAD = 3  # chunks handed out for each thread of the cluster
DEATHS = 1  # of a local cluster's workers that a chunk outlives


class Report(NamedTuple):
    """A worker's results for a chunk, one per item, or the reason why it cannot work."""

    results: list[Any]
    worker: str
    wrong: str = ""


def run_chunk(payload: bytes) -> Report:
    """Run a chunk in a worker; returns its results or the reason why the worker cannot work."""
    from distributed import get_worker
    from threadpoolctl import threadpool_limits

    worker = f"{get_worker().address} on {socket.gethostname()}"
    version, task, chunk, paths, marker = pickle.loads(payload)
    if version != RENDERER_VERSION:
        return Report([], worker, "runs another version of this program; install the same")
    if marker is not None and not marker.exists():
        wrong = f"does not see the folder {marker.parent} that is meant; name a shared one"
        return Report([], worker, wrong)
    for path in paths:
        # Before the work, which would store the failure in a cache that others share.
        if not exists(path):
            wrong = f"does not see {path}; files must lie where all workers have them by this name"
            return Report([], worker, wrong)
    try:
        with threadpool_limits(1):
            return Report(task(chunk), worker)
    except SecondhandError as error:
        return Report([], worker, f"says: {error}")


@contextlib.contextmanager
def shared_marker(folder: Path | None) -> Iterator[Path | None]:
    """Create a marker file, by which workers can tell that they see the same folder."""
    if folder is None:
        yield None
        return
    marker = folder / f"{uuid.uuid4().hex}.shared"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise SecondhandError(f"the folder {folder} cannot be written: {error}") from error
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


class Cluster:
    """A connected Dask scheduler; created by `connect`."""

    def __init__(self, client: Any, address: str, patience: float = PATIENCE) -> None:
        self._client, self._patience, self.address = client, patience, address
        self._counted, self._threads = 0.0, 0

    def map_chunks(
        self,
        task: Callable[[list[T]], list[R]],
        chunks: Sequence[list[T]],
        crashed: R,
        *,
        path_of: Callable[[T], str] | None = None,
        folder: Path | None = None,
    ) -> Iterator[tuple[int, list[R]]]:
        """Apply `task` to each chunk; yields (chunk number, results) as they are finished.

        Parameters
        ----------
        task : a function of a module that the workers have; gives one answer an item.
        chunks : lists of items.
        crashed : the answer for an item that kills its workers.
        path_of : the absolute path of an item's file; it must be there for the workers if it is
            for this process.
        folder : a folder that all workers must see and write to; made if it is not there.

        Raises
        ------
        SecondhandError : the scheduler is lost, there are no workers for a minute, or one of them
            does not see what it should.
        """
        pending = deque(range(len(chunks)))
        with shared_marker(folder) as marker:

            def send(chunk: list[T], number: int | str) -> Any:
                # Files that are not there for this process need not be there for the worker.
                paths = [path for path in map(path_of, chunk) if exists(path)] if path_of else []
                # Pickled here, so that Dask looks for no graphs in it; the key is made from all of it.
                payload = pickle.dumps((RENDERER_VERSION, task, chunk, paths, marker))
                key = f"secondhand-{number}-{hashlib.sha256(payload).hexdigest()}"
                return self._client.submit(run_chunk, payload, key=key)

            while pending:
                suspects = []
                # When workers die, what is under way ends first: it shall not be blamed, or killed.
                for number, results in self._until_deaths(send, chunks, pending):
                    if results is None:
                        suspects.append(number)
                    else:
                        yield number, results
                if suspects:
                    log.warning("workers died; what they may have read is tried file by file")
                for number in suspects:
                    yield (
                        number,
                        [self._alone(send([item], "alone"), crashed) for item in chunks[number]],
                    )

    def _until_deaths(
        self, send: Callable[[list[T], int], Any], chunks: Sequence[list[T]], pending: deque[int]
    ) -> Iterator[tuple[int, list[Any] | None]]:
        """Yield results by chunk; after the first None (its workers died) no more chunks are started."""
        running: dict[Any, int] = {}
        died = False
        while running or (pending and not died):
            while pending and not died and len(running) < self._ahead():
                number = pending.popleft()
                running[send(chunks[number], number)] = number
            for future in self._ready(running):
                results = self._answers(future)
                died |= results is None
                yield running.pop(future), results

    def _alone(self, future: Any, crashed: R) -> R:
        self._ready({future: 0})
        results = self._answers(future)
        return crashed if results is None else results[0]

    def _ready(self, running: dict[Any, int]) -> list[Any]:
        """Wait for at least one future; returns those that are done."""
        from distributed import wait

        last_seen = time.monotonic()
        while True:
            try:
                with self._client.as_current():
                    return list(wait(list(running), POLL, return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                self._counted = 0.0
                if self._ahead() > 1:
                    last_seen = time.monotonic()
            except CancelledError:
                raise self._lost() from None
            if time.monotonic() - last_seen >= self._patience:
                raise SecondhandError(
                    f"--cluster {self.address}: no workers for {self._patience:.0f} s; "
                    "start some with `dask worker`"
                )

    def _ahead(self) -> int:
        """Number of chunks to have in progress; 1 without workers."""
        if time.monotonic() - self._counted >= POLL or not self._counted:
            try:
                self._threads = sum(self._client.nthreads().values())
            except (OSError, CancelledError):
                raise self._lost() from None
            self._counted = time.monotonic()
        return max(1, AHEAD * self._threads)

    def _answers(self, future: Any) -> list[Any] | None:
        """Results of a future; None if too many workers died over it."""
        from distributed import KilledWorker

        try:
            report = future.result(timeout=self._patience)
        except KilledWorker:
            return None
        except (CancelledError, OSError):
            raise self._lost() from None
        except Exception as error:
            raise SecondhandError(
                f"--cluster {self.address}: the work was not accepted "
                f"({type(error).__name__}: {str(error)[:300]}); scheduler and workers need this "
                "program, Python and Dask at the versions that are here"
            ) from error
        if report.wrong:
            raise SecondhandError(
                f"--cluster {self.address}: worker {report.worker} {report.wrong}"
            )
        future.release()  # or it is done again when the worker that holds it dies
        return list(report.results)

    def _lost(self) -> SecondhandError:
        return SecondhandError(
            f"--cluster {self.address}: the scheduler was lost; start it and give the same command "
            "again"
        )


@contextlib.contextmanager
def connect(
    address: str,
    *,
    workers: int | None = None,
    timeout: float = CONNECT,
    patience: float = PATIENCE,
) -> Iterator[Cluster]:
    """Connect to a cluster for the length of a `with` block; a local one ends with it.

    Parameters
    ----------
    address : `tcp://HOST:PORT` or `tls://HOST:PORT` of a Dask scheduler, or "local".
    workers : processes of a local cluster; None for one a core.
    timeout : seconds within which the scheduler must answer.
    patience : seconds without any worker until the work is given up.

    Raises
    ------
    SecondhandError : a wrong address, no Dask, no scheduler there, or no workers.
    """
    if address != "local" and not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        raise SecondhandError(
            f"--cluster {address!r}: neither local nor the address of a scheduler, as "
            "tcp://10.0.0.1:8786"
        )
    try:
        from distributed import Client
    except ImportError:
        raise SecondhandError(f"--cluster {address}: needs Dask: {extra('cluster')}") from None
    with contextlib.ExitStack() as stack:
        where: Any = address
        # Dask tells of each lost worker; here what becomes of the files is told.
        stack.enter_context(logger_levels(logging.CRITICAL, "distributed", "distributed.client"))
        if address == "local":
            where = stack.enter_context(_local(cores() if workers is None else workers))
        try:
            if address != "local":
                _greet(address, timeout)
            client = stack.enter_context(Client(where, timeout=timeout, set_as_default=False))
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            if "workers" not in str(error):
                raise _absent(address, timeout) from None
            raise SecondhandError(
                f"--cluster {address}: the scheduler has no workers; start some with "
                f"`dask worker {address}`"
            ) from None
        except OSError:
            raise _absent(address, timeout) from None
        yield Cluster(client, address, patience)


def _absent(address: str, timeout: float) -> SecondhandError:
    return SecondhandError(
        f"--cluster {address}: no scheduler answers there within {timeout:.0f} s; start one with "
        "`dask scheduler`, mend the address, or use --cluster local"
    )


@contextlib.contextmanager
def _local(workers: int) -> Iterator[Any]:
    """Start a local cluster of single-threaded workers, on loopback with its own certificates."""
    import dask
    from distributed import LocalCluster

    # No pages: they need no certificate.
    settings: dict[str, Any] = {f"distributed.{x}.http.routes": [] for x in ("scheduler", "worker")}
    # A worker that died is missed for longer than a busy machine takes to start the next one.
    settings["distributed.deploy.lost-worker-timeout"] = "1h"
    with (
        _environment_kept(),
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            security=True,  # else every user of this machine could run programs as this one
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=None,  # Dask would stop a worker that keeps much, as torch does
            scheduler_kwargs={"allowed_failures": DEATHS, "dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        yield cluster


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Dask writes what its workers are to have, a thread each, into the environment of this process:
    every program started later would compute with one thread."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _greet(address: str, timeout: float) -> None:
    """Raise an OSError unless a scheduler answers: Dask's client waits for ever for its first word."""
    from distributed import Security
    from distributed.comm.core import connect

    async def exchange() -> None:
        security = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=timeout, **security), timeout)
        comm.abort()

    with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own in this one
        thread.submit(asyncio.run, exchange()).result()
