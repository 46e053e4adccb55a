"""The back end of the web page, without Gradio: models with their queues, and what they share."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from app.feedback import Feedback
from app.rules import answers_events
from app.settings import PageSettings
from app.uploads import MOST_PARTS, Cut, cut, tells_parts
from app.views import without_paths
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Box, Part
from datasets.kinds.base import Kind, kind_of
from learners.inference.predictions import refused_prediction
from learners.model.places import model_folder
from learners.rule.reasons import Reason

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

#: Seconds to wait until a batch is as large as the one before it.
PATIENCE = 0.02
#: The C library that reads GWF ends the process at a damaged frame.
NO_FRAMES = "GWF files are not opened on this page; convert it to HDF5"
#: Seconds after which a request is given up.
PATIENT = 120.0
#: Seconds of a recording. Highly compressed, days of sound fit into one upload.
LONGEST = 3600.0


class Busy(SecondhandError):
    """The queue is full; the same request may succeed a moment later."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"Busy: {limit} requests are waiting already, this page's limit. Try again in a moment."
        )


class Served:
    """A model and the queue of its requests.

    One thread predicts up to ``--bs`` of them at a time, which is faster than several threads with
    fewer each; later requests wait for the next batch.

    Parameters
    ----------
    name : the model's name on the page.
    predictor : the loaded model, used by all threads and never changed.
    folder : the model folder, which may lie in its run's folder.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        folder: Path | None = None,
        settings: PageSettings | None = None,
    ) -> None:
        self.name, self.predictor, self.folder = name, predictor, folder
        self.settings = settings or PageSettings()
        #: Number of classes of an answer that are shown; the predictor may list more, for another rule to decide on.
        self.top = predictor.top
        self.kind = predictor.kind
        self._waiting: deque[tuple[Part, Future[Prediction]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        predictor.start()  # before there are connections, which its processes would inherit
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._waiting)

    def submit(self, part: Part, *, admitted: bool = False) -> Future[Prediction]:
        """Add a request to the queue.

        Parameters
        ----------
        admitted : True for further files of an accepted request.

        Raises
        ------
        Busy : the queue is full. SecondhandError : the page is closing.
        """
        future: Future[Prediction] = Future()
        with self._ready:
            if self._closed:
                raise SecondhandError("The page is closing.")
            if not admitted and len(self._waiting) >= self.settings.queue:
                raise Busy(self.settings.queue)
            self._waiting.append((part, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        """Cancel the queue and stop the thread."""
        with self._ready:
            self._closed = True
            cancelled = list(self._waiting)
            self._waiting.clear()
            self._ready.notify_all()
        for _, future in cancelled:
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
                # Clients of one batch send their next requests at about the same time.
                self._ready.wait_for(partial(self._has, count), PATIENCE)
                if self._closed:
                    return
                count = min(self.settings.bs, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
            # Cancelled requests are left out.
            self._predict([(s, f) for s, f in batch if f.set_running_or_notify_cancel()])

    def _predict(self, batch: list[tuple[Part, Future[Prediction]]]) -> None:
        if not batch:
            return
        try:
            parts = [part for part, _ in batch]
            predictions = list(self.predictor.predict(parts))
        except Exception as error:
            if len(batch) > 1:  # one of them is at fault: the others are predicted
                for single in batch:
                    self._predict([single])
                return
            if not isinstance(error, SecondhandError):
                log.exception("a request failed")
            batch[0][1].set_exception(error)
            return
        for (_, future), prediction in zip(batch, predictions, strict=True):
            future.set_result(prediction)

    @property
    def run(self) -> Path | None:
        """The run folder that the model lies in, as every run writes it."""
        within = self.folder is not None and self.folder.name == "model"
        return self.folder.parent if self.folder is not None and within else None

    @property
    def report(self) -> Path | None:
        """The report of that run; None without one."""
        file = self.run and self.run / "report" / "index.html"
        return file if file and file.is_file() else None


def load(folder: Path, settings: PageSettings, taken: Collection[str] = ()) -> Served:
    """The model of a folder, with the name that the page shows.

    A model in ``runs/photos/model`` is called "photos", any other by its folder's name; one whose name is
    ``taken`` gets a number.

    Raises
    ------
    SecondhandError : the folder is no model.
    """
    from learners.loading.predictor import load_predictor

    resolved = folder.resolve()
    name = name_of(resolved)
    names = chain([name], (f"{name} {i}" for i in count(2)))
    unused = next(other for other in names if other not in taken)
    predictor = load_predictor(folder, top=5, device=settings.device, bs=settings.bs)
    if not predictor.bundle.spec.takes_pixels:
        raise SecondhandError(
            f"{folder} is a model of embeddings, and the page takes files. Use python -m learners.predict"
        )
    if not predictor.rule.exclusive:
        predictor.top = len(predictor.classes)  # an answer shows any number of them
    served = Served(unused, predictor, resolved, settings)
    if not predictor.rule.by_best or answers_events(predictor):
        predictor.top = len(predictor.classes)  # another rule, or an event, depends on all of them
    return served


def load_each(settings: PageSettings) -> tuple[dict[str, Served], dict[str, SecondhandError]]:
    """The models of the settings by their names, and the error of each folder that cannot be opened."""
    served: dict[str, Served] = {}
    failed: dict[str, SecondhandError] = {}
    for named in settings.models:
        log.info("Opening the model %s …", named)
        folder = Path(named)
        try:
            folder = model_folder(named).resolve()
            model = load(folder, settings, taken=served)
            served[model.name] = model
        except SecondhandError as error:
            failed[str(folder)] = error
    return served, failed


def name_of(folder: Path) -> str:
    """A model's name on the page: that of its run, else of its folder."""
    return folder.parent.name if folder.name == "model" else folder.name


