"""What we rely on in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("delivered", [True, False])
def test_ctrl_c_during_a_fork_is_delivered_afterwards(delivered: bool) -> None:
    program = (
        "import os, signal, time\n"
        "from learners.cli import upstream\n"
        f"{'upstream.deliver_late_interrupts()' if delivered else ''}\n"
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "if not os.fork(): os._exit(0)\n"
        "time.sleep(2)\n"
        "print('not interrupted')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ("not interrupted" in completed.stdout) != delivered, completed.stderr
    assert completed.stderr.rstrip().endswith("KeyboardInterrupt") == delivered
