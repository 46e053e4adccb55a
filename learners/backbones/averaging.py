"""How the logits of several networks or views are averaged, in NumPy or in torch, which is not imported.

A number of logits [k, n, classes] become [n, classes].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]


class Average(Protocol):
    """The mean of k logits of the same items."""

    def arrays(self, logits: Floats) -> Floats:
        """The mean of logits [k, n, classes]."""

    def tensors(self, logits: Tensor) -> Tensor:
        """The same of tensors."""


class MeanProbability:
    """Logits whose softmax is the mean of the given logits' softmaxes, for classes that exclude each other.

    The softmax leaves one constant per item open; it is chosen so that the log-sum-exp is the mean of the given ones,
    which keeps the meaning of scores such as the largest logit and the energy.
    """

    def arrays(self, logits: Floats) -> Floats:
        level = _logsumexp(logits, 2)[..., None]
        return _logsumexp(logits - level, 0) - math.log(len(logits)) + level.mean(0)

    def tensors(self, logits: Tensor) -> Tensor:
        level = logits.logsumexp(2, keepdim=True)
        return (logits - level).logsumexp(0) - math.log(len(logits)) + level.mean(0)


class MeanLogit:
    """The mean of the logits, for labels of which each is present or absent by itself."""

    def arrays(self, logits: Floats) -> Floats:
        return np.asarray(np.mean(logits, axis=0))

    def tensors(self, logits: Tensor) -> Tensor:
        return logits.mean(0)


MEAN_PROBABILITY, MEAN_LOGIT = MeanProbability(), MeanLogit()


def _logsumexp(x: Floats, axis: int) -> Floats:
    top = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=axis)) + top.squeeze(axis)
