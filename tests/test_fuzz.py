"""300 damaged files through the readers: each gives a right answer, or one error that names the
file.

``make bench-fuzz`` opens 5 000.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from tests import fuzzing, mutants
from tests.forks import crash
from tests.fuzzing import DEADLINE, Outcome, fuzz

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory and limits are read from /proc"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mutants.write_models(folder := tmp_path_factory.mktemp("models"))
    return folder


def test_no_mutant_does_harm() -> None:
    outcomes = fuzz(300, seed=20)
    assert [outcome for outcome in outcomes if outcome.verdict == "fault"] == []
    assert len(outcomes) == 300
    verdicts = {(outcome.kind, outcome.verdict) for outcome in outcomes}
    # Damage that is always, or never, noticed would show nothing.
    assert {kind for kind, verdict in verdicts if verdict == "refused"} == {*mutants.KINDS}
    assert len({kind for kind, verdict in verdicts if verdict == "answer"}) >= 6


def test_what_the_mutants_come_from_is_right(models: Path, tmp_path: Path) -> None:
    reader = fuzzing.Openings(models, tmp_path)
    sources = mutants.originals() | reader.originals()
    assert set(sources) == {*mutants.KINDS}
    for kind, files in sources.items():
        for number, data in enumerate(files):
            if kind in ("config", "safetensors"):
                continue  # folders with cells are below
            for choice in range(3):
                path = tmp_path / f"{kind}{number}{choice}{fuzzing.SUFFIX[kind]}"
                reader.prepare(kind, path, data, Always(choice))()
    for folder in models.iterdir():
        reader.model(folder)


class Always(np.random.Generator):
    """A generator that always makes the same choice."""

    def __init__(self, choice: int) -> None:
        super().__init__(np.random.PCG64(0))
        self.choice = choice

    def integers(self, *limits, **options):
        return self.choice


def test_equal_seeds_make_equal_mutants() -> None:
    sources = mutants.originals()
    for number, kind in enumerate(sources):
        first, again, other = (
            mutants.mutate(kind, sources[kind], np.random.default_rng([seed, number]))
            for seed in (3, 3, 4)
        )
        assert first == again
        assert other != first


def take(size: int) -> None:
    """Allocate memory that the process never had; a C library might reuse memory."""
    # All at once: page by page it can take seconds and look like a hang.
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        (lambda path: crash(), "the process died with -11"),
        (lambda path: time.sleep(600), "hangs"),
        (lambda path: take(1 << 30), "MB"),
        (lambda path: (path.parents[1] / "stray").write_text("x"), "did ['open"),
        (lambda path: os.system("true"), "os.system"),
        (lambda path: 1 / 0, "ZeroDivisionError"),
        (lambda path: deny("damaged"), "does not name the file: damaged"),
        (lambda path: deny(f"{path}: \x1b[2J"), "an unprintable message"),
        (lambda path: deny(f"{path}: {'x' * 5000}"), "a message of 5"),
    ],
    ids=lambda deed: deed if isinstance(deed, str) else "",
)
def test_each_kind_of_harm_is_seen(
    action, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness notices a reader that does what no reader may."""
    if fault == "hangs":  # the others get the time that a busy machine takes
        monkeypatch.setattr(fuzzing, "HANGS", 3.0)
    (outcome,) = run_with(action, tmp_path)
    assert outcome.verdict == "fault"
    assert fault in outcome.detail
    assert outcome.seconds < 2 * DEADLINE


def test_a_refusal_that_names_the_file_is_none(tmp_path: Path) -> None:
    (outcome,) = run_with(lambda path: deny(f"{path}: damaged"), tmp_path)
    assert outcome.verdict == "refused"
    (outcome,) = run_with(lambda path: None, tmp_path)
    assert outcome.verdict == "answer"


def deny(message: str) -> None:
    raise SecondhandError(message)


def run_with(deed, root: Path) -> list[Outcome]:
    """Open a mutant in a forked worker with `deed`, as a test's function cannot be pickled."""

    class Reader:
        def __init__(self, models: Path, out: Path) -> None: ...

        def originals(self) -> dict[str, list[bytes]]:
            return {}

        def prepare(self, kind, path, data, rng):
            return lambda: deed(path)

    (root / "elsewhere").mkdir(exist_ok=True)
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(fuzzing, "Openings", Reader)
        context.setattr(fuzzing, "METHOD", "fork")
        return fuzzing.hand_out([("png", 0)], 0, root, 1, lambda outcome: None)
