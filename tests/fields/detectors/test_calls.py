"""Calls on strain and on triggers: which one is meant, and the flags that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from learners.calls.sections.base import predict_settings
from learners.cli.flags import parse
from tests.learners.test_calls import call
from tests.left_out import needs


def test_a_table_of_triggers_is_meant_before_strain() -> None:
    assert call("strain", "a.hdf5").name == "strain"
    assert call("strain", triggers="t.csv", strain="x").name == "triggers"


@pytest.mark.parametrize(
    ("kind", "given", "flag", "owner"),
    [
        ("picture", {"channel": "H1"}, "--channel H1", "strain"),
        pytest.param(
            "strain",
            {"deployments": "d.csv"},
            "--deployments d.csv",
            "pictures",
            marks=needs("cameras"),
        ),
        ("strain", {"scores": True}, "--scores", "--triggers"),
        ("strain", {"strain": "x"}, "--strain x", "--triggers"),
    ],
)
def test_a_flag_of_other_calls_is_refused(kind, given, flag, owner):
    with pytest.raises(SecondhandError, match=f"{flag} .*{owner}"):
        call(kind, "a", **given)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"events": True, "at": 2.5}, ("--events", "--at 2.5")),
        ({"triggers": "t", "strain": "x", "format": "csv"}, ("--format csv", "--triggers")),
        ({"triggers": "t"}, ("--triggers t without --strain",)),
        pytest.param(
            {"channel": "H1", "cluster": "local"},
            ("--cluster local", "--channel H1"),
            marks=needs("cluster"),
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(given, flags):
    with pytest.raises(SecondhandError) as error:
        call("strain", *(() if "triggers" in given else ("a",)), **given)
    for flag in flags:
        assert flag in str(error.value)


def test_without_files_or_triggers_there_is_nothing_to_predict() -> None:
    with pytest.raises(SecondhandError, match="name files or folders, or --triggers"):
        predict_settings({"model": "m"}).check()


def test_a_pattern_of_strain_files_is_one_of_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = parse(["--data", "small", "--strain", "x*.hdf5"])
    assert settings.flat()["strain"] == str(tmp_path / "x*.hdf5")
