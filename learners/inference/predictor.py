"""A model folder and files -> predictions. The training half (fastai) is not imported, and torch only
where the folder has no ``model.onnx`` or the GPU shall answer.

Files, or the windows of long recordings, are opened ahead of the network, in processes that a decoder
may end (`Decoder`); a batch goes through the network (`engine`); its answers are decided on, and the
windows of a recording joined into one (`Predictor`).
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from datasets.audio import MelSettings
from datasets.core.cells import read_dicts
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.processes import CRASHED, IsolatedCalls, cores
from datasets.images import pixels
from datasets.spectrogram_kinds import spectrogram_from_dict
from datasets.spectrograms import (
    DecodedPictures,
    PictureCache,
    PictureOpener,
    Source,
    SpectrogramSettings,
    no_signal,
    source_of,
)
from learners.inference.engine import make_engine, pick_device
from learners.inference.predictions import (
    NO_SIGNAL,
    DetailedPrediction,
    Floats,
    Prediction,
    check_moment,
    pool_windows,
    reason_not_judged,
    refused_prediction,
    seconds,
    stack_outputs,
)
from learners.machine import threads
from learners.model import PLAIN, Bundle, load_bundle, model_folder
from learners.uncertainty import Reason

if TYPE_CHECKING:
    from learners.backbones import Network

log = logging.getLogger(__name__)

FileOrSource = str | os.PathLike[str] | Source
Opened = npt.NDArray[np.uint8] | BadFile | Reason

#: Full batches in a round, at least. What a network gives for an item depends, in its last bits, on the
#: batch it comes in. A round ends where a file does, and no batch reaches beyond its end: who goes on from
#: there later asks in the same batches. Pictures never make a smaller batch.
ROUND = 8
#: Where a run names the training files whose features its model carries.
REFERENCE = "reference.csv"
_AHEAD = 64  # files of sound looked into before they are cut
_DIED = BadFile("", CRASHED), None


class Part(NamedTuple):
    """A file, or a window of it.

    Attributes
    ----------
    number : of the file, among those that were asked about: one may be asked about twice.
    file : what was asked.
    source : the whole, or the window; once it is opened with its moment.
    """

    number: int
    file: Source
    source: Source


def as_source(asked: FileOrSource, at: float | None = None) -> Source:
    """A file, a table's row or a source; ``at`` is for what names no moment itself."""
    if isinstance(asked, Source):
        # A table's empty cells are NaN.
        times = (None if t is None or t != t else t for t in asked[1:])
        return Source(asked.path, *times)
    return Source(os.fspath(asked), at=at)


@dataclass(frozen=True)
class Opener:
    """The network's input before normalisation, uint8 [3, size, size], or what is wrong; and the
    moment of it: as it was asked for, or the one that was found in strain."""

    prepared: PictureOpener
    spectrogram: SpectrogramSettings | None

    def __call__(self, source: Source) -> tuple[Opened, float | None]:
        path, start, end, at = source
        try:
            if self.spectrogram is None:
                return pixels(self.prepared.open_for_validation(path)), at
            if (drawing := self.stored(source)) is not None:
                silent = no_signal(drawing)
                return NO_SIGNAL if silent else pixels(self.prepared.open_spectrogram(drawing)), at
            signal = self.spectrogram.read(path, start=start, end=end, at=at)
            if at is None:
                at = self.spectrogram.moment(signal)
            if self.spectrogram.no_signal(signal):
                return NO_SIGNAL, at
            picture = self.spectrogram.image(signal).convert("RGB")
            return pixels(self.prepared.preprocessing.fit(picture)), at
        except BadFile as error:
            return error, at
        except SecondhandError as error:  # the file is fine, the span asked for is not
            return BadFile(path, str(error)), at

    def stored(self, source: Source) -> Path | None:
        """What a run has drawn of a signal; of strain the moment has to be known."""
        store, spectrogram = self.prepared.store, self.spectrogram
        if (
            store is None
            or spectrogram is None
            or (spectrogram.kind == "strain" and source.at is None)
        ):
            return None
        return _cache_at(store.cache).stored(source, spectrogram)


@cache
def _cache_at(root: Path) -> PictureCache:
    """One for each process that opens files: it reads a list of all files that were ever drawn."""
    return PictureCache(root)


@dataclass(frozen=True)
class Cutter:
    """The windows of a long recording; else what was asked, as of a moment."""

    spectrogram: SpectrogramSettings
    overlap: float

    def __call__(self, source: Source) -> list[Source]:
        path, start, end, at = source
        if at is not None:
            return [source]
        try:
            spans = self.spectrogram.spans(path, start=start, end=end, overlap=self.overlap)
        except BadFile:  # it is opened once more, and answered with what is wrong
            return [source]
        return [Source(path, *span) for span in spans]


