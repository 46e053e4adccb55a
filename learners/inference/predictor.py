"""Predicts files with a model folder.

fastai is not imported, and torch only if the folder has no ``model.onnx`` or a GPU is used. `Decoder` opens files, or
the windows of long recordings, ahead of the network in other processes, which a broken file may crash. `engine`
computes a batch. `Predictor` decides on the outputs and pools the windows of a recording.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from datasets.core.cells import read_dicts
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import FileOrPart, Part, as_part
from datasets.core.processes import CRASHED, IsolatedCalls, cores
from datasets.embeddings.vectors import Vectors
from datasets.images.decoded import DecodedPictures, PictureOpener
from datasets.images.opening import pixels
from datasets.kinds.base import KINDS, spectrogram_from_dict
from datasets.spectrograms.pictures import PictureCache, no_signal, offset_of
from datasets.spectrograms.settings import SpectrogramSettings
from learners.inference.engine import make_engine, pick_device
from learners.inference.predictions import (
    NAN,
    NO_SIGNAL,
    DetailedPrediction,
    Floats,
    Prediction,
    check_moment,
    pool_boxes,
    pool_windows,
    reason_not_predicted,
    refused_prediction,
    stack_outputs,
)
from learners.machine import threads
from learners.model.bundle import Bundle, load_bundle
from learners.model.hub import model_folder
from learners.model.tta import PLAIN
from learners.uncertainty.gates import Reason

if TYPE_CHECKING:
    from learners.backbones.building import Network

log = logging.getLogger(__name__)

#: The network's input before normalisation, uint8 [3, height, width], or an embedding, float32 [width]; or what is
#: wrong.
Opened = npt.NDArray[Any] | BadFile | Reason

#: Least number of full batches per round. The last bits of an output depend on the other items of its batch, so a
#: job that resumes after a round must make the same batches. A round therefore ends with a file, and no batch
#: crosses its end. Rounds of pictures have full batches only.
ROUND = 8
#: File of a run that lists the training files whose features its model holds.
REFERENCE = "reference.csv"
_AHEAD = 64  # recordings whose length is read ahead


class Piece(NamedTuple):
    """What is predicted for a file of a call: all of it, or one of its windows or boxes.

    Attributes
    ----------
    number : number of the file in the call, because a file may occur twice.
    file : the file, or the part of one, as the caller named it.
    part : it, or a window or box of it, with its moment once it is opened.
    refused : why it is not opened; None if it is.
    offset : once it is opened, seconds from the moment that was asked for to the energy; NaN without either.
    """

    number: int
    file: Part
    part: Part
    refused: BadFile | Reason | None = None
    offset: float = NAN


class Shown(NamedTuple):
    """An opened part: the network's input or what is wrong, the moment that it shows, and `Piece.offset`."""

    opened: Opened
    at: float | None = None
    offset: float = NAN


_DIED = Shown(BadFile("", CRASHED))
#: Seconds between moment and energy that a picture tolerates: searches, and simulations, are as far off.
AWAY = 0.05

#: The parts of a picture, each with the reason why it is not predicted, or None.
Parts = Callable[[Part], Sequence[tuple[Part, BadFile | Reason | None]]]


