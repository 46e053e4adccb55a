"""Work in processes of which one crashes or hangs: only its own file is lost."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from datasets.core import processes as _workers
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.processes import (
    CRASHED,
    NICENESS,
    IsolatedCalls,
    call_isolated,
    in_parallel,
    init_worker,
)
from datasets.images import opening
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons
from tests.forks import crash, until

pytestmark = [
    pytest.mark.forks,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]


def length(word: str) -> int:
    """Return a word's length, slowly. Some words crash the process, one hangs it."""
    if word == "segfault":
        crash()
    if word == "abort":
        crash(signal.SIGABRT)
    if word == "exit":
        os._exit(3)
    if word == "endless":
        time.sleep(600)
    if word == "much":
        return len(bytearray(2 * _workers.ROOM))  # untouched, it takes no memory without a limit
    if word == "bad":
        raise BadFile("a.wav", "damaged")
    return len(word)


def settle_with_files(most: int, inherited: frozenset[int]) -> None:
    """Initialise a worker that may open so many files, of which it has a part already."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    init_worker(inherited)


def is_open(number: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{number}")


def lengths(words: list[str]) -> list[int]:
    return [length(word) for word in words]


def megabyte(number: int, *, deadly: int) -> bytes:
    """A result that is larger than a pipe, of which a deadly number sends one half before it is killed."""
    if number == deadly:
        send = Connection._send

        def half(self, buffer, *rest):
            if len(buffer) > 500_000:
                send(self, bytes(buffer[: len(buffer) // 2]))
                crash(signal.SIGKILL)
            send(self, buffer, *rest)

        Connection._send = half
    return bytes(1_000_000)


@pytest.mark.parametrize(("workers", "deadly"), [(1, "segfault"), (2, "abort"), (2, "exit")])
def test_a_death_costs_one_item(workers: int, deadly: str) -> None:
    chunks = [["a", "bb"], ["ccc", deadly, "dddd"], ["eeeee"], ["ffffff"]]
    answers = dict(in_parallel(lengths, chunks, workers, -1))
    assert [answers[n] for n in range(4)] == [[1, 2], [3, -1, 4], [5], [6]]
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, workers, -1)
    for chunk in (1, 3):
        words = ["a", deadly, "bb", "ccc"]
        results = list(calls.ahead(words, 4, argument=str, chunk=chunk))
        assert results == list(zip(words, [1, -1, 2, 3], strict=True))
        assert list(calls.ahead(["dddd"], 4, argument=str)) == [("dddd", 4)], "and it goes on"
    assert call_isolated(length, deadly, -1) == -1
    assert call_isolated(length, "a", -1) == 1


def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "TIMEOUT", 1.0)
    start = time.monotonic()
    assert dict(in_parallel(lengths, [["a", "endless"], ["bb"]], 2, -1)) == {0: [1, -1], 1: [2]}
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, 1, -1)
    assert [answer for _, answer in calls.ahead(["endless", "a"], 2, argument=str)] == [-1, 1]
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("stuck", ["sends", "takes"])
def test_a_worker_that_is_killed_with_the_lock_of_a_queue_costs_one_item(
    monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """Killed half way through a result, or while it waits for a task: the others wait for its lock."""
    monkeypatch.setattr(_workers, "LOOK", 0.2)
    task = partial(megabyte, deadly=3 if stuck == "sends" else -1)
    calls: IsolatedCalls[int, bytes] = IsolatedCalls(task, 2, b"")
    if stuck == "takes":  # one of the two holds the lock of the tasks
        pending = calls.submit([0])
        assert len(calls.result(pending)[0]) == 1_000_000
        process, *_ = pending.pool._processes.values()  # type: ignore[attr-defined]
        process.kill()
    start = time.monotonic()
    sizes = [len(found) for _, found in calls.ahead(range(6), 4, argument=int)]
    alone = call_isolated(task, 3, b"")
    calls.close()
    assert sizes == [1_000_000 * (number != 3 or stuck == "takes") for number in range(6)]
    assert len(alone) == 1_000_000 * (stuck == "takes")
    assert time.monotonic() - start < 60


def test_a_task_that_a_broken_pool_has_forgotten_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is submitted while the pool breaks is in none of its lists; an earlier one has ended the pool."""
    monkeypatch.setattr(_workers, "LOOK", 0.05)
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, 2, -1)
    pending = calls.submit(["exit"])
    assert calls.result(pending) == [-1]
    assert calls.result(pending._replace(items=["a", "bb"], future=Future())) == [1, 2]
    calls.close()


def test_workers_are_killed_if_they_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "GRACE", 0.5)
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, 2, -1)
    pending = calls.submit(["endless"])
    processes = [*pending.pool._processes.values()]  # type: ignore[attr-defined]
    start = time.monotonic()
    calls.close()
    assert time.monotonic() - start < 60
    until(lambda: not any(process.is_alive() for process in processes))


def test_what_asks_for_too_much_memory_costs_one_item() -> None:
    assert call_isolated(length, "much", -1) == -1
    assert dict(in_parallel(lengths, [["a", "much"], ["bb"]], 2, -1)) == {0: [1, -1], 1: [2]}
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, 1, -1)
    words = ["a", "much", "bb"]
    assert [answer for _, answer in calls.ahead(words, 3, argument=str, chunk=2)] == [1, -1, 2]
    words = ["much", "a", "bb", "ccc", "dddd"]  # more than one worker takes at a time
    assert [answer for _, answer in calls.ahead(words, 5, argument=str)] == [-1, 1, 2, 3, 4]
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY, "only workers"


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_items_are_taken_as_they_are_needed(chunk: int) -> None:
    consumed: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(40):
            consumed.append(number)
            yield number

    calls: IsolatedCalls[int, int] = IsolatedCalls(abs, 2, -1)
    answers = calls.ahead(numbers(), 10, argument=lambda number: -number, chunk=chunk)
    for number in range(40):
        assert next(answers) == (number, number)
        assert len(consumed) <= min(40, number + 1 + 10 + 2 * chunk)
    assert list(answers) == []
    assert list(calls.ahead([], 10, argument=abs)) == []


