"""Python programs in processes of their own that need not import everything first.

A fresh interpreter imports torch, fastai and what they need for many seconds. Here one does it for
all: multiprocessing's fork server, which has no threads and has opened nothing, and from which each
program is forked. What only a fresh interpreter shows (what is imported, and when) needs one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Imported once; what a program is run from (`learners.finetune`) each imports itself.
READY = ["tests.preloaded", "tests.fuzzing"]


def context() -> ForkServerContext:
    """One server for all that this process starts; its packages are those beside the tests."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(READY)
    with contextlib.chdir(ROOT):  # first in its search path
        forkserver.ensure_running()
    return made


class Program:
    """``python WORDS…``, so ``-m MODULE …``, ``-c CODE …`` or ``FILE …``, in a session of its own.

    As a `subprocess.Popen` is used. Standard output and error are files: `out` and `err` what they
    hold by now.
    """

    returncode: int | None

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="program-")
        self._said = Path(self._folder.name)
        for name in ("out", "err"):
            (self._said / name).touch()
        given = (words, dict(os.environ if env is None else env), str(cwd or Path.cwd()))
        method = multiprocessing.get_start_method()
        self._process = context().Process(target=_run, args=(*given, self._said, method))
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.out, self.err

    @property
    def out(self) -> str:
        return (self._said / "out").read_text()

    @property
    def err(self) -> str:
        return (self._said / "err").read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def crash(number: signal.Signals = signal.SIGSEGV) -> None:
    """End this process, which was forked to be ended, as a fault in C does, but without the pages that
    pytest's fault handler would write of it."""
    faulthandler.disable()
    os.kill(os.getpid(), number)


def _run(
    words: tuple[str, ...], environment: dict[str, str], folder: str, said: Path, method: str
) -> None:
    os.setsid()
    # As begun at a terminal: what a shell starts in the background, a suite too, ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Not that of the server: processes of its own are begun as always.
    multiprocessing.set_start_method(method, force=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_APPEND), number)
    try:
        if words[0] == "-m":
            sys.argv = [*words[1:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [*words]
            runpy.run_path(words[0], run_name="__main__")
    finally:
        # As an interpreter ends: pools of processes first. multiprocessing would wait for them.
        threading._shutdown()  # type: ignore[attr-defined]
