"""Where the files of a call are predicted: on this machine, or by others that fields add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from datasets.core.registry import Registry
from learners.inference.decoding import group_by_round
from learners.inference.predictions import Prediction

if TYPE_CHECKING:
    from learners.cli.commands import PredictSettings
    from learners.inference.options import Options
    from learners.inference.predictor import Predictor


class Machines:
    """This machine; a subclass sends the files to others.

    Parameters
    ----------
    settings : parsed settings of the command.
    options : what the call changes of how the model predicts.

    Attributes
    ----------
    name : its name in the registry.
    several : whether each file may be predicted on another machine, so that none is joined with its neighbours.
    """

    name: ClassVar[str]
    several: ClassVar[bool] = False

    def __init__(self, settings: Any, options: Options) -> None:
        self.settings, self.options, self.device = settings, options, settings.device

    @classmethod
    def claims(cls, settings: PredictSettings) -> bool:
        """Whether a call asks for these machines."""
        raise NotImplementedError

    def predict(self, predictor: Predictor, files: Iterator[str]) -> Iterator[Prediction]:
        """Yield one prediction per file, in the order of the files."""
        return predictor.predict(files, at=self.settings.at)

    def rounds(self, predictions: Iterator[Prediction]) -> Iterator[list[Prediction]]:
        """Groups of predictions that are recorded together, so that an interrupted job has the same batches again."""
        return group_by_round(predictions, self.settings.bs)

    def record(self, predictor: Predictor) -> dict[str, Any]:
        """The settings on which the last digits of predictions depend."""
        return {"--device": predictor.device, "--engine": predictor.engine}


MACHINES: Registry[type[Machines]] = Registry("learners.inference.machines")


def machines_for(settings: PredictSettings, options: Options) -> Machines:
    """The machines that a call asks for, or this one."""
    others = MACHINES.ours().values()
    return next((one for one in others if one.claims(settings)), Machines)(settings, options)
