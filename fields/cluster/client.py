"""Distributes work over a Dask cluster: workers process chunks of items, and results are collected.

    dask scheduler --host 10.0.0.1                                  # on one machine
    dask worker tcp://10.0.0.1:8786 --nworkers 8 --nthreads 1       # on each working machine
    secondhand render calls/ --out pictures/ --cache-dir /shared/cache --cluster tcp://10.0.0.1:8786

`--cluster local` starts Dask's `LocalCluster` on this machine. Its processes listen on loopback only and
require the TLS certificate of this run.

- All machines need the same version of this program, and the files under the same paths. Files that have an address
  are read by the workers themselves, with the credentials of their own environment.
- A chunk is a pure task, named by its content. If its worker dies, another worker repeats it, and each item has
  one result. If more workers die over a chunk than the scheduler allows
  (`distributed.scheduler.allowed-failures`, 3; 1 for a local cluster), its items are tried one at a time, with
  no other work in progress: an item that kills its workers is a bad file, and the others get results.
- Workers write spectrograms atomically into the cache folder and return only their names, so the spectrograms
  of a lost worker are not rendered again. All machines must share the cache folder (`--cache-dir`), which is
  checked.

Dask's protocol runs code: anyone who can reach a scheduler can run programs as its user, and as the users of its
workers. Connect only to schedulers that you trust, let them listen on trusted networks only, or use `tls://` with
certificates in Dask's configuration.
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
from itertools import filterfalse
from os.path import exists
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from datasets.core.address import is_address, work_for
from datasets.core.errors import SecondhandError
from datasets.core.logs import logger_levels
from datasets.core.processes import cores
from datasets.core.program import extra
from datasets.spectrograms.version import RENDERER_VERSION

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CONNECT = 10.0  # seconds for a scheduler to answer
PATIENCE = 60.0  # seconds to wait without any worker
POLL = 2.0  # seconds between checks for workers
AHEAD = 3  # chunks in progress per thread of the cluster
DEATHS = 1  # deaths of a local cluster's workers after which a chunk is not repeated


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
    version, task, chunk, paths, marker, run = pickle.loads(payload)
    if version != RENDERER_VERSION:
        return Report([], worker, "has another version of this program. Install the same one")
    if marker is not None and not marker.exists():
        wrong = f"does not see the folder {marker.parent}. Name a folder that all machines share (--cache-dir)"
        return Report([], worker, wrong)
    work_for(run)
    for path in paths:
        # Checked first, because the work would store the failure in the shared cache.
        if not exists(path):
            wrong = f"does not see {path}. Files must have the same path on all machines"
            return Report([], worker, wrong)
    try:
        with threadpool_limits(1):
            return Report(task(chunk), worker)
    except SecondhandError as error:
        return Report([], worker, f"reports: {error}")


def sent(name: str) -> Path:
    """Where a worker has a file that `Cluster.send` has sent."""
    from distributed import get_worker

    return Path(get_worker().local_directory, name)


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
        raise SecondhandError(
            f"the folder {folder} cannot be written ({error}). Choose another with --cache-dir"
        ) from error
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


class Cluster:
    """A connected Dask scheduler; created by `connect`."""

    def __init__(self, client: Any, address: str, patience: float = PATIENCE) -> None:
        self._client, self._patience, self.address = client, patience, address
        self._counted, self._threads, self._run = 0.0, 0, uuid.uuid4().hex

    def send(self, file: Path) -> None:
        """Give each worker a file, also those that begin later; see `sent`."""
        self._client.upload_file(str(file), load=False)

    def map_chunks(
        self,
        task: Callable[[list[T]], list[R]],
        chunks: Sequence[list[T]],
        crashed: R,
        *,
        path_of: Callable[[T], str] | None = None,
        folder: Path | None = None,
    ) -> Iterator[tuple[int, list[R]]]:
        """As `datasets.spectrograms.workers.Workers.map_chunks`.

        Raises
        ------
        SecondhandError : the scheduler is lost, there is no worker for a minute, or a worker does not see the
            files or the folder, or has another version.
        """
        pending = deque(range(len(chunks)))
        with shared_marker(folder) as marker:

            def send(chunk: list[T], number: int | str) -> Any:
                # Files that this process does not see need not be visible to the worker.
                names = filterfalse(is_address, map(path_of, chunk) if path_of else ())
                paths = [path for path in names if exists(path)]
                # Pickled here, so that Dask does not search it for graphs, and to make the key from it.
                payload = pickle.dumps((RENDERER_VERSION, task, chunk, paths, marker, self._run))
                key = f"secondhand-{number}-{hashlib.sha256(payload).hexdigest()}"
                return self._client.submit(run_chunk, payload, key=key)

            while pending:
                suspects = []
                # If a worker dies, the other chunks in progress end first, so that suspects are tried alone.
                for number, results in self._until_deaths(send, chunks, pending):
                    if results is None:
                        suspects.append(number)
                    else:
                        yield number, results
                if suspects:
                    log.warning(
                        "workers died: the files that they were reading are tried again one by one"
                    )
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
                results = self._results(future)
                died |= results is None
                yield running.pop(future), results

    def _alone(self, future: Any, crashed: R) -> R:
        self._ready({future: 0})
        results = self._results(future)
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
                    f"--cluster {self.address}: no workers for {self._patience:.0f} s. Start some with "
                    f"`dask worker {self.address}`"
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

    def _results(self, future: Any) -> list[Any] | None:
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
                f"--cluster {self.address}: a worker could not run the task "
                f"({type(error).__name__}: {str(error)[:300]}). Scheduler and workers need the same versions of "
                "this program, Python and Dask as this machine"
            ) from error
        if report.wrong:
            raise SecondhandError(
                f"--cluster {self.address}: worker {report.worker} {report.wrong}"
            )
        future.release()  # otherwise it is repeated if the worker that holds it dies
        return list(report.results)

    def _lost(self) -> SecondhandError:
        return SecondhandError(
            f"--cluster {self.address}: the connection to the scheduler was lost. Start it, and repeat the command"
        )


@contextlib.contextmanager
def connect(
    address: str,
    *,
    workers: int | None = None,
    timeout: float = CONNECT,
    patience: float = PATIENCE,
) -> Iterator[Cluster]:
    """Connect to a cluster for the length of a `with` block; a local cluster ends with the block.

    Parameters
    ----------
    address : `tcp://HOST:PORT` or `tls://HOST:PORT` of a Dask scheduler, or "local".
    workers : number of processes of a local cluster; None for one per core.
    timeout : seconds within which the scheduler must respond.
    patience : seconds to wait without any worker.

    Raises
    ------
    SecondhandError : the address is invalid, Dask is not installed, or there is no scheduler or no worker.
    """
    if address != "local" and not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        raise SecondhandError(
            f"--cluster {address!r}: not an address. Use local, or the address of a scheduler such as "
            "tcp://10.0.0.1:8786"
        )
    try:
        from distributed import Client
    except ImportError:
        raise SecondhandError(
            f"--cluster {address}: Dask is not installed. Install it: {extra('cluster')}"
        ) from None
    with contextlib.ExitStack() as stack:
        where: Any = address
        # Dask logs each lost worker; this program reports what happens to the files instead.
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
                f"--cluster {address}: the scheduler has no workers. Start some with `dask worker {address}`"
            ) from None
        except OSError:
            raise _absent(address, timeout) from None
        yield Cluster(client, address, patience)


def _absent(address: str, timeout: float) -> SecondhandError:
    return SecondhandError(
        f"--cluster {address}: no scheduler responds within {timeout:.0f} s. Start one with "
        "`dask scheduler`, correct the address, or use --cluster local"
    )


@contextlib.contextmanager
def _local(workers: int) -> Iterator[Any]:
    """Start a local cluster of single-threaded workers, on loopback with its own certificates."""
    import dask
    from distributed import LocalCluster

    # No dashboard pages, because they do not require the certificate.
    settings: dict[str, Any] = {f"distributed.{x}.http.routes": [] for x in ("scheduler", "worker")}
    # A busy machine may take long to replace a dead worker.
    settings["distributed.deploy.lost-worker-timeout"] = "1h"
    with (
        _environment_kept(),
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            security=True,  # otherwise every user of this machine could run programs as this user
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=None,  # Dask would stop workers that use much memory, such as with torch
            scheduler_kwargs={"allowed_failures": DEATHS, "dashboard": False},
            silence_logs=logging.CRITICAL,
        ) as cluster,
    ):
        yield cluster


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment at the end of the block.

    Dask sets the number of threads of its workers, one, in the environment of this process, and every program
    started later would inherit it.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _greet(address: str, timeout: float) -> None:
    """Raise an OSError unless a scheduler responds; Dask's client would wait for a response forever."""
    from distributed import Security
    from distributed.comm.core import connect

    async def exchange() -> None:
        security = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=timeout, **security), timeout)
        comm.abort()

    with ThreadPoolExecutor(1) as thread:  # a notebook runs an event loop in this thread
        thread.submit(asyncio.run, exchange()).result()
