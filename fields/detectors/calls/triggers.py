"""Triggers of a table, judged in the strain around them; the predictions are added to the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from datasets.core.errors import SecondhandError
from fields.detectors.sections import StrainSettings
from learners.calls.base import CALLS, Call
from learners.cli.commands import PredictSettings
from learners.inference.machines import Machines
from learners.inference.options import Options
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.outputs.base import Output
from learners.predictions.provenance import Provenance


class TriggerCall(Call):
    """The table is written in its own format, and names no files to predict."""

    name, title, order = "triggers", "the table of --triggers", 10
    flags = ("triggers", "strain", "channel", "recentre", "scores")
    one_machine: ClassVar[Mapping[str, str]] = {"triggers": "the strain is read on one machine"}
    has_own_format = True

    def __init__(self, settings: PredictSettings, bundle: Bundle, output: Output) -> None:
        super().__init__(settings, bundle, output)
        if not bundle.kind.gps:
            raise SecondhandError(
                f"--triggers {settings.of(StrainSettings).triggers} needs a model for strain, but {settings.model} is a "
                f"model for {bundle.kind}. Leave --triggers out"
            )

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return settings.of(StrainSettings).triggers is not None

    @property
    def lists_all(self) -> bool:
        return self.has("scores")

    def options(self, options: Options) -> Options:
        opening = replace(options.opening, recentre=self.settings.of(StrainSettings).recentre)
        return replace(options, opening=opening)

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        from fields.detectors.predicting import predict_triggers  # with pandas

        return predict_triggers(predictor, self.settings, provenance)


CALLS.add(TriggerCall)
