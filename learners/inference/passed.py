"""Outputs of a network for what has passed through it, so that a run computes them once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from datasets.core.part import Part
from learners.files.rows import StoredRows
from learners.inference.predictions import Floats


class Passed:
    """Logits [n, classes] and features [n, width] of the parts of files that a network was given.

    ``folder`` : of the file that holds them while the object lasts.
    """

    def __init__(self, folder: Path) -> None:
        self._rows, self._row = StoredRows(folder), dict[Part, int]()
        self._classes = 0

    def __contains__(self, part: Part) -> bool:
        return part in self._row

    def put(self, parts: Sequence[Part], logits: Floats, features: Floats) -> None:
        self._row |= zip(parts, count(len(self._rows)))
        self._rows.append(np.hstack([logits, features]))
        self._classes = logits.shape[1]

    def get(self, parts: Sequence[Part]) -> tuple[Floats, Floats]:
        rows = self._rows.read(np.array([self._row[part] for part in parts]))
        return rows[:, : self._classes], rows[:, self._classes :]

    def through(self, weight: Floats, bias: Floats) -> Passed:
        """The same parts behind another linear layer, [classes, width] and [classes], where these rows hold the inputs
        of the layer instead of logits.
        """
        return _Behind(self, weight, bias)


class _Behind(Passed):
    """`Passed.through`."""

    def __init__(self, inputs: Passed, weight: Floats, bias: Floats) -> None:
        self.inputs, self.weight, self.bias = inputs, weight, bias

    def __contains__(self, part: Part) -> bool:
        return part in self.inputs

    def put(self, parts: Sequence[Part], logits: Floats, features: Floats) -> None:
        self.inputs.put(parts, logits, features)

    def get(self, parts: Sequence[Part]) -> tuple[Floats, Floats]:
        inputs, features = self.inputs.get(parts)
        return inputs @ self.weight.T + self.bias, features
