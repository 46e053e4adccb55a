"""Accuracy and answers on pictures of 8 bits that are stored as instruments store theirs.

Each picture of `--data` is made grey, scaled to at most `--side` pixels, and stored as TIFF in 8, 10, 12,
14 and 16 bits, packed 12 bits, signed, floats from 0 to 1 and in other units, and 12 bits and floats with a hot pixel, or with a corner
without data (GDAL_NODATA), in each file. For each seed a part of the files trains a logistic regression on the embedded network's
features; range and all are inferred from that part as a run infers them. Columns: accuracy on the other files, and how many of them
have another answer than in 8 bits. "divided by 257" is how 16-bit values were shown before.

    python benchmarks/bench_samples.py --data ../shared/data/pictures/known --seeds 3 --size 96
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import tifffile
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from datasets.core.part import Part
from datasets.images.opening import open_picture
from datasets.images.settings import PictureSettings
from datasets.kinds.picture import Picture
from datasets.steps.reading import load_table
from learners.backbones.building import build
from learners.backbones.spec import NetworkSpec
from learners.inference.embedding import extract_features
from learners.inference.options import Computing, Opening
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.training.probe import fit_probe

CORNER = 0.15  # of the side, without data
NO_DATA = (42113, "s", 0, "-9999", True)


def in_bits(bits: int, kind: str = "u2") -> Callable[[np.ndarray], np.ndarray]:
    return lambda grey: np.rint(grey * ((2**bits - 1) / 255)).astype(kind)


def floats(grey: np.ndarray) -> np.ndarray:
    return (grey / 255).astype(np.float32)


def heights(grey: np.ndarray) -> np.ndarray:
    """Such as metres of a terrain."""
    return (100 + 0.8 * grey).astype(np.float32)


def hot(
    store: Callable[[np.ndarray], np.ndarray], value: float
) -> Callable[[np.ndarray], np.ndarray]:
    def with_hot(grey: np.ndarray) -> np.ndarray:
        values = store(grey)
        values[len(values) // 3, 5] = value
        return values

    return with_hot


def holes(grey: np.ndarray) -> np.ndarray:
    values = heights(grey)
    rows, columns = (round(CORNER * side) for side in values.shape)
    values[:rows, :columns] = -9999
    return values


def black_corner(grey: np.ndarray) -> np.ndarray:
    """What a corner without data is to be seen as."""
    values = grey.copy()
    rows, columns = (round(CORNER * side) for side in values.shape)
    values[:rows, :columns] = 0
    return values


#: How each variant is stored, and of which 8-bit pictures it is a copy.
VARIANTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "8 bits": (lambda grey: grey, "8 bits"),
    "10 bits": (in_bits(10), "8 bits"),
    "12 bits": (in_bits(12), "8 bits"),
    "12 bits, packed": (in_bits(12), "8 bits"),
    "14 bits": (in_bits(14), "8 bits"),
    "16 bits": (in_bits(16), "8 bits"),
    "12 bits, signed": (in_bits(12, "i2"), "8 bits"),
    "float, 0 to 1": (floats, "8 bits"),
    "float, other units": (heights, "8 bits"),
    "12 bits, a hot pixel": (hot(in_bits(12), 65535), "8 bits"),
    "float, a hot pixel": (hot(heights, 60_000), "8 bits"),
    "8 bits, a black corner": (black_corner, "8 bits, a black corner"),
    "float, a corner of NODATA": (holes, "8 bits, a black corner"),
    "12 bits, divided by 257": (in_bits(12), "8 bits"),
}


def store(folder: Path, pictures: list[np.ndarray]) -> dict[str, list[str]]:
    """Write each picture in each way; the files of each."""
    files: dict[str, list[str]] = {}
    for number, (name, (stored, _)) in enumerate(VARIANTS.items()):
        (folder / str(number)).mkdir()
        files[name] = []
        for index, grey in enumerate(pictures):
            path = folder / str(number) / f"{index}.tif"
            values = stored(grey)
            options = {"extratags": [NO_DATA]} if "NODATA" in name else {}
            if "packed" in name:
                path.write_bytes(packed(values))
            else:
                tifffile.imwrite(path, values, photometric="minisblack", metadata=None, **options)
            files[name].append(str(path))
    return files


def packed(values: np.ndarray) -> bytes:
    """A TIFF of 12-bit samples without gaps."""
    import struct

    height, width = values.shape
    each = values[..., None] >> np.arange(11, -1, -1, dtype=np.uint16) & 1
    body = np.packbits(each.reshape(height, -1).astype(np.uint8), axis=1).tobytes()
    entries = [(256, 4, width), (257, 4, height), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 8),
               (277, 3, 1), (278, 4, height), (279, 4, len(body))]  # fmt: skip
    place = 8 + len(body) + len(body) % 2
    tags = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return (
        b"II*\0"
        + struct.pack("<I", place)
        + body.ljust(place - 8, b"\0")
        + struct.pack("<H", 9)
        + tags
        + bytes(4)
    )


def settings_of(name: str, train: list[str]) -> PictureSettings | None:
    """Range of a variant, as a run infers it from its training files."""
    if "257" in name:
        return PictureSettings(range="fixed", low=(0.0,), high=(65535.0,))
    looks = [Picture().look(path, True).stored for path in train]
    return PictureSettings.infer([one for one in looks if one is not None], {})[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo:digits", help="a source of pictures with labels")
    parser.add_argument("--each", type=int, default=24, help="pictures of a class")
    parser.add_argument("--side", type=int, default=160, help="pixels")
    parser.add_argument("--size", type=int, default=96, help="of the network's input")
    parser.add_argument("--seeds", type=int, default=3)
    options = parse(parser, each=4, size=48, seeds=1)
    frame = load_table(options.data).frame
    paths = {label: [*map(Path, rows["path"])] for label, rows in frame.groupby("label")}
    chosen = [(path, label) for label, all_of in enumerate(paths.values())
              for path in all_of[:: max(1, len(all_of) // options.each)][: options.each]]  # fmt: skip
    pictures = []
    for path, _ in chosen:
        picture = open_picture(path).convert("L")
        picture.thumbnail((options.side, options.side), Image.Resampling.BOX)
        pictures.append(np.asarray(picture))
    labels = np.array([label for _, label in chosen])
    network, spec, preprocessing = build(
        NetworkSpec("embedded", len(paths), options.size, head="linear")
    )
    right: dict[str, list[float]] = {name: [] for name in VARIANTS}
    other: dict[str, list[int]] = {name: [] for name in VARIANTS}
    ranges: dict[str, str] = {}
    known: dict[tuple[str, PictureSettings | None], np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = store(Path(folder), pictures)
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(len(labels))
            test, train = order[: len(order) // 3], order[len(order) // 3 :]
            answers: dict[str, np.ndarray] = {}
            for name, (_, copy_of) in VARIANTS.items():
                samples = settings_of(name, [files[name][index] for index in train])
                ranges[name] = (
                    "" if samples is None else f"{samples.low[0]:.6g} to {samples.high[0]:.6g}"
                )
                if (name, samples) not in known:
                    bundle = Bundle(
                        network.eval(),
                        spec,
                        [*map(str, paths)],
                        replace(preprocessing, samples=samples),
                    )
                    predictor = Predictor(
                        bundle, opening=Opening(workers=1), computing=Computing(device="cpu")
                    )
                    try:
                        features, rejected = extract_features(
                            predictor, [Part(path) for path in files[name]]
                        )
                    finally:
                        predictor.close()
                    assert not rejected, rejected[:3]
                    known[name, samples] = features
                x, y = torch.from_numpy(known[name, samples]), torch.from_numpy(labels)
                layer = fit_probe(x[train], y[train], len(paths))
                with torch.inference_mode():
                    logits = torch.nn.functional.linear(x[test], layer.weight, layer.bias)
                answers[name] = logits.argmax(1).numpy()
                right[name].append(float((answers[name] == labels[test]).mean()))
                other[name].append(int((answers[name] != answers[copy_of]).sum()))
    print(
        f"{len(labels)} pictures of {len(paths)} classes, {len(test)} of them for the accuracy; {software_and_hardware()}\n"
    )
    print(
        "| stored as | range found | accuracy of each seed | other answers than in 8 bits |\n|---|---|---|---|"
    )
    for name in VARIANTS:
        accuracies = ", ".join(f"{value:.3f}" for value in right[name])
        print(f"| {name} | {ranges[name]} | {accuracies} | {', '.join(map(str, other[name]))} |")


if __name__ == "__main__":
    main()
