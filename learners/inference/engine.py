"""Runs networks with torch or with ONNX Runtime, which starts faster on a CPU.

ONNX files may come from untrusted sources, so their content is checked before ONNX Runtime reads them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, SecondhandError
from datasets.kinds.views import TTAView
from learners.inference.predictions import Floats
from learners.machine.acceleration import SingleThreadPool, accelerate, is_on
from learners.machine.hardware import disable_telemetry, has_cuda, has_mps, keep_float32, threads
from learners.model.bundle import Bundle
from learners.model.tta import average_tta_views

if TYPE_CHECKING:
    from learners.backbones.building import Network

ENGINES = ("auto", "torch", "onnx")
Batch = npt.NDArray[Any]  # uint8 of pictures, float32 of embeddings

#: Waits for the logits and features of a batch that a GPU computes.
Started = Callable[[], tuple[Floats, Floats]]

#: Names of the input and the outputs of model.onnx.
ONNX_INPUT, ONNX_OUTPUTS = "x", ("logits", "features")

log = logging.getLogger(__name__)


def pick_engine(engine: str, device: str, bundle: Bundle) -> str:
    """Return "torch" or "onnx"; "auto" depends on the model and the device.

    "auto" is ONNX Runtime, which saves importing torch, on a CPU for a model folder with ``model.onnx`` if
    ``onnxruntime`` is installed. It is torch on a GPU, for a folder without that file, and for a network that is
    already in memory.
    """
    if engine != "auto":
        return engine
    usable = bundle.onnx is not None and find_spec("onnxruntime") is not None
    return "onnx" if device == "cpu" and usable and bundle.built is None else "torch"


def pick_device(device: str, engine: str = "auto", *, train: bool = False) -> str:
    """Return the device name; "auto" is the first CUDA GPU if there is one, else the CPU.

    For ONNX Runtime it is the CPU. Apple's GPU is chosen for training only, because a prediction on the CPU ends
    before torch is imported.

    Raises
    ------
    SecondhandError : the device is unknown or missing, the engine is unknown, or the two cannot be combined.
    """
    if engine not in ENGINES:
        raise SecondhandError(f"--engine {engine!r}: expected one of {', '.join(ENGINES)}")
    if device == "auto":
        if engine != "onnx" and has_cuda():
            return "cuda"
        return "mps" if train and has_mps() else "cpu"
    if device == "cpu":
        return device
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise SecondhandError(
            f"--device {device!r}: expected one of auto, cpu, cuda, cuda:N, mps"
        ) from None
    if engine == "onnx" and kind != "cpu":
        raise SecondhandError(f"--engine onnx runs on the CPU. Leave --device {device} out")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SecondhandError(f"--device {device}: this machine has no CUDA GPU. Use cpu or auto")
    if kind == "mps" and not has_mps():
        raise SecondhandError(f"--device {device}: this machine has no Apple GPU. Use cpu or auto")
    return device


def make_engine(
    bundle: Bundle, engine: str, device: str, tta_views: Sequence[TTAView]
) -> TorchEngine | OnnxEngine:
    """Build the engine that `pick_engine` chooses for a model.

    Raises
    ------
    BadFile : the model's ONNX file cannot be used.
    SecondhandError : ``engine`` is "onnx" and ONNX Runtime cannot run the model.
    """
    picked = pick_engine(engine, device, bundle)
    if picked == "torch":
        return TorchEngine(bundle, device, tta_views)
    if bundle.onnx is None:
        raise SecondhandError(
            "--engine onnx needs model.onnx in the model folder, which has none. Use --engine torch"
        )
    try:
        return OnnxEngine(bundle.onnx, bundle, tta_views)
    except BadFile:
        raise
    except Exception as error:  # an older ONNX Runtime raises errors of many kinds
        if engine != "auto":
            raise SecondhandError(
                f"{bundle.onnx}: {str(error)[:200]}. Use --engine torch"
            ) from None
        log.warning(
            "%s does not run on this version of ONNX Runtime, so the slower PyTorch is used: %s. Update onnxruntime",
            bundle.onnx,
            error,
        )
        return TorchEngine(bundle, device, tta_views)


class TorchEngine:
    """Computes logits [n, classes] and features [n, width] of uint8 [n, 3, height, width], with torch.

    Of embeddings, float32 [n, width], they are computed without normalisation.

    Parameters
    ----------
    tta_views : test-time augmentation: views that the outputs are averaged over.

    Attributes
    ----------
    start : on a GPU, `hand_over`, so that it computes a batch while the next is opened and the one before decided; None where
        batches are called one by one.
    """

    name = "torch"

    def __init__(self, bundle: Bundle, device: str, tta_views: Sequence[TTAView]) -> None:
        import torch

        self.device, self._bundle = torch.device(device), bundle
        keep_float32(device)
        self._normalises = bundle.spec.takes_pixels
        self._views, self._average = tta_views, bundle.spec.average
        self.start = self.hand_over if self.device.type == "cuda" else None
        self.side_by_side = device == "cpu" and is_on()
        self.cores = SingleThreadPool()
        if device == "cpu":
            self.load()

    @property
    def network(self) -> Network:
        return self._on_device[0]

    def load(self) -> None:
        """Put the network on its device now, not with the first batch."""
        _ = self._on_device

    @cached_property
    def _on_device(self) -> tuple[Network, Any, Any]:
        """The network, and mean and standard deviation [1, 3, 1, 1].

        They go to a GPU with the first batch: the processes that open files are forked before, which takes longer once a
        process uses a GPU, and open files meanwhile.
        """
        import torch

        network = self._bundle.network.to(self.device)
        accelerate(network)
        of_channels = (self._bundle.preprocessing.mean, self._bundle.preprocessing.std)
        mean, std = (torch.tensor(of, device=self.device).view(1, 3, 1, 1) for of in of_channels)
        return network, mean, std

    def __call__(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits and features of a batch, computed with all of torch's threads."""
        import torch

        self.load()  # outside of inference mode, where weights could be used for no heat map any more
        with torch.inference_mode():
            logits, features = self._outputs(torch.from_numpy(batch).to(self.device))
            return logits.cpu().numpy(), features.cpu().numpy()

    run_in_thread = __call__  # in a thread of `cores`, where torch has one

    def hand_over(self, inputs: Sequence[Batch]) -> Started:
        """Hand the inputs of a batch to the device; what is returned waits for their logits and features.

        Nothing is waited for here: both copies are of pinned memory, which is held until they have ended.
        """
        import torch

        self.load()
        on_gpu = self.device.type == "cuda"
        with torch.inference_mode():
            stored = torch.from_numpy(np.empty(0, inputs[0].dtype)).dtype
            shape = (len(inputs), *inputs[0].shape)
            staged = torch.empty(shape, dtype=stored, pin_memory=on_gpu)
            np.stack(inputs, out=staged.numpy())
            outputs = self._outputs(staged.to(self.device, non_blocking=True))
            fetched = [torch.empty(output.shape, pin_memory=on_gpu) for output in outputs]
            for beside, output in zip(fetched, outputs, strict=True):
                beside.copy_(output, non_blocking=True)
            ended = None
            if on_gpu:
                # A waiting thread sleeps, and leaves its core to the processes that open files.
                ended = torch.cuda.Event(blocking=True)
                ended.record(torch.cuda.current_stream(self.device))

        return partial(_wait, ended, staged, fetched)

    def _outputs(self, x: Any) -> Any:
        """Logits and features, float32 tensors on the device, of a batch on the device."""
        import torch

        from learners.backbones.building import logits_and_features

        network, mean, std = self._on_device
        x = x.float()
        if self._normalises:
            # Exactly as the validation DataLoader does, to the last bit.
            x = x.div_(255).sub_(mean).div_(std)
            x = x.contiguous(memory_format=torch.channels_last)
        logits, features = average_tta_views(
            partial(logits_and_features, network), x, self._views, self._average
        )
        return logits.float(), features.float()


