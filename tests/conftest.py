"""What all tests share: quiet libraries, a cache of their own, threads that do not fight."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from learners.acceleration import let_waiting_threads_sleep
from learners.machine import disable_telemetry

let_waiting_threads_sleep()  # before torch and NumPy are loaded
disable_telemetry()
if "PYTEST_XDIST_WORKER" in os.environ:
    # Tests side by side have a core each; so do the programs that they start.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    os.environ.setdefault("PYTHON_CPU_COUNT", "1")  # processes for the opening of files


#: The libraries' millions of objects live as long as this process: while they come each collection
#: of garbage would walk through them all (13 of 31 s of collecting the tests), and so later, in every
#: test and every fork.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.ItemRow]) -> None:
    """The notebooks first, each a test of a quarter of a minute that would be waited for at the end, and
    the documents' commands, whose world of files and runs each process makes that takes one of them.
    Then those of `datasets`: they fork, which takes longer the more a process has in memory. What is
    marked ``long`` is a variant of what is tried anyway: it says of what, and waits to be asked for."""
    first = [
        Path(__file__).parent / name
        for name in ("datasets", "test_documented_commands.py", "notebooks")
    ]
    items.sort(
        key=lambda item: -sum(n * item.path.is_relative_to(f) for n, f in enumerate(first, 1))
    )
    if not os.environ.get("SECONDHAND_LONG"):
        for item in items:
            for mark in item.iter_markers("long"):
                reason = f"long, {mark.args[0]}; SECONDHAND_LONG=1 runs it"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def sketched() -> Iterator[None]:
    """Reports whose diagrams are filled in, but neither laid out nor written: a third of the time of
    a small run, which tests that look at other things of it can do without."""
    from matplotlib.figure import Figure

    drawn = Figure.savefig

    def savefig(self: Figure, file: Any, **how: Any) -> None:
        if isinstance(file, StringIO):
            file.write('<svg viewBox="0 0 1 1"></svg>')
        else:
            drawn(self, file, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield


@pytest.fixture(scope="module")
def unreported() -> Iterator[None]:
    """Runs without their fourth stage, the report: four tenths of a small run, which tests that
    compare weights and answers can do without."""
    from learners.runs import stages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "report", lambda run, evaluation: None)
        yield


#: Whose tests are mostly of trainings.
IN_ONE = [Path(__file__).parent / name for name in ("learners", "benchmarks")]


@pytest.fixture(scope="module", autouse=True)
def _unforked(request: pytest.FixtureRequest) -> Iterator[None]:
    """There files are opened in this process, as where processes are not forked: to fork one that holds
    all libraries is half of a small run. Modules about workers that die are marked ``forks``."""
    from datasets.core import processes

    with pytest.MonkeyPatch.context() as patch:
        one = any(request.path.is_relative_to(folder) for folder in IN_ONE)
        if one and not request.node.get_closest_marker("forks"):
            patch.setattr(processes, "FORKS", False)
            patch.setenv("PYTHON_CPU_COUNT", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_onnx() -> Iterator[None]:
    """Runs leave ``model.onnx`` out, which takes longer to write than most of them train; those that
    look at it unset this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_ONNX", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no fixture of a module, reads or leaves anything in the user's cache; all of them
    share one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_CACHE", str(tmp_path_factory.getbasetemp() / "secondhand-cache"))
        yield
