"""The step that settles how signals are drawn, by what the user, the backbone or the files say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from datasets.items import describe
from datasets.items.items import Items
from datasets.items.lengths import telling_lengths
from datasets.items.settings import SignalSettings
from datasets.kinds.base import KINDS
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.steps.base import Asked

log = logging.getLogger(__name__)


class Drawing(NamedTuple):
    """The spectrogram settings of the items; None for pictures and embeddings."""

    spectrogram: SpectrogramSettings | None


def choose_spectrogram(items: Items, asked: Asked) -> Items:
    """Settle the spectrogram settings, and look whether the lengths of clips tell classes apart."""
    kind, signal, spectrogram = KINDS[items.kind], asked.of(SignalSettings), asked.spectrogram
    if kind.settings() is None:
        return items.knowing(Drawing(None))
    trained = items.frame.loc[items.frame["split"].eq("train")]
    if spectrogram is None:
        of_backbone = asked.trained_on if kind.takes(asked.trained_on) else {}
        spectrogram = infer_spectrogram(items.kind, trained, signal, of_backbone)
        if of_backbone:
            describe.log_lines(describe.trained_settings(of_backbone, signal.for_kind(items.kind)))
    describe.log_lines(kind.remarks(spectrogram, trained))
    if spectrogram.window and not items.multi_label:
        lengths = telling_lengths(trained, spectrogram.window)
        describe.log_lines(describe.lengths_found(lengths))
        items = items.knowing(lengths)
    return items.knowing(Drawing(spectrogram))


def picture_cache(signal: SignalSettings) -> PictureCache:
    """Cache of the rendered spectrograms."""
    return PictureCache(signal.cache_dir, max_bytes=int(signal.cache_limit * 2**30))


def infer_spectrogram(
    kind: str,
    frame: pd.DataFrame,
    signal: SignalSettings,
    trained_settings: Mapping[str, Any] = MappingProxyType({}),
) -> SpectrogramSettings:
    """Spectrogram settings of ``signal``, else those of the backbone's training, else inferred from the items."""
    settings = {**trained_settings, **signal.for_kind(kind)}
    spectrogram = KINDS[kind].spectrogram(frame, settings)
    assert spectrogram is not None
    return spectrogram
