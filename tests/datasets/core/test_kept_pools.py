"""Processes that a run starts once, and hands on from one use to the next."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

import pytest

from datasets.core import processes
from datasets.core.processes import (
    IsolatedCalls,
    in_parallel,
    kept_pools,
    processes_for,
    renew_kept_pools,
)
from tests.forks import crash, until

pytestmark = [
    pytest.mark.forks,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]


def who(number: int) -> int:
    """The process that answers, unless the number is deadly."""
    if number < 0:
        crash()
    time.sleep(0.02)
    return os.getpid()


def who_each(numbers: list[int]) -> list[int]:
    return [who(number) for number in numbers]


def nested(number: int) -> tuple[int, int]:
    """The process that answers, and one that it asks."""
    calls: IsolatedCalls[int, int] = IsolatedCalls(who, 1, -1)
    (answer,) = calls.result(calls.submit([number]))
    calls.close()
    return os.getpid(), answer


def ask(calls: IsolatedCalls[int, int], *numbers: int) -> set[int]:
    return {answer for _, answer in calls.ahead(numbers, 4, argument=int)}


def used(workers: int = 2) -> set[int]:
    """The processes of a use of its own, which ends."""
    calls: IsolatedCalls[int, int] = IsolatedCalls(who, workers, -1)
    found = ask(calls, *range(8))
    calls.close()
    return found


def fail(error: type[BaseException]) -> None:
    """Raise it while processes are at work."""
    with kept_pools():
        used()
        calls: IsolatedCalls[float, None] = IsolatedCalls(time.sleep, 2, None)
        calls.submit([60.0])
        raise error


@pytest.fixture
def none_left() -> Iterator[None]:
    before = {*multiprocessing.active_children()}
    yield
    until(lambda: {*multiprocessing.active_children()} <= before, 20)


@pytest.mark.usefixtures("none_left")
def test_one_use_gets_the_processes_of_the_one_before() -> None:
    with kept_pools():
        first = used()
        assert 1 <= len(first) <= 2
        assert used() | used(1) <= first | {*_alive()}
        assert len(_alive()) == 2
        chunks = [[1, 2], [3, 4]]
        parallel = {pid for _, pids in in_parallel(who_each, chunks, 2, -1) for pid in pids}
        assert not parallel & first, "another initialiser, other processes"
        again = {pid for _, pids in in_parallel(who_each, chunks, 2, -1) for pid in pids}
        assert {*_alive()} >= first | parallel | again
        assert len(_alive()) == 4
        assert len(used(3) | {*_alive()}) == 5, "three instead of two"
    assert not used() & first
    assert used() != used(), "outside of the block each use has its own"


@pytest.mark.usefixtures("none_left")
def test_who_does_not_close_hands_them_on_behind_each_pass() -> None:
    with kept_pools():
        every = [IsolatedCalls[int, int](who, 1, -1) for _ in range(3)]
        assert len(set.union(*(ask(calls, 1, 2) for calls in [*every, *every]))) == 1
        pending = every[0].submit([1])
        (first,) = every[0].result(pending)
        assert ask(every[1], 1) != {first}, "it may be asked for more"
        every[0].close()


@pytest.mark.usefixtures("none_left")
def test_two_uses_at_once_have_processes_of_their_own() -> None:
    with kept_pools():
        one, other = (IsolatedCalls[int, int](who, 1, -1) for _ in range(2))
        answers = [calls.ahead([1, 2], 1, argument=int) for calls in (one, other)]
        pids = [{next(answer)[1]} for answer in answers]
        assert pids[0] != pids[1]
        one.close()
        other.close()
        assert used(1) in pids
        assert len(_alive()) == 2


@pytest.mark.usefixtures("none_left")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_no_process_is_left_by_an_error(error: type[BaseException]) -> None:
    start = time.monotonic()
    with pytest.raises(error):
        fail(error)
    assert time.monotonic() - start < 30, "nor is it waited for"


@pytest.mark.usefixtures("none_left")
def test_who_outlives_the_block_starts_processes_of_its_own() -> None:
    with kept_pools():
        calls: IsolatedCalls[int, int] = IsolatedCalls(who, 1, -1)
        before = ask(calls, 1)
    after = ask(calls, 1, 2)
    assert not before & after
    calls.close()


@pytest.mark.usefixtures("none_left")
def test_a_pool_that_died_is_not_handed_on() -> None:
    with kept_pools():
        calls: IsolatedCalls[int, int] = IsolatedCalls(who, 2, -1)
        dead = ask(calls, 1, 2, 3, 4)
        assert -1 in ask(calls, 1, -5, 2)
        calls.close()
        assert not used() & dead
        for process in multiprocessing.active_children():  # while nobody uses them
            process.kill()
            process.join()
        time.sleep(0.5)
        assert -1 not in used()


@pytest.mark.usefixtures("none_left")
def test_processes_that_do_not_end_what_nobody_waits_for_are_not_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kept_pools():
        for seconds, grace, again in ((0.3, 10.0, True), (60.0, 0.3, False)):
            monkeypatch.setattr(processes, "GRACE", grace)
            calls: IsolatedCalls[float, None] = IsolatedCalls(time.sleep, 1, None)
            pending = calls.submit([seconds])
            until(pending.future.running)
            busy = {*_alive()}
            calls.close()
            until(pending.future.done)
            assert (used(1) == busy) is again


@pytest.mark.usefixtures("none_left")
def test_processes_are_renewed_and_no_more_than_said() -> None:
    with kept_pools():
        first = used(4)
        renew_kept_pools(2)
        begun = {*_alive()}
        assert len(begun) == 2
        assert not begun & first
        assert used(4) <= begun
        assert len(_alive()) == 2
    renew_kept_pools(2)  # nothing without a block
    assert not _alive()


@pytest.mark.usefixtures("none_left")
def test_a_worker_does_not_use_the_pools_of_its_parent() -> None:
    with kept_pools():
        used(1)
        calls: IsolatedCalls[int, tuple[int, int]] = IsolatedCalls(nested, 1, (0, 0))
        (found,) = calls.result(calls.submit([1]))
        calls.close()
        assert found[0] in _alive()
        assert found[1] not in {0, -1, *_alive()}


@pytest.mark.parametrize(
    ("files", "workers", "count"),
    [(350, None, 11), (8000, None, 16), (1, None, 1), (0, None, 1), (350, 2, 2), (350, 0, 11)],
)
def test_as_many_processes_as_pay(
    monkeypatch: pytest.MonkeyPatch, files: int, workers: int | None, count: int
) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 16)
    assert processes_for(files, workers) == count


def _alive() -> list[int]:
    return [process.pid or 0 for process in multiprocessing.active_children()]
