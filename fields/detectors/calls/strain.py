"""Strain: a row for each file, or windows and events of all the strain across the borders of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fields.detectors.sections import StrainSettings
from fields.detectors.strain_files import StrainFiles
from learners.calls.base import CALLS
from learners.calls.events import EventCall
from learners.calls.files import Count
from learners.calls.sections.events import EventSettings
from learners.cli.commands import PredictSettings
from learners.inference.machines import Machines
from learners.inference.options import Options
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.provenance import Provenance


class StrainCall(EventCall):
    """Neighbouring files are read as one, where windows, an event or the context of a moment reach over their border."""

    name, title = "strain", "strain"
    flags = (*EventCall.flags, "channel", "recentre")
    one_machine = dict.fromkeys(
        ("channel", "windows", "events"), "files that belong together are read on one machine"
    )
    unit = ""  # an event may reach over the border of files
    fields = ("offset",)
    _joined: StrainFiles | None = None
    _listed: list[str]

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return bundle.kind.gps

    def options(self, options: Options) -> Options:
        opening = replace(options.opening, recentre=self.settings.of(StrainSettings).recentre)
        return replace(options, opening=opening)

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
            events, channel = settings.of(EventSettings), settings.of(StrainSettings).channel or ""
            gap = (events.gap or 0.0) if events.events else None
            self._joined = StrainFiles(predictor.spectrogram, channel, settings.at, scan, gap)
        return super().run(predictor, machines, provenance)


CALLS.add(StrainCall)
