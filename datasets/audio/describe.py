"""Says in words what the pictures of recordings show and hide."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pandas as pd

from datasets.audio.band import are_outside, hertz, label_limits, labelled_band
from datasets.audio.decode import ULTRASOUND
from datasets.audio.recorders import time_expansion
from datasets.audio.settings import MelSettings
from datasets.core.errors import counted

#: Level and text of a line of the log.
Line = tuple[int, str]


def frequencies(spectrogram: MelSettings, frame: pd.DataFrame) -> Iterator[Line]:
    """Lines on which frequencies are shown where that is not the usual, which labels are outside, and what is slowed."""
    low, high = label_limits(frame)
    shown = f"the pictures show {hertz(spectrogram.fmin)} to {hertz(spectrogram.fmax)}"
    band = labelled_band(low, high)
    if band or spectrogram.rate > ULTRASOUND:
        why = f"labels up to {hertz(band.high)}" if band else f"a rate of {hertz(spectrogram.rate)}"
        yield (
            logging.INFO,
            f"Frequencies: {shown} ({why}); --spectrogram with fmin and fmax changes it",
        )
    if number := int((outside := are_outside(spectrogram, low, high)).sum()):
        path, first, last = (cells[outside].iloc[0] for cells in (frame["path"], low, high))
        yield (
            logging.WARNING,
            f"{number} of {counted(len(frame), 'label')} reach out of the frequencies that {shown}, such as "
            f"{hertz(first)} to {hertz(last)} of {path}. Choose fmin and fmax with --spectrogram; at "
            f"{hertz(spectrogram.rate)} at most {hertz(spectrogram.rate / 2)} can be shown",
        )
    expanded = {
        path: factor for path in frame["path"].unique() if (factor := time_expansion(path)) > 1
    }
    if expanded:
        path, factor = next(iter(expanded.items()))
        mixed = len(expanded) < (files := frame["path"].nunique())
        others = ". The others are not: one call has two pictures. Expand all or none"
        yield (
            logging.WARNING if mixed else logging.INFO,
            f"Slowed recordings (time expansion): {len(expanded)} of {files}, such as {path}, {factor:g} times. "
            f"Frequencies and times are those of the slowed sound{others * mixed}",
        )
