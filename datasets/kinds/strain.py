"""Gravitational-wave strain: moments by GPS time, drawn as Q-scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


KINDS.add(
    Kind(
        name="strain",
        help="strain of gravitational-wave detectors",
        suffixes=(".hdf5", ".h5", ".hdf", ".gwf", ".txt", ".txt.gz", ".frames"),
        parts=("start", "end", "gps"),
        settings=_settings,
        opens=_opens,
        one_view="strain, whose times are relative to the trigger",
        gps=True,
        in_windows=True,
    )
)
