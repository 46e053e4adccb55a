"""Speed-ups of a network unless switched off; parallel calls, threads and memory of a process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from learners.machine.acceleration import (
    SLEEPING,
    SingleThreadPool,
    accelerate,
    few_collections,
)
from learners.machine.hardware import keep_thread_count
from tests.learners.training.test_callbacks import folder, learner  # noqa: F401

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("switch", "added"), [("1", {"ChannelsLast"}), ("0", set())])
def test_all_of_it_can_be_switched_off(folder, tmp_path, monkeypatch, switch, added):  # noqa: F811
    monkeypatch.setenv("SECONDHAND_ACCELERATION", switch)
    learn = learner(folder, tmp_path, size=32)
    before = {type(callback).__name__ for callback in learn.cbs}
    accelerate(learn)
    assert {type(callback).__name__ for callback in learn.cbs} - before == added
    network = nn.Conv2d(8, 8, 3)
    accelerate(network)
    assert network.weight.is_contiguous(memory_format=torch.channels_last) == bool(added)


def test_each_chunk_has_a_thread_of_its_own():
    cores = SingleThreadPool()
    barrier = threading.Barrier(3, timeout=30)

    def task(chunk: int) -> tuple[int, int]:
        barrier.wait()
        time.sleep(0.01 * (3 - chunk))
        return 10 * chunk, torch.get_num_threads()

    with keep_thread_count(3):
        assert cores.map(task, [1, 2, 3]) == [(10, 1), (20, 1), (30, 1)]
        assert torch.get_num_threads() == 3
        later: list[int] = []
        fresh = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert later == [3], "nor do threads that come later compute with one"


def test_more_chunks_than_before_and_an_error_of_one():
    cores = SingleThreadPool()
    assert cores.map(abs, [-1, 2]) == [1, 2]
    assert cores.map(abs, [-1, 2, -3, 4]) == [1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        cores.map(lambda n: 1 / n, [1, 0])
    assert cores.map(abs, [-5]) == [5]


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.delenv("SECONDHAND_ACCELERATION", raising=False)


@pytest.mark.slow
def test_memory_is_kept_between_steps(switched_on):
    """A separate process counts page faults of repeated allocations, also in another thread."""
    program = """if True:
        import resource, threading, torch
        from learners.machine.acceleration import keep_memory

        def touch(numbers=9_000_000):
            torch.empty(numbers).fill_(1)

        def in_a_thread():
            thread = threading.Thread(target=touch, args=[5_000_000])
            thread.start(); thread.join()

        def faults(work):
            for _ in range(12): work()  # until the heap has its shape
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(5): work()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        plain = faults(touch)
        print(int(keep_memory()), plain, faults(touch), faults(in_a_thread))
    """
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
                         text=True, timeout=120)  # fmt: skip
    kept, plain, keeping, other_thread = map(int, completed.stdout.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert keeping < plain / 3
    assert other_thread < 5 * 5_000_000 * 4 / 4096 / 2, "not half of the five are touched anew"


def test_garbage_is_collected_again_once_a_program_is_loaded(switched_on):
    assert gc.isenabled()
    for ends in (True, False):
        with suppress(KeyboardInterrupt), few_collections() as loaded:
            assert not gc.isenabled()
            if not ends:
                raise KeyboardInterrupt
            loaded()
            assert gc.isenabled()
            assert gc.get_freeze_count() > 1000
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("module", ["predict", "finetune", "evaluate", "export"])
def test_commands_let_waiting_threads_sleep(switched_on, module):
    """Torch and NumPy read the variables once, when they are imported; what the user set stays."""
    program = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name in ('torch', 'numpy'): assert os.environ.get('OMP_WAIT_POLICY'), name\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import runpy\n"
        f"sys.argv = ['learners.{module}', '--help']\n"
        "try:\n"
        f"    runpy.run_module('learners.{module}', run_name='__main__', alter_sys=True)\n"
        "except SystemExit: pass\n"
        f"print([os.environ[name] for name in {list(SLEEPING)}])\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in SLEEPING}
    for environment, expected in (({}, SLEEPING), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)):
        expected = expected or {**SLEEPING, **environment}
        completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**clean, **environment},
                             check=True, capture_output=True, text=True, timeout=120)  # fmt: skip
        assert completed.stdout.strip().splitlines()[-1] == str(list(expected.values()))
