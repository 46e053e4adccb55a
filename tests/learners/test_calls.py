"""Ways to call predict: which one claims a call, and the flags that it has."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.shipped import left_out
from datasets.kinds.base import KINDS
from learners.calls.base import CALLS, Call, find_call
from learners.calls.sections.base import SECTIONS, predict_settings
from learners.outputs.base import OUTPUTS


def call(kind: str, *paths: str, **given: Any) -> Call:
    bundle: Any = SimpleNamespace(kind=KINDS[kind], provenance={}, classes=["a"])
    settings = predict_settings({"model": "m", "paths": [*paths], **given})
    settings.check()
    return find_call(settings, bundle, OUTPUTS[given.get("format", "csv")])


def test_flags_and_conflicts_name_settings():
    settings = predict_settings({"model": "m"}).call
    for one in CALLS.values():
        assert {*one.taken()} <= {*settings}, one.name
    tables = [one.conflicts for one in (*CALLS.values(), *OUTPUTS.values())]
    for condition in chain(*tables, *(one.against_others() for one in CALLS.values())):
        condition.problem(settings)  # raises KeyError for what is no setting


def test_the_flags_that_only_some_calls_have_are_those_of_the_sections():
    sections = SECTIONS.values()
    of_sections = {item.name for section in sections for item in fields(section)}
    of_sections -= {name for section in sections for name in section.elsewhere}
    taken = {name for one in CALLS.values() for name in one.taken()}
    assert taken - {"windows", "at"} <= of_sections
    assert of_sections <= taken or left_out()


@pytest.mark.parametrize("kind", ["picture", "sound", "strain"])
def test_a_flag_that_no_call_has_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where all fields are left out whose files have events."""
    for one in CALLS.values():
        monkeypatch.setattr(one, "taken", classmethod(lambda _: ["at", "candidates"]))
    with pytest.raises(SecondhandError, match="--events is for no call here"):
        call(kind, "files", events=True)


def test_the_pages_of_a_picture_are_its_pieces_on_request():
    assert call("picture", "a.tif", windows=True).pieces().opens("a.tif")
    assert not call("picture", "a.tif").pieces().opens("a.tif")