def _wait(ended: Any, staged: Any, fetched: Sequence[Any]) -> tuple[Floats, Floats]:
    """Outputs of a batch that was started, once its event on the GPU has ``ended``; ``staged`` holds its inputs till then."""
    if ended is not None:
        ended.synchronize()
    # Copies, because answers may be kept, and pinned memory cannot be swapped.
    logits, features = (of.numpy().copy() for of in fetched)
    return logits, features


class OnnxEngine:
    """Computes the same as `TorchEngine`, with ONNX Runtime on the CPU.

    Parameters
    ----------
    file : ONNX file from `write_network`.

    Raises
    ------
    BadFile : the file does not fit the bundle. ONNX Runtime itself raises errors of many kinds.
    """

    name = "onnx"
    start: Callable[[Sequence[Batch]], Started] | None = None

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
        """The network in torch, which heat maps need."""
        accelerate(self._bundle.network)
        return self._bundle.network

    def load(self) -> None:
        """Nothing: it is loaded when the engine is made."""

    @cached_property
    def _one(self) -> Any:
        return open_onnx(self._file, 1)

    @cached_property
    def _all(self) -> Any:
        return open_onnx(self._file)

    def __call__(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits and features of a batch, computed with one thread per core."""
        with self._opening:
            session = self._all
        return self._run(session, batch)

    def run_in_thread(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits and features of a batch, computed in the calling thread."""
        return self._run(self._one, batch)

    def _run(self, session: Any, batch: Batch) -> tuple[Floats, Floats]:
        x = batch.astype(np.float32)
        if self._bundle.spec.takes_pixels:
            x /= np.float32(255)
            x -= self._mean
            x /= self._std
        average = self._bundle.spec.average
        return average_tta_views(partial(run_session, session), x, self._views, average)

    def _check(self, session: Any) -> None:
        """Raise BadFile unless the input and output shapes are those of the model."""
        spec, reference = self._bundle.spec, self._bundle.rule.distance.reference
        width = None if reference is None else reference.shape[1]
        expected = {
            ONNX_INPUT: [*spec.input_shape],
            **dict(zip(ONNX_OUTPUTS, ([spec.n_classes], [width]), strict=True)),
        }
        actual = {at.name: at.shape[1:] for at in (*session.get_inputs(), *session.get_outputs())}
        if width is None and len(actual.get("features", [])) == 1:
            expected["features"] = actual["features"]
        if actual != expected:
            raise BadFile(
                self._file, f"has the shapes {actual}, but the model has {expected}"[:300]
            )


def run_session(session: Any, x: Floats) -> tuple[Floats, Floats]:
    """Logits [n, classes] and features [n, width] of normalised inputs [n, 3, h, w]."""
    logits, features = session.run(list(ONNX_OUTPUTS), {ONNX_INPUT: np.ascontiguousarray(x)})
    return logits, features


def open_onnx(file: Path, workers: int | None = None) -> Any:
    """Open an ``onnxruntime.InferenceSession`` on the CPU with ``workers`` threads, by default torch's number.

    Raises
    ------
    BadFile : the file refers to other files, or contains custom operators or nested graphs. ONNX Runtime
        itself raises errors of many kinds.
    """
    require("onnxruntime")
    disable_telemetry()
    import onnxruntime

    content = file.read_bytes()
    check_content(content, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = workers or threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal only; errors are raised
    # Otherwise waiting threads spin and take the cores from processes that decode files.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


#: The fields of ``onnx.proto`` that `check_content` looks at: name and number, with the message it holds or its type.
_PARTS: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {"graph": (7, "Graph"), "training_info": (20, "bytes"), "functions": (25, "bytes")},
    "Graph": {"node": (1, "Node"), "initializer": (5, "Tensor"), "sparse": (15, "bytes")},
    "Node": {"attribute": (5, "Attribute"), "domain": (7, "bytes")},
    "Attribute": {
        "tensor": (5, "Tensor"),
        "tensors": (10, "Tensor"),
        **{name: (n, "bytes") for name, n in (("g", 6), ("gs", 11), ("sparse", 22), ("all", 23))},
    },
    "Tensor": {"external_data": (13, "bytes"), "data_location": (14, "int64")},
}


@cache
def _model_message() -> Any:
    """The class of a Protocol Buffers message with `_PARTS`. (The package onnx is not there where models only answer.)"""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="parts_of_onnx.proto", syntax="proto2")
    for name, parts in _PARTS.items():
        message = file.message_type.add(name=name)
        for part, (number, holds) in parts.items():
            kind = {"type": types.TYPE_MESSAGE, "type_name": holds}
            if holds in ("bytes", "int64"):
                kind = {"type": types.TYPE_BYTES if holds == "bytes" else types.TYPE_INT64}
            message.field.add(name=part, number=number, label=types.LABEL_REPEATED, **kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))


