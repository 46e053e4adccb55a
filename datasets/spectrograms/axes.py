"""What the picture of a signal shows, with its axes, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


class Axes(NamedTuple):
    """Axes of a spectrogram.

    Attributes
    ----------
    time, frequency : what is on them, with the unit.
    seconds : left and right edge.
    scale : puts frequencies in Hz on the scale of the rows; ``rows`` are the lower and upper edge on it.
    """

    time: str
    seconds: tuple[float, float]
    frequency: str
    scale: Callable[[Any], Any]
    rows: tuple[float, float]

    @property
    def ticks(self) -> dict[str, float]:
        """Round frequencies and their places between the ``rows``."""
        from matplotlib.ticker import EngFormatter

        name = EngFormatter(sep="", useMathText=False)  # which gwpy turns on when it is imported
        (low, high), ticks = self.rows, dict[str, float]()
        for hertz in (k * 10.0**decade for decade in range(6) for k in (1, 2, 5)):
            place = float(self.scale(hertz))
            apart = place - max(ticks.values(), default=-np.inf) > 0.06 * (high - low)
            if apart and low <= place <= high:
                ticks[name(hertz)] = place
        return ticks


class Panel(NamedTuple):
    """A picture, what it shows, and its axes; None without any."""

    picture: Image.Image
    title: str
    axes: Axes | None = None
