"""What is written as JSON is JSON: no NaN, no infinity, none of numpy's own types."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from learners.files.checked import jsonable


@dataclass
class Rule:
    value: float
    coverage: float


def test_what_is_not_finite_is_null_however_deep():
    found = jsonable(
        {
            "one": math.nan,
            2: [math.inf, (-math.inf, 0.5)],
            "array": np.array([[1.5, np.nan], [0.0, 1.0]], np.float32),
            "number": np.float64("nan"),
            "count": np.int64(3),
            "flag": np.bool_(True),
            "rule": Rule(0.5, math.nan),
            "text": "nan",
            "none": None,
        }
    )
    assert found["one"] is None
    assert found["2"] == [None, [None, 0.5]]
    assert found["array"] == [[1.5, None], [0.0, 1.0]]
    assert found["number"] is None
    assert (found["count"], type(found["count"])) == (3, int)
    assert found["flag"] is True
    assert (found["rule"]["value"], found["rule"]["coverage"]) == (0.5, None)
    assert (found["text"], found["none"]) == ("nan", None)
    json.dumps(found, allow_nan=False)
