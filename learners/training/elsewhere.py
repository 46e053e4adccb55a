"""Who computes what a frozen body makes of the files, if not this machine: what fields add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.core.errors import Rejected
from datasets.core.registry import Registry

if TYPE_CHECKING:
    from datasets.loaders.seeded import SeededDL
    from learners.cli.settings import Settings

#: What a network makes of a batch, float32 [n, width], and the targets, [n] or [n, classes].
Batch = tuple[NDArray[np.float32], Tensor]
#: Gives the batches of a loader, in its order, as a network in eval mode computes them in an autocast context, which is
#: None for float32. An item that cannot be opened is left out of its batch, and of the loader's ``order``.
Computing = Callable[[nn.Module, "SeededDL", Any], Iterator[Batch]]


class Elsewhere:
    """Others that compute the features of a training.

    Attributes
    ----------
    name : its name in the registry.
    left_out : items that could not be opened there, and why.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.settings, self.left_out = settings, list[Rejected]()

    @classmethod
    def claims(cls, settings: Settings) -> bool:
        """Whether a training asks for them."""
        raise NotImplementedError

    def connected(self) -> AbstractContextManager[Computing]:
        """They, for the length of a `with` block."""
        raise NotImplementedError


ELSEWHERE: Registry[type[Elsewhere]] = Registry("learners.training.elsewhere")


def elsewhere_for(settings: Settings) -> Elsewhere | None:
    """The others that a training asks for; None for this machine."""
    found = (one for one in ELSEWHERE.ours().values() if one.claims(settings))
    return next((one(settings) for one in found), None)
