"""The arithmetic of a module as an ONNX file, and ONNX Runtime to do it. Of models nothing is known here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from datasets.errors import SecondhandError

#: How far answers of a written network may lie from its own, over the largest of them.
TOLERANCE = 1e-4


def distance(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """The largest difference over the largest number, or over 1 where that is smaller."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0) / np.abs(a).max(initial=1))


def traced(module: nn.Module, example: npt.NDArray[Any]) -> torch.export.ExportedProgram:
    """The module's arithmetic for any number of inputs like the example's two."""
    size = torch.export.Dim("n", min=1)
    try:
        with torch.no_grad():
            program = torch.export.export(
                module.cpu().eval(), (torch.from_numpy(example),), dynamic_shapes=({0: size},)
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
    need_onnx()
    program = traced(module, example)
    try:
        with quiet():
            onnx = torch.onnx.export(
                program, input_names=list(inputs), output_names=list(outputs), verbose=False
            )
        assert onnx is not None
        onnx.model.metadata_props.update(metadata or {})
        onnx.save(file, external_data=False)
    except Exception as error:
        raise SecondhandError(
            f"this network cannot be written in ONNX: {first_line(error)}; try --torch"
        ) from error


def open_onnx(file: Path) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU, with as many threads as torch has."""
    need_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    # Threads that wait would otherwise spin, and take the cores from those that decode files.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def need_onnx() -> None:
    """Raise SecondhandError where the optional packages are not installed."""
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise SecondhandError(
            f"{', '.join(missing)} not installed: pip install 'secondhand[onnx]' for ONNX"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's notes for its own developers."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    before = [logging.getLogger(name).level for name in names]
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in zip(names, before, strict=True):
            logging.getLogger(name).setLevel(level)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
