"""Strain in GWF frames, through gwpy and the frame library that it finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ._strain_source import Source, checked
from .errors import BadFile, SecondhandError


def read_gwf(path: Path) -> Source:
    remedy = "pip install secondhand[gw], and with it a frame library that gwpy knows: lalsuite"
    try:
        from gwpy.io.gwf import get_channel_names
        from gwpy.timeseries import TimeSeries
    except ImportError as error:
        raise SecondhandError(f"{path}: GWF frames need gwpy: {remedy}") from error
    try:
        names = [str(name) for name in get_channel_names(str(path))]
        strain = [name for name in names if "STRAIN" in name]
        if not strain:
            raise BadFile(path, f"no channel with STRAIN in its name among {names[:5]}")
        series = TimeSeries.read(str(path), strain[0], format="gwf")
    except ImportError as error:
        raise SecondhandError(f"{path}: {error}: {remedy}") from error
    except BadFile:
        raise
    except Exception as error:  # each frame library raises errors of its own
        raise BadFile(path, f"broken GWF: {error}") from error
    values = np.asarray(series.value, dtype=np.float64)
    rate = checked(path, float(series.sample_rate.value), float(series.t0.value), values.size)
    detector = strain[0].split(":")[0]
    return Source(
        rate, float(series.t0.value), values.size, detector, lambda i, j: values[i:j], lambda *_: {}
    )
