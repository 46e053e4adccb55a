"""What is shown of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from learners.inference import Prediction
from learners.predictions.events import Events


class Shape(NamedTuple):
    """Which rows an answer has, and what of them is told.

    Attributes
    ----------
    windows : a row for each window of a long recording.
    events : a row for each event instead.
    top : classes listed in a row.
    hidden : fields of `Prediction` that nobody asked for.
    names : the files and folders of the call, from which tables in a folder have their names.
    band : Hz, the lowest and highest frequency that the model hears.
    classes : the model's, for the width of a column.
    gps : moments are GPS times.
    """

    windows: bool = False
    events: Events | None = None
    top: int = 3
    hidden: Sequence[str] = ()
    names: Sequence[str] = ()
    band: tuple[float, float] = (0.0, 0.0)
    classes: Sequence[str] = ()
    gps: bool = False

    def below(self, path: str) -> str:
        """A file's path from the folder of the call that it was found in; its name, if from none."""
        file = Path(path)
        for folder in sorted(map(Path, self.names), key=lambda name: -len(name.parts)):
            if folder in file.parents and ".." not in (below := file.relative_to(folder)).parts:
                return str(below)
        return file.name

    def rows(self, answer: Prediction) -> Sequence[Prediction]:
        """The rows of one file's answer."""
        if self.events is not None:
            return [
                row._replace(top=row.top[: self.top], windows=()) for row in self.events.of(answer)
            ]
        return (self.windows and answer.windows) or (answer,)
