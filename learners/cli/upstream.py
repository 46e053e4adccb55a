"""A workaround for Python, which drops a Ctrl-C at some moments."""

from __future__ import annotations

import _thread
import sys
import threading
from typing import Any


def deliver_late_interrupts() -> None:
    """Deliver a Ctrl-C that arrives while Python forks or finalises an object a moment later.

    Python calls its handler there, too, but only prints the KeyboardInterrupt ("Exception ignored in …") and drops it.
    """
    report = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        timer = threading.Timer(0.05, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
