"""Spectrogram settings by kind of signal, and their reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from datasets import RENDERER_VERSION
from datasets.audio import MelSettings
from datasets.core.errors import SecondhandError
from datasets.spectrograms import SpectrogramSettings
from datasets.strain import QScanSettings

SPECTROGRAM_KINDS: dict[str, type[SpectrogramSettings]] = {
    "sound": MelSettings,
    "strain": QScanSettings,
}


def spectrogram_from_dict(data: object) -> SpectrogramSettings:
    """The recipe that `to_dict` wrote, each key and number checked; SecondhandError names wrong ones."""
    if not isinstance(data, Mapping):
        raise SecondhandError(f"spectrogram settings: expected a table, not {type(data).__name__}")
    settings = dict(data)
    kind, version = settings.pop("kind", None), settings.pop("renderer", None)
    if kind not in SPECTROGRAM_KINDS:
        raise SecondhandError(
            f"recipe of kind {kind!r}: must be one of {', '.join(SPECTROGRAM_KINDS)}"
        )
    if version != RENDERER_VERSION:
        raise SecondhandError(
            f"the recipe was drawn by renderer {version!r}, this is renderer {RENDERER_VERSION}: "
            "use the release that made it, or train again"
        )
    cls = SPECTROGRAM_KINDS[kind]
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if settings.keys() != names:
        unknown = sorted(str(key) for key in settings.keys() - names)
        missing = sorted(names - settings.keys())
        raise SecondhandError(
            f"{kind} recipe: unknown settings {unknown}, missing settings {missing}"
        )
    return cls(**settings)
