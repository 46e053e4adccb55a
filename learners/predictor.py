"""A model folder and files -> predictions. The training half (fastai) is not imported.

Pictures are decoded in threads while the network works on the batch before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from datasets.errors import BadFile, SecondhandError
from datasets.images import open_picture, pixels
from datasets.table import UNKNOWN
from learners.backbones import logits_and_features
from learners.bundle import Bundle, load_bundle


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
        self.temperature = float(self.bundle.confidence.get("temperature", 1.0))
        own = float(self.bundle.confidence.get("threshold", 0.95))
        self.threshold = own if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            raise SecondhandError(f"--threshold {self.threshold} is not in [0, 1]")
        if top < 1:
            raise SecondhandError(f"--top {top}: at least 1 class is listed")
        self.top = min(top, len(self.classes))

    def predict(
        self, paths: Iterable[str | os.PathLike[str]], *, bs: int = 32, workers: int | None = None
    ) -> Iterator[Prediction]:
        """One prediction a file, in the order of the files, as they become ready.

        Parameters
        ----------
        bs : items in a forward pass.
        workers : threads that decode; by default one for each core.
        """
        if bs < 1:
            raise SecondhandError(f"--bs {bs}: at least 1 item makes a batch")
        for names, pictures in self._decoded((os.fspath(path) for path in paths), bs, workers):
            good = [i for i, picture in enumerate(pictures) if not isinstance(picture, BadFile)]
            answers: dict[int, Prediction] = {}
            if good:
                logits, _ = self.forward(np.stack([pictures[i] for i in good]))  # type: ignore[misc]
                answers = dict(
                    zip(good, self._answers([names[i] for i in good], logits), strict=True)
                )
            for i, name in enumerate(names):
                picture = pictures[i]
                yield bad_answer(picture, name) if isinstance(picture, BadFile) else answers[i]

    def open(self, path: str) -> npt.NDArray[np.uint8] | BadFile:
        """The network's input before normalisation, uint8 [3, size, size]; or what is wrong."""
        preprocessing = self.bundle.preprocessing
        try:
            picture = open_picture(path, at_least=preprocessing.needs)
            return pixels(preprocessing.fit(picture))
        except BadFile as error:
            return error

    @torch.inference_mode()
    def forward(self, batch: npt.NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and features [n, width], float32 on the CPU, of uint8 [n, 3, s, s]."""
        x = torch.from_numpy(batch).to(self.device)
        # The arithmetic of the validation DataLoader, to the last bit.
        x = x.float().div_(255).sub_(self.mean).div_(self.std)
        x = x.contiguous(memory_format=torch.channels_last)
        logits, features = logits_and_features(self.network, x)
        return logits.float().cpu(), features.float().cpu()

    def _answers(self, names: Sequence[str], logits: Tensor) -> list[Prediction]:
        probabilities = (logits / self.temperature).softmax(1)
        values, indices = probabilities.topk(self.top, dim=1)
        answers = []
        for name, value, index in zip(names, values.tolist(), indices.tolist(), strict=True):
            best = self.classes[index[0]]
            accepted = value[0] >= self.threshold
            answers.append(
                Prediction(
                    path=name,
                    label=best if accepted else UNKNOWN,
                    best=best,
                    probability=value[0],
                    reason="" if accepted else "ambiguous",
                    top=[(self.classes[i], v) for i, v in zip(index, value, strict=True)],
                    distance_p=float("nan"),
                )
            )
        return answers

    def _decoded(
        self, paths: Iterator[str], bs: int, workers: int | None
    ) -> Iterator[tuple[list[str], list[npt.NDArray[np.uint8] | BadFile]]]:
        """Batches of opened files, two batches ahead of the network."""
        workers = max(1, workers or len(os.sched_getaffinity(0)))
        waiting: deque[tuple[str, Future[npt.NDArray[np.uint8] | BadFile]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                exhausted = False
                while waiting or not exhausted:
                    while not exhausted and len(waiting) < 3 * bs:
                        path = next(paths, None)
                        if path is None:
                            exhausted = True
                        else:
                            waiting.append((path, pool.submit(self.open, path)))
                    taken = [waiting.popleft() for _ in range(min(bs, len(waiting)))]
                    if taken:
                        yield [name for name, _ in taken], [future.result() for _, future in taken]
            finally:
                for _, future in waiting:
                    future.cancel()


def bad_answer(error: BadFile, name: str) -> Prediction:
    """The row of a file that could not be read."""
    nan = float("nan")
    return Prediction(name, UNKNOWN, "", nan, f"bad file: {error.reason}", [], nan)


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
