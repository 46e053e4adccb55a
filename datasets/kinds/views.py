"""Views of an input, over which test-time augmentation averages predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from datasets.core.errors import SecondhandError


@dataclass(frozen=True)
class TTAView:
    """One view of an input.

    Parameters
    ----------
    mirror : mirror left and right.
    zoom : side of the input relative to the side of the visible square, 1 (all of it) to 4.
    x, y : position of this square, -1 (left, top) to 1 (right, bottom); 0 is the middle.
    shift : circular shift to the right as a fraction of the width, -0.5 to 0.5.
    """

    mirror: bool = False
    zoom: Annotated[float, Meta(ge=1, le=4)] = 1.0
    x: Annotated[float, Meta(ge=-1, le=1)] = 0.0
    y: Annotated[float, Meta(ge=-1, le=1)] = 0.0
    shift: Annotated[float, Meta(ge=-0.5, le=0.5)] = 0.0


PLAIN = TTAView()


def no_views(count: int, what: str) -> SecondhandError:
    """The error for files that have one view only; ``what`` : which, and why."""
    return SecondhandError(
        f"--tta {count}: test-time augmentation is not available for {what}. Leave --tta out"
    )


def several(views: Sequence[TTAView], count: int, flags: str) -> list[TTAView]:
    """The first ``count`` views; raises SecondhandError, naming the ``flags`` of training, if there is one only."""
    if len(views) < 2:
        raise SecondhandError(
            f"--tta {count}: there is nothing to average, because training does not augment ({flags}). Turn "
            "augmentation on or leave --tta out"
        )
    return [*views[:count]]