@dataclass(frozen=True)
class Opener:
    """Opens a part of a file: the network's input before normalisation, uint8 [3, size, size], or what is wrong.

    ``recentre`` : show where the energy lies, if it is farther than `AWAY` from the moment that was asked for.
    """

    prepared: PictureOpener
    spectrogram: SpectrogramSettings | None
    recentre: bool = False

    def __call__(self, part: Part | None) -> Shown:
        if part is None:  # it is refused
            return Shown(NO_SIGNAL)
        at = part.at
        try:
            if self.spectrogram is None:
                return Shown(pixels(self.prepared.open_for_validation(part)), at)
            if (cached := self.stored(part)) is not None:
                offset = offset_of(cached)
                if no_signal(cached):
                    return Shown(NO_SIGNAL, at)
                if not self._moves(offset):
                    return Shown(pixels(self.prepared.open_spectrogram(cached)), at, offset)
            signal = self.spectrogram.read(part)
            if at is None:
                at = self.spectrogram.moment(signal)
            if self.spectrogram.no_signal(signal):
                return Shown(NO_SIGNAL, at)
            offset = self.spectrogram.offset(signal)
            if at is not None and self._moves(offset):
                with suppress(BadFile):  # too close to an end: the moment itself is shown
                    signal = self.spectrogram.read(Part(part.path, at=at + offset))
                    at += offset
            picture = self.spectrogram.image(signal).convert("RGB")
            return Shown(pixels(self.prepared.preprocessing.fit(picture)), at, offset)
        except BadFile as error:
            return Shown(error, at)
        except SecondhandError as error:  # the file is fine, the requested span is not
            return Shown(BadFile(part.path, str(error)), at)

    def _moves(self, offset: float) -> bool:
        return self.recentre and abs(offset) > AWAY

    def stored(self, part: Part) -> Path | None:
        """Path of a cached spectrogram; None if there is none, or for strain without a moment."""
        store, spectrogram = self.prepared.store, self.spectrogram
        if (
            store is None
            or spectrogram is None
            or (KINDS[spectrogram.kind].gps and part.at is None)
        ):
            return None
        return _cache_at(store.store.root).stored(part, spectrogram)


@cache
def _cache_at(root: Path) -> PictureCache:
    """The spectrogram cache. It is opened once per process, because opening reads an index of all its files."""
    return PictureCache(root)


@dataclass(frozen=True)
class Cutter:
    """Cuts a long recording into windows; a part with a moment stays as it is.

    A recording that was cut off is refused unless ``allow_truncated``.
    """

    spectrogram: SpectrogramSettings
    overlap: float
    allow_truncated: bool

    def __call__(self, part: Part) -> list[tuple[Part, BadFile | None]]:
        if part.at is not None:
            return [(part, None)]
        try:
            look = KINDS[self.spectrogram.kind].look
            if part.end is None and look is not None:
                look(part.path, not self.allow_truncated)
            windows = self.spectrogram.spans(part, overlap=self.overlap)
        except BadFile as error:
            return [(part, error)]
        return [(window, None) for window in windows]


def _whole(file: Part) -> list[tuple[Part, None]]:
    return [(file, None)]


#: About a model of boxes, for people.
WHOLE = "The model was trained on animals cut out of their photos by a detector's boxes"
WHOLE_REMEDY = (
    "It is less often right there, and its probabilities are not calibrated. Name MegaDetector's JSON of the photos "
    "instead of them"
)


