"""A folder on a disk is where its name says; others are asked of what claims their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.folders import ELSEWHERE, Elsewhere, elsewhere, or_elsewhere
from datasets.core.shipped import Shipped
from learners.model.places import model_folder


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which models called ``shelf:NAME`` are."""
    monkeypatch.setattr(ELSEWHERE, "_things", dict(ELSEWHERE.ours()))
    ELSEWHERE.add(
        Elsewhere(
            "shelf",
            lambda name: name.startswith("shelf:"),
            lambda name: tmp_path / name.removeprefix("shelf:"),
            "shelf:NAME",
        )
    )
    return tmp_path


def test_a_name_is_of_what_claims_it(shelf: Path) -> None:
    assert model_folder("shelf:fruit") == shelf / "fruit"
    assert model_folder("runs/shelf/model") == Path("runs/shelf/model")
    assert elsewhere(Path("shelf:fruit")) is ELSEWHERE["shelf"]
    assert elsewhere("runs:photos/model") is None
    assert "shelf:NAME" in or_elsewhere()


def test_a_field_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ELSEWHERE, "_things", {})
    monkeypatch.setattr("datasets.core.shipped.SHIPPED", {"attic": Shipped(opens="attic:")})
    with pytest.raises(SecondhandError, match="attic:old is opened by fields/attic, which is left"):
        model_folder("attic:old")