def test_what_nobody_waits_for_any_more_is_not_begun(tmp_path: Path) -> None:
    calls: IsolatedCalls[str, None] = IsolatedCalls(_note, 1, None)
    names = [str(tmp_path / str(n)) for n in range(50)]
    answers = calls.ahead(names, 50, argument=str)
    next(answers)
    answers.close()
    assert list(calls.ahead([str(tmp_path / "last")], 1, argument=str))
    assert (tmp_path / "last").exists()
    assert len(list(tmp_path.iterdir())) < 20


def _note(name: str) -> None:
    time.sleep(0.02)
    Path(name).touch()


@pytest.mark.parametrize("ending", ["closed", "let go", "dead"])
def test_processes_have_ended_when_nobody_can_ask_them_any_more(ending: str) -> None:
    # A process still ending when the interpreter ends would fail with "Bad file descriptor".
    before = multiprocessing.active_children()
    calls: IsolatedCalls[float, None] = IsolatedCalls(time.sleep, 2, None)
    pending = calls.submit([0.3, 0.3])
    if ending == "closed":
        calls.close()
    elif ending == "let go":
        del calls, pending
    else:
        for process in pending.pool._processes.values():  # type: ignore[attr-defined]
            process.kill()
        assert calls.result(pending) == [None, None]
    assert set(multiprocessing.active_children()) <= set(before)


def test_who_works_ahead_lets_the_caller_go_first() -> None:
    calls: IsolatedCalls[int, int] = IsolatedCalls(os.nice, 1, -1)
    assert list(calls.ahead([0], 1, argument=int)) == [(0, min(19, os.nice(0) + NICENESS))]


def test_the_tasks_own_errors_come_back_whole() -> None:
    calls: IsolatedCalls[str, int] = IsolatedCalls(length, 1, -1)
    with pytest.raises(BadFile, match=r"^a\.wav: damaged$") as error:
        list(calls.ahead(["a", "bad"], 2, argument=str))
    assert (error.value.path, error.value.reason) == ("a.wav", "damaged")
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.path, again.reason, str(again)) == ("a.wav", "damaged", "a.wav: damaged")


def test_a_reason_is_one_printable_line() -> None:
    error = BadFile("a.csv", "damaged\n in \x1b[2Jline\u202e 3 " + "x" * 10_000)
    assert error.reason.isprintable()
    assert error.reason.startswith("damaged  in  [2Jline  3 xx")
    assert len(error.reason) == 1000


@pytest.mark.parametrize("count", [3, 10])
def test_a_picture_whose_decoder_dies_is_listed(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(count):
        for label in ("cat", "dog"):
            picture(tmp_path / label / f"{n}.jpg")
    picture(tmp_path / "cat" / "deadly.jpg")
    open_picture = opening.open_picture

    def fragile(source, **options):
        if "deadly" in str(source):
            crash()
        return open_picture(source, **options)

    monkeypatch.setattr(opening, "open_picture", fragile)
    monkeypatch.setattr(_workers, "_CHUNK", 8)  # several chunks even for few files
    table = load_table(tmp_path)
    assert reasons(table) == {"deadly.jpg": CRASHED}
    assert len(table.frame) == 2 * count


@pytest.mark.skipif(not _workers.FORKS, reason="processes are not forked here")
def test_a_worker_that_may_open_no_file_is_no_crash() -> None:
    calls = IsolatedCalls(length, 2, -1, partial(settle_with_files, 3))
    with pytest.raises(SecondhandError, match=r"too many open files.*ulimit -n"):
        calls.result(calls.submit(["a", "bb"]))
    calls.close()


def test_a_connection_above_the_limit_of_open_files_is_closed_in_a_worker() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 300)
    calls = IsolatedCalls(is_open, 1, True, partial(settle_with_files, 256))
    assert calls.result(calls.submit([high])) == [False]
    calls.close()
    for number in (reader, writer, high):
        os.close(number)


_FEW_FILES = """
import os, resource
from datasets.core.processes import IsolatedCalls
calls = IsolatedCalls(str, 40, "")
limit = len(os.listdir("/proc/self/fd")) + 24
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    calls.submit([1])
except OSError as error:
    print(error.strerror, flush=True)
"""


def test_processes_that_could_be_started_do_not_outlive_those_that_could_not() -> None:
    """The interpreter waits for its children at the end."""
    words = [sys.executable, "-c", _FEW_FILES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "Too many open files\n"
    assert done.returncode == 0


def test_workers_hold_no_connection_of_their_parent() -> None:
    local, remote = socket.socketpair()
    reader, writer = os.pipe()
    workers = IsolatedCalls(abs, 1, -1)
    assert workers.result(workers.submit([-3])) == [3]
    local.close()
    os.close(writer)
    remote.settimeout(10)
    assert remote.recv(1) == b"", "the worker is there still, and the connection is over"
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "and the pipe"
    assert workers.result(workers.submit([-4])) == [4]
    workers.close()
    remote.close()
    os.close(reader)
