"""Steps hand items on without changing them, and a field's step is taken in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.datasets import load_digits

from datasets.core.errors import Rejected
from datasets.items.items import Items
from datasets.items.settings import SplitSettings
from datasets.sources import demos
from datasets.steps import reading
from datasets.steps.base import STEPS, Asked, Step
from datasets.steps.reading import GROUPS, PICTURES, SPLITS, TABLE, read_items, render_items, take
from datasets.steps.split import split
from tests.asked import asked
from tests.pictures import write_pictures


@pytest.fixture
def added() -> Iterator[list[Step]]:
    """Steps that a test adds; they are gone behind it."""
    steps: list[Step] = []
    yield steps
    for step in steps:
        del STEPS._things[step.name]


def test_a_step_of_a_field_is_taken_in_its_place(tmp_path: Path, added: list[Step]) -> None:
    def note(items: Items, asked: Asked) -> Items:
        assert items.frame["split"].eq("").all()
        assert asked.of(SplitSettings).valid == 0.2
        return items.leaving_out([Rejected("x", "seen")])

    added.append(STEPS.add(Step("note", before=split.__name__, run=note)))
    table = read_items(asked(data=str(write_pictures(tmp_path)), valid=0.2))
    assert table.rejected[-1] == ("x", "seen")
    assert table.frame["split"].ne("").all()


def test_a_step_without_a_place_is_warned_of(
    tmp_path: Path, added: list[Step], caplog: pytest.LogCaptureFixture
) -> None:
    added.append(STEPS.add(Step("lost", before="splt", run=lambda items, asked: Items.none())))
    table = read_items(asked(data=str(write_pictures(tmp_path))))
    assert len(table.frame)
    (warning,) = [line for line in caplog.messages if "lost" in line]
    assert "before='splt'" in warning
    assert warning.endswith("Did you mean split?")


def test_each_step_that_a_field_precedes_is_one_of_the_list() -> None:
    names = {step.__name__ for step in (*TABLE, *GROUPS, *SPLITS, *PICTURES)}
    assert {step.before for step in STEPS.values()} <= names


def test_items_cannot_be_changed() -> None:
    items = Items.none()
    with pytest.raises(FrozenInstanceError):
        items.kind = "picture"  # type: ignore[misc]
    assert items.knowing(3).get(int) == 3
    assert items.get(int) is None
    assert items.knowing(3).forgetting(int).get(int) is None


def _copied(items: Items) -> dict[str, Any]:
    values = vars(items) | {type(fact).__name__: fact for fact in items.facts.values()}
    frames = {
        f"{name}.{field}": value
        for name, fact in values.items()
        for field, value in (fact._asdict() if hasattr(fact, "_asdict") else {"": fact}).items()
    }
    return {
        name: value.copy() if isinstance(value, pd.DataFrame) else value
        for name, value in frames.items()
        if isinstance(value, pd.DataFrame | str | bool | int | tuple)
    }


def _write_small_demos(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the files of the demos, in a cache of their own."""
    digits = load_digits()
    digits.images, digits.target = digits.images[:180], digits.target[:180]
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: digits)
    version, write, note = demos._WRITERS["scenes"]
    monkeypatch.setitem(demos._WRITERS, "scenes", (version, partial(write, count=40), note))
    monkeypatch.setenv("SECONDHAND_CACHE", str(cache))


@pytest.mark.parametrize(
    "flags",
    [
        {"data": "demo:digits"},
        {"data": "demo:digits", "cv": 3, "fold": "2"},
        {"data": "{photos}", "background": "{grey}", "unknown": "{strange}", "group_by": "_(..)"},
        {"data": "demo:scenes"},
    ],
)
def test_no_step_changes_what_it_is_given(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_small_demos(tmp_path / "cache", monkeypatch)
    photos = write_pictures(tmp_path / "photos")
    for folder, size in (("grey", 44), ("strange", 48)):
        write_pictures(tmp_path / folder, classes=1, per_class=12, size=size)
    flags = {
        name: value.format(photos=photos, grey=tmp_path / "grey", strange=tmp_path / "strange")
        if isinstance(value, str)
        else value
        for name, value in flags.items()
    }
    taken = list[str]()

    def watched(steps: Any, items: Items, asked: Asked) -> Items:
        for step in steps:
            before = _copied(items)
            found = take([step], items, asked)
            after = _copied(items)
            assert before.keys() == after.keys()
            for name, value in before.items():
                if isinstance(value, pd.DataFrame):
                    pd.testing.assert_frame_equal(
                        value, after[name], obj=f"{step.__name__}: {name}"
                    )
                else:
                    assert value == after[name], step.__name__
            items = found
            taken.append(step.__name__)
        return items

    monkeypatch.setattr(reading, "take", watched)
    call = replace(asked(**flags), seed=3)
    render_items(read_items(call), call)
    assert taken == [step.__name__ for step in (*TABLE, *GROUPS, *SPLITS, *PICTURES)]
