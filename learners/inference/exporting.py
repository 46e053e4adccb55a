"""A network as an ONNX file: a model folder's ``model.onnx``, by which the predictor answers, or a whole
model for other programs. Each is asked the same questions as torch before it gets its name, and thrown
away if it answers differently.

A file for other programs has the preprocessing's arithmetic, the network and the temperature in it, and
as metadata what else is needed to use it. What stays outside: opening a file, drawing a signal, cutting
a picture to the square; the model's further views; and the distance to the training data, by which the
predictor refuses strangers.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from datasets.core.upstream import logger_levels
from datasets.images import standalone
from learners.backbones import LogitsAndFeatures, Network, NetworkSpec, logits_and_features
from learners.files import jsonable
from learners.inference.engine import ANSWERED, ASKED, ask, need, open_onnx
from learners.inference.predictions import Floats
from learners.inference.predictor import Predictor
from learners.model import PLAIN, Bundle
from learners.uncertainty import Confidence, Platt

log = logging.getLogger(__name__)

#: How far answers of a written network may lie from its own, over the largest of them.
TOLERANCE = 1e-4
FORMAT = 1  # of the metadata
INPUT = "pixels"
OUTPUTS = ("probabilities", "logits", "features")
_BATCHES = (1, 2, 5)

Pixels = npt.NDArray[np.uint8]
Run = Callable[[Pixels], list[npt.NDArray[np.float32]]]


class Portable(nn.Module):
    """uint8 [n, 3, size, size] -> probabilities [n, classes], logits [n, classes], features [n, width].

    The pixels are RGB, 0 to 255. The probabilities are calibrated, softmax(logits / temperature), of
    a model that has learned a background with a 0 beside the logits, so that they sum to less than 1;
    the features are the body's, pooled. Of several labels an item they are
    sigmoid(scale * logits + shift), each label's own two.
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
        decider = bundle.decider
        self.exclusive = decider.exclusive
        if isinstance(decider.calibrator, Platt):
            for name in ("scale", "shift"):
                numbers = torch.tensor(getattr(decider.calibrator, name).tolist())
                self.register_buffer(name, numbers)
        self.temperature = decider.calibrator.temperature.value
        self.background = decider.calibrator.background

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
    """Write a model as ONNX, with any number of pictures in a batch.

    Input and outputs are those of `Portable`, by the names `INPUT` and `OUTPUTS`; the metadata
    stands in the file's ``metadata_props``.

    Raises
    ------
    SecondhandError : onnx, onnxruntime or onnxscript is missing, the network cannot be written in
        ONNX, or what was written answers differently from the predictor. Nothing is left then.
    """
    with file_beside(Path(file)) as beside:
        pictures = _pictures(bundle, 2)
        write_onnx(Portable(bundle), pictures, beside, (INPUT,), OUTPUTS, metadata(bundle))
        session = open_onnx(beside)
        check(bundle, lambda x: session.run(list(OUTPUTS), {INPUT: x}))
    return Path(file)


