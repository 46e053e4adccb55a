"""Dask clusters for tests, in this process or on loopback, and tasks for their workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from fields.cluster.client import Cluster
from tests.forks import ROOT, Program


@pytest.fixture(scope="module")
def here() -> Iterator[Cluster]:
    """A cluster of one thread in this process: fast, and without open ports."""
    from distributed import Client, LocalCluster

    workers = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    pages = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(**workers, **pages) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield Cluster(client, "tcp://here:1")


@contextlib.contextmanager
def scheduler_and_workers(folder: Path, count: int = 2) -> Iterator[tuple[str, list[Program]]]:
    """Yield the scheduler's address and its workers, which are not restarted."""
    from distributed import Client

    scheduler_file = folder / "scheduler.json"
    host = ["--host", "127.0.0.1", "--no-dashboard"]
    with contextlib.ExitStack() as stack:
        run = ["scheduler", *host, "--port", "0", "--scheduler-file", str(scheduler_file)]
        stack.enter_context(_process(folder, run))
        _until(lambda: _whole(scheduler_file), "the scheduler's address")
        address = json.loads(scheduler_file.read_text())["address"]
        run = ["worker", address, *host, "--no-nanny", "--nthreads", "1", "--death-timeout", "60"]
        workers = [stack.enter_context(_process(folder, run)) for _ in range(count)]
        with Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=120)
        yield address, workers


@contextlib.contextmanager
def kill_when(ready: Callable[[], bool], process: Program) -> Iterator[threading.Thread]:
    """Kill the process as soon as `ready` returns true, while the test goes on."""

    def wait_and_kill() -> None:
        _until(ready, "the moment to kill a worker")
        process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill, daemon=True)
    thread.start()
    yield thread
    thread.join(timeout=120)
    assert process.wait(timeout=10) == -signal.SIGKILL


def halve(numbers: list[int]) -> list[float]:
    """Halve each number; a negative one kills the process, as a fault in a decoder would."""
    for number in numbers:
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return [number / 2 for number in numbers]


def record(log: Path, numbers: list[int]) -> list[int]:
    """Return the numbers, and write each with the id of the process to a log."""
    for number in numbers:
        with open(log, "a") as stream:
            stream.write(f"{number} {os.getpid()}\n")
        time.sleep(0.01)
    return numbers


def refuse(numbers: list[int]) -> list[int]:
    raise SecondhandError(f"{numbers}: not today")


def path_of(number: int) -> str:
    return f"/nowhere/{number}.wav"


def _whole(scheduler_file: Path) -> bool:
    """Whether the scheduler file is written completely; it exists before that."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return "address" in json.loads(scheduler_file.read_text())
    return False


def _until(ready: Callable[[], bool], awaited: str, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{awaited} did not come in {seconds} s"
        time.sleep(0.005)


@contextlib.contextmanager
def _process(folder: Path, words: list[str]) -> Iterator[Program]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = Program("-m", "dask", *words, cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
