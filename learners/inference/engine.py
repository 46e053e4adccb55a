"""What does a network's arithmetic, and where: torch, or ONNX Runtime, which is sooner on a CPU."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import file_beside
from learners.acceleration import CoreEach, accelerate, is_on
from learners.backbones import NetworkSpec
from learners.inference.answers import Floats
from learners.inference.onnx import TOLERANCE, distance, open_onnx, write_onnx
from learners.machine import cuda_here, mps_here
from learners.model import Bundle, View, look_and_average

if TYPE_CHECKING:
    from learners.backbones import Network

ENGINES = ("auto", "torch", "onnx")
Batch = npt.NDArray[np.uint8]

_INPUT, _OUTPUTS = "x", ("logits", "features")

log = logging.getLogger(__name__)


def pick_engine(wanted: str, device: str, bundle: Bundle) -> str:
    """ "torch" or "onnx": which one "auto" means for a model on a device.

    ONNX Runtime where it takes torch's import off the first answer: on a CPU, for a model folder that
    holds ``model.onnx``, where ``onnxruntime`` is installed. torch everywhere else: on a GPU; for a
    folder without that file, as of a network that ONNX has no words for; for a model in memory, whose network torch has already. An engine by its name is that one.
    """
    if wanted != "auto":
        return wanted
    there = bundle.onnx is not None and find_spec("onnxruntime") is not None
    return "onnx" if device == "cpu" and there and not bundle.built else "torch"


def pick_device(wanted: str, engine: str = "auto", *, train: bool = False) -> str:
    """ "auto" is the first CUDA GPU where there is one, else the CPU; for ONNX Runtime the CPU.

    Apple's GPU trains by itself; it answers where it is named, for the CPU has answered before torch
    is imported.

    Raises
    ------
    SecondhandError : there is no such device or engine, or they do not go together.
    """
    if engine not in ENGINES:
        raise SecondhandError(f"--engine {engine!r} is none of {', '.join(ENGINES)}")
    if wanted == "auto":
        if engine != "onnx" and cuda_here():
            return "cuda"
        return "mps" if train and mps_here() else "cpu"
    if wanted == "cpu":
        return wanted
    import torch

    try:
        kind = torch.device(wanted).type
    except RuntimeError:
        raise SecondhandError(
            f"--device {wanted!r} is none of auto, cpu, cuda, cuda:N, mps"
        ) from None
    if engine == "onnx" and kind != "cpu":
        raise SecondhandError(f"--engine onnx runs on the CPU: leave --device {wanted} out")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SecondhandError(f"--device {wanted}: no CUDA GPU is here; use cpu or auto")
    if kind == "mps" and not mps_here():
        raise SecondhandError(f"--device {wanted}: no GPU of Apple is here; use cpu or auto")
    return wanted


def arithmetic(
    bundle: Bundle, engine: str, device: str, views: Sequence[View]
) -> TorchArithmetic | OnnxArithmetic:
    """What answers for a model, with the engine that `pick_engine` takes."""
    picked = pick_engine(engine, device, bundle)
    if picked == "torch":
        return TorchArithmetic(bundle, device, views)
    if bundle.onnx is None:
        raise SecondhandError(
            "--engine onnx: asks a model folder's model.onnx, and here is none; use --engine torch"
        )
    try:
        return OnnxArithmetic(bundle.onnx, bundle, views)
    except BadFile:
        raise
    except Exception as error:  # what is new to an older ONNX Runtime it says in a way of its own
        if engine != "auto":
            raise SecondhandError(
                f"{bundle.onnx}: {str(error)[:200]}; use --engine torch"
            ) from None
        log.warning("%s is not for this ONNX Runtime, torch answers: %s", bundle.onnx, error)
        return TorchArithmetic(bundle, device, views)


class TorchArithmetic:
    """uint8 [n, 3, height, width] -> logits [n, classes] and features [n, width], by torch.

    Parameters
    ----------
    views : those that the answers are averaged over.
    """

    name = "torch"

    def __init__(self, bundle: Bundle, device: str, views: Sequence[View]) -> None:
        import torch

        from learners.backbones import logits_and_features

        self.device = torch.device(device)
        self.network = bundle.network.to(self.device)
        accelerate(self.network)
        mean, std = bundle.preprocessing.mean, bundle.preprocessing.std
        self._mean = torch.tensor(mean, device=self.device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=self.device).view(1, 3, 1, 1)
        self._ask = partial(logits_and_features, self.network)
        self._views, self._many = views, bundle.spec.many
        self.side_by_side = device == "cpu" and is_on()
        self.cores = CoreEach()

    def __call__(self, batch: Batch) -> tuple[Floats, Floats]:
        """With all threads that torch has."""
        import torch

        with torch.inference_mode():
            # The arithmetic of the validation DataLoader, to the last bit.
            x = torch.from_numpy(batch).to(self.device).float()
            x = x.div_(255).sub_(self._mean).div_(self._std)
            x = x.contiguous(memory_format=torch.channels_last)
            logits, features = look_and_average(self._ask, x, self._views, many=self._many)
            return logits.float().cpu().numpy(), features.float().cpu().numpy()

    alone = __call__  # in a thread of `cores`, where torch has one


class OnnxArithmetic:
    """As `TorchArithmetic`, by ONNX Runtime on the CPU.

    Parameters
    ----------
    file : what `write_network` made of the bundle's network.

    Raises
    ------
    BadFile : it is not what this bundle needs. ONNX Runtime itself raises whatever it likes.
    """

    name = "onnx"

    def __init__(self, file: Path, bundle: Bundle, views: Sequence[View]) -> None:
        self._file, self._bundle, self._views = file, bundle, views
        shape = (1, 3, 1, 1)
        self._mean = np.array(bundle.preprocessing.mean, np.float32).reshape(shape)
        self._std = np.array(bundle.preprocessing.std, np.float32).reshape(shape)
        self._opening = threading.Lock()
        self._check(self._one)
        self.side_by_side = is_on()
        self.cores = CoreEach(ThreadPoolExecutor)

    @cached_property
    def network(self) -> Network:
        """torch's, for what only it can be asked: where it looked."""
        accelerate(self._bundle.network)
        return self._bundle.network

    @cached_property
    def _one(self) -> Any:
        return open_onnx(self._file, 1)

    @cached_property
    def _all(self) -> Any:
        return open_onnx(self._file)

    def __call__(self, batch: Batch) -> tuple[Floats, Floats]:
        """With a thread on each core."""
        with self._opening:
            session = self._all
        return self._run(session, batch)

    def alone(self, batch: Batch) -> tuple[Floats, Floats]:
        """In the calling thread."""
        return self._run(self._one, batch)

    def _run(self, session: Any, batch: Batch) -> tuple[Floats, Floats]:
        x = batch.astype(np.float32)
        x /= np.float32(255)
        x -= self._mean
        x /= self._std
        many = self._bundle.spec.many
        return look_and_average(partial(_ask, session), x, self._views, many=many)

    def _check(self, session: Any) -> None:
        """The shapes that it takes and gives, against those of the model."""
        spec, reference = self._bundle.spec, self._bundle.decider.distance.reference
        width = None if reference is None else reference.shape[1]
        wanted = {
            _INPUT: [3, *spec.shape],
            **dict(zip(_OUTPUTS, ([spec.n_classes], [width]), strict=True)),
        }
        found = {at.name: at.shape[1:] for at in (*session.get_inputs(), *session.get_outputs())}
        if width is None and len(found.get("features", [])) == 1:
            wanted["features"] = found["features"]
        if found != wanted:
            raise BadFile(self._file, f"takes and gives {found}, the model {wanted}"[:300])


