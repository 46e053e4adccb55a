"""A Dask scheduler and its workers, each a process of its own on loopback, ended with the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.forks import ROOT, Program


@contextlib.contextmanager
def scheduler_and_workers(folder: Path, count: int = 2) -> Iterator[tuple[str, list[Program]]]:
    """The scheduler's address and the workers, which nobody starts again."""
    from distributed import Client

    note = folder / "scheduler.json"
    host = ["--host", "127.0.0.1", "--no-dashboard"]
    with contextlib.ExitStack() as stack:
        run = ["scheduler", *host, "--port", "0", "--scheduler-file", str(note)]
        stack.enter_context(_process(folder, run))
        _until(lambda: _whole(note), "the scheduler's address")
        address = json.loads(note.read_text())["address"]
        run = ["worker", address, *host, "--no-nanny", "--nthreads", "1", "--death-timeout", "60"]
        workers = [stack.enter_context(_process(folder, run)) for _ in range(count)]
        with Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=120)
        yield address, workers


@contextlib.contextmanager
def killed_when(ready: Callable[[], bool], process: Program) -> Iterator[threading.Thread]:
    """`kill -9` as soon as `ready` says so, while the test goes on."""

    def wait_and_kill() -> None:
        _until(ready, "the moment to kill a worker")
        process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill, daemon=True)
    thread.start()
    yield thread
    thread.join(timeout=120)
    assert process.wait(timeout=10) == -signal.SIGKILL


def _whole(note: Path) -> bool:
    """It is there before it is written."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return "address" in json.loads(note.read_text())
    return False


def _until(ready: Callable[[], bool], what: str, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{what} did not come in {seconds} s"
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
