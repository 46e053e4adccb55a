"""What the public sets look like inside: their own lists of labels, folds and splits -> item rows.

Each reader takes the folder that the set was unpacked into and returns a table with ``path``,
``label`` and what else the publisher says of ``group``, ``split``, ``fold`` and ``gps``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.errors import BadFile

#: Of a glitch, the views that become the red, green and blue channel (arXiv 2303.13917).
VIEWS = ("0.5.png", "2.0.png", "4.0.png")
PIXELS = (140, 170)  # height and width of each view
SPLITS = {"train": "train", "validation": "valid", "test": "test"}

#: Imagenette's folders are WordNet numbers.
WORDNET = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}

Reader = Callable[[Path], pd.DataFrame]


def read_esc50(folder: Path) -> pd.DataFrame:
    """``meta/esc50.csv``: five folds; a group is the recording that a clip was cut from."""
    root = _only(folder, "*/meta/esc50.csv").parents[1]
    rows = _csv(root / "meta/esc50.csv", "filename", "fold", "category", "src_file")
    return pd.DataFrame(
        {
            "path": [str(root / "audio" / name) for name in rows["filename"]],
            "label": rows["category"],
            "group": rows["src_file"],
            "fold": rows["fold"],
        }
    )


def read_urbansound8k(folder: Path) -> pd.DataFrame:
    """``metadata/UrbanSound8K.csv``: ten folds; a group is the recording (``fsID``).

    Its ``start`` and ``end`` are seconds of the recording that a clip was cut from, so they are not
    times in the file.
    """
    root = _only(folder, "*/metadata/UrbanSound8K.csv").parents[1]
    rows = _csv(root / "metadata/UrbanSound8K.csv", "slice_file_name", "fsID", "fold", "class")
    places = zip(rows["fold"], rows["slice_file_name"], strict=True)
    return pd.DataFrame(
        {
            "path": [str(root / "audio" / f"fold{fold}" / name) for fold, name in places],
            "label": rows["class"],
            "group": rows["fsID"],
            "fold": rows["fold"],
        }
    )


def read_pets(folder: Path) -> pd.DataFrame:
    """``annotations/trainval.txt`` and ``test.txt``, whose first word a line is the picture."""
    rows = []
    for name, split in (("trainval", "train"), ("test", "test")):
        list_file = folder / "annotations" / f"{name}.txt"
        for line in _text(list_file).splitlines():
            if words := line.split():
                # Abyssinian_100: the breed, then the number.
                breed = words[0].rpartition("_")[0].replace("_", " ")
                path = str(folder / "images" / f"{words[0]}.jpg")
                rows.append({"path": path, "label": breed, "split": split})
    return pd.DataFrame(rows)


def read_imagenette(folder: Path) -> pd.DataFrame:
    """``train`` and ``val``, each with a folder for each of ten WordNet numbers."""
    root = _only(folder, "*/train").parent
    rows = [
        {"path": str(path), "label": WORDNET.get(label.name, label.name), "split": split}
        for name, split in (("train", "train"), ("val", "valid"))
        for label in sorted((root / name).iterdir())
        for path in sorted(label.glob("*.JPEG"))
        if not path.name.startswith("._")
    ]
    return pd.DataFrame(rows)


def read_gravityspy(folder: Path) -> pd.DataFrame:
    """What `draw_gravityspy` wrote: ``items.csv`` and the pictures it names."""
    rows = _csv(folder / "items.csv", "path", "label", "split", "gps")
    rows["path"] = [str(folder / name) for name in rows["path"]]
    rows["gps"] = pd.to_numeric(rows["gps"], errors="coerce")
    return rows


def draw_gravityspy(files: list[Path], folder: Path) -> None:
    """One picture a glitch out of Gravity Spy's HDF5: the views of 0.5, 2 and 4 s as its channels.

    In the file, ``LABEL/SPLIT/ID/0.5.png`` and so on are grey values [1, 140, 170], floats of 0 to
    1; the list of the glitches (``gravityspy_id,label,sample_type``, in later versions also
    ``event_time``) is a file of its own.
    """
    import h5py
    from PIL import Image

    table = next(file for file in files if file.suffix == ".csv")
    store = next(file for file in files if file.suffix == ".h5")
    listed = _csv(table, "gravityspy_id", "label", "sample_type")
    listed = listed.drop_duplicates("gravityspy_id")
    rows = []
    with h5py.File(store, "r") as source:
        for index, glitch in listed.iterrows():
            label, split, name = glitch["label"], glitch["sample_type"], glitch["gravityspy_id"]
            if split not in SPLITS:
                raise BadFile(table, f"sample_type {split!r} is none of {', '.join(SPLITS)}")
            if any(not word.replace("_", "").replace("-", "").isalnum() for word in (label, name)):
                raise BadFile(table, f"the label {label!r} or the id {name!r} is no plain word")
            views = [_view(store, source, f"{label}/{split}/{name}/{view}") for view in VIEWS]
            path = Path("pictures", label, f"{name}.png")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.stack(views, axis=-1)).save(folder / path, compress_level=3)
            gps = listed.at[index, "event_time"] if "event_time" in listed else ""
            row = {"path": path.as_posix(), "label": label, "split": SPLITS[split], "gps": gps}
            rows.append(row)
    pd.DataFrame(rows).to_csv(folder / "items.csv", index=False)


def _view(path: Path, source: Any, name: str) -> NDArray[np.uint8]:
    """One view, uint8 [height, width]; by hard links alone, with its data inside the file."""
    import h5py

    node = source
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if not isinstance(link, h5py.HardLink):
            raise BadFile(path, f"no {name}: not the layout of Gravity Spy's training set")
        node = node[part]
    if not isinstance(node, h5py.Dataset) or node.is_virtual or node.external:
        raise BadFile(path, f"{name} is no picture, or lies in another file")
    if node.shape not in ((1, *PIXELS), PIXELS) or node.dtype.kind not in "fu":
        raise BadFile(path, f"{name} is {node.dtype} {node.shape}, not {(1, *PIXELS)} grey values")
    value = np.asarray(node[()]).reshape(PIXELS)
    if value.dtype == np.uint8:
        return value
    if not (np.isfinite(value).all() and value.min() >= 0 and value.max() <= 1):
        raise BadFile(path, f"{name} has grey values outside 0 to 1")
    return np.rint(value * 255).astype(np.uint8)


def _only(folder: Path, pattern: str) -> Path:
    """The one thing under ``folder`` that matches; archives wrap all in a folder of their name."""
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(pattern.removeprefix("*/")))
    if len(found) != 1:
        raise BadFile(
            folder, f"{len(found)} of {pattern} in it: delete the folder, and it is made again"
        )
    return found[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"cannot be read ({error}): delete the folder of the set") from None


def _csv(path: Path, *columns: str) -> pd.DataFrame:
    """All as text; BadFile where a column is not there."""
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # the parser's errors are ValueErrors
        raise BadFile(path, f"cannot be read as a table ({str(error)[:120]})") from None
    missing = [name for name in columns if name not in rows]
    if missing:
        raise BadFile(
            path, f"no column {', '.join(missing)}; it has {', '.join(map(str, rows.columns))}"
        )
    return rows
