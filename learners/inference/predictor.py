"""Predicts files with a model folder.

fastai is not imported, and torch only if the folder has no ``model.onnx`` or a GPU is used. `decoding` opens files ahead
of the network, `engine` computes a batch, and `Predictor` decides on the outputs and pools the windows of a recording.
"""

from __future__ import annotations

import csv
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from datasets.core.errors import SecondhandError
from datasets.core.part import FileOrPart, Part, as_part
from datasets.images.decoded import PictureOpener
from datasets.kinds.base import spectrogram_from_dict
from datasets.kinds.lookup import Lookup
from datasets.kinds.views import PLAIN
from datasets.tables.cells import read_dicts
from learners.inference.decoding import AnyDecoder, Decoder, Opened, Piece, Pieces
from learners.inference.engine import Started, make_engine, pick_device
from learners.inference.options import Computing, Opening
from learners.inference.passed import Passed
from learners.inference.predictions import (
    DetailedPrediction,
    Floats,
    Prediction,
    predictions_from,
    reason_not_predicted,
    refused_prediction,
    stack_outputs,
)
from learners.machine.hardware import threads
from learners.model.bundle import Bundle, load_bundle
from learners.model.places import model_folder
from learners.rule.base import AnyRule

if TYPE_CHECKING:
    from learners.backbones.building import Network

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Items of a run that the rule decides on at once.
TOGETHER = 512
#: File of a run that lists the training files whose features its model holds.
REFERENCE = "reference.csv"


class SimilarFile(NamedTuple):
    """A training file or a window of one, its class, and the cosine similarity of the features."""

    part: Part
    label: str
    cosine: float


class Output(NamedTuple):
    """A piece of a file with its logits [classes] and features [width]; both None if it is refused."""

    piece: Piece
    logits: Floats | None
    features: Floats | None


def joined(batches: Iterable[list[Output]], count: int) -> Iterator[list[Output]]:
    """Join batches to lists of at least ``count``; the last may be shorter."""
    together: list[Output] = []
    for batch in batches:
        together += batch
        if len(together) >= count:
            yield together
            together = []
    if together:
        yield together


