"""Strain: a row for each file, or windows and events of all the strain across the borders of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from datasets.cli.options import flag
from learners.calls.base import CALLS
from learners.calls.files import Count
from learners.events.calls import EventCall
from learners.inference.machines import Machines
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.provenance import Provenance
from learners.predictions.strain_files import StrainFiles


class StrainCall(EventCall):
    """Neighbouring files are read as one, where windows, an event or the context of a moment reach over their border."""

    name, title = "strain", "strain"
    flags = (*EventCall.flags, "channel", "recentre")
    unit = ""  # an event may reach over the border of files
    fields = ("offset",)
    _joined: StrainFiles | None = None
    _listed: list[str]

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return bundle.kind.gps

    @property
    def on_one_machine(self) -> str:
        return next(map(flag, filter(self.has, ("channel", "windows", "events"))), "")

    def options(self) -> dict[str, Any]:
        return {"recentre": self.settings.recentre}

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        files = super().files(skipped)
        if self._joined is None:
            return files
        self._listed = self._joined.paths(files)
        return iter(self._listed)

    def count(self) -> Count:
        return super().count() if self._joined is None else lambda: len(self._listed)

    def named(self, predictions: Iterable[Prediction]) -> Iterable[Prediction]:
        return predictions if self._joined is None else self._joined(predictions)

    def remarks(self) -> Iterable[str]:
        return () if self._joined is None else filter(None, [self._joined.summary()])

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        settings, scan = self.settings, self.has("windows") or self.has("events")
        joins = settings.at is not None and not machines.several
        if scan or joins or self.has("channel"):
            assert predictor.spectrogram is not None
            gap = (settings.gap or 0.0) if settings.events else None
            channel = settings.channel or ""
            self._joined = StrainFiles(predictor.spectrogram, channel, settings.at, scan, gap)
        return super().run(predictor, machines, provenance)


CALLS.add(StrainCall)
