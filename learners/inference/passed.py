"""Outputs of a network for what has passed through it, so that a run computes them once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from datasets.core.part import Part
from learners.backbones.averaging import MEAN_PROBABILITY, Average
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

    def through(self, weight: Floats, bias: Floats, average: Average = MEAN_PROBABILITY) -> Passed:
        """The same parts behind other linear layers, where these rows hold the inputs of the layers instead of logits
        (`learners.inference.inputs.HeadInputs`).

        Parameters
        ----------
        weight, bias : those of each member, [members, classes, width] and [members, classes].
        average : of the logits of views and members.
        """
        return _Behind(self, weight, bias, average)


class _Behind(Passed):
    """`Passed.through`."""

    def __init__(self, inputs: Passed, weight: Floats, bias: Floats, average: Average) -> None:
        self.inputs, self.weight, self.bias = inputs, weight, bias
        self.average = average

    def __contains__(self, part: Part) -> bool:
        return part in self.inputs

    def put(self, parts: Sequence[Part], logits: Floats, features: Floats) -> None:
        self.inputs.put(parts, logits, features)

    def get(self, parts: Sequence[Part]) -> tuple[Floats, Floats]:
        inputs, features = self.inputs.get(parts)
        members, _, width = self.weight.shape
        of_views = inputs.reshape(len(parts), -1, members, width).transpose(1, 2, 0, 3)
        # [views, members, n, classes]
        logits = of_views @ self.weight.swapaxes(1, 2) + self.bias[:, None]
        each = logits.reshape(-1, *logits.shape[2:])
        if len(each) == 1:
            return each[0], features
        return self.average.arrays(each), features
