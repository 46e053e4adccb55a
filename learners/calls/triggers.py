"""Triggers of a table, judged in the strain around them; the predictions are added to the table."""

from __future__ import annotations

from typing import Any

from datasets.core.errors import SecondhandError
from learners.calls.base import CALLS, Call
from learners.inference.machines import Machines
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.outputs.base import Output
from learners.predictions.provenance import Provenance


class TriggerCall(Call):
    """The table is written in its own format, and names no files to predict."""

    name, title, order = "triggers", "the table of --triggers", 10
    flags = ("triggers", "strain", "channel", "recentre", "scores")
    excludes = ("format",)

    def __init__(self, settings: Any, bundle: Bundle, output: Output) -> None:
        super().__init__(settings, bundle, output)
        of_it = f"--triggers {settings.triggers}"
        if settings.paths:
            raise SecondhandError(
                f"{of_it} cannot be combined with {settings.paths[0]}. Leave it out"
            )
        if not bundle.kind.gps:
            raise SecondhandError(
                f"{of_it} needs a model for strain, but {settings.model} is a model for {bundle.kind}. Leave --triggers out"
            )
        if settings.strain is None:
            raise SecondhandError(f"{of_it} needs the strain. Give its files as --strain")

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return settings.triggers is not None

    @property
    def lists_all(self) -> bool:
        return self.has("scores")

    @property
    def on_one_machine(self) -> str:
        return f"--triggers {self.settings.triggers}"

    def options(self) -> dict[str, Any]:
        return {"recentre": self.settings.recentre}

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        from learners.predictions.triggers import predict_triggers  # with pandas

        return predict_triggers(predictor, self.settings, provenance)


CALLS.add(TriggerCall)
