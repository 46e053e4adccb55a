"""Demo data sets ``demo:NAME``: small labelled sets that need no network, written to the cache once."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.core.files import folder_beside
from datasets.core.scanning import files_below
from datasets.core.store import cache_root
from datasets.kinds.base import find_kind
from datasets.sources import glitches, sounds
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source

PREFIX = "demo:"
#: The unknown class of `demo:glitches`, to measure whether a model refuses it.
UNKNOWN_CLASS = "Whistle_sim"
#: Number of files per class. With 64 glitches per class the calibration split has more than 100 items.
_PER_CLASS = {"sounds": 24, "glitches": 64}
#: Rows of the files that a demo has written.
Written = list[dict[str, Any]]
#: Duration of simulated strain: the shortest context of Q-scans, which takes half the time of the default 32 s.
_SECONDS = 16.0


def write_demo(name: str, *, noise: str | None = None) -> tuple[pd.DataFrame, str]:
    """Item table of a demo, whose files are written on first use, and a note on it.

    Parameters
    ----------
    name : "digits", scikit-learn's handwritten digits; "sounds", simulated sounds; "scenes",
        recordings of none to three simulated sounds; "glitches", simulated strain.
    noise : strain file, folder or pattern of measured strain to inject glitches into, instead of simulated
        noise.

    Returns
    -------
    The table (`path`, `label`; for glitches also `group`, the GPS segment, and `gps`, the trigger), and the
    note, which contains SIMULATED if the data were not measured.

    Raises
    ------
    SecondhandError : there is no such demo, or no strain file in ``noise``.
    """
    if name not in _WRITERS:
        demos = ", ".join(PREFIX + one for one in _WRITERS)
        raise SecondhandError(f"there is no demo:{name}. The demos are {demos}")
    version, write, note = _WRITERS[name]
    folder = cache_root() / "demos" / f"{name}-{version}"
    if noise is not None:
        strain_files = _strain_files(noise)
        states = repr([(p, os.stat(p)[6:9]) for p in strain_files])
        mark = hashlib.sha256(states.encode()).hexdigest()[:12]
        folder = folder.with_name(f"{folder.name}-{mark}")
        write = partial(_glitches, noise=strain_files)
        note = f"SIMULATED glitches and chirps in the strain of {noise}; {UNKNOWN_CLASS} is an unknown class"
    return _written_once(folder, write), note


def _written_once(folder: Path, write: Callable[[Path], Written]) -> pd.DataFrame:
    """Table of a demo; its folder is written atomically on first use."""
    if not (folder / "items.csv").is_file():
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one, for example half deleted
        with folder_beside(folder, replace=False) as beside:
            frame = pd.DataFrame(write(beside)).drop(columns="simulated", errors="ignore")
            frame["path"] = [Path(path).relative_to(beside).as_posix() for path in frame["path"]]
            frame["label"] = frame["label"].replace(UNKNOWN_CLASS, "unknown")
            frame.to_csv(beside / "items.csv", index=False)
    text = {"path": str, "label": str, "group": str}
    frame = pd.read_csv(folder / "items.csv", dtype=text, keep_default_na=False)
    frame["path"] = [str(folder / path) for path in frame["path"]]
    return frame


def _digits(folder: Path) -> Written:
    """Write scikit-learn's 1797 handwritten digits (8 x 8, 16 greys), enlarged eight times."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows: Written = []
    for index, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / f"{index:04d}.png"
        grey = np.rint(255 - image * (255 / 16)).astype(np.uint8)
        Image.fromarray(grey).resize((64, 64), Image.Resampling.BICUBIC).save(path)
        rows.append({"path": path, "label": str(digit) if digit < 8 else "unknown"})
    return rows


def _glitches(folder: Path, noise: Sequence[str] = ()) -> Written:
    count = _PER_CLASS["glitches"]
    return glitches.write_demo(folder, per_class=count, duration=_SECONDS, noise=noise)


def _strain_files(noise: str) -> list[str]:
    """The strain files that a path or a pattern names, sorted."""
    is_folder = Path(noise).is_dir()
    paths = files_below(noise)[0] if is_folder else sorted(glob.glob(noise, recursive=True))
    listed = [
        path
        for path in paths or [noise]
        if (kind := find_kind(path)) and kind.gps and os.path.isfile(path)
    ]
    if not listed:
        raise SecondhandError(
            f"--strain {noise}: no strain file. Name a file, a folder, or a pattern in quotes"
        )
    return listed


#: Version, writer and note of each demo. The version changes with the files, because it names their folder.
_WRITERS: dict[str, tuple[int, Callable[[Path], Written], str]] = {
    "digits": (1, _digits, "handwritten digits of scikit-learn; 8 and 9 are unknown classes"),
    "sounds": (
        1,
        lambda folder: sounds.write_demo(folder, per_class=_PER_CLASS["sounds"]),
        "SIMULATED sounds, computed from textbook models, not recorded",
    ),
    "scenes": (
        1,
        sounds.write_scenes,
        "SIMULATED scenes of none to three sounds at once, computed from textbook models, not recorded",
    ),
    "glitches": (
        2,
        _glitches,
        "SIMULATED strain, glitches and chirps in coloured noise, not measured; "
        f"{UNKNOWN_CLASS} is an unknown class",
    ),
}


#: The demos whose items may have several labels.
SEVERAL_LABELS = (f"{PREFIX}scenes",)


def _read(path: Path, options: ReadOptions) -> Rows:
    noise = options.settings.get("strain") if str(path) == "demo:glitches" else None
    frame, note = write_demo(str(path).removeprefix(PREFIX), noise=noise)
    return Rows(frame, [], note)


SOURCES.add(
    Source(
        name="demo",
        order=10,
        claims=lambda path, options: str(path).startswith(PREFIX),
        read=_read,
        names=tuple(PREFIX + name for name in _WRITERS),
        has_multi_label=lambda path: str(path) in SEVERAL_LABELS,
        several_labels=SEVERAL_LABELS,
    )
)
