"""What does a network's arithmetic, and where: torch, or ONNX Runtime, which is sooner on a CPU."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from datasets.drawings import cache_root
from datasets.errors import SecondhandError
from datasets.files import file_beside
from learners.networks import Network, NetworkSpec, logits_and_features
from learners.prediction.onnx import TOLERANCE, distance, need_onnx, open_onnx, write_onnx

ENGINES = ("torch", "onnx")
FORMAT = 1  # of what is kept
#: Normalised inputs [n, 3, height, width] -> logits [n, classes] and features [n, width].
Ask = Callable[[Tensor], tuple[Tensor, Tensor]]

_INPUT, _OUTPUTS = "x", ("logits", "features")

log = logging.getLogger(__name__)


class OnnxNetwork:
    """A network's `logits_and_features`, by ONNX Runtime on the CPU.

    The ONNX file is written when a network is first met, into ``onnx/`` of the cache folder, under
    a name made of its weights. Each time it is opened it is asked what the network answers, and
    written anew where the two differ.

    Parameters
    ----------
    network : in eval mode, on the CPU.
    spec : of that network.

    Raises
    ------
    SecondhandError : the optional packages are missing, or the network cannot be written in ONNX.
    """

    def __init__(self, network: Network, spec: NetworkSpec) -> None:
        need_onnx()
        self._question = torch.randn(
            (2, 3, *spec.shape), generator=torch.Generator().manual_seed(0)
        )
        with torch.inference_mode():
            self._answer = logits_and_features(network, self._question)
        file = cache_root() / "onnx" / f"{fingerprint(network, spec)}.onnx"
        session = self._opened(file) if file.exists() else None
        if session is None:
            log.info("writing the network for ONNX Runtime, once")
            write(network, self._question, file)
            session = self._opened(file)
        if session is None:
            file.unlink(missing_ok=True)
            raise SecondhandError(
                f"--engine onnx: ONNX Runtime's answers for {spec.backbone} are not the network's; "
                "use --engine torch"
            )
        self._session = session

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [n, classes] and features [n, width] of normalised inputs [n, 3, height, width]."""
        return _run(self._session, x)

    def _opened(self, file: Path) -> Any:
        """A session that answers as the network does; None where the file gives none."""
        try:
            session = open_onnx(file)
            found = _run(session, self._question)
        except Exception as error:  # a damaged file makes ONNX Runtime raise whatever it likes
            log.warning("%s: %s", file, str(error)[:200])
            return None
        far = max(distance(a, b) for a, b in zip(self._answer, found, strict=True))
        return session if far <= TOLERANCE else None


def asking(network: Network, spec: NetworkSpec, engine: str) -> Ask:
    """What gives logits and features of normalised inputs: the network itself, or ONNX Runtime."""
    return (
        partial(logits_and_features, network) if engine == "torch" else OnnxNetwork(network, spec)
    )


def pick_device(wanted: str, engine: str = "torch") -> str:
    """ "auto" is the first CUDA GPU where there is one, else the CPU; for ONNX Runtime the CPU.

    Raises
    ------
    SecondhandError : there is no such device or engine, or they do not go together.
    """
    if engine not in ENGINES:
        raise SecondhandError(f"--engine {engine!r} is none of {', '.join(ENGINES)}")
    if wanted == "auto":
        return "cuda" if engine == "torch" and torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(wanted).type
    except RuntimeError:
        raise SecondhandError(f"--device {wanted!r} is none of auto, cpu, cuda, cuda:N") from None
    if engine == "onnx" and kind != "cpu":
        raise SecondhandError(f"--engine onnx runs on the CPU: leave --device {wanted} out")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SecondhandError(f"--device {wanted}: no CUDA GPU is here; use cpu or auto")
    return wanted


def write(network: Network, example: Tensor, file: Path) -> None:
    """Write the network as ONNX, whole or not at all; several processes may."""
    with file_beside(file) as beside:
        write_onnx(_Answers(network), example.numpy(), beside, (_INPUT,), _OUTPUTS)


def fingerprint(network: Network, spec: NetworkSpec) -> str:
    """A hash of all that makes the ONNX file: the weights, the spec and the programs."""
    programs = {name: version(name) for name in ("torch", "onnx", "onnxscript")}
    found = hashlib.sha256(repr((FORMAT, spec.to_dict(), programs)).encode())
    for name, value in network.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().data)
    return found.hexdigest()[:32]


class _Answers(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return logits_and_features(self.network, x)


def _run(session: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    logits, features = session.run(list(_OUTPUTS), {_INPUT: x.contiguous().numpy()})
    return torch.from_numpy(logits), torch.from_numpy(features)
