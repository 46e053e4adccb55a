"""What the data of a run are, for its report: items by class and split, sizes, durations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.items import UNKNOWN, ItemTable

#: Files that are looked into, spread evenly over the table.
LOOKED_AT = 200
SPLITS = ("train", "valid", "calibration", "test")


def class_counts(table: ItemTable) -> pd.DataFrame:
    """Items of each class in each split, strangers in a row of their own, and their sums."""
    frame = table.frame.assign(split=table.frame["split"].replace("", "all"))
    if len(table.unknowns):
        frame = pd.concat([frame, table.unknowns.assign(label=UNKNOWN, split=UNKNOWN)])
    counts = pd.crosstab(frame["label"].astype(str), frame["split"].astype(str))
    others = sorted(name for name in counts.columns if name not in (*SPLITS, UNKNOWN))
    order = [name for name in (*SPLITS, *others, UNKNOWN) if name in counts.columns]
    counts = counts[order]
    if UNKNOWN in counts.index:
        counts = pd.concat([counts.drop(index=UNKNOWN), counts.loc[[UNKNOWN]]])
    counts["all"] = counts.sum(axis=1)
    counts.loc["sum"] = counts.sum(axis=0)
    return counts.rename_axis("class", axis=0).rename_axis(None, axis=1).reset_index()


def facts(table: ItemTable) -> dict[str, str]:
    """Sentences about the files: their kind, how many, sizes or durations, by name."""
    frame = pd.concat([table.frame, table.unknowns])
    paths = list(dict.fromkeys(frame["path"]))
    found = {"kind": table.kind, "files": f"{len(paths)}, {len(frame)} items"}
    endings = Counter(path.rsplit(".", 1)[-1].lower() for path in paths if "." in path)
    found["formats"] = ", ".join(f"{name} {count}" for name, count in endings.most_common(6))
    groups = frame["group"].loc[frame["group"].ne("")].nunique()
    if groups:
        found["groups"] = f"{groups}, none of them split"
    if len(table.background):
        learned = int(table.background["split"].eq("train").sum())
        held = len(table.background) - learned
        found["background"] = f"{learned} files learnt as none of the classes, {held} held out"
    if table.near_duplicates:
        found["near-duplicates"] = table.near_duplicates
    if table.visits:
        found["photos of one visit"] = table.visits
    looked = [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, LOOKED_AT).astype(int))]
    if not paths:
        return found
    about = "" if len(looked) == len(paths) else f" (of {len(looked)} files looked into)"
    if table.kind == "picture":
        sizes = [size for path in looked if (size := _size(table, path))]
        if sizes:
            small, usual, large = np.quantile([min(size) for size in sizes], (0, 0.5, 1))
            found["short side"] = f"{small:.0f} to {large:.0f} pixels, median {usual:.0f}{about}"
            (width, height), count = Counter(sizes).most_common(1)[0]
            found["most common size"] = f"{width} x {height} pixels, {count} of {len(sizes)}"
    elif table.kind == "sound":
        from datasets import audio

        headers = []
        for path in looked:
            try:
                headers.append(audio.probe(path))
            except SecondhandError:  # gone or changed since
                continue
        if headers:
            short, usual, long = np.quantile([header.duration for header in headers], (0, 0.5, 1))
            found["duration"] = f"{short:.2f} to {long:.2f} s, median {usual:.2f}{about}"
            rates = Counter(header.rate for header in headers).most_common(4)
            found["rate"] = ", ".join(f"{rate} Hz in {count}" for rate, count in rates)
    return found


def _size(table: ItemTable, path: str) -> tuple[int, int] | None:
    """Width and height from the header alone; None where it is no picture any more."""
    from PIL import Image

    if path in table.looks:
        return table.looks[path].size
    try:
        with Image.open(path) as picture:
            return picture.size
    except Exception:  # a decoder fed with damaged bytes raises anything
        return None