@dataclass
class Site:
    """The models and folders of a page.

    Attributes
    ----------
    models : by their names on the page.
    uploads : folder of uploaded files; nothing outside it is opened.
    settings : those of the page.
    feedback : where corrections are kept; None switches them off.
    failed : the error of each model folder that could not be opened.
    """

    models: dict[str, Served]
    uploads: str
    settings: PageSettings = field(default_factory=PageSettings)
    feedback: Feedback | None = None
    failed: dict[str, SecondhandError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._adding = threading.Lock()
        self._written: dict[Path, int] = {}

    def add(self, folder: Path) -> None:
        """Add a model that was trained from the page; load it again if it has been written again since.

        Raises
        ------
        SecondhandError : the folder is no model.
        """
        folder = folder.resolve()
        with self._adding:
            name = next((n for n, served in self.models.items() if served.folder == folder), "")
            written = (folder / "config.json").stat().st_mtime_ns
            known = self._written.get(folder, written if name else 0)
            # First of all, because a model that cannot be loaded is tried once.
            self._written[folder] = written
            if known == written:
                return
            try:
                served = load(folder, self.settings, taken=self.models.keys() - {name})
            except SecondhandError as error:
                self.failed[str(folder)] = error
                raise
            self.failed.pop(str(folder), None)
            if name:
                self.models[name].close()
            self.models[name or served.name] = served

    def check_one_table(self) -> None:
        """Raise SecondhandError if corrections of the models cannot be in one table: files have one label, or several."""
        several = {
            not served.predictor.rule.exclusive: name for name, served in self.models.items()
        }
        if self.feedback is not None and len(several) == 2:
            raise SecondhandError(
                f"--feedback: {several[True]} gives files several labels and {several[False]} one, so their corrections "
                "cannot be in one table. Serve them on pages of their own, with a folder for each"
            )

    def not_opened(self) -> dict[str, str]:
        """Why models could not be opened, by their names, without folders of this machine."""
        return {
            name_of(Path(folder)): without_paths(str(error), folder)
            for folder, error in self.failed.items()
        }

    def choose(self, files: Sequence[str]) -> str:
        """The first model for the kind of these files, by the endings of their names.

        Raises
        ------
        SecondhandError : there are several models, and none of them is for all of these files.
        """
        models = {name: served.kind.name for name, served in self.models.items()}
        if not models:
            raise SecondhandError("This page has no model yet. Train one, or start it with one.")
        if len(models) == 1:
            return next(iter(models))  # its readers report what is wrong with a file
        kinds = {kind_of(file) for file in files}
        fit = [name for name, kind in models.items() if kinds == {kind}]
        if fit:
            return fit[0]
        file_kinds = " and ".join(sorted(kind for kind in kinds if kind))
        raise SecondhandError(
            f"{f'{file_kinds} files' if file_kinds else 'a file of no known ending'}: no model of this page "
            "is for them. Name the model: "
            + ", ".join(f"{name} ({kind})" for name, kind in models.items())
        )

    async def predict(
        self,
        name: str,
        file: str,
        at: float | None,
        *,
        box: Box | None = None,
        admitted: bool = False,
    ) -> Prediction:
        """The model's prediction for an uploaded file, after waiting in the queue.

        Parameters
        ----------
        box : what of a photo is predicted; default: all of it.
        admitted : as in `Served.submit`.

        Raises
        ------
        SecondhandError : not an uploaded file, the queue is full, or it took too long. The message names no folder of
            this machine.
        """
        served = self.models[name]
        uploads = os.path.join(os.path.realpath(self.uploads), "")
        if not os.path.realpath(file).startswith(uploads):  # links followed
            raise SecondhandError("Only files that were uploaded here are opened.")
        if (reason := await asyncio.to_thread(refusal, file, served.kind)) is not None:
            return refused_prediction(Part(file), BadFile(file, reason))
        future = served.submit(Part(file, at=served.kind.moment(at), box=box), admitted=admitted)
        try:
            prediction = await asyncio.wait_for(asyncio.wrap_future(future), timeout=PATIENT)
        except TimeoutError:
            raise SecondhandError(
                f"The prediction took longer than {PATIENT:g} s and was stopped. "
                "Send a shorter file, or try again when the page is less busy."
            ) from None
        except SecondhandError as error:
            raise SecondhandError(without_paths(str(error), file)) from None
        why, detail = prediction.reason.why, prediction.reason.detail
        return prediction._replace(reason=Reason(why, without_paths(detail, file)))

    async def predict_many(self, name: str, files: list[str], at: float | None) -> list[Prediction]:
        """Predictions for several files: one place in the queue for all, a batch at a time. If a detector's JSON is among
        photos, a prediction for each of their boxes (`app.uploads.cut`).

        Raises
        ------
        SecondhandError : as `predict`, or too many files.
        """
        if len(files) > (most := self.settings.max_files):
            raise SecondhandError(
                f"{len(files)} files are more than the {most} that this page takes at once. Send fewer."
            )
        if len(files) == 1:
            return [await self.predict(name, files[0], at)]
        pieces: list[Cut] = [(Part(file), None) for file in files]
        if self.models[name].kind.photo and any(map(tells_parts, files)):
            try:
                reading = asyncio.to_thread(self._cut, name, files)
                pieces = await asyncio.wait_for(reading, timeout=PATIENT)
            except TimeoutError:
                raise SecondhandError(
                    f"Reading the JSON took longer than {PATIENT:g} s. Send the part of it about these photos."
                ) from None
        if self.models[name].waiting >= self.settings.queue:
            raise Busy(self.settings.queue)
        at_once = asyncio.Semaphore(self.settings.bs)

        async def one(part: Part, refused: BadFile | Reason | None) -> Prediction:
            if refused is not None:
                return refused_prediction(part, refused)
            async with at_once:
                return await self.predict(name, part.path, at, box=part.box, admitted=True)

        return await asyncio.gather(*(one(*piece) for piece in pieces))

    def _cut(self, name: str, files: list[str]) -> list[Cut]:
        """What of photos is predicted, see `app.uploads.cut`. The error names no folder of this machine."""
        inside = os.path.join(os.path.realpath(self.uploads), "")
        if not all(os.path.realpath(file).startswith(inside) for file in files):
            raise SecondhandError("Only files that were uploaded here are opened.")
        try:
            most = MOST_PARTS * self.settings.max_files
            return cut(files, self.models[name].predictor.classes, self.uploads, most)
        except BadFile as error:
            raise SecondhandError(f"{Path(error.path).name}: {error.reason}") from None


def refusal(file: str, kind: Kind) -> str | None:
    """Why a file is not opened at all; None if it is."""
    try:
        with open(file, "rb") as opened:
            if opened.read(4) == b"IGWD":
                return NO_FRAMES
        if (duration := kind.duration(file)) > LONGEST:
            return f"it lasts {duration / 3600:.1f} hours, and this page takes one hour at most; cut it"
    except (OSError, SecondhandError):
        pass  # the reader reports what is wrong
    return None
