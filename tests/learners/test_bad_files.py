"""A run on a folder of which a fifth is bad ends as the run without the bad files."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.steps.reading import load_table
from learners.finetune import main

pytestmark = [pytest.mark.usefixtures("unreported"), pytest.mark.forks]

QUICK = ["--backbone", "scratch/mnist_cnn", "--weights", "none", "--size", "32", "--epochs", "1",
         "--freeze-epochs", "0", "--no-flip", "--workers", "0", "--threads", "1"]  # fmt: skip

Rng = np.random.Generator


def write_digits(root: Path, good: int, bad: int, *, seed: int = 0) -> dict[str, str]:
    """`good` handwritten digits, by class folders, half PNG and half JPEG, and `bad` others.

    The good ones have the same names and bytes whatever `bad` is.

    Returns
    -------
    The kind of damage of each bad file, by its path.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    damaged = {}
    for n, index in enumerate(rng.permutation(len(labels))[: good + bad].tolist()):
        folder = root / f"digit {labels[index]}"
        folder.mkdir(parents=True, exist_ok=True)
        grey = (pixels[index].reshape(8, 8) * 15.9).astype(np.uint8)
        form = ("PNG", "JPEG")[n % 2]
        out = io.BytesIO()
        Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC).save(out, form)
        ending = {"PNG": ".png", "JPEG": ".jpg"}[form]
        # In a listing they lie between the good ones.
        path = folder / f"{index:04d}{ending}"
        if n < good:
            path.write_bytes(out.getvalue())
        else:
            names = sorted(DAMAGES)
            name = names[n % len(names)]
            damaged[str(DAMAGES[name](path, out.getvalue(), rng) or path)] = name
    return damaged


def _write(change: Callable[[bytes, Rng], bytes]) -> Callable[[Path, bytes, Rng], Path | None]:
    def damage(path: Path, data: bytes, rng: Rng) -> None:
        path.write_bytes(change(data, rng))

    return damage


def _renamed(path: Path, data: bytes, rng: Rng) -> Path:
    other = path.with_suffix(".docx")
    other.write_bytes(data)
    return other


def _huge(data: bytes, rng: Rng) -> bytes:
    """Return a PNG whose valid header claims 10 000 million pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + struct.pack(">I", zlib.crc32(head)) + data[33:]


def _broken_stream(data: bytes, rng: Rng) -> bytes:
    """Return a PNG of the right size whose compressed pixels are noise."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)
    body = b"IDAT" + rng.bytes(400)
    chunks = ((len(c) - 4, c) for c in (head, body, b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", size) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for size, chunk in chunks
    )


#: How a file is damaged; functions that write it elsewhere return the path.
DAMAGES: dict[str, Callable[[Path, bytes, Rng], Path | None]] = {
    "half of it": _write(lambda data, rng: data[: len(data) // 2]),
    "empty": _write(lambda data, rng: b""),
    "text": _write(lambda data, rng: b"this is no picture %d" % rng.integers(10**9)),
    "web page": _write(lambda data, rng: b"<!doctype html><title>404</title>" + rng.bytes(50)),
    "zeros": _write(lambda data, rng: bytes(len(data))),
    "noise": _write(lambda data, rng: rng.bytes(len(data))),
    "no header": _write(lambda data, rng: rng.bytes(24) + data[24:]),
    "broken stream": _write(_broken_stream),
    "huge header": _write(_huge),
    "sound": _write(lambda data, rng: b"RIFF\x24\0\0\0WAVEfmt " + rng.bytes(100)),
    "dangling link": lambda path, data, rng: path.symlink_to(path.parent / "nowhere"),
    "linked to itself": lambda path, data, rng: path.symlink_to(path),
    "pipe": lambda path, data, rng: os.mkfifo(path),
    "other ending": _renamed,
}


def test_every_damage_is_refused(tmp_path: Path) -> None:
    damaged = write_digits(tmp_path, 60, 2 * len(DAMAGES))
    assert set(damaged.values()) == {*DAMAGES}
    table = load_table(tmp_path)
    assert {item.path for item in table.rejected} == {*damaged}
    assert len(table.frame) == 60
    assert all(item.reason.isprintable() and len(item.reason) < 200 for item in table.rejected)


@pytest.mark.slow
def test_a_fifth_of_the_folder_is_bad(tmp_path: Path) -> None:
    damaged = write_digits(tmp_path / "mixed", 160, 40)
    write_digits(tmp_path / "good", 160, 0)
    reports = {}
    for name in ("mixed", "good"):
        out = tmp_path / "runs" / name
        assert main(["--data", str(tmp_path / name), "--out", str(out), *QUICK]) == 0
        reports[name] = json.loads((out / "model" / "config.json").read_text())["metrics"]
    rejected = pd.read_csv(tmp_path / "runs" / "mixed" / "rejected.csv")
    assert set(rejected["path"]) == {*damaged}
    assert len(rejected) == 40
    assert rejected["reason"].str.len().min() > 5
    # The good files are the same, so all figures agree exactly.
    assert reports["mixed"].keys() == reports["good"].keys()
    for key, value in reports["good"].items():
        if isinstance(value, float) and "seconds" not in key:
            assert np.isclose(reports["mixed"][key], value, rtol=0, atol=0, equal_nan=True), key
