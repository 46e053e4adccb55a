"""Spectrogram settings by kind of signal, and their reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from datasets import RENDERER_VERSION
from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.strain.settings import QScanSettings

SPECTROGRAM_KINDS: dict[str, type[SpectrogramSettings]] = {
    "sound": MelSettings,
    "strain": QScanSettings,
}


def spectrogram_from_dict(data: object) -> SpectrogramSettings:
    """Read spectrogram settings that `SpectrogramSettings.to_dict` wrote.

    Raises
    ------
    SecondhandError : another renderer version, or names or values that are no settings; all are named.
    """
    if not isinstance(data, Mapping):
        raise SecondhandError(
            f"invalid spectrogram settings: names and values are expected, not {type(data).__name__}"
        )
    settings = dict(data)
    kind, version = settings.pop("kind", None), settings.pop("renderer", None)
    if kind not in SPECTROGRAM_KINDS:
        raise SecondhandError(
            f"invalid spectrogram settings: kind={kind!r} (must be one of {', '.join(SPECTROGRAM_KINDS)})"
        )
    if version != RENDERER_VERSION:
        raise SecondhandError(
            f"these spectrogram settings are of renderer version {version!r}, but this program has "
            f"version {RENDERER_VERSION}: train the model again, or use the release that trained it"
        )
    cls = SPECTROGRAM_KINDS[kind]
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if settings.keys() != names:
        unknown = sorted(str(key) for key in settings.keys() - names)
        missing = sorted(names - settings.keys())
        raise SecondhandError(f"invalid {kind} settings: unknown {unknown}, missing {missing}")
    return cls(**settings)
