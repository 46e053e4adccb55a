"""Exports networks to ONNX: ``model.onnx`` of a model folder, or a whole model for other programs.

Each file is compared with torch on the same inputs and discarded if the outputs differ.

A file for other programs contains normalisation, network and calibration, with further settings as metadata. Not
included: opening files, rendering spectrograms, cropping pictures, test-time augmentation, and the distance to the
training data, by which the predictor refuses out-of-distribution files.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from datasets.core.errors import SecondhandError, counted, first_line
from datasets.core.files import file_beside
from datasets.core.logs import logger_levels
from datasets.images import standalone
from datasets.kinds.views import PLAIN
from learners.backbones.building import LogitsAndFeatures, Network, logits_and_features
from learners.inference.engine import ONNX_INPUT, ONNX_OUTPUTS, open_onnx, require, run_session
from learners.inference.options import Computing
from learners.inference.predictions import Floats
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle

#: Largest allowed difference from torch's outputs, relative to the largest output.
TOLERANCE = 1e-4
FORMAT = 1  # of the metadata
INPUT = "pixels"
OUTPUTS = ("probabilities", "logits", "features")
_BATCHES = (1, 2, 5)

Pixels = npt.NDArray[np.uint8]
Run = Callable[[npt.NDArray[Any]], Sequence[npt.ArrayLike]]


class ExportedModel(nn.Module):
    """Maps RGB pixels uint8 [n, 3, size, size] to probabilities, logits and features.

    Probabilities [n, classes] are softmax(logits / temperature); with a background class a logit of 0 is
    added for it, so that they sum to less than 1. Multi-label models give
    sigmoid(scale * logits + shift) with a scale and shift per label. Logits are [n, classes]; features
    [n, width] are the pooled output of the body.
    """

    mean: Tensor
    std: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.network: Network = bundle.network
        for name in ("mean", "std"):
            values = torch.tensor(getattr(bundle.preprocessing, name)).view(1, 3, 1, 1)
            self.register_buffer(name, values)
        calibrator = bundle.rule.calibrator
        self.exclusive = bundle.rule.exclusive
        for name, numbers in calibrator.by_label.items():
            self.register_buffer(name, torch.tensor(numbers))
        self.temperature = calibrator.temperature.value
        self.background = calibrator.background

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = (pixels.float() / 255 - self.mean) / self.std
        logits, features = logits_and_features(self.network, x)
        if not self.exclusive:
            return (logits * self.scale + self.shift).sigmoid(), logits, features
        scaled = logits / self.temperature
        if self.background:
            scaled = torch.cat([scaled, torch.zeros_like(scaled[:, :1])], dim=1)
        return scaled.softmax(1)[:, : logits.shape[1]], logits, features


def export_onnx(bundle: Bundle, file: str | os.PathLike[str]) -> Path:
    """Write a model as an ONNX file that takes batches of any size; return its path.

    Input and outputs are those of `ExportedModel`, named `INPUT` and `OUTPUTS`; `metadata` is in the file's
    ``metadata_props``.

    Raises
    ------
    SecondhandError : onnx, onnxruntime or onnxscript is missing, the network cannot be exported, or the
        outputs differ from the predictor's. No file is left then.
    """
    if not bundle.spec.takes_pixels:
        raise SecondhandError(
            "a model of embeddings is not exported: its model.onnx takes embeddings and gives logits already"
        )
    with file_beside(Path(file)) as beside:
        pictures = _pictures(bundle, 2)
        write_onnx(ExportedModel(bundle), pictures, beside, INPUT, OUTPUTS, metadata(bundle))
        session = open_onnx(beside)
        check(bundle, lambda x: session.run(list(OUTPUTS), {INPUT: x}))
    return Path(file)


def metadata(bundle: Bundle) -> dict[str, str]:
    """Metadata that programs need to use the file: text by name, lists and objects as JSON."""
    spectrogram = bundle.spectrogram
    values: dict[str, Any] = {
        "format": FORMAT,
        "classes": bundle.classes,
        "input": f"{INPUT}: uint8 [n, 3, {bundle.spec.size}, {bundle.spec.shape[1]}], RGB, 0 to 255, "
        "after resizing and cropping",
        "onnx_input": Path(standalone.__file__).read_text(encoding="utf-8"),
        "preprocessing": bundle.preprocessing.to_dict(),
        "spectrogram": spectrogram,
        "overlap": bundle.overlap,
        "tta": [asdict(view) for view in bundle.tta_views],
        **bundle.rule.for_programs(),
        "network": bundle.spec.to_dict(),
    }
    return {
        f"secondhand.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def export_limitations(bundle: Bundle) -> list[str]:
    """Sentences on what an exported file lacks in comparison with the predictor of this model."""
    limitations = []
    if bundle.spectrogram is not None:
        limitations.append(
            "it takes rendered spectrograms: render signals with the spectrogram settings in its metadata"
        )
    if len(bundle.tta_views) > 1:
        limitations.append(
            f"it predicts without test-time augmentation, although its temperature was fitted to the mean of "
            f"{len(bundle.tta_views)} variants of each file"
        )
    if bundle.rule.distance.reference is not None:
        limitations.append(
            "it refuses nothing as out of distribution or unusual, because it does not contain the training files' features"
        )
    return limitations


def check(bundle: Bundle, run: Run) -> None:
    """Compare the outputs of ``run`` with the predictor's on batches of several sizes.

    Raises
    ------
    SecondhandError : they differ by more than `TOLERANCE`, or ``run`` fails.
    """
    # Without test-time augmentation, which is not exported.
    predictor = Predictor(replace(bundle, tta_views=(PLAIN,)), computing=Computing(device="cpu"))

    def expected(pictures: Pixels) -> list[npt.ArrayLike]:
        logits, features = predictor.forward(pictures)
        return [predictor.rule.decide(logits, features).probabilities, logits, features]

    _compare(run, expected, OUTPUTS, (_pictures(bundle, n) for n in _BATCHES))


def _compare(
    run: Run, expected: Run, names: Sequence[str], batches: Iterable[npt.NDArray[Any]]
) -> None:
    """Raise SecondhandError if ``run`` fails on a batch, or gives other outputs of these names than ``expected``."""
    for batch in batches:
        try:
            outputs = run(batch)
        except Exception as error:  # of a damaged file ONNX Runtime raises errors of any kind
            raise SecondhandError(
                f"the ONNX file fails on a batch of {counted(len(batch), 'picture')}: {first_line(error)}"
            ) from error
        for name, values, exported in zip(names, expected(batch), outputs, strict=True):
            deviation = distance(values, exported)
            if not deviation <= TOLERANCE:
                raise SecondhandError(
                    f"the {name} of the ONNX file differ from the model's by {deviation:.1e} for a batch of {len(batch)}; "
                    f"at most {TOLERANCE:g} is allowed, so no file was written. Use --engine torch, or try other versions "
                    "of torch, onnxscript and onnxruntime"
                )


def _pictures(bundle: Bundle, n: int) -> Pixels:
    """Random test pictures of differing brightness, contrast and grain, uint8 [n, 3, h, w]."""
    rng = np.random.default_rng(n)
    height, width = bundle.spec.shape
    coarse = rng.integers(0, 256, (n, 3, 8, 8))
    block = np.ones((1, 1, -(-height // 8), -(-width // 8)))
    upscaled = np.kron(coarse, block)[..., :height, :width]
    grain = rng.normal(0, 20, (n, 3, height, width))
    return (upscaled + grain).clip(0, 255).astype(np.uint8)


def write_network(bundle: Bundle, file: Path) -> None:
    """Write the network of a bundle for `OnnxEngine`, and compare its outputs with torch's.

    Raises
    ------
    SecondhandError : packages are missing, the network cannot be exported, or the outputs differ. No file
        is left then.
    """
    network = bundle.network
    if next(network.parameters()).device.type != "cpu":  # a GPU may round differently
        network = copy.deepcopy(network).cpu()
    rng = np.random.default_rng(0)
    two, three = (rng.standard_normal((n, *bundle.spec.input_shape), np.float32) for n in (2, 3))

    @torch.inference_mode()
    def expected(x: Floats) -> Sequence[npt.ArrayLike]:
        return [of.numpy() for of in logits_and_features(network, torch.from_numpy(x))]

    with file_beside(file) as beside:
        write_onnx(LogitsAndFeatures(network), two, beside, ONNX_INPUT, ONNX_OUTPUTS)
        session = cache(partial(open_onnx, beside))
        _compare(lambda x: run_session(session(), x), expected, ONNX_OUTPUTS, [two, three])


def distance(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """Largest absolute difference, divided by the largest absolute value or 1."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0) / np.abs(a).max(initial=1))


