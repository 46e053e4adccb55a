"""What the tests of trainings share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datasets import processes


@pytest.fixture(scope="module", autouse=True)
def _unforked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Files are opened in this process, as where processes are not forked: to fork one that holds all
    libraries is half of a small run. Modules about workers that die are marked ``forks``."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("forks"):
            patch.setattr(processes, "FORKS", False)
            patch.setenv("PYTHON_CPU_COUNT", "1")
        yield