def _ask(session: Any, x: Floats) -> tuple[Floats, Floats]:
    logits, features = session.run(list(_OUTPUTS), {_INPUT: np.ascontiguousarray(x)})
    return logits, features


def write_network(bundle: Bundle, file: Path) -> None:
    """The network of a bundle for `OnnxArithmetic`, written whole or not at all, and asked.

    Raises
    ------
    SecondhandError : packages are missing, the network cannot be written in ONNX, or what was
        written answers differently from it.
    """
    from learners.backbones import Answers

    with file_beside(file) as beside:
        write_onnx(Answers(bundle.network), _questions(bundle.spec)[0], beside, (_INPUT,), _OUTPUTS)
        if (far := _off(beside, bundle)) > TOLERANCE:
            raise SecondhandError(
                f"ONNX Runtime's answers for {bundle.spec.backbone} are {far:.1e} from the network's "
                "own; use --engine torch"
            )


def _questions(spec: NetworkSpec) -> list[Floats]:
    """Normalised inputs, of two numbers of them in a batch."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 3, *spec.shape), dtype=np.float32) for n in (2, 3)]


def _off(file: Path, bundle: Bundle) -> float:
    """How far a file's answers lie from the network's: infinitely where it gives none."""
    import torch

    from learners.backbones import logits_and_features

    network = bundle.network
    if next(network.parameters()).device.type != "cpu":  # which may round otherwise
        network = copy.deepcopy(network).cpu()
    try:
        session = open_onnx(file)
        far = []
        for x in _questions(bundle.spec):
            with torch.inference_mode():
                ours = logits_and_features(network, torch.from_numpy(x))
            far += [distance(a, b) for a, b in zip(ours, _ask(session, x), strict=True)]
    except Exception as error:  # a damaged file makes ONNX Runtime raise whatever it likes
        log.warning("%s: %s", file, str(error)[:200])
        return float("inf")
    return max(far)
