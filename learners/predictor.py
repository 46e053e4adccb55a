"""A model folder and files -> predictions. The training half (fastai) is not imported.

Pictures are decoded in threads while the network works on the batch before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datasets.cache import Item as Source
from datasets.errors import BadFile, SecondhandError
from datasets.images import open_picture, pixels
from datasets.spectrogram import recipe_from_dict
from datasets.table import UNKNOWN
from learners.backbones import logits_and_features
from learners.bundle import Bundle, load_bundle, read_confidence
from learners.selective import check_threshold

Asked = str | os.PathLike[str] | Source
Opened = npt.NDArray[np.uint8] | BadFile | str
Floats = npt.NDArray[np.float32]
NO_SIGNAL = "no signal"


class Prediction(NamedTuple):
    """The answer for one file.

    Attributes
    ----------
    path : the file, as it was named.
    label : one of the classes, or "unknown".
    best : the best class all the same; "" for a bad file.
    probability : of the best class, calibrated, in [0, 1]; NaN for a bad file.
    reason : why it is unknown: "", "ambiguous", "unlike training data", "no signal" or
        "bad file: …".
    top : the best classes with their probabilities, best first.
    distance_p : part of known items that lie at least as far from the training data, in (0, 1];
        NaN where the model measures no distance.
    """

    path: str
    label: str
    best: str
    probability: float
    reason: str
    top: list[tuple[str, float]]
    distance_p: float


class Predictor:
    """Answers for files, with one loaded model.

    Parameters
    ----------
    model : a model folder, or a bundle already loaded.
    threshold : instead of the model's own, in [0, 1]; 0 accepts everything.
    top : how many classes to list.
    device : "auto", "cpu", "cuda" or "cuda:N".
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Bundle,
        *,
        threshold: float | None = None,
        top: int = 3,
        device: str = "auto",
    ) -> None:
        self.bundle = model if isinstance(model, Bundle) else load_bundle(model)
        self.classes = self.bundle.classes
        self.device = torch.device(pick_device(device))
        # Feature maps in this order suit the convolutions of CPUs and of GPUs with tensor cores.
        self.network = self.bundle.network.to(self.device).to(memory_format=torch.channels_last)
        preprocessing = self.bundle.preprocessing
        self.mean = torch.tensor(preprocessing.mean, device=self.device).view(1, 3, 1, 1)
        self.std = torch.tensor(preprocessing.std, device=self.device).view(1, 3, 1, 1)
        recipe = self.bundle.recipe
        self.recipe = None if recipe is None else recipe_from_dict(recipe)
        self.confidence = read_confidence(
            self.bundle.confidence, self.bundle.reference, len(self.classes)
        )
        if threshold is not None:
            check_threshold(threshold)
            self.confidence.threshold = replace(self.confidence.threshold, value=threshold)
            self.confidence.threshold_on = "probability"
        if top < 1:
            raise SecondhandError(f"--top {top}: at least 1 class is listed")
        self.top = min(top, len(self.classes))

    def predict(
        self,
        paths: Iterable[Asked],
        *,
        at: float | None = None,
        bs: int = 32,
        workers: int | None = None,
    ) -> Iterator[Prediction]:
        """One prediction a file, in the order of the files, as they become ready.

        Parameters
        ----------
        paths : files, or sources with a span or a moment in a file of a signal.
        at : GPS time in seconds that a strain file is asked about; without it, its loudest moment.
        bs : items in a forward pass.
        workers : threads that decode; by default one for each core.
        """
        sources = (_source(path, at) for path in paths)
        for names, pictures, good, logits, features in self._forwarded(sources, bs, workers):
            named = [names[i] for i in good]
            answers = dict(zip(good, self._answers(named, logits, features), strict=True))
            for i, name in enumerate(names):
                picture = pictures[i]
                yield answers[i] if i in answers else refused(name, picture)

    def outputs(
        self, paths: Iterable[Asked], *, bs: int = 32, workers: int | None = None
    ) -> tuple[list[str], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The good files' names, their logits [n, classes] and their features [n, width]."""
        named: list[str] = []
        logits, features = [np.empty((0, len(self.classes)), np.float32)], []
        for names, _, good, batch_logits, batch_features in self._forwarded(
            (_source(path) for path in paths), bs, workers
        ):
            named += [names[i] for i in good]
            logits.append(batch_logits)
            features.append(batch_features)
        width = features[0].shape[1] if features else 0
        return named, np.concatenate(logits), np.concatenate([np.empty((0, width)), *features])

    def open(self, source: Asked) -> Opened:
        """The network's input before normalisation, uint8 [3, size, size]; or what is wrong."""
        path, start, end, at = _source(source)
        preprocessing = self.bundle.preprocessing
        try:
            if self.recipe is None:
                picture = open_picture(path, at_least=preprocessing.needs)
            else:
                signal = self.recipe.read(path, start=start, end=end, at=at)
                if self.recipe.no_signal(signal):
                    return NO_SIGNAL
                picture = self.recipe.image(signal).convert("RGB")
            return pixels(preprocessing.fit(picture))
        except BadFile as error:
            return error
        except SecondhandError as error:  # the file is fine, the moment asked for is not
            return BadFile(path, str(error))

    @torch.inference_mode()
    def forward(
        self, batch: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Logits [n, classes] and features [n, width] of uint8 [n, 3, size, size]."""
        x = torch.from_numpy(batch).to(self.device)
        # The arithmetic of the validation DataLoader, to the last bit.
        x = x.float().div_(255).sub_(self.mean).div_(self.std)
        x = x.contiguous(memory_format=torch.channels_last)
        logits, features = logits_and_features(self.network, x)
        return logits.float().cpu().numpy(), features.float().cpu().numpy()

    def _answers(
        self,
        names: Sequence[str],
        logits: npt.NDArray[np.float32],
        features: npt.NDArray[np.float32],
    ) -> list[Prediction]:
        if not names:
            return []
        judged = self.confidence.decide(logits, features, paths=names)
        order = np.argsort(-judged.probabilities, axis=1, kind="stable")[:, : self.top]
        return [
            Prediction(
                path=name,
                label=self.classes[judged.label[i]] if judged.label[i] >= 0 else UNKNOWN,
                best=self.classes[judged.best[i]],
                probability=float(judged.probability[i]),
                reason=judged.reason[i],
                top=[(self.classes[k], float(judged.probabilities[i, k])) for k in order[i]],
                distance_p=float(judged.distance_p[i]),
            )
            for i, name in enumerate(names)
        ]

    def _forwarded(
        self, sources: Iterator[Source], bs: int, workers: int | None
    ) -> Iterator[tuple[list[str], list[Opened], list[int], Floats, Floats]]:
        """Names and pictures of each batch, which of them are good, and what the network says."""
        if bs < 1:
            raise SecondhandError(f"--bs {bs}: at least 1 item makes a batch")
        none = np.empty((0, len(self.classes)), np.float32), np.empty((0, 1), np.float32)
        for names, pictures in self._decoded(sources, bs, workers):
            good = [(i, p) for i, p in enumerate(pictures) if isinstance(p, np.ndarray)]
            logits, features = self.forward(np.stack([p for _, p in good])) if good else none
            yield names, pictures, [i for i, _ in good], logits, features

    def _decoded(
        self, sources: Iterator[Source], bs: int, workers: int | None
    ) -> Iterator[tuple[list[str], list[Opened]]]:
        """Batches of opened files, two batches ahead of the network."""
        workers = max(1, workers or len(os.sched_getaffinity(0)))
        waiting: deque[tuple[str, Future[Opened]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                exhausted = False
                while waiting or not exhausted:
                    while not exhausted and len(waiting) < 3 * bs:
                        source = next(sources, None)
                        if source is None:
                            exhausted = True
                        else:
                            waiting.append((source.path, pool.submit(self.open, source)))
                    taken = [waiting.popleft() for _ in range(min(bs, len(waiting)))]
                    if taken:
                        yield [name for name, _ in taken], [future.result() for _, future in taken]
            finally:
                for _, future in waiting:
                    future.cancel()


def refused(name: str, why: object) -> Prediction:
    """The row of a file that could not be read, or that is silent."""
    reason = f"bad file: {why.reason}" if isinstance(why, BadFile) else NO_SIGNAL
    nan = float("nan")
    return Prediction(name, UNKNOWN, "", nan, reason, [], nan)


def _source(asked: Asked, at: float | None = None) -> Source:
    if isinstance(asked, Source):
        # A table's empty cells are NaN.
        times = (None if t is None or t != t else t for t in asked[1:])
        return Source(asked.path, *times)
    return Source(os.fspath(asked), at=at)


def pick_device(wanted: str) -> str:
    """ "auto" is the first CUDA GPU where there is one, else the CPU."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(wanted).type
    except RuntimeError:
        raise SecondhandError(f"--device {wanted!r} is none of auto, cpu, cuda, cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise SecondhandError(f"--device {wanted}: no CUDA GPU is here; use cpu or auto")
    return wanted
