"""Gravitational-wave strain: moments by GPS time, drawn as Q-scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.core.part import Part
from datasets.kinds.base import KINDS, Kind
from datasets.kinds.views import TTAView, no_views
from datasets.strain.endings import GWF, LIST, SUFFIXES

if TYPE_CHECKING:
    from datasets.strain.settings import QScanSettings


class Strain(Kind):
    name, help = "strain", "strain of gravitational-wave detectors"
    suffixes = SUFFIXES
    parts = ("start", "end", "gps")
    gps = True

    @property
    def uploads(self) -> tuple[str, ...]:
        return tuple(ending for ending in self.suffixes if ending not in (GWF, LIST))

    def open(self, path: str) -> None:
        from datasets.strain.frames import open_strain

        with open_strain(path):
            pass

    @property
    def times(self) -> tuple[str, ...]:
        return ("gps",)

    def cells(self, part: Part) -> dict[str, str]:
        return {} if part.at is None else {"gps": repr(part.at)}

    def settings(self) -> type[QScanSettings]:
        from datasets.strain.settings import QScanSettings

        return QScanSettings

    def views(
        self, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
    ) -> list[TTAView]:
        raise no_views(count, "strain, whose times are relative to the trigger")


KINDS.add(Strain())
