"""What all tests share: quiet libraries, a cache of their own, threads that do not fight."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before torch loads its OpenMP; see learners/_command.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no fixture of a module, reads or leaves anything in the user's cache; all of them
    share one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDHAND_CACHE", str(tmp_path_factory.getbasetemp() / "secondhand-cache"))
        yield
