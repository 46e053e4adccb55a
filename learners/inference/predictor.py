"""A model folder and files -> predictions. The training half (fastai) is not imported, and torch only
where the folder has no ``model.onnx`` or the GPU shall answer.

Files are opened (`Decoder`), a batch goes through the network (`engine`), its answers are decided on, and
the windows of a recording joined into one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from datasets.core.errors import SecondhandError
from datasets.recipes import recipe_from_dict
from datasets.spectrograms import DecodedPictures, Prepared, Source
from learners.inference.answers import (
    Answer,
    Floats,
    Prediction,
    check_moment,
    pooled,
    refused,
    seconds,
    stacked,
    unheard,
)
from learners.inference.decoding import Asked, Decoder, Opened, Part, as_source
from learners.inference.engine import arithmetic, pick_device
from learners.inference.resembling import Resembled, resembled
from learners.machine import threads
from learners.model import PLAIN, Bundle, load_bundle, model_folder

if TYPE_CHECKING:
    from learners.backbones import Network

log = logging.getLogger(__name__)


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
        recipe = self.bundle.recipe
        self.recipe = None if recipe is None else recipe_from_dict(recipe)
        self.kind = "picture" if self.recipe is None else self.recipe.kind
        self.confidence = self.bundle.decider.asked(threshold, score)
        if only is not None:
            self.confidence = self.confidence.only([name in only for name in self.classes])
        self.views = self.bundle.views if tta else (PLAIN,)
        if len(self.views) < len(self.bundle.views):
            log.warning(
                "one view instead of %d: the model's probabilities, threshold and distance were "
                "calibrated with all of them",
                len(self.bundle.views),
            )
        if top < 1:
            raise SecondhandError(f"--top {top}: at least 1 class is listed")
        self.top = min(top, len(self.classes))
        self._arithmetic = arithmetic(self.bundle, engine, self.device, self.views)
        self.engine = self._arithmetic.name
        self.prepared = Prepared(self.bundle.preprocessing, 1.0, decoded)
        self.decoder = Decoder(self.prepared, self.recipe, self.bundle.overlap)

    def predict(
        self,
        paths: Iterable[Asked],
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
        for answer in self.answers(paths, at=at, bs=bs, workers=workers):
            yield answer.prediction

    def answers(
        self,
        paths: Iterable[Asked],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[Answer]:
        """As `predict`, with the logits and features that each prediction rests on."""
        for source, judged in self.windows(paths, at=at, bs=bs, workers=workers):
            yield judged[0] if len(judged) == 1 else self._together(source, judged)

    def windows(
        self,
        paths: Iterable[Asked],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[tuple[Source, list[Answer]]]:
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
        self, paths: Iterable[Asked], *, bs: int = 32, workers: int | None = None
    ) -> tuple[list[str], Floats, Floats]:
        """The good files' names, their logits [n, classes] and their features [n, width]."""
        good = [a for a in self.answers(paths, bs=bs, workers=workers) if a.logits is not None]
        return [a.prediction.path for a in good], *stacked(good, len(self.classes))

    def open(self, source: Asked) -> Opened:
        """The network's input before normalisation, uint8 [3, size, size]; or what is wrong."""
        return self.decoder.open(source)

    def open_all(self, sources: Iterable[Asked], *, workers: int | None = None) -> Iterator[Opened]:
        """As `open`, each where its decoder may die; some are opened ahead."""
        return self.decoder.open_all(sources, workers)

    def resembled(self, path: Asked, n: int = 5) -> list[Resembled]:
        """The training files that a file is most like to the network, the nearest first; none where the
        run around the model folder does not name them, or the file cannot be judged."""
        reference = self.confidence.distance.reference
        if self._run is None or reference is None:
            return []
        opened = self.open(path)
        if not isinstance(opened, np.ndarray):
            return []
        return resembled(self._run, reference, self.forward(opened[None])[1][0], n)

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
        done = self._arithmetic.cores.map(self._arithmetic.alone, parts)
        logits, features = zip(*done, strict=True)
        return np.concatenate(logits), np.concatenate(features)

    def start(self) -> None:
        """Start the processes that open files, where the first question shall not have to."""
        self.decoder.start()

    def close(self) -> None:
        """End them; another question starts new ones."""
        self.decoder.close()

    def _judged(self, batch: Sequence[tuple[Part, Opened]]) -> list[tuple[Part, Answer]]:
        """Each part of a batch judged by itself."""
        good = [(part, opened) for part, opened in batch if isinstance(opened, np.ndarray)]
        answers: Iterator[Answer] = iter(())
        if good:
            logits, features = self.forward(np.stack([opened for _, opened in good]))
            decided = self._decide([part.source for part, _ in good], logits, features)
            answers = map(Answer, decided, logits, features)
        return [
            (part, next(answers))
            if isinstance(opened, np.ndarray)
            else (part, Answer(refused(part.source, opened), None, None))
            for part, opened in batch
        ]

    def _together(self, source: Source, windows: list[Answer]) -> Answer:
        """One answer for the windows of a recording, or of a long span of one."""
        each = tuple(window.prediction for window in windows)
        if (why := unheard(each)) is not None:
            return Answer(refused(source, why)._replace(windows=each), None, None)
        logits, features, trained = pooled(windows)
        (prediction,) = self._decide([source], logits[None], features[None], trained)
        return Answer(prediction._replace(windows=each), logits, features)

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