def trace(module: nn.Module, example: npt.NDArray[Any]) -> torch.export.ExportedProgram:
    """Trace the module with torch.export, for batches of any size.

    Raises
    ------
    SecondhandError : torch.export does not support the network.
    """
    module = copy.deepcopy(module).cpu().eval()
    for part in module.modules():
        # In-place activations make the export three times slower for a network with ReLU6.
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
            f"torch.export does not support this network: {first_line(error)}. Use --engine torch"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # would publish paths of this machine
    return program


def write_onnx(
    module: nn.Module,
    example: npt.NDArray[Any],
    file: Path,
    input_name: str,
    outputs: tuple[str, ...],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write the module as one ONNX file that includes its weights.

    Raises
    ------
    SecondhandError : packages are missing, or the network cannot be exported.
    """
    require("onnx", "onnxruntime", "onnxscript")
    program = trace(module, example)
    try:
        # The exporter logs messages for its own developers.
        notes_of = ("torch.onnx", "onnxscript", "onnx_ir")
        with logger_levels(logging.ERROR, *notes_of), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            onnx = torch.onnx.export(
                program,
                input_names=[input_name],
                output_names=list(outputs),
                verbose=False,
                optimize=True,
            )
        assert onnx is not None
        onnx.model.metadata_props.update(metadata or {})
        onnx.save(file, external_data=False)
    except Exception as error:
        raise SecondhandError(
            f"this network cannot be exported to ONNX: {first_line(error)}. Use --engine torch"
        ) from error