def check_content(content: bytes, file: Path) -> None:
    """Raise BadFile for ONNX content that this program never writes and that may be malicious.

    These are tensors in other files, custom operators, nested graphs, functions and training info.
    """
    from google.protobuf.message import DecodeError

    try:
        model = _model_message().FromString(content)
    except DecodeError as error:
        raise BadFile(file, f"damaged ONNX ({error})") from None
    if model.training_info or model.functions:
        raise BadFile(file, "contains more than a network: training information or functions")
    if any(graph.sparse for graph in model.graph):
        raise BadFile(file, "contains sparse tensors")
    nodes = [node for graph in model.graph for node in graph.node]
    if any(domain not in (b"", b"ai.onnx") for node in nodes for domain in node.domain):
        raise BadFile(file, "contains custom operators")
    attributes = [attribute for node in nodes for attribute in node.attribute]
    if any(one.g or one.gs or one.sparse or one.all for one in attributes):
        raise BadFile(file, "contains a nested graph")
    tensors = chain(
        *(graph.initializer for graph in model.graph),
        *(chain(one.tensor, one.tensors) for one in attributes),
    )
    if any(tensor.external_data or tensor.data_location for tensor in tensors):
        raise BadFile(file, "stores tensors in another file")


def require(*packages: str) -> None:
    """Raise SecondhandError if one of these packages is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise SecondhandError(
            f"ONNX needs {', '.join(missing)}, which {verb} not installed. Install: pip install {names}"
        )
