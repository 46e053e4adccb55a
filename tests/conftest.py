"""What all tests share: quiet libraries, a cache of their own, threads that do not fight."""

from __future__ import annotations

import os

# Before torch loads its OpenMP; see learners/_command.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or leaves anything in the user's cache; all of them share one folder."""
    folder = tmp_path_factory.getbasetemp() / "secondhand-cache"
    monkeypatch.setenv("SECONDHAND_CACHE", str(folder))
