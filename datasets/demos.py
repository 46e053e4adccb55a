"""``demo:NAME``: small labelled sets that need no network, written to the cache once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from datasets.errors import SecondhandError

DEMOS = ("digits",)


def cache_root() -> Path:
    """Folder for what can be made again: ``$SECONDHAND_CACHE``, else the user's cache folder."""
    given = os.environ.get("SECONDHAND_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secondhand"


def write_demo(name: str) -> tuple[pd.DataFrame, str]:
    """The item table of a demo, its files written on first use, and a note on what it is.

    Raises
    ------
    SecondhandError : there is no such demo.
    """
    if name not in DEMOS:
        raise SecondhandError(f"demo:{name} is none of {', '.join(f'demo:{n}' for n in DEMOS)}")
    return _digits(cache_root() / "demos" / "digits-1")


def _digits(folder: Path) -> tuple[pd.DataFrame, str]:
    """scikit-learn's 1797 handwritten digits (8 x 8, 16 greys) at eight times their size.

    8 and 9 are kept back under the label ``unknown``.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = [f"{index:04d}.png" for index in range(len(digits.target))]
    if not folder.exists():
        from PIL import Image

        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and renamed: a demo folder is either whole or not there.
        beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".digits-"))
        for name, image in zip(names, digits.images, strict=True):
            grey = np.rint(255 - image * (255 / 16)).astype(np.uint8)
            Image.fromarray(grey).resize((64, 64), Image.Resampling.BICUBIC).save(beside / name)
        try:
            os.replace(beside, folder)
        except OSError:  # somebody else was first
            shutil.rmtree(beside)
    labels = [str(digit) if digit < 8 else "unknown" for digit in digits.target]
    frame = pd.DataFrame({"path": [str(folder / name) for name in names], "label": labels})
    return frame, "handwritten digits that ship with scikit-learn; 8 and 9 are kept back as unknown"
