"""Three ways to fine-tune that fastai's documentation and book teach, so that a peer has the best of them.

``fine_tune``  ``learn.fine_tune(epochs)``, the default: the body learns at a hundredth of the head's rate, halved.
``valley``     the same at the rate that ``learn.lr_find()`` suggests (the suggestion "valley").
``one_cycle``  ``learn.unfreeze(); learn.fit_one_cycle(epochs, 3e-3)``: one rate for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def fine_tune(learn: Any, epochs: int) -> None:
    learn.fine_tune(epochs)


def valley(learn: Any, epochs: int) -> None:
    found = learn.lr_find(show_plot=False)
    learn.fine_tune(epochs, base_lr=found.valley)


def one_cycle(learn: Any, epochs: int) -> None:
    learn.unfreeze()
    learn.fit_one_cycle(epochs, 3e-3)


RECIPES: dict[str, Callable[[Any, int], None]] = {
    "fine_tune": fine_tune,
    "valley": valley,
    "one_cycle": one_cycle,
}
