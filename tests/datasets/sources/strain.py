"""Frame files of noise, and tables of triggers in them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

START, SECONDS, RATE = 1_000_000_000, 64, 4096
BURST = 20.0  # seconds after the start of each file
#: Columns of Gravity Spy's tables.
CSV = "event_time,ifo,snr,gravityspy_id,ml_label,ml_confidence\n"


def frame(
    folder: Path,
    detector: str = "H1",
    start: int = START,
    gap: slice | None = None,
    seconds: int = SECONDS,
) -> Path:
    """Write noise with a burst in GWOSC's layout, under a name of GWOSC's form."""
    rng = np.random.default_rng([start, ord(detector[0])])
    values = 1e-21 * rng.standard_normal(seconds * RATE)
    t = np.arange(len(values)) / RATE - BURST
    values += 1e-19 * np.exp(-((t / 0.01) ** 2)) * np.sin(2 * np.pi * 200 * t)
    if gap is not None:
        values[gap] = np.nan
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{detector[0]}-{detector}_SIM-{start}-{seconds}.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=values, chunks=(RATE,))
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, start
        file["meta/Detector"] = detector
    return path
