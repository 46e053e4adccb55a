"""Frame files of noise, and tables of triggers in them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

START, SECONDS, RATE = 1_000_000_000, 64, 4096
#: Of Gravity Spy's columns.
CSV = "event_time,ifo,snr,gravityspy_id,ml_label,ml_confidence\n"


def frame(folder: Path, detector: str = "H1", start: int = START, gap: slice | None = None) -> Path:
    """A file of noise in GWOSC's layout, called as they are."""
    values = 1e-21 * np.random.default_rng(start % 97).standard_normal(SECONDS * RATE)
    if gap is not None:
        values[gap] = np.nan
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{detector[0]}-{detector}_SIM-{start}-{SECONDS}.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=values, chunks=(RATE,))
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, start
        file["meta/Detector"] = detector
    return path
