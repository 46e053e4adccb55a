"""What a process may use of its machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_threads_and_gpus_are_told_without_torch():
    """Where no driver of a GPU is; with one torch itself is asked."""
    program = (
        "import sys\n"
        "from learners import machine\n"
        "machine._gpu_driver = lambda: False\n"
        "before = machine.threads()\n"
        "with machine.threads_kept(1):\n"
        "    print(before, machine.threads(), end=' ')\n"
        "print(machine.threads(), machine.cuda_here(), 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
                         text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "3"})  # fmt: skip
    assert ran.stdout.split() == ["3", "1", "3", "False", "False"]
