"""The probability of the most probable class."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from learners.rule.numbers.arrays import Floats, check_logits
from learners.rule.scores.base import SCORES, Score


@SCORES.add
class MSP(Score):
    """The log of the highest probability (arXiv:1610.02136), which ranks alike and does not saturate at 1."""

    name, help = "msp", "maximum softmax probability"
    needs_features = False

    def score(self, features: ArrayLike | None, logits: ArrayLike) -> Floats:
        z = check_logits(logits)
        return np.asarray(z.max(axis=1) - np.logaddexp.reduce(z, axis=1))

    def with_msp(self, known: Floats, old: Floats, new: Floats) -> Floats:
        return new
