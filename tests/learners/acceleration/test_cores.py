"""Calls side by side, each with one thread."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from learners.acceleration import CoreEach
from learners.machine import threads_kept


def test_each_chunk_has_a_thread_of_its_own():
    cores = CoreEach()
    together = threading.Barrier(3, timeout=30)

    def task(chunk: int) -> tuple[int, int]:
        together.wait()
        time.sleep(0.01 * (3 - chunk))
        return 10 * chunk, torch.get_num_threads()

    with threads_kept(3):
        assert cores.map(task, [1, 2, 3]) == [(10, 1), (20, 1), (30, 1)]
        assert torch.get_num_threads() == 3
        later: list[int] = []
        fresh = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert later == [3], "nor do threads that come later compute with one"


def test_more_chunks_than_before_and_an_error_of_one():
    cores = CoreEach()
    assert cores.map(abs, [-1, 2]) == [1, 2]
    assert cores.map(abs, [-1, 2, -3, 4]) == [1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        cores.map(lambda n: 1 / n, [1, 0])
    assert cores.map(abs, [-5]) == [5]
