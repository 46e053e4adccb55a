"""The settings of the field among those of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from learners.cli.settings import Settings


def test_bodies_are_not_cross_fitted_where_the_latest_files_measure() -> None:
    """A number is an error that names the other flag; auto gives way."""
    with pytest.raises(SecondhandError, match=r"--cross-fit 3 with --split-by.*out"):
        Settings().but(cross_fit=3, split_by="time").check()
    auto = Settings().but(cross_fit="auto", split_by="time")
    auto.check()
    assert auto.against_cross_fit == "--split-by time: the files recorded last measure"


@pytest.mark.parametrize("other", ["cv", "fold"])
def test_the_latest_files_are_tested_once(other: str) -> None:
    with pytest.raises(SecondhandError, match=rf"--split-by time with --{other}"):
        Settings().but(split_by="time", **{other: 2}).check()


def test_a_table_of_deployments_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = Settings().but(deployments=Path("d.csv")).whole()
    assert whole.flat()["deployments"] == tmp_path / "d.csv"
