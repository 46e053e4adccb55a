"""Every 1.x reads and offers what 1.0 wrote and offered; see docs/compatibility.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from secondhand import __version__
from tests.kept.make import ANSWERS, INTERFACE, MODEL, answers, interface
from tests.left_out import words_left_out

ROOT = Path(__file__).parents[1]
#: Required keys of Citation File Format 1.2.0.
REQUIRED = {"cff-version", "message", "title", "authors"}
OPTIONAL = {
    "abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license",
    "license-url", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "type", "url", "version",
}  # fmt: skip


def test_a_model_folder_of_1_0_gives_the_answers_of_1_0(tmp_path: Path) -> None:
    old = json.loads(ANSWERS.read_text(encoding="utf-8"))
    current = answers(MODEL, tmp_path)
    assert {row["reason"] for row in old} >= {"", "ambiguous", "out of distribution", "no signal"}
    for after, before in zip(current, old, strict=True):
        assert after.pop("probability") == pytest.approx(before.pop("probability"), abs=1e-3), (
            before
        )
        assert after == before


def test_flags_columns_and_names_of_1_0_are_still_there() -> None:
    stored, current = json.loads(INTERFACE.read_text(encoding="utf-8")), interface()
    left_out = words_left_out()
    lost_flags = {
        command: missing
        for command, flags in stored["flags"].items()
        if command not in left_out
        and (missing := {*flags} - {*current["flags"].get(command, [])} - left_out)
    }
    assert lost_flags == {}
    assert left_out or {*stored["columns"]} <= {*current["columns"]}
    assert {*stored["names"]} <= {*current["names"]} | left_out


def test_each_place_names_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {*citation} >= REQUIRED
    assert {*citation} <= REQUIRED | OPTIONAL
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert all(
        {*author} <= {"name", "alias", "email"} for author in citation["authors"]
    )  # entities
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changes, re.MULTILINE)
    assert newest
    assert str(citation["version"]) == newest[1] == __version__
    assert len(changes.splitlines()) <= 60
