"""Fits the frequencies that spectrograms show to the frequency limits of the labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from datasets.audio.decode import ULTRASOUND
from datasets.audio.settings import MelSettings

if TYPE_CHECKING:
    import pandas as pd

#: Columns of an item table: lowest and highest frequency of a label in Hz, NaN if not given.
BAND_COLUMNS = ("low_hz", "high_hz")
MARGIN = 1.25  # between a labelled frequency and the edge of the picture: a third of an octave
_ROUNDING = 1.01


class Band(NamedTuple):
    """Frequencies in Hz: the 5th percentile of the lower limits of labels, and the 95th of the upper ones."""

    low: float
    high: float


def label_limits(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The lowest and the highest frequency of each label of an item table in Hz, NaN if not given."""
    limits = frame.reindex(columns=[*BAND_COLUMNS]).astype(float)
    return limits[BAND_COLUMNS[0]], limits[BAND_COLUMNS[1]]


def labelled_band(low: ArrayLike, high: ArrayLike) -> Band | None:
    """Band of labels with the limits ``low`` and ``high`` [n]; None if fewer than half of them have an upper limit.

    0 Hz is the edge of a program's window and no limit: without another lower limit it is NaN.
    """
    lows, highs = np.asarray(low, float), np.asarray(high, float)
    stated = highs[np.isfinite(highs) & ~(highs <= lows)]
    if not len(highs) or 2 * len(stated) < len(highs):
        return None
    lows = lows[lows > 0]
    lowest = float(np.percentile(lows, 5)) if 2 * len(lows) >= len(highs) else np.nan
    return Band(lowest, float(np.percentile(stated, 95)))


def show_band(settings: MelSettings, band: Band, given: Collection[str]) -> MelSettings:
    """Settings whose fmin and fmax hold the labelled band, as far as the rate allows, unless they are ``given``.

    Of audible sound more than the band stays visible. Above a rate of `ULTRASOUND` the band is a small part of all
    frequencies, and only its neighbourhood is shown.
    """
    narrow = settings.rate > ULTRASOUND
    shown: dict[str, Any] = {}
    if "fmax" not in given:
        highest = band.high * MARGIN
        shown["fmax"] = min(highest if narrow else max(highest, settings.fmax), settings.rate / 2)
    if "fmin" not in given and band.low == band.low:
        lowest = band.low / MARGIN
        shown["fmin"] = lowest if narrow else min(lowest, settings.fmin)
    fits = shown.get("fmin", settings.fmin) < shown.get("fmax", settings.fmax)
    return replace(settings, **shown) if fits else settings


def are_outside(settings: MelSettings, low: ArrayLike, high: ArrayLike) -> np.ndarray:
    """Which labels with these limits in Hz reach out of the picture, bool [n]."""
    lows, highs = np.asarray(low, float), np.asarray(high, float)
    return (highs > settings.fmax * _ROUNDING) | ((lows > 0) & (lows * _ROUNDING < settings.fmin))


def hertz(frequency: float) -> str:
    """A frequency in words, such as "45 kHz" or "20 Hz"."""
    return f"{frequency / 1000:.3g} kHz" if frequency >= 1000 else f"{frequency:.3g} Hz"
