"""``status.json`` of a run folder: how far the run is, and its result, for programs that watch it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from datasets.core import progress
from datasets.core.files import write_beside
from learners.cli.result import Result
from learners.files.jsonable import jsonable

STATUS = "status.json"
#: Seconds between two records of a step that advances.
EVERY = 1.0


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes
    ----------
    stage : title of the step that was begun last, such as "Reading the files".
    done, total, unit : how much of it is done; ``total`` is None if nothing is counted.
    epoch, epochs : of a step that is an epoch, its number and how many there are, else None.
    seconds_left : until this step, or the last of these epochs, is done; None until a tenth of it is.
    result : once model and report are ready.
    """

    stage: str
    done: int
    unit: str
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    seconds_left: float | None = None
    result: Result | None = None

    @property
    def share(self) -> float | None:
        """Share of this step, or of these epochs, that is done; None if nothing is counted."""
        if not self.total:
            return None
        return ((self.epoch or 1) - 1 + self.done / self.total) / (self.epochs or 1)


@contextmanager
def status_file(folder: Path) -> Iterator[StatusFile]:
    """Record the steps of the context."""
    status = StatusFile(folder)
    with progress.also_shown(status.show):
        yield status


class StatusFile:
    """Writes the status of a run. One that cannot be written, as on a full disk, ends no run.

    Parameters
    ----------
    folder : the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / STATUS
        self._result: Result | None = None
        self._written = 0.0
        #: Title and number of the epochs that this process trains, the first of them, and when it began.
        self._epochs: tuple[str, int, int, float] = ("", 0, 0, 0.0)

    @contextmanager
    def show(self, step: progress.Step) -> Iterator[progress.Advance]:
        """Record a step, as `datasets.core.progress.Show`."""
        number, count = step.turn or (1, 1)
        began, first = time.monotonic(), number
        if step.turn is not None:
            if number == 1 or self._epochs[:2] != (step.title, count):
                self._epochs = (step.title, count, number, began)
            _, _, first, began = self._epochs
        epochs = step.turn or (None, None)
        status = RunStatus(step.title, 0, step.unit, step.total, *epochs)

        def advance(done: int, total: int | None = None) -> None:
            nonlocal status
            status = replace(status, done=done, total=total or status.total)
            passed = time.monotonic() - began
            if status.total and time.monotonic() - self._written >= EVERY:
                finished = number - first + done / status.total
                whole = count - first + 1
                known = finished and progress.is_time_known(finished, whole)
                left = passed * (whole - finished) / finished if known else None
                self._write(replace(status, seconds_left=left))

        self._write(status)
        yield advance

    def end(self, result: Result) -> None:
        """Record the result."""
        self._result = result
        self._write(RunStatus("The model is ready", 0, ""))

    def _write(self, status: RunStatus) -> None:
        content = json.dumps(jsonable(replace(status, result=self._result)), ensure_ascii=False)
        with suppress(OSError):
            write_beside(self.file, content.encode(), durable=False)
        self._written = time.monotonic()
