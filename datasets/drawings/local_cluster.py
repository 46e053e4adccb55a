"""A Dask cluster of processes on this machine, closed to everybody else; and Dask's manners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

DEATHS = 1  # of workers that a chunk outlives


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Single-threaded workers behind loopback and certificates of their own."""
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


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Dask tells of each lost worker; here what becomes of the files is told."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def greet(address: str, timeout: float) -> None:
    """Raise an OSError unless a scheduler answers: Dask's client waits for ever for its first word."""
    from distributed import Security
    from distributed.comm.core import connect

    async def exchange() -> None:
        security = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=timeout, **security), timeout)
        comm.abort()

    with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own in this one
        thread.submit(asyncio.run, exchange()).result()