def metadata(bundle: Bundle) -> dict[str, str]:
    """What a program needs to know beside the numbers: text by name, JSON where it has parts."""
    confidence = bundle.decider
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
        "temperature": confidence.calibrator.temperature.value,
        "threshold": confidence.cut.threshold.value,
        "threshold_on": confidence.cut.on,
        "floors": confidence.ranking.floors,
        "tree": confidence.tree and confidence.tree.rows(),
        **_of_each(confidence),
        "network": bundle.spec.to_dict(),
    }
    return {
        f"secondhand.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _of_each(confidence: Confidence) -> dict[str, object]:
    """The threshold of each class, where they have their own; of each of several labels an item its
    calibration, too."""
    cuts = confidence.cut.guarantees
    if not isinstance(calibrator := confidence.calibrator, Platt):
        return {"thresholds": jsonable(confidence.cut.each)} if cuts else {}
    numbers = zip(calibrator.scale.tolist(), calibrator.shift.tolist(), cuts, strict=True)
    return {"labels": [{"scale": a, "shift": b, "threshold": cut.value} for a, b, cut in numbers]}


def export_limitations(bundle: Bundle) -> list[str]:
    """What the predictor does for this model and an exported file does not, a sentence each."""
    found = []
    if bundle.spectrogram is not None:
        found.append(
            "the file takes drawn pictures: signals are drawn by the recipe in its metadata"
        )
    if len(bundle.tta_views) > 1:
        found.append(
            f"the file looks once; its temperature was fitted to the mean of {len(bundle.tta_views)} views"
        )
    if bundle.decider.tree is not None:
        found.append(
            "the file knows classes alone: what stands above them sums their probabilities"
        )
    if bundle.decider.distance.reference is not None:
        found.append(
            "the file measures no distance: it refuses nothing as out of distribution or unusual"
        )
    return found


def check(bundle: Bundle, run: Run) -> None:
    """Compare with the predictor on batches of several sizes.

    Raises
    ------
    SecondhandError : they differ by more than `TOLERANCE`, or ``run`` fails.
    """
    # Of one view: the others are looked at from outside.
    predictor = Predictor(replace(bundle, tta_views=(PLAIN,)), device="cpu")
    for n in _BATCHES:
        pictures = _pictures(bundle, n)
        logits, features = predictor.forward(pictures)
        judged = predictor.confidence.decide(logits, features)
        wanted: list[npt.ArrayLike] = [judged.probabilities, logits, features]
        try:
            found = run(pictures)
        except Exception as error:
            raise SecondhandError(f"ONNX: {first_line(error)}, asked for {n} pictures") from error
        for name, ours, theirs in zip(OUTPUTS, wanted, found, strict=True):
            far = distance(ours, theirs)
            if not far <= TOLERANCE:
                raise SecondhandError(
                    f"ONNX: {name} of {n} pictures are {far:.1e} from the model's own, and "
                    f"{TOLERANCE:g} is allowed; nothing was written. Other versions of torch, "
                    "onnxscript and onnxruntime may do better"
                )


def _pictures(bundle: Bundle, n: int) -> Pixels:
    """Pictures to ask with: each of its own brightness, contrast and grain."""
    rng = np.random.default_rng(n)
    height, width = bundle.spec.shape
    coarse = rng.integers(0, 256, (n, 3, 8, 8))
    grown = np.kron(coarse, np.ones((1, 1, -(-height // 8), -(-width // 8))))[..., :height, :width]
    grain = rng.normal(0, 20, (n, 3, height, width))
    return (grown + grain).clip(0, 255).astype(np.uint8)


def write_network(bundle: Bundle, file: Path) -> None:
    """The network of a bundle for `OnnxEngine`, written whole or not at all, and asked.

    Raises
    ------
    SecondhandError : packages are missing, the network cannot be written in ONNX, or what was
        written answers differently from it.
    """
    with file_beside(file) as beside:
        write_onnx(
            LogitsAndFeatures(bundle.network),
            _questions(bundle.spec)[0],
            beside,
            (ASKED,),
            ANSWERED,
        )
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
    network = bundle.network
    if next(network.parameters()).device.type != "cpu":  # which may round otherwise
        network = copy.deepcopy(network).cpu()
    try:
        session = open_onnx(file)
        far = []
        for x in _questions(bundle.spec):
            with torch.inference_mode():
                ours = logits_and_features(network, torch.from_numpy(x))
            far += [distance(a, b) for a, b in zip(ours, ask(session, x), strict=True)]
    except Exception as error:  # a damaged file makes ONNX Runtime raise whatever it likes
        log.warning("%s: %s", file, str(error)[:200])
        return float("inf")
    return max(far)


def distance(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """The largest difference over the largest number, or over 1 where that is smaller."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0) / np.abs(a).max(initial=1))


def traced(module: nn.Module, example: npt.NDArray[Any]) -> torch.export.ExportedProgram:
    """The module's arithmetic for any number of inputs like the example's two."""
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
    need("onnx", "onnxruntime", "onnxscript")
    program = traced(module, example)
    try:
        # Without the exporter's notes for its own developers.
        notes_of = ("torch.onnx", "onnxscript", "onnx_ir")
        with logger_levels(logging.ERROR, *notes_of), warnings.catch_warnings():
            warnings.simplefilter("ignore")
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


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
