"""Which task a run's settings ask for, and which one a model has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from datasets.core.errors import SecondhandError
from datasets.items.settings import DataSettings
from learners.tasks.base import Task
from learners.tasks.choose import choose_task, task_of
from learners.tasks.multi_label import MultiLabel
from learners.tasks.single import SingleLabel
from learners.uncertainty.decision import Confidence


def model(confidence: Any) -> Any:
    return SimpleNamespace(decider=confidence, classes=["a", "b"])


@pytest.mark.parametrize("task", [SingleLabel(), MultiLabel()])
def test_each_task_has_all_that_the_stages_ask(task: Task) -> None:
    names = [name for name in vars(Task) if not name.startswith("_")]
    assert len(names) > 10
    assert [name for name in names if not hasattr(task, name)] == []


@pytest.mark.parametrize(
    ("data", "task"),
    [({"data": "photos"}, SingleLabel), ({"data": "demo:scenes"}, MultiLabel),
     ({"data": "table.csv", "labels": "multi"}, MultiLabel)],
)  # fmt: skip
def test_settings_name_the_task(data: dict[str, Any], task: type) -> None:
    assert type(choose_task(DataSettings(**data))) is task


def test_a_model_has_the_task_that_it_was_trained_for() -> None:
    plain, multi_label = Confidence.uncalibrated(2), Confidence.uncalibrated(2, exclusive=False)
    assert type(task_of(model(plain))) is SingleLabel
    assert type(task_of(model(multi_label))) is MultiLabel
    on, origin = DataSettings(data="photos", from_="runs/x/model"), model(plain)  # type: ignore[arg-type]
    assert choose_task(on, origin) == SingleLabel(origin=origin)
    with pytest.raises(SecondhandError, match=r"--from runs/x/model"):
        choose_task(on, model(multi_label))