class Decoder:
    """Opens files ahead of the network; a decoder that crashes or hangs loses only the file it reads.

    Parameters
    ----------
    prepared : how pictures are opened and cached.
    spectrogram : spectrogram settings of signals; None for pictures.
    overlap : overlap of the windows of a long recording, as a fraction of a window.
    parts : the boxes of a picture; None for whole pictures.
    recentre : as in `Opener`.
    """

    def __init__(
        self,
        prepared: PictureOpener,
        spectrogram: SpectrogramSettings | None,
        overlap: float,
        parts: Parts | None = None,
        *,
        recentre: bool = False,
    ) -> None:
        self._parts: Parts = parts or _whole
        self._opener = Opener(prepared, spectrogram, recentre)
        self.stored = self._opener.stored
        self._cutter = (
            None if spectrogram is None else Cutter(spectrogram, overlap, prepared.allow_truncated)
        )
        self._openers: IsolatedCalls[Part | None, Shown] | None = None
        self._cutters: IsolatedCalls[Part, list[tuple[Part, BadFile | None]]] | None = None

    def open(self, file: FileOrPart) -> Opened:
        return self._opener(as_part(file)).opened

    def open_all(self, files: Iterable[FileOrPart], workers: int | None = None) -> Iterator[Opened]:
        calls = self._start_openers(workers)
        for _, shown in calls.ahead(files, 8 * calls.workers, of=as_part):
            yield shown.opened

    def batches(
        self, files: Iterable[Part], bs: int, workers: int | None = None
    ) -> Iterator[list[tuple[Piece, Opened]]]:
        """Yield batches of ``bs`` opened files or windows, smaller at the end of a `ROUND`.

        Files are opened two batches ahead of the network.
        """
        pieces = self._cut(files)
        first = list(islice(pieces, 2))
        # One file needs one process; processes that are running are used.
        calls = self._start_openers(1 if len(first) < 2 and self._openers is None else workers)
        chunk = max(1, bs // (2 * calls.workers))
        batch: list[tuple[Piece, Opened]] = []
        in_round, last_number = 0, -1
        ahead = calls.ahead(
            chain(first, pieces),
            3 * bs,
            of=lambda piece: piece.part if piece.refused is None else None,
            chunk=chunk,
        )
        with closing(ahead):
            for piece, (opened, at, offset) in ahead:
                if in_round >= ROUND * bs and piece.number != last_number:
                    if batch:
                        yield batch
                    batch, in_round = [], 0
                if piece.refused is None:
                    piece = piece._replace(part=piece.part._replace(at=at), offset=offset)
                batch.append((piece, opened if piece.refused is None else piece.refused))
                in_round, last_number = in_round + 1, piece.number
                if len(batch) == bs:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _cut(self, files: Iterable[Part]) -> Iterator[Piece]:
        """Yield the files, or the windows of long recordings, whose lengths are read ahead, or the boxes of pictures."""
        files = iter(files)
        first = [*islice(files, 1)]
        files = chain(first, files)
        if self._cutter is None or not (first and self._cutter.spectrogram.is_cut(first[0].path)):
            for number, file in enumerate(files):
                for part, refused in self._parts(file):
                    yield Piece(number, file, part, refused)
            return
        if self._cutters is None:
            self._cutters = IsolatedCalls(self._cutter, 1, [])
        for (number, file), windows in self._cutters.ahead(
            enumerate(files), _AHEAD, of=itemgetter(1)
        ):
            for part, refused in windows or [(file, None)]:
                yield Piece(number, file, part, refused)

    def start(self) -> None:
        self._start_openers(None).start()

    def close(self) -> None:
        for calls in (self._openers, self._cutters):
            if calls is not None:
                calls.close()

    def _start_openers(self, workers: int | None) -> IsolatedCalls[Part | None, Shown]:
        count = max(1, workers or cores())
        if self._openers is None or self._openers.workers != count:
            self._openers = IsolatedCalls(self._opener, count, _DIED)
        return self._openers


class VectorDecoder:
    """Looks up embeddings, with the interface of `Decoder`."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def open(self, file: FileOrPart) -> Opened:
        try:
            return self.vectors[as_part(file)]
        except BadFile as error:
            return error

    def open_all(self, files: Iterable[FileOrPart], workers: int | None = None) -> Iterator[Opened]:
        return map(self.open, files)

    def batches(
        self, files: Iterable[Part], bs: int, workers: int | None = None
    ) -> Iterator[list[tuple[Piece, Opened]]]:
        pieces = (Piece(number, file, file) for number, file in enumerate(files))
        while batch := [(piece, self.open(piece.part)) for piece in islice(pieces, bs)]:
            yield batch

    def stored(self, part: Part) -> None:
        return None

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to close."""


class SimilarFile(NamedTuple):
    """A training file or a window of one, its class, and the cosine similarity of the features."""

    part: Part
    label: str
    cosine: float


class Predictor:
    """Predicts files with one loaded model.

    Parameters
    ----------
    model : a model folder, ``hf:USER/NAME[@REVISION]``, or a loaded bundle.
    threshold : least probability of an accepted class, in [0, 1], or one per class; default: the model's.
        0 accepts everything.
    keep_known : fraction of known files that the score lets pass, 0.5 to 1; default: the model's.
    score : out-of-distribution score; default: the model's.
    top : number of classes to list.
    device : "auto", "cpu", "cuda", "cuda:N" or "mps".
    tta : use the model's test-time augmentation, as its calibration did.
    engine : "torch", "onnx" (ONNX Runtime on the CPU) or "auto", see `engine.pick_engine`.
    only : class subset: the classes of the model that may be predicted.
    decoded : cache of decoded pixels, shared by the stages of a run.
    vectors : for a model of embeddings, those of the items; `datasets.sources.embeddings.add_embeddings` adds more.
    parts : gives the boxes of a picture to predict, and why some are not; None for whole pictures.
    recentre : judge strain where its energy lies, if that is not at the moment that was asked for.
    allow_truncated : predict what is there of recordings and photos that were cut off; otherwise they are bad files.
    """

    decoder: Decoder | VectorDecoder

    def __init__(
        self,
        model: str | os.PathLike[str] | Bundle,
        *,
        threshold: float | Sequence[float | None] | None = None,
        keep_known: float | None = None,
        score: str | None = None,
        top: int = 3,
        device: str = "auto",
        tta: bool = True,
        engine: str = "auto",
        only: Collection[str] | None = None,
        decoded: DecodedPictures | None = None,
        vectors: Vectors | None = None,
        parts: Parts | None = None,
        recentre: bool = False,
        allow_truncated: bool = False,
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
        self.kind = self.bundle.kind
        self.confidence = self.bundle.decider.with_overrides(threshold, score, keep_known)
        if only is not None:
            self.confidence = self.confidence.only([name in only for name in self.classes])
        self.tta_views = self.bundle.tta_views if tta else (PLAIN,)
        if len(self.tta_views) < len(self.bundle.tta_views):
            log.warning(
                "Test-time augmentation is off, but the model was calibrated with %d variants of each file, so "
                "probabilities and refusals are less reliable. Leave out --no-tta",
                len(self.bundle.tta_views),
            )
        if top < 1:
            raise SecondhandError(f"--top {top}: expected at least 1")
        self.top = min(top, len(self.classes))
        self._arithmetic = make_engine(self.bundle, engine, self.device, self.tta_views)
        self.engine = self._arithmetic.name
        self.prepared = PictureOpener(self.bundle.preprocessing, 1.0, decoded, allow_truncated)
        self.vectors = vectors or vectors_for(self.bundle)
        self._warn_of_whole = self.bundle.of_boxes and parts is None
        self.decoder = (
            Decoder(self.prepared, self.spectrogram, self.bundle.overlap, parts, recentre=recentre)
            if KINDS[self.kind].opened
            else VectorDecoder(self.vectors)
        )

    def predict(
        self,
        paths: Iterable[FileOrPart],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[Prediction]:
        """Yield one prediction per file, in the order of the files, as they become ready.

        A recording longer than the model's window is cut into windows, and its logit of a class is the
        mean of the `TOP_WINDOWS` largest logits of its windows.

        Parameters
        ----------
        paths : files, or parts of some: a span or a moment of a signal; no pictures or arrays in memory.
        at : moment in files for which ``paths`` has none: GPS time in seconds for strain (default: the loudest
            moment), seconds from the start for sound (default: the whole file). An error for pictures.
        bs : items per forward pass.
        workers : processes that open files; default: one per core.
        """
        for detailed in self.predict_detailed(paths, at=at, bs=bs, workers=workers):
            yield detailed.prediction

    def predict_detailed(
        self,
        paths: Iterable[FileOrPart],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[DetailedPrediction]:
        """Yield predictions as `predict` does, with their logits and features."""
        for file, predictions in self.predict_windows(paths, at=at, bs=bs, workers=workers):
            yield (
                predictions[0] if len(predictions) == 1 else self._pool_windows(file, predictions)
            )

    def predict_windows(
        self,
        paths: Iterable[FileOrPart],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[tuple[Part, list[DetailedPrediction]]]:
        """Yield each file with the detailed predictions of its windows or boxes (one for a short file)."""
        if bs < 1:
            raise SecondhandError(f"--bs {bs}: expected at least 1")
        if isinstance(paths, str | os.PathLike):
            path = os.fspath(paths)
            raise SecondhandError(f"{path!r} is one path. Give a list of paths: [{path!r}]")
        check_moment(self.kind, at)
        given: Any = paths  # such as a picture in memory, which is refused
        listed = given if isinstance(given, Iterable) else [given]
        files: Iterator[Part] = (as_part(path, at) for path in listed)
        if self._warn_of_whole:
            files = self._warned(files)
        predicted = map(self._predict_batch, self.decoder.batches(files, bs, workers))
        for (_, file), group in groupby(
            chain.from_iterable(predicted),
            key=lambda piece_and_prediction: piece_and_prediction[0][:2],
        ):
            yield file, [detailed for _, detailed in group]

    def _warned(self, files: Iterable[Part]) -> Iterator[Part]:
        """The files, with a warning at the first that is a whole picture."""
        for file in files:
            if file.box is None and self._warn_of_whole:
                self._warn_of_whole = False
                log.warning("%s, but is given whole photos. %s", WHOLE, WHOLE_REMEDY)
            yield file

    def outputs(
        self, paths: Iterable[FileOrPart], *, bs: int = 32, workers: int | None = None
    ) -> tuple[list[str], Floats, Floats]:
        """Names of the readable files, their logits [n, classes] and features [n, width]."""
        good = [
            a for a in self.predict_detailed(paths, bs=bs, workers=workers) if a.logits is not None
        ]
        return [a.prediction.path for a in good], *stack_outputs(good, len(self.classes))

    def open(self, file: FileOrPart) -> Opened:
        """Open a file: the network's input before normalisation, uint8 [3, size, size], or what is wrong."""
        return self.decoder.open(file)

    def open_all(
        self, files: Iterable[FileOrPart], *, workers: int | None = None
    ) -> Iterator[Opened]:
        """Open files as `open` does, ahead and in other processes."""
        return self.decoder.open_all(files, workers)

    def start(self) -> None:
        """Start the processes that open files, so that the first prediction does not wait for them."""
        self.decoder.start()

    def close(self) -> None:
        """End the processes that open files; another prediction starts new ones."""
        self.decoder.close()

    def similar_files(self, path: FileOrPart, n: int = 5) -> list[SimilarFile]:
        """The ``n`` training files with the most similar features, most similar first.

        Their names come from ``reference.csv`` in the run folder that contains the model folder; the model folder
        itself, which may be shared, does not contain them. The list is empty if that file is missing or belongs to
        another model, and if ``path`` cannot be opened.
        """
        reference = self.confidence.distance.reference
        if self._run is None or reference is None:
            return []
        opened = self.decoder.open(path)
        if not isinstance(opened, np.ndarray):
            return []
        features = self.forward(opened[None])[1][0]
        try:
            with open(self._run / REFERENCE, encoding="utf-8-sig", newline="") as file:
                rows = list(read_dicts(file)[1])
            if len(rows) != len(reference):
                return []
            cosines = reference @ (features / max(float(np.linalg.norm(features)), 1e-12))
            nearest: dict[str, SimilarFile] = {}
            for row in np.argsort(-cosines, kind="stable"):
                part = Part.of_row(rows[row])
                similar = SimilarFile(part, rows[row]["label"], float(cosines[row]))
                nearest.setdefault(part.path, similar)
                if len(nearest) == n:
                    break
            return list(nearest.values())
        except (OSError, ValueError, KeyError, csv.Error):
            return []

    @property
    def network(self) -> Network:
        """The network in torch; with ONNX Runtime it is built at first use."""
        return self._arithmetic.network

    def forward(
        self, batch: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Logits [n, classes] and features [n, width] of uint8 [n, 3, size, size], or of embeddings."""
        count = threads()
        # With fewer chunks than half the cores, all threads work on the batch together.
        if not self._arithmetic.side_by_side or 2 * len(batch) < count:
            return self._arithmetic(batch)
        chunks = np.array_split(batch, min(count, len(batch)))
        outputs = self._arithmetic.cores.map(self._arithmetic.run_in_thread, chunks)
        logits, features = zip(*outputs, strict=True)
        return np.concatenate(logits), np.concatenate(features)

    def _predict_batch(
        self, batch: Sequence[tuple[Piece, Opened]]
    ) -> list[tuple[Piece, DetailedPrediction]]:
        """Predict each piece of a batch."""
        good = [(piece, opened) for piece, opened in batch if isinstance(opened, np.ndarray)]
        predictions: Iterator[DetailedPrediction] = iter(())
        if good:
            logits, features = self.forward(np.stack([opened for _, opened in good]))
            decided = self.decide([piece.part for piece, _ in good], logits, features)
            decided = [
                one._replace(offset=piece.offset)
                for one, (piece, _) in zip(decided, good, strict=True)
            ]
            predictions = map(DetailedPrediction, decided, logits, features)
        return [
            (piece, next(predictions))
            if isinstance(opened, np.ndarray)
            else (piece, DetailedPrediction(refused_prediction(piece.part, opened), None, None))
            for piece, opened in batch
        ]

    def _pool_windows(self, part: Part, windows: list[DetailedPrediction]) -> DetailedPrediction:
        """Pool the predictions of a recording's windows, or of a picture's boxes, into one."""
        window_predictions = tuple(window.prediction for window in windows)
        if (reason := reason_not_predicted(window_predictions)) is not None:
            return DetailedPrediction(
                refused_prediction(part, reason)._replace(windows=window_predictions), None, None
            )
        pool = pool_windows if self.spectrogram is not None else pool_boxes
        logits, features, trained = pool(windows)
        (prediction,) = self.decide([part], logits[None], features[None], trained)
        return DetailedPrediction(prediction._replace(windows=window_predictions), logits, features)

    @property
    def names(self) -> Sequence[str]:
        """All names that an answer may have: the classes, and the groups above them."""
        return self.classes if self.confidence.tree is None else self.confidence.tree.names

    @property
    def unused(self) -> list[str]:
        """Fields of `Prediction` that are empty for every file."""
        return ["branch"] * (self.confidence.tree is None) + ["offset"] * (not KINDS[self.kind].gps)

    def decide(
        self,
        parts: Sequence[Part],
        logits: npt.ArrayLike,
        features: npt.ArrayLike | None,
        trained: bool = False,
        top: int | None = None,
    ) -> list[Prediction]:
        """Predictions of items from their logits [n, classes] and features [n, width].

        Parameters
        ----------
        trained : the items are training items.
        top : number of classes to list; default: that of the predictor.
        """
        paths = [part.path for part in parts]
        decisions = self.confidence.decide(logits, features, paths=paths, trained=trained)
        order = np.argsort(-decisions.probabilities, axis=1, kind="stable")
        labels, tree = decisions.labels(self.names), self.confidence.tree
        branches = [()] * len(parts) if tree is None else tree.branches(decisions.probabilities)
        return [
            Prediction(
                part=part,
                label=labels[i],
                best=self.classes[decisions.best[i]],
                probability=float(decisions.probability[i]),
                reason=decisions.reason[i],
                top=[
                    (self.classes[k], float(decisions.probabilities[i, k]))
                    for k in order[i, : decisions.listed(i, top or self.top)]
                ],
                distance_p=float(decisions.distance_p[i]),
                known=float(decisions.known[i]),
                branch=branches[i],
            )
            for i, part in enumerate(parts)
        ]


def vectors_for(bundle: Bundle) -> Vectors:
    """Empty embeddings, which take only those of the model's network."""
    if KINDS[bundle.kind].opened:
        return Vectors()
    return Vectors(bundle.spec.embeddings_of, bundle.spec.size, "the model was trained on")


def group_by_round(predictions: Iterable[Prediction], bs: int) -> Iterator[list[Prediction]]:
    """Group predictions by the rounds of `Decoder.batches`."""
    round_predictions: list[Prediction] = []
    count = 0
    for prediction in predictions:
        round_predictions.append(prediction)
        count += max(1, len(prediction.windows))
        if count >= ROUND * bs:
            yield round_predictions
            round_predictions, count = [], 0
    if round_predictions:
        yield round_predictions
