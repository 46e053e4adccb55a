"""Gravitational-wave strain: moments by GPS time, drawn as Q-scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datasets.kinds.base import KINDS, Kind

if TYPE_CHECKING:
    from datasets.strain.settings import QScanSettings


def _settings() -> type[QScanSettings]:
    from datasets.strain.settings import QScanSettings

    return QScanSettings


def _opens(path: str) -> None:
    from datasets.strain.frames import open_strain

    with open_strain(path):
        pass


def _augment(spectrogram: QScanSettings, strength: float, mixed: bool) -> list[Any]:
    """Position and energy stay, which are relative to the trigger and the noise; one frequency band is masked. Times
    are not masked, because a short glitch in the middle could be hidden completely."""
    from datasets.loaders.augment import SpecAugment

    return [SpecAugment(0.15 * strength, 0.0, count=1)]


KINDS.add(
    Kind(
        name="strain",
        help="strain of gravitational-wave detectors",
        suffixes=(".hdf5", ".h5", ".hdf", ".gwf", ".txt", ".txt.gz", ".frames"),
        parts=("start", "end", "gps"),
        settings=_settings,
        opens=_opens,
        augment=_augment,
        one_view="strain, whose times are relative to the trigger",
        drawings="Q-scans",
        gps=True,
        in_windows=True,
    )
)
