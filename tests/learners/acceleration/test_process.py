"""Waiting threads and freed memory of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from learners.acceleration import SLEEPING

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.delenv("SECONDHAND_ACCELERATION", raising=False)


@pytest.mark.slow
def test_memory_is_kept_between_steps():
    """In a process of its own: page faults of blocks that are allocated again and again, before and
    after, and in another thread, whose arena would be too small to keep them."""
    program = """if True:
        import resource, threading, torch
        from learners.acceleration import keep_memory

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
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
                         text=True, timeout=120)  # fmt: skip
    kept, plain, keeping, elsewhere = map(int, ran.stdout.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert keeping < plain / 3
    assert elsewhere < 5 * 5_000_000 * 4 / 4096 / 2, "not half of the five are touched anew"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["predict", "finetune", "evaluate", "export"])
def test_commands_let_waiting_threads_sleep(module):
    """Before torch and NumPy are there, for they read it once; what the user set stays."""
    program = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name in ('torch', 'numpy'): assert os.environ.get('OMP_WAIT_POLICY'), name\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import runpy\n"
        f"sys.argv = ['learners.{module}', '--help']\n"
        "try:\n"
        f"    runpy.run_module('learners.{module}', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print([os.environ[name] for name in {list(SLEEPING)}])\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in SLEEPING}
    for own, expected in (({}, SLEEPING), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)):
        expected = expected or {**SLEEPING, **own}
        ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**clean, **own},
                             check=True, capture_output=True, text=True, timeout=120)  # fmt: skip
        assert ran.stdout.strip().splitlines()[-1] == str(list(expected.values()))