def fetched_behind(started: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Call what was started, in order, and at any time at most ``ahead`` fewer than were started."""
    waiting = deque[Callable[[], T]]()
    for fetch in started:
        waiting.append(fetch)
        if len(waiting) > ahead:
            yield waiting.popleft()()
    for fetch in waiting:
        yield fetch()


def bundle_and_run(model: str | os.PathLike[str] | Bundle) -> tuple[Bundle, Path | None]:
    """A model, and the folder of the run that contains its folder; None if it was not given as a folder."""
    if isinstance(model, Bundle):
        return model, None
    folder = model_folder(model)
    return load_bundle(folder, network=False), folder.absolute().parent


class Predictor:
    """Predicts files with one loaded model.

    `learners.loading.predictor.load_predictor` makes one from the flags of the commands as keywords.

    Parameters
    ----------
    model : a model folder, the name of one elsewhere, or a loaded bundle.
    rule : when to answer; default: the model's rule.
    pieces : the pieces of a picture to predict, and how they are pooled; default: whole pictures.
    top : number of classes to list.
    lookup : for a model whose inputs are looked up, those of the items; its `read` adds
        more.
    passed : what has passed through the network already, and is opened again but not computed again; what is predicted
        adds to it.
    opening : how files are opened.
    computing : how the network is computed.

    Attributes
    ----------
    run : folder of the run that contains the model folder; None if the model was not given as a folder.
    """

    decoder: AnyDecoder

    def __init__(
        self,
        model: str | os.PathLike[str] | Bundle,
        *,
        rule: AnyRule | None = None,
        pieces: Pieces | None = None,
        top: int = 3,
        lookup: Lookup | None = None,
        passed: Passed | None = None,
        opening: Opening | None = None,
        computing: Computing | None = None,
    ) -> None:
        opening, computing = opening or Opening(), computing or Computing()
        self.passed, self.bs = passed, computing.bs
        self.device = pick_device(computing.device, computing.engine)
        self.bundle, self.run = bundle_and_run(model)
        self.classes = self.bundle.classes
        spectrogram = self.bundle.spectrogram
        self.spectrogram = None if spectrogram is None else spectrogram_from_dict(spectrogram)
        self.kind = self.bundle.kind
        self.rule = self.bundle.rule if rule is None else rule
        self.tta_views = self.bundle.tta_views if computing.tta else (PLAIN,)
        if len(self.tta_views) < len(self.bundle.tta_views):
            log.warning(
                "Test-time augmentation is off, but the model was calibrated with %d variants of each file, so "
                "probabilities and refusals are less reliable. Leave out --no-tta",
                len(self.bundle.tta_views),
            )
        if top < 1:
            raise SecondhandError(f"--top {top}: expected at least 1")
        self.top = min(top, len(self.classes))
        self._arithmetic = make_engine(self.bundle, computing.engine, self.device, self.tta_views)
        self.engine = self._arithmetic.name
        self.prepared = PictureOpener(
            self.bundle.preprocessing, 1.0, opening.decoded, opening.allow_truncated
        )
        self.lookup = lookup or self.bundle.lookup()
        self._pieces = pieces or Pieces()
        if self.bundle.spec.takes_pixels:
            self.decoder = Decoder(
                self.prepared,
                self.spectrogram,
                self.bundle.overlap,
                self._pieces,
                opening.workers,
                recentre=opening.recentre,
            )
        else:
            assert self.lookup is not None
            self.decoder = self.lookup.decoder()

    def under(self, rule: AnyRule) -> Predictor:
        """A predictor of the same network under another rule; the two share engine and openers."""
        other = copy(self)
        other.bundle, other.rule = replace(self.bundle, rule=rule), rule
        return other

    def behind_passed(self, passed: Passed) -> Predictor:
        """A predictor of the same network for which other outputs have passed already."""
        other = copy(self)
        other.passed = passed
        return other

    def behind(self, weight: Floats, bias: Floats) -> Predictor:
        """A predictor whose logits are those of linear layers, [members, classes, width] and [members, classes], on the
        logits of this one, which are the inputs of the layers (`learners.inference.inputs.HeadInputs`).
        """
        assert self.passed is not None
        average = self.bundle.spec.average
        return self.behind_passed(self.passed.through(weight, bias, average))

    def raw(self, files: Iterable[FileOrPart]) -> Iterator[Output]:
        """Yield the outputs of all pieces of the files, on which nothing is decided."""
        for outputs in self._outputs(self.decoder.batches(map(as_part, files), self.bs)):
            yield from outputs

    def predict(
        self, paths: Iterable[FileOrPart], *, at: float | None = None
    ) -> Iterator[Prediction]:
        """Yield one prediction per file, in the order of the files, as they become ready.

        A recording longer than the model's window is cut into windows, and its logit of a class is the
        mean of the `TOP_WINDOWS` largest logits of its windows.

        Parameters
        ----------
        paths : files, or parts of some: a span or a moment of a signal; no pictures or arrays in memory.
        at : moment in files for which ``paths`` has none: GPS time in seconds for strain (default: the loudest
            moment), seconds from the start for sound (default: the whole file). An error for pictures.
        """
        for detailed in self.predict_detailed(paths, at=at):
            yield detailed.prediction

    def predict_detailed(
        self, paths: Iterable[FileOrPart], *, at: float | None = None
    ) -> Iterator[DetailedPrediction]:
        """Yield predictions as `predict` does, with their logits and features."""
        for file, predictions in self.predict_windows(paths, at=at):
            yield (
                predictions[0] if len(predictions) == 1 else self._pool_windows(file, predictions)
            )

    def predict_windows(
        self, paths: Iterable[FileOrPart], *, at: float | None = None
    ) -> Iterator[tuple[Part, list[DetailedPrediction]]]:
        """Yield each file with the detailed predictions of its windows or pieces (one for a short file)."""
        if isinstance(paths, str | os.PathLike):
            path = os.fspath(paths)
            raise SecondhandError(f"{path!r} is one path. Give a list of paths: [{path!r}]")
        self.kind.check_moment(at)
        given: Any = paths  # such as a picture in memory, which is refused
        listed = given if isinstance(given, Iterable) else [given]
        files: Iterator[Part] = (as_part(path, at) for path in listed)
        outputs = self._outputs(self.decoder.batches(files, self.bs))
        # The rule is faster for many items; but nobody should wait for the first.
        predicted = map(self._decided, joined(outputs, 1 if self.passed is None else TOGETHER))
        for (_, file), group in groupby(
            chain.from_iterable(predicted),
            key=lambda piece_and_prediction: piece_and_prediction[0][:2],
        ):
            yield file, [detailed for _, detailed in group]

    def outputs(self, paths: Iterable[FileOrPart]) -> tuple[list[str], Floats, Floats]:
        """Names of the readable files, their logits [n, classes] and features [n, width]."""
        good = [a for a in self.predict_detailed(paths) if a.logits is not None]
        return [a.prediction.path for a in good], *stack_outputs(good, len(self.classes))

    def open(self, file: FileOrPart) -> Opened:
        """Open a file: the network's input before normalisation, uint8 [3, size, size], or what is wrong."""
        return self.decoder.open(file)

    def open_all(self, files: Iterable[FileOrPart]) -> Iterator[Opened]:
        """Open files as `open` does, ahead and in other processes."""
        return self.decoder.open_all(files)

    def start(self) -> None:
        """Start the processes that open files and load the network, so that the first prediction waits for neither."""
        self.decoder.start()
        self._arithmetic.load()

    def close(self) -> None:
        """End the processes that open files; another prediction starts new ones."""
        self.decoder.close()

    def similar_files(self, path: FileOrPart, n: int = 5) -> list[SimilarFile]:
        """The ``n`` training files with the most similar features, most similar first.

        Their names come from ``reference.csv`` in the run folder that contains the model folder; the model folder
        itself, which may be shared, does not contain them. The list is empty if that file is missing or belongs to
        another model, and if ``path`` cannot be opened.
        """
        reference = self.rule.distance.reference
        if self.run is None or reference is None:
            return []
        opened = self.decoder.open(path)
        if not isinstance(opened, np.ndarray):
            return []
        features = self.forward(opened[None])[1][0]
        try:
            with open(self.run / REFERENCE, encoding="utf-8-sig", newline="") as file:
                rows = list(read_dicts(file)[1])
            if len(rows) != len(reference):
                return []
            cosines = reference @ (features / max(float(np.linalg.norm(features)), 1e-12))
            nearest: dict[str, SimilarFile] = {}
            for row in np.argsort(-cosines, kind="stable"):
                part = Part.from_row(rows[row])
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

    @property
    def _ahead(self) -> int:
        """Batches that are handed to the network before the outputs of the first of them are waited for."""
        return int(self._arithmetic.start is not None)

    def computed(
        self, batches: Iterable[Sequence[npt.NDArray[Any]]]
    ) -> Iterator[tuple[Floats, Floats]]:
        """Logits and features of batches of inputs; a GPU computes one while the next is made."""
        return fetched_behind(map(self._start, batches), self._ahead)

    def _outputs(self, batches: Iterable[Sequence[tuple[Piece, Opened]]]) -> Iterator[list[Output]]:
        """The outputs of each batch."""
        return fetched_behind(map(self._start_opened, batches), self._ahead)

    def _start_opened(self, batch: Sequence[tuple[Piece, Opened]]) -> Callable[[], list[Output]]:
        """Compute a batch; what is returned gives its pieces with their outputs, or with the reason why they have none."""
        good = [(piece.part, opened) for piece, opened in batch if isinstance(opened, np.ndarray)]
        started = self._start_unless_passed(good)

        def fetch() -> list[Output]:
            of_good = zip(*started(), strict=True)
            return [
                Output(piece, *next(of_good))
                if isinstance(opened, np.ndarray)
                else Output(piece._replace(refused=opened), None, None)
                for piece, opened in batch
            ]

        return fetch

    def _start_unless_passed(self, opened: Sequence[tuple[Part, npt.NDArray[Any]]]) -> Started:
        """Compute opened parts, of which only those pass that have not passed before."""
        passed = self.passed
        if passed is None or not opened:
            return self._start([inputs for _, inputs in opened])
        new = [one for one in opened if one[0] not in passed]
        started = self._start([inputs for _, inputs in new])

        def fetch() -> tuple[Floats, Floats]:
            if new:
                passed.put([part for part, _ in new], *started())
            return passed.get([part for part, _ in opened])

        return fetch

    def _start(self, inputs: Sequence[npt.NDArray[Any]]) -> Started:
        """Compute inputs; what is returned gives logits [n, classes] and features [n, width]."""
        if not inputs:
            nothing = np.empty((0, 0), np.float32)
            return lambda: (nothing, nothing)
        if self._arithmetic.start is not None:
            return self._arithmetic.start(inputs)
        outputs = self.forward(np.stack(inputs))
        return lambda: outputs

    def _decided(self, outputs: Sequence[Output]) -> list[tuple[Piece, DetailedPrediction]]:
        """The predictions of pieces."""
        good = [one for one in outputs if one.logits is not None]
        predictions: Iterator[DetailedPrediction] = iter(())
        if good:
            pieces, *of_pieces = zip(*good, strict=True)
            logits, features = map(np.stack, of_pieces)
            decided = self.decide([piece.part for piece in pieces], logits, features)
            decided = [
                one.with_more(offset=piece.offset)
                for one, piece in zip(decided, pieces, strict=True)
            ]
            predictions = map(DetailedPrediction, decided, logits, features)
        return [
            (piece, next(predictions))
            if piece.refused is None
            else (
                piece,
                DetailedPrediction(refused_prediction(piece.part, piece.refused), None, None),
            )
            for piece, _, _ in outputs
        ]

    def _pool_windows(self, part: Part, windows: list[DetailedPrediction]) -> DetailedPrediction:
        """Pool the predictions of a file's windows, or other pieces, into one."""
        window_predictions = tuple(window.prediction for window in windows)
        if (reason := reason_not_predicted(window_predictions)) is not None:
            return DetailedPrediction(
                refused_prediction(part, reason).with_more(windows=window_predictions), None, None
            )
        logits, features, trained = self._pieces.pool(windows)
        (prediction,) = self.decide([part], logits[None], features[None], trained)
        return DetailedPrediction(
            prediction.with_more(windows=window_predictions), logits, features
        )

    @property
    def names(self) -> Sequence[str]:
        """All names that an answer may have: the classes, and the groups above them."""
        return self.rule.names(self.classes)

    @property
    def unused(self) -> list[str]:
        """Fields of `Prediction` that are empty for every file."""
        return [*self.rule.unused, *["offset"] * (not self.kind.gps)]

    def decide(
        self,
        parts: Sequence[Part],
        logits: npt.ArrayLike,
        features: npt.ArrayLike | None,
        trained: bool = False,
    ) -> list[Prediction]:
        """Predictions of items from their logits [n, classes] and features [n, width]; ``trained`` : training items."""
        return predictions_from(
            self.rule, self.classes, parts, logits, features, trained=trained, top=self.top
        )
