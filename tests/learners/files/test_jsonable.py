"""JSON is written without NaN, infinity or numpy's types."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from learners.files.jsonable import jsonable


@dataclass
class Rule:
    value: float
    coverage: float


def test_what_is_not_finite_is_null_however_deep():
    content = jsonable(
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
    assert content["one"] is None
    assert content["2"] == [None, [None, 0.5]]
    assert content["array"] == [[1.5, None], [0.0, 1.0]]
    assert content["number"] is None
    assert (content["count"], type(content["count"])) == (3, int)
    assert content["flag"] is True
    assert (content["rule"]["value"], content["rule"]["coverage"]) == (0.5, None)
    assert (content["text"], content["none"]) == ("nan", None)
    json.dumps(content, allow_nan=False)