class Decoder:
    """Opens files for one network, ahead of it. A decoder that dies of a file, or never ends, costs that
    file and nothing else.

    Parameters
    ----------
    prepared : how pictures are opened, and through what store.
    recipe : how signals are drawn; None for pictures.
    overlap : of the windows of a long recording, as a part of a window.
    """

    def __init__(
        self, prepared: PictureOpener, spectrogram: SpectrogramSettings | None, overlap: float
    ) -> None:
        self._opener = Opener(prepared, spectrogram)
        self.stored = self._opener.stored
        self._cutter = (
            Cutter(spectrogram, overlap) if isinstance(spectrogram, MelSettings) else None
        )
        self._openers: IsolatedCalls[Source, tuple[Opened, float | None]] | None = None
        self._cutters: IsolatedCalls[Source, list[Source]] | None = None

    def open(self, source: FileOrSource) -> Opened:
        return self._opener(as_source(source))[0]

    def open_all(
        self, sources: Iterable[FileOrSource], workers: int | None = None
    ) -> Iterator[Opened]:
        apart = self._apart(workers)
        for _, (opened, _) in apart.ahead(sources, 8 * apart.workers, of=as_source):
            yield opened

    def batches(
        self, files: Iterable[Source], bs: int, workers: int | None = None
    ) -> Iterator[list[tuple[Part, Opened]]]:
        """Files, or their windows, in batches of ``bs``, and of less where a `ROUND` ends; two batches
        ahead of the network."""
        parts = self._cut(files)
        first = list(islice(parts, 2))
        # For one alone no second process is started; one that is there stays.
        apart = self._apart(1 if len(first) < 2 and self._openers is None else workers)
        chunk = max(1, bs // (2 * apart.workers))
        batch: list[tuple[Part, Opened]] = []
        of_round, last = 0, -1
        ahead = apart.ahead(chain(first, parts), 3 * bs, of=attrgetter("source"), chunk=chunk)
        with closing(ahead):
            for part, (opened, at) in ahead:
                if of_round >= ROUND * bs and part.number != last:
                    if batch:
                        yield batch
                    batch, of_round = [], 0
                batch.append((part._replace(source=part.source._replace(at=at)), opened))
                of_round, last = of_round + 1, part.number
                if len(batch) == bs:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _cut(self, files: Iterable[Source]) -> Iterator[Part]:
        """The files, or the windows of long recordings, which are looked into a little ahead."""
        if self._cutter is None:
            yield from (Part(number, file, file) for number, file in enumerate(files))
            return
        if self._cutters is None:
            self._cutters = IsolatedCalls(self._cutter, 1, [])
        for (number, file), windows in self._cutters.ahead(
            enumerate(files), _AHEAD, of=itemgetter(1)
        ):
            for source in windows or [file]:
                yield Part(number, file, source)

    def start(self) -> None:
        self._apart(None).start()

    def close(self) -> None:
        for apart in (self._openers, self._cutters):
            if apart is not None:
                apart.close()

    def _apart(self, workers: int | None) -> IsolatedCalls[Source, tuple[Opened, float | None]]:
        count = max(1, workers or cores())
        if self._openers is None or self._openers.workers != count:
            self._openers = IsolatedCalls(self._opener, count, _DIED)
        return self._openers


class SimilarFile(NamedTuple):
    """A training file, or a part of one: its class, and the cosine of its features and those asked of."""

    source: Source
    label: str
    cosine: float


class Predictor:
    """Answers for files, with one loaded model. On a CPU its process keeps freed memory for itself.

    Parameters
    ----------
    model : a model folder, ``hf:USER/NAME[@REVISION]``, or a bundle already loaded.
    threshold : instead of the model's own, in [0, 1], or one for each class; 0 accepts everything.
    score : what ranks files from stranger to known, instead of the model's own: one that it holds.
    top : how many classes to list.
    device : "auto", "cpu", "cuda", "cuda:N" or "mps".
    tta : look at each input in all of the model's views, as its calibration did; False for one.
    engine : what does the arithmetic, "torch" or "onnx" (ONNX Runtime, on the CPU); "auto" as
        `engine.pick_engine` has it.
    only : classes that may be answered, of the model's: those that there can be at a site.
    decoded : pixels that a run keeps of its pictures, so that none is decoded twice.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Bundle,
        *,
        threshold: float | Sequence[float | None] | None = None,
        score: str | None = None,
        top: int = 3,
        device: str = "auto",
        tta: bool = True,
        engine: str = "auto",
        only: Collection[str] | None = None,
        decoded: DecodedPictures | None = None,
    ) -> None:
        self.device = pick_device(device, engine)
        self._run: Path | None = None
        if isinstance(model, Bundle):
            self.bundle = model
        else:
            folder = model_folder(model)
            self.bundle, self._run = load_bundle(folder, network=False), folder.absolute().parent
        self.classes = self.bundle.classes
        spectrogram = self.bundle.spectrogram
        self.spectrogram = None if spectrogram is None else spectrogram_from_dict(spectrogram)
        self.kind = "picture" if self.spectrogram is None else self.spectrogram.kind
        self.confidence = self.bundle.decider.with_overrides(threshold, score)
        if only is not None:
            self.confidence = self.confidence.only([name in only for name in self.classes])
        self.tta_views = self.bundle.tta_views if tta else (PLAIN,)
        if len(self.tta_views) < len(self.bundle.tta_views):
            log.warning(
                "one view instead of %d: probabilities and refusals were calibrated with all of them. Leave out "
                "--no-tta to use them",
                len(self.bundle.tta_views),
            )
        if top < 1:
            raise SecondhandError(f"--top {top}: at least 1 class is listed")
        self.top = min(top, len(self.classes))
        self._arithmetic = make_engine(self.bundle, engine, self.device, self.tta_views)
        self.engine = self._arithmetic.name
        self.prepared = PictureOpener(self.bundle.preprocessing, 1.0, decoded)
        self.decoder = Decoder(self.prepared, self.spectrogram, self.bundle.overlap)

    def predict(
        self,
        paths: Iterable[FileOrSource],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[Prediction]:
        """One prediction a file, in the order of the files, as they become ready.

        A recording longer than the model's window is cut into windows. Its logit of each class is
        the mean of the `TOP_WINDOWS` largest that its windows have, and it is judged by that.

        Parameters
        ----------
        paths : files, or sources with a span or a moment in a file of a signal.
        at : moment that every file is asked about, where it names none itself: GPS time in seconds
            of strain (without it, its loudest moment), seconds from the beginning of a sound
            (without it, all of it). An error for pictures.
        bs : items in a forward pass.
        workers : processes that decode; by default one for each core.
        """
        for answer in self.predict_detailed(paths, at=at, bs=bs, workers=workers):
            yield answer.prediction

    def predict_detailed(
        self,
        paths: Iterable[FileOrSource],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[DetailedPrediction]:
        """As `predict`, with the logits and features that each prediction rests on."""
        for source, judged in self.predict_windows(paths, at=at, bs=bs, workers=workers):
            yield judged[0] if len(judged) == 1 else self._together(source, judged)

    def predict_windows(
        self,
        paths: Iterable[FileOrSource],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[tuple[Source, list[DetailedPrediction]]]:
        """As `answers`, each file with an answer for each of its windows; one where it fits into one."""
        if bs < 1:
            raise SecondhandError(f"--bs {bs}: at least 1 item makes a batch")
        check_moment(self.kind, at)
        files = (as_source(path, at) for path in paths)
        judged = map(self._judged, self.decoder.batches(files, bs, workers))
        for (_, file), group in groupby(
            chain.from_iterable(judged), key=lambda judged: judged[0][:2]
        ):
            yield file, [answer for _, answer in group]

    def outputs(
        self, paths: Iterable[FileOrSource], *, bs: int = 32, workers: int | None = None
    ) -> tuple[list[str], Floats, Floats]:
        """The good files' names, their logits [n, classes] and their features [n, width]."""
        good = [
            a for a in self.predict_detailed(paths, bs=bs, workers=workers) if a.logits is not None
        ]
        return [a.prediction.path for a in good], *stack_outputs(good, len(self.classes))

    def open(self, source: FileOrSource) -> Opened:
        """The network's input before normalisation, uint8 [3, size, size]; or what is wrong."""
        return self.decoder.open(source)

    def open_all(
        self, sources: Iterable[FileOrSource], *, workers: int | None = None
    ) -> Iterator[Opened]:
        """As `open`, each where its decoder may die; some are opened ahead."""
        return self.decoder.open_all(sources, workers)

    def start(self) -> None:
        """Start the processes that open files, where the first question shall not have to."""
        self.decoder.start()

    def close(self) -> None:
        """End them; another question starts new ones."""
        self.decoder.close()

    def similar_files(self, path: FileOrSource, n: int = 5) -> list[SimilarFile]:
        """The training files that a file is most like to the network, the nearest first.

        Their names stand in ``reference.csv`` of the run around a model folder, never in the folder, which
        is to be shared. None where the run does not name as many as the model has features of: it has
        another model, or its file is gone; and none where the file cannot be judged.
        """
        reference = self.confidence.distance.reference
        if self._run is None or reference is None:
            return []
        opened = self.decoder.open(path)
        if not isinstance(opened, np.ndarray):
            return []
        features = self.forward(opened[None])[1][0]
        try:
            with open(self._run / REFERENCE, encoding="utf-8", newline="") as file:
                rows = list(read_dicts(file)[1])
            if len(rows) != len(reference):
                return []
            cosines = reference @ (features / max(float(np.linalg.norm(features)), 1e-12))
            nearest: dict[str, SimilarFile] = {}
            for at in np.argsort(-cosines, kind="stable"):
                source = source_of({name: cell or None for name, cell in rows[at].items()})
                one = SimilarFile(source, rows[at]["label"], float(cosines[at]))
                nearest.setdefault(source.path, one)
                if len(nearest) == n:
                    break
            return list(nearest.values())
        except (OSError, ValueError, KeyError, csv.Error):
            return []

    @property
    def network(self) -> Network:
        """torch's network, also where ONNX Runtime answers: it is built when it is first asked for."""
        return self._arithmetic.network

    def forward(
        self, batch: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Logits [n, classes] and features [n, width] of uint8 [n, 3, size, size]."""
        count = threads()
        # Where most cores would have no part, they work on one together.
        if not self._arithmetic.side_by_side or 2 * len(batch) < count:
            return self._arithmetic(batch)
        parts = np.array_split(batch, min(count, len(batch)))
        done = self._arithmetic.cores.map(self._arithmetic.run_in_thread, parts)
        logits, features = zip(*done, strict=True)
        return np.concatenate(logits), np.concatenate(features)

    def _judged(
        self, batch: Sequence[tuple[Part, Opened]]
    ) -> list[tuple[Part, DetailedPrediction]]:
        """Each part of a batch judged by itself."""
        good = [(part, opened) for part, opened in batch if isinstance(opened, np.ndarray)]
        answers: Iterator[DetailedPrediction] = iter(())
        if good:
            logits, features = self.forward(np.stack([opened for _, opened in good]))
            decided = self._decide([part.source for part, _ in good], logits, features)
            answers = map(DetailedPrediction, decided, logits, features)
        return [
            (part, next(answers))
            if isinstance(opened, np.ndarray)
            else (part, DetailedPrediction(refused_prediction(part.source, opened), None, None))
            for part, opened in batch
        ]

    def _together(self, source: Source, windows: list[DetailedPrediction]) -> DetailedPrediction:
        """One answer for the windows of a recording, or of a long span of one."""
        each = tuple(window.prediction for window in windows)
        if (why := reason_not_judged(each)) is not None:
            return DetailedPrediction(
                refused_prediction(source, why)._replace(windows=each), None, None
            )
        logits, features, trained = pool_windows(windows)
        (prediction,) = self._decide([source], logits[None], features[None], trained)
        return DetailedPrediction(prediction._replace(windows=each), logits, features)

    def _decide(
        self, sources: Sequence[Source], logits: Floats, features: Floats, trained: bool = False
    ) -> list[Prediction]:
        paths = [source.path for source in sources]
        judged = self.confidence.decide(logits, features, paths=paths, trained=trained)
        order = np.argsort(-judged.probabilities, axis=1, kind="stable")
        rule = self.confidence.sets
        inside = None if rule is None else rule.predict(judged.probabilities)
        tree = self.confidence.tree
        labels = judged.labels(self.classes if tree is None else tree.names)
        branches = [()] * len(sources) if tree is None else tree.branches(judged.probabilities)
        return [
            Prediction(
                path=source.path,
                label=labels[i],
                best=self.classes[judged.best[i]],
                probability=float(judged.probability[i]),
                reason=judged.reason[i],
                top=[
                    (self.classes[k], float(judged.probabilities[i, k]))
                    for k in order[i, : judged.listed(i, self.top)]
                ],
                distance_p=float(judged.distance_p[i]),
                start=seconds(source.start),
                end=seconds(source.end),
                set=()
                if inside is None
                else tuple(self.classes[k] for k in order[i] if inside[i, k]),
                at=seconds(source.at),
                known=float(judged.known[i]),
                branch=branches[i],
            )
            for i, source in enumerate(sources)
        ]


def group_by_round(answers: Iterable[Prediction], bs: int) -> Iterator[list[Prediction]]:
    """Answers by the rounds that `Decoder.batches` made of their parts."""
    taken: list[Prediction] = []
    count = 0
    for answer in answers:
        taken.append(answer)
        count += max(1, len(answer.windows))
        if count >= ROUND * bs:
            yield taken
            taken, count = [], 0
    if taken:
        yield taken
