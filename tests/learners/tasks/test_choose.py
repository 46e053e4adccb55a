"""Which task a run's settings ask for, and which one a model has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from learners.cli.settings import Settings
from learners.rule.base import AnyRule
from learners.rule.fitting import uncalibrated
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from learners.tasks.base import Task
from learners.tasks.choose import check_task, choose_task, find_task
from learners.tasks.multi_label import MultiLabel
from learners.tasks.single import SingleLabel


def model(rule: AnyRule) -> Any:
    return SimpleNamespace(rule=rule, classes=["a", "b"])


def items(kind: str = "picture") -> Any:
    return SimpleNamespace(kind=kind, classes=["a", "b"])


@pytest.mark.parametrize("task", [SingleLabel(), MultiLabel()])
def test_each_task_has_all_that_the_stages_ask(task: Task) -> None:
    names = {name for name in dir(Task) if not name.startswith("_")}
    asked = {
        "exclusive",
        "target",
        "encode",
        "objective",
        "fit_rule",
        "measure",
        "sections",
        "estimator",
    }
    assert names == asked
    assert [name for name in names if not hasattr(task, name)] == []


@pytest.mark.parametrize(
    ("data", "task"),
    [({"data": "photos"}, SingleLabel), ({"data": "demo:scenes"}, MultiLabel),
     ({"data": "table.csv", "labels": "multi"}, MultiLabel)],
)  # fmt: skip
def test_settings_name_the_task(data: dict[str, Any], task: type) -> None:
    assert type(choose_task(Settings().but(**data), items())) is task


def test_a_model_has_the_task_that_it_was_trained_for() -> None:
    plain, multi_label = uncalibrated(2), uncalibrated(2, multi_label=True)
    assert find_task(model(plain)) == SingleLabel()
    assert type(find_task(model(multi_label))) is MultiLabel
    tree = Tree(("a", "b", "ab"), np.array([2, 2, -1]), 2)
    assert find_task(model(with_tree(plain, tree))) == SingleLabel(tree)
    settings = Settings().but(**{"data": "photos", "from": Path("runs/x/model")})
    check_task(settings, model(plain))
    assert choose_task(settings, items(), model(with_tree(plain, tree))) == SingleLabel(tree)
    with pytest.raises(SecondhandError, match=r"--from runs/x/model"):
        check_task(settings, model(multi_label))
