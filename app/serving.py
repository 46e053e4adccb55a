"""One loaded model, shared by all who ask: requests wait in a line and are answered in batches."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.errors import SecondhandError
from datasets.spectrograms import Source

if TYPE_CHECKING:
    from learners.inference import Prediction, Predictor

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


#: Seconds that a request waits for as many as were answered together before it.
PATIENCE = 0.02


@dataclass(frozen=True)
class Limits:
    """What one page gives to those who ask.

    Attributes
    ----------
    megabytes : of one uploaded file.
    files : in one table.
    queue : requests that may wait for one model; the next one is told that the page is busy.
    batch : waiting requests that go through the network together.
    seconds : after which a request is given up.
    keep : seconds that an uploaded file stays on disk.
    arriving : requests that may be read at once: each holds one of the descriptors that a process has,
        commonly 1 024.
    patience : seconds that a request may take to arrive, besides what its length takes at
        `app.door.SLOWEST`.
    """

    megabytes: int = 50
    files: int = 64
    queue: int = 32
    batch: int = 8
    seconds: float = 120.0
    keep: float = 1800.0
    arriving: int = 256
    patience: float = 30.0

    def __post_init__(self) -> None:
        ranges = {
            "max-mb": (self.megabytes, 2000),
            "max-files": (self.files, 10_000),
            "queue": (self.queue, 10_000),
            "bs": (self.batch, 1024),
        }
        wrong = [f"--{n} {value}" for n, (value, most) in ranges.items() if not 1 <= value <= most]
        if wrong:
            raise SecondhandError(f"out of range: {', '.join(wrong)}; see --help")


class Busy(SecondhandError):
    """The line is full: nothing is wrong, and the same request may do a moment later."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"Busy: {limit} requests are waiting already, which is this page's limit. "
            "Try again in a moment."
        )


class Served:
    """A model by its name on the page, and the line of those who wait for it.

    One thread answers up to ``batch`` of them at a time, which is quicker than several threads with
    fewer each; whoever comes meanwhile waits for the next batch.

    Parameters
    ----------
    name : as the page calls it.
    predictor : the loaded model. It is used by all threads and never changed.
    folder : the model folder; the run that it belongs to may lie around it.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        folder: Path | None = None,
        *,
        limits: Limits | None = None,
    ) -> None:
        self.name, self.predictor, self.folder = name, predictor, folder
        self.limits = limits or Limits()
        self.kind = "picture" if predictor.recipe is None else predictor.recipe.kind
        self._waiting: deque[tuple[Source, Future[Prediction]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        predictor.start()  # before there are visitors, whose connections the processes would hold
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken up yet."""
        return len(self._waiting)

    def submit(self, source: Source, *, admitted: bool = False) -> Future[Prediction]:
        """Join the line.

        Parameters
        ----------
        admitted : one of several files of a request that is in already.

        Raises
        ------
        Busy : the line is full. SecondhandError : the page is closing.
        """
        future: Future[Prediction] = Future()
        with self._ready:
            if self._closed:
                raise SecondhandError("The page is closing.")
            if not admitted and len(self._waiting) >= self.limits.queue:
                raise Busy(self.limits.queue)
            self._waiting.append((source, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        """Answer nobody any more."""
        with self._ready:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._ready.notify_all()
        for _, future in left:
            future.cancel()
        self._thread.join(timeout=10)
        self.predictor.close()

    def _has(self, count: int) -> bool:
        return self._closed or len(self._waiting) >= count

    def _work(self) -> None:
        count = 1
        while True:
            with self._ready:
                self._ready.wait_for(partial(self._has, 1))
                # Programs that were answered together come back together, though not at once.
                self._ready.wait_for(partial(self._has, count), PATIENCE)
                if self._closed:
                    return
                count = min(self.limits.batch, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(count)]
            # Who has gone away meanwhile costs the network nothing.
            self._answer([(s, f) for s, f in taken if f.set_running_or_notify_cancel()])

    def _answer(self, taken: list[tuple[Source, Future[Prediction]]]) -> None:
        if not taken:
            return
        try:
            sources = [source for source, _ in taken]
            answers = list(self.predictor.predict(sources, bs=self.limits.batch))
        except Exception as error:
            if len(taken) > 1:  # one of them is at fault: the others are answered
                for single in taken:
                    self._answer([single])
                return
            if not isinstance(error, SecondhandError):
                log.exception("a request failed")
            taken[0][1].set_exception(error)
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            future.set_result(answer)


def load(
    folders: list[Path], *, limits: Limits | None = None, device: str = "auto"
) -> dict[str, Served]:
    """The models of these folders, each loaded once, by the names that the page shows.

    A model in ``runs/photos/model`` is called "photos", any other by its folder's name; of two with
    one name the second gets a number.

    Raises
    ------
    SecondhandError : a folder that is no model.
    """
    from learners.inference import Predictor

    served: dict[str, Served] = {}
    for folder in folders:
        resolved = folder.resolve()
        name = resolved.parent.name if resolved.name == "model" else resolved.name
        names = chain([name], (f"{name} {i}" for i in count(2)))
        unused = next(other for other in names if other not in served)
        predictor = Predictor(folder, top=5, device=device)
        if not predictor.confidence.exclusive:
            predictor.top = len(predictor.classes)  # another threshold may say any of them
        served[unused] = Served(unused, predictor, resolved, limits=limits)
    return served
