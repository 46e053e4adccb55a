"""Draws Q-scans with axes, for people."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from datasets.strain.files import Strain
from datasets.strain.settings import QScanSettings

_PIXELS = 400  # height and width of a Q-scan


def figure_png(spectrogram: QScanSettings, signal: Strain) -> bytes:
    """PNG of the Q-scans of a signal: time from the trigger, frequency (log), and a colour bar of the energy.

    Raises BadFile as `QScanSettings.levels`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    scans = spectrogram.scans(signal, width=_PIXELS, height=_PIXELS)
    rows = 2 if len(scans) > 3 else 1
    columns = -(-len(scans) // rows)
    figure = Figure(figsize=(4.2 * columns + 1, 3.4 * rows + 0.6), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colour = "gray" if spectrogram.colour == "grey" else spectrogram.colour
    for ax, scan in zip(axes, scans, strict=False):
        half, energy = scan.duration / 2, scan.energy
        edges = np.linspace(-half, half, energy.shape[1] + 1)
        heights = np.geomspace(*scan.band, len(energy) + 1)
        mesh = ax.pcolormesh(
            edges, heights, energy, cmap=colour, vmin=0, vmax=spectrogram.clip, rasterized=True
        )
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_title(f"{scan.detector} {scan.duration:g} s".strip(), fontsize=10)
        ax.set_xlabel("time from the trigger (s)")
        ax.set_ylabel("frequency (Hz)")
    for ax in axes[len(scans) :]:
        ax.set_axis_off()
    figure.colorbar(mesh, ax=axes.tolist(), label="normalised energy", extend="max")
    figure.suptitle(f"{Path(signal.path).name}\ntrigger at GPS {signal.trigger:.3f}", fontsize=10)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
