"""Draws Q-scans with axes, for people."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWN = 400  # height and width of a Q-scan in pixels


class Scan(NamedTuple):
    """Energies [height, width], lowest frequency first, of so many seconds around the trigger in a band (Hz)."""

    duration: float
    detector: str
    band: tuple[float, float]
    energy: NDArray[np.float32]


def figure_png(scans: Sequence[Scan], title: str, *, colour: str, clip: float) -> bytes:
    """PNG of Q-scans: time from the trigger, frequency (log), and a colour bar of the energy.

    Parameters
    ----------
    colour : as `QScanSettings.colour`.
    clip : energy of the brightest colour.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    rows = 2 if len(scans) > 3 else 1
    columns = -(-len(scans) // rows)
    figure = Figure(figsize=(4.2 * columns + 1, 3.4 * rows + 0.6), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colour = "gray" if colour == "grey" else colour
    for ax, scan in zip(axes, scans, strict=False):
        half, energy = scan.duration / 2, scan.energy
        edges = np.linspace(-half, half, energy.shape[1] + 1)
        heights = np.geomspace(*scan.band, len(energy) + 1)
        mesh = ax.pcolormesh(
            edges, heights, energy, cmap=colour, vmin=0, vmax=clip, rasterized=True
        )
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_title(f"{scan.detector} {scan.duration:g} s".strip(), fontsize=10)
        ax.set_xlabel("time from the trigger (s)")
        ax.set_ylabel("frequency (Hz)")
    for ax in axes[len(scans) :]:
        ax.set_axis_off()
    figure.colorbar(mesh, ax=axes.tolist(), label="normalised energy", extend="max")
    figure.suptitle(title, fontsize=10)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
