"""Computes features of files with a pretrained backbone, without training.

Similar files have similar features. That is enough for a map of a folder, for a first confusion matrix by nearest
neighbours, and for near-duplicates that no hash finds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile, Rejected
from datasets.core.part import Part
from datasets.spectrograms.settings import SpectrogramSettings
from learners.backbones.building import build, native_size, width_of
from learners.backbones.spec import NetworkSpec
from learners.inference.options import Computing, Opening
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle


def embed(
    files: Iterable[str | os.PathLike[str] | Part],
    *,
    backbone: str = "embedded",
    size: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    spectrogram: SpectrogramSettings | None = None,
    bs: int = 32,
    workers: int | None = None,
) -> tuple[NDArray[np.float32], list[Rejected]]:
    """Features of files from a pretrained backbone; files are opened as for prediction.

    Parameters
    ----------
    files : pictures; or, with ``spectrogram``, signals, or parts with a time span or moment. For a recording
        longer than the window, its middle is used (`datasets.spectrograms.windows.cut` cuts it into windows).
    backbone, weights : as in `learners.backbones.building`.
    size : side of the input in pixels; default: that of the pretraining. Smaller is faster.
    spectrogram : spectrogram settings of signals.
    bs : files per forward pass.
    workers : processes that open files; default: one per core.

    Returns
    -------
    Features float32 [files, width] in the order of the files, with NaN rows for unusable files; and these files with
    the reasons.

    Raises
    ------
    SecondhandError : unknown backbone, or its weights cannot be loaded.
    """
    width = width_of(backbone, spectrogram)
    spec = NetworkSpec(backbone, 2, size or native_size(backbone), head="linear", width=width)
    network, spec, preprocessing = build(spec, weights=None if weights is None else str(weights))
    bundle = Bundle(
        built=network.eval(),
        spec=spec,
        classes=["first", "second"],  # of the untrained head, whose output is not used
        # Spectrograms are not cropped: their edges are data.
        preprocessing=preprocessing
        if spectrogram is None
        else replace(preprocessing, resize="squash"),
        spectrogram=None if spectrogram is None else spectrogram.to_dict(),
        overlap=0.0,
    )
    parts = [f if isinstance(f, Part) else Part(os.fspath(f)) for f in files]
    predictor = Predictor(bundle, opening=Opening(workers=workers), computing=Computing(bs=bs))
    return extract_features(predictor, parts)


def extract_features(
    predictor: Predictor, parts: Sequence[Part]
) -> tuple[NDArray[np.float32], list[Rejected]]:
    """Like `embed`, with the network of a predictor."""
    rows: dict[int, NDArray[np.float32]] = {}
    rejected, of_batches = list[Rejected](), deque[list[int]]()
    opened_all, bs = predictor.open_all(parts), predictor.bs

    def batches() -> Iterator[list[NDArray[Any]]]:
        for first in range(0, len(parts), bs):  # a batch at a time saves memory
            batch = []
            for row, opened in enumerate(islice(opened_all, bs), start=first):
                if isinstance(opened, np.ndarray):
                    batch.append((row, opened))
                else:
                    reason = opened.reason if isinstance(opened, BadFile) else opened
                    rejected.append(Rejected(parts[row].path, reason))
            if batch:
                of_batches.append([row for row, _ in batch])
                yield [opened for _, opened in batch]

    for _, values in predictor.computed(batches()):
        rows |= zip(of_batches.popleft(), values, strict=True)
    width = len(next(iter(rows.values()))) if rows else 0
    out = np.full((len(parts), width), np.nan, np.float32)
    for row, value in rows.items():
        out[row] = value
    return out, rejected
