"""Python programs in separate processes that do not import everything first.

A fresh interpreter needs many seconds to import torch and fastai. Here multiprocessing's fork
server imports them once, and each program is forked from it. The server has no threads and no open
files. Only tests of what is imported, and when, need a fresh interpreter. The processes of
pytest-xdist share one server, which the process that starts them has.
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
from typing import Any

import pytest

from tests.pictures import SKETCH, sketch

ROOT = Path(__file__).parents[1]
#: Imported once by the server; each program imports its own module, such as `learners.finetune`.
READY = ["tests.preloaded", "tests.fuzzing"]
#: Set in the environment of programs that open files in their own process.
UNFORKED = "SECONDHAND_UNFORKED"


def context() -> ForkServerContext:
    """Start this process's fork server, if it has joined none; it finds the packages beside the tests."""
    server_context = multiprocessing.get_context("forkserver")
    server_context.set_forkserver_preload(READY)
    with contextlib.chdir(ROOT):  # first in the server's search path
        forkserver._forkserver.ensure_running()
    return server_context


def offer(**environment: str) -> dict[str, Any]:
    """Start this process's fork server with more in its environment; returns what others `join` it by."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        context()
    server = vars(forkserver._forkserver)
    return {name: server.get(name) for name in ("_forkserver_address", "_forkserver_authkey")}


def join(offered: dict[str, Any]) -> None:
    """Use the fork server of another process, which outlives this one, from now on."""
    server = forkserver._forkserver
    vars(server).update(offered, _forkserver_alive_fd=os.pipe()[1])
    server.ensure_running = lambda: None  # type: ignore[method-assign]


class Program:
    """``python WORDS…`` in a session of its own, with the interface of `subprocess.Popen`.

    WORDS are ``-m MODULE …``, ``-c CODE …`` or ``FILE …``. `out` and `err` hold the output so far.
    """

    returncode: int | None

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="program-")
        self._output = Path(self._folder.name)
        for name in ("out", "err"):
            (self._output / name).touch()
        arguments = (words, dict(os.environ if env is None else env), str(cwd or Path.cwd()))
        method = multiprocessing.get_start_method()
        self._process = context().Process(target=_run, args=(*arguments, self._output, method))
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
        return (self._output / "out").read_text()

    @property
    def err(self) -> str:
        return (self._output / "err").read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *words: str | os.PathLike[str],
    cwd: str | os.PathLike[str] = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 250,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does with a fresh interpreter, and return its output.

    It forks no processes to open files in.
    """
    environment = {**(os.environ if env is None else env), UNFORKED: "1"}
    program = Program(*map(str, words), cwd=cwd, env=environment)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()  # if it has not ended
    assert program.returncode is not None
    return subprocess.CompletedProcess(words, program.returncode, out, err)


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def crash(number: signal.Signals = signal.SIGSEGV) -> None:
    """End this forked process as a fault in C does, but without pytest's traceback."""
    faulthandler.disable()
    os.kill(os.getpid(), number)


def _run(
    words: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    output_folder: Path,
    method: str,
) -> None:
    os.setsid()
    # A shell makes background programs, such as a test suite, ignore Ctrl-C; undo that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Child processes start by the default method, not by the server's.
    multiprocessing.set_start_method(method, force=True)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # what the server has found is not of this environment
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(output_folder / name, os.O_WRONLY | os.O_APPEND), number)
    if SKETCH in environment:
        sketch(pytest.MonkeyPatch())
    if UNFORKED in environment:
        from datasets.core import processes

        processes.FORKS = False
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
        # multiprocessing would wait for process pools; a normal interpreter shuts them down first.
        threading._shutdown()  # type: ignore[attr-defined]
