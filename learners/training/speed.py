"""What the speed settings are where the user left them open, by fixed rules and without timing anything.

With timings, the same command could train with another precision on a busy machine, and give other weights.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from datasets.core import processes
from learners.backbones.spec import NetworkSpec
from learners.cli.settings import TrainSettings
from learners.machine.hardware import SpeedSettings, missing_to_compile

#: Pictures of 224 x 224 pixels behind which compiling is repaid, and the least batch: see docs/decisions.md, "Speed".
COMPILED_PICTURES, COMPILED_BATCH = 2_000_000, 64


def workers_for(speed: SpeedSettings, device: str, *, decoded: bool, files: int) -> int:
    """Number of processes that open files: the chosen number, else one less than the CPU cores, or fewer for few files
    (`processes_for`).

    It is 0 if pictures are cached ``decoded`` and the network runs on the CPU, because workers then cost more than
    they save. It is also 0 if processes cannot be forked, because each would import all libraries.
    """
    if speed.workers is not None:
        return speed.workers
    if not processes.FORKS or (decoded and not device.startswith("cuda")):
        return 0
    return max(1, min(processes.cores() - 1, processes.processes_for(files)))


def usual_precision(device: str, network: nn.Module) -> str:
    """Precision of training steps, fp32, fp16 or bf16, by the hardware and the kind of network:

    ===============  =============================  ======================
    hardware         dense convolutions, attention  depthwise convolutions
    ===============  =============================  ======================
    a GPU with bf16  bf16                           bf16
    an older GPU     fp16                           fp16
    a CPU with AMX   bf16                           fp32
    any other CPU    fp32                           fp32
    an Apple GPU     fp32                           fp32
    ===============  =============================  ======================

    Depthwise convolutions cannot use AMX's matrix units, and CPUs without them emulate bf16. Apple GPUs are not tested
    with half precision.
    """
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if device == "mps":
        return "fp32"
    matrix_units = torch.cpu.get_capabilities().get("amx_tile", False)
    return "bf16" if matrix_units and not _has_depthwise(network) else "fp32"


def compiling_pays(device: str, train: TrainSettings, items: int, spec: NetworkSpec) -> bool:
    """Whether the training of a network on ``items`` files an epoch is long enough to be compiled, and the machine can.

    Only on a CUDA GPU: half a minute of compiling is repaid by steps that are a seventh faster.
    """
    if not device.startswith("cuda") or not spec.takes_pixels or train.bs < COMPILED_BATCH:
        return False
    pictures = train.epochs * items * math.prod(spec.shape) / 224**2
    return pictures >= COMPILED_PICTURES and not missing_to_compile(device)


def describe_speed(speed: SpeedSettings, workers: int) -> str:
    """The resolved settings in words, for the log."""
    parts = [
        str(speed.precision),
        *(["compiled"] if speed.compile else []),
        f"{speed.threads} thread{'s'[: speed.threads != 1]}",
        f"{workers} worker{'s'[: workers != 1]}",
    ]
    return ", ".join(parts)


def _has_depthwise(network: nn.Module) -> bool:
    return any(
        isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1
        for layer in network.modules()
    )
