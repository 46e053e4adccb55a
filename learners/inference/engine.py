"""What does a network's arithmetic, and where: torch, or ONNX Runtime, which is sooner on a CPU.

Before ONNX Runtime reads a file, which may be somebody else's, it is looked through here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, SecondhandError
from learners.acceleration import SingleThreadPool, accelerate, is_on
from learners.inference.predictions import Floats
from learners.machine import disable_telemetry, has_cuda, has_mps, threads
from learners.model import Bundle, TTAView, average_tta_views

if TYPE_CHECKING:
    from learners.backbones import Network

ENGINES = ("auto", "torch", "onnx")
Batch = npt.NDArray[np.uint8]

#: What model.onnx takes and gives.
ASKED, ANSWERED = "x", ("logits", "features")

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
        if engine != "onnx" and has_cuda():
            return "cuda"
        return "mps" if train and has_mps() else "cpu"
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
    if kind == "mps" and not has_mps():
        raise SecondhandError(f"--device {wanted}: no GPU of Apple is here; use cpu or auto")
    return wanted


def make_engine(
    bundle: Bundle, engine: str, device: str, tta_views: Sequence[TTAView]
) -> TorchEngine | OnnxEngine:
    """What answers for a model, with the engine that `pick_engine` takes."""
    picked = pick_engine(engine, device, bundle)
    if picked == "torch":
        return TorchEngine(bundle, device, tta_views)
    if bundle.onnx is None:
        raise SecondhandError(
            "--engine onnx: asks a model folder's model.onnx, and here is none; use --engine torch"
        )
    try:
        return OnnxEngine(bundle.onnx, bundle, tta_views)
    except BadFile:
        raise
    except Exception as error:  # what is new to an older ONNX Runtime it says in a way of its own
        if engine != "auto":
            raise SecondhandError(
                f"{bundle.onnx}: {str(error)[:200]}; use --engine torch"
            ) from None
        log.warning("%s is not for this ONNX Runtime, torch answers: %s", bundle.onnx, error)
        return TorchEngine(bundle, device, tta_views)


class TorchEngine:
    """uint8 [n, 3, height, width] -> logits [n, classes] and features [n, width], by torch.

    Parameters
    ----------
    views : those that the answers are averaged over.
    """

    name = "torch"

    def __init__(self, bundle: Bundle, device: str, tta_views: Sequence[TTAView]) -> None:
        import torch

        from learners.backbones import logits_and_features

        self.device = torch.device(device)
        self.network = bundle.network.to(self.device)
        accelerate(self.network)
        mean, std = bundle.preprocessing.mean, bundle.preprocessing.std
        self._mean = torch.tensor(mean, device=self.device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=self.device).view(1, 3, 1, 1)
        self._ask = partial(logits_and_features, self.network)
        self._views, self._many = tta_views, bundle.spec.multi_label
        self.side_by_side = device == "cpu" and is_on()
        self.cores = SingleThreadPool()

    def __call__(self, batch: Batch) -> tuple[Floats, Floats]:
        """With all threads that torch has."""
        import torch

        with torch.inference_mode():
            # The arithmetic of the validation DataLoader, to the last bit.
            x = torch.from_numpy(batch).to(self.device).float()
            x = x.div_(255).sub_(self._mean).div_(self._std)
            x = x.contiguous(memory_format=torch.channels_last)
            logits, features = average_tta_views(self._ask, x, self._views, multi_label=self._many)
            return logits.float().cpu().numpy(), features.float().cpu().numpy()

    alone = __call__  # in a thread of `cores`, where torch has one


class OnnxEngine:
    """As `TorchEngine`, by ONNX Runtime on the CPU.

    Parameters
    ----------
    file : what `write_network` made of the bundle's network.

    Raises
    ------
    BadFile : it is not what this bundle needs. ONNX Runtime itself raises whatever it likes.
    """

    name = "onnx"

    def __init__(self, file: Path, bundle: Bundle, tta_views: Sequence[TTAView]) -> None:
        self._file, self._bundle, self._views = file, bundle, tta_views
        shape = (1, 3, 1, 1)
        self._mean = np.array(bundle.preprocessing.mean, np.float32).reshape(shape)
        self._std = np.array(bundle.preprocessing.std, np.float32).reshape(shape)
        self._opening = threading.Lock()
        self._check(self._one)
        self.side_by_side = is_on()
        self.cores = SingleThreadPool(ThreadPoolExecutor)

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
        multi_label = self._bundle.spec.multi_label
        return average_tta_views(partial(ask, session), x, self._views, multi_label=multi_label)

    def _check(self, session: Any) -> None:
        """The shapes that it takes and gives, against those of the model."""
        spec, reference = self._bundle.spec, self._bundle.decider.distance.reference
        width = None if reference is None else reference.shape[1]
        wanted = {
            ASKED: [3, *spec.shape],
            **dict(zip(ANSWERED, ([spec.n_classes], [width]), strict=True)),
        }
        found = {at.name: at.shape[1:] for at in (*session.get_inputs(), *session.get_outputs())}
        if width is None and len(found.get("features", [])) == 1:
            wanted["features"] = found["features"]
        if found != wanted:
            raise BadFile(self._file, f"takes and gives {found}, the model {wanted}"[:300])


def ask(session: Any, x: Floats) -> tuple[Floats, Floats]:
    logits, features = session.run(list(ANSWERED), {ASKED: np.ascontiguousarray(x)})
    return logits, features


def open_onnx(file: Path, workers: int | None = None) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU, of ``workers`` threads or as many as torch has.

    Raises
    ------
    BadFile : the file refers to other files, holds other than ONNX's own operators, or one graph in
        another. ONNX Runtime itself raises whatever it likes.
    """
    need("onnxruntime")
    disable_telemetry()
    import onnxruntime

    content = file.read_bytes()
    check_content(content, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = workers or threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is fatal; the rest is raised
    # Threads that wait would otherwise spin, and take the cores from those that decode files.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def check_content(content: bytes, file: Path) -> None:
    """Raise BadFile for what a network written here never has, and somebody else's file might: tensors
    in other files, operators that are not ONNX's own, graphs within graphs, functions.

    The numbers are those of fields in ``onnx.proto``.
    """
    try:
        for model_field, graph in fields(content):
            if model_field in (20, 25):  # training_info, functions
                raise BadFile(file, "holds more than a network: training or functions")
            if model_field != 7 or not isinstance(graph, memoryview):
                continue
            for graph_field, part in fields(graph):
                if graph_field == 1:
                    _check_node(Message(part), file)
                elif graph_field == 5:  # initializer
                    _check_tensor(Message(part), file)
                elif graph_field == 15:  # sparse_initializer
                    raise BadFile(file, "holds sparse tensors")
    except (ValueError, IndexError) as error:
        if isinstance(error, SecondhandError):
            raise
        raise BadFile(file, f"damaged ONNX ({error})") from None


def _check_node(node: Message, file: Path) -> None:
    if any(bytes(domain) not in (b"", b"ai.onnx") for domain in node.all(7)):
        raise BadFile(file, "holds operators that are not ONNX's own")
    for attribute in map(Message, node.all(5)):
        if attribute.all(6, 11, 22, 23):  # g, graphs, sparse_tensor, sparse_tensors
            raise BadFile(file, "holds a graph within its graph")
        for tensor in attribute.all(5, 10):  # t, tensors
            _check_tensor(Message(tensor), file)


def _check_tensor(tensor: Message, file: Path) -> None:
    if tensor.all(13, 14):  # external_data, data_location
        raise BadFile(file, "refers to another file for its tensors")


def fields(message: memoryview | bytes) -> Iterator[tuple[int, memoryview | int]]:
    """The numbers of a message's fields, and what is in them: bytes, or a number; by Protocol Buffers'
    wire format, as far as it takes to look through a file before others read it.

    Raises
    ------
    ValueError, IndexError : it is cut off, or holds what no reader of today writes.
    """
    data, place = memoryview(message), 0
    while place < len(data):
        key, place = _number(data, place)
        wire = key & 7
        if wire == 0:
            value, place = _number(data, place)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, place = _number(data, place)
        if place + size > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[place : place + size]
        place += size


def _number(data: memoryview, place: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")


class Message:
    """A message, gone through once."""

    def __init__(self, data: Any) -> None:
        self._fields = list(fields(data)) if isinstance(data, memoryview) else []

    def all(self, *numbers: int) -> list[Any]:
        """What is in the fields of these numbers."""
        return [value for number, value in self._fields if number in numbers]


def need(*packages: str) -> None:
    """Raise SecondhandError where one of these is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        raise SecondhandError(f"{', '.join(missing)} not installed: pip install {names} for ONNX")
