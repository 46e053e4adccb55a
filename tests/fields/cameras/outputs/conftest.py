"""A model that has learnt nothing, whose predictions are written."""

from __future__ import annotations

import pytest

from learners.model.bundle import save_bundle
from tests.learners.rules import untrained


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        save_bundle(untrained(["fox", "hare", "owl"]), tmp_path_factory.mktemp("models") / "model")
    )
