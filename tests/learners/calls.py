"""Count the calls of a function, wherever it was imported to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

import learners.runs  # noqa: F401  (where they are called, in modules that commands load late)
from learners.evaluation.figures import score_items
from learners.inference.predictor import Predictor


def count_answering(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how many ``predictors`` and ``judged`` evaluations are made while the patch lasts."""
    calls: Counter[str] = Counter()

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **settings: Any) -> Any:
            calls[name] += 1
            return function(*args, **settings)

        return wrapper

    patch.setattr(Predictor, "__init__", counted(Predictor.__init__, "predictors"))
    wrapper = counted(score_items, "judged")
    for name, module in list(sys.modules.items()):
        if name.startswith("learners.") and vars(module).get("score_items") is score_items:
            patch.setattr(module, "score_items", wrapper)
    return calls
