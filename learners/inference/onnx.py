"""The arithmetic of a module as an ONNX file, and ONNX Runtime to do it. Of models nothing is known here."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.upstream import loggers_at
from learners.machine import report_to_nobody, threads

if TYPE_CHECKING:
    import torch
    from torch import nn

#: How far answers of a written network may lie from its own, over the largest of them.
TOLERANCE = 1e-4
#: What it takes to ask a file, and to write one.
RUNTIME, WRITERS = ("onnxruntime",), ("onnx", "onnxruntime", "onnxscript")


def distance(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """The largest difference over the largest number, or over 1 where that is smaller."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0) / np.abs(a).max(initial=1))


def traced(module: nn.Module, example: npt.NDArray[Any]) -> torch.export.ExportedProgram:
    """The module's arithmetic for any number of inputs like the example's two."""
    import torch

    module = copy.deepcopy(module).cpu().eval()
    for part in module.modules():
        # Of an activation in place the exporter takes the arithmetic apart, one number of the shape
        # at a time: two thirds of its time for a network with ReLU6.
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    size = torch.export.Dim("n", min=1)
    try:
        with torch.no_grad():
            program = torch.export.export(
                module, (torch.from_numpy(example),), dynamic_shapes=({0: size},)
            )
    except Exception as error:
        raise SecondhandError(
            f"torch.export cannot follow this network: {first_line(error)}; predict with torch"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where on this disk the network's source lies
    return program


def write_onnx(
    module: nn.Module,
    example: npt.NDArray[Any],
    file: Path,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    metadata: dict[str, str] | None = None,
) -> None:
    """The module as one ONNX file, its weights inside."""
    need(*WRITERS)
    import torch

    program = traced(module, example)
    try:
        with quiet():
            onnx = torch.onnx.export(
                program,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
                optimize=True,
            )
        assert onnx is not None
        onnx.model.metadata_props.update(metadata or {})
        onnx.save(file, external_data=False)
    except Exception as error:
        raise SecondhandError(
            f"this network cannot be written in ONNX: {first_line(error)}; predict with torch"
        ) from error


def open_onnx(file: Path, workers: int | None = None) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU, of ``workers`` threads or as many as torch has.

    Raises
    ------
    BadFile : the file refers to other files, holds other than ONNX's own operators, or one graph in
        another. ONNX Runtime itself raises whatever it likes.
    """
    need(*RUNTIME)
    report_to_nobody()
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


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's notes for its own developers."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    with loggers_at(logging.ERROR, *names), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
