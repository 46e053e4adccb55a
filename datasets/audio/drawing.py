"""Draws spectrograms of sound with axes, for people."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.spectrograms.axes import Axes


class Levels(NamedTuple):
    """What the brightness of a spectrogram means.

    ``name`` : of the quantity, with its unit. ``low``, ``high`` : its values at black and at white.
    """

    name: str
    low: float
    high: float


def figure_png(
    planes: list[NDArray[np.floating]], axes: Axes, levels: Levels, title: str, *, colour: str
) -> bytes:
    """PNG of a spectrogram: time, frequency, and a colour bar of the level.

    Parameters
    ----------
    planes : brightness from 0 to 1, [bands, frames], lowest band first; one, or three for red, green and blue, whose
        frames may differ in number by a few, and which have no colour bar.
    colour : as `MelSettings.colour`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), dpi=100, layout="constrained")
    ax = figure.subplots()
    frames = min(plane.shape[1] for plane in planes)
    one, colour_map = len(planes) == 1, "gray" if colour == "grey" else colour
    shown = np.stack([plane[:, :frames] for plane in planes], axis=-1)
    mesh = ax.imshow(
        levels.low + shown[..., 0] * (levels.high - levels.low) if one else shown,
        cmap=colour_map if one else None,
        vmin=levels.low if one else None,
        vmax=levels.high if one else None,
        origin="lower",
        aspect="auto",
        extent=(*axes.seconds, *axes.rows),
    )
    if one:
        figure.colorbar(mesh, ax=ax, label=levels.name)
    ticks = axes.ticks
    ax.set_yticks(list(ticks.values()), list(ticks))
    ax.set_xlabel(axes.time)
    ax.set_ylabel(axes.frequency)
    ax.set_title(title, fontsize=10)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
