"""How the machine is used where the settings leave it open: by rules, the same in every run.

Nothing is tried and timed: a busy moment would decide, and with the precision it would choose other
weights for the same command.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from datasets.core import processes
from datasets.core.errors import SecondhandError
from learners.machine import SpeedSettings


def resolve_speed(speed: SpeedSettings, network: nn.Module, device: str) -> SpeedSettings:
    """The settings with nothing left open but ``workers``, of which the results are independent: they follow
    from what the disk has free. What the user gave stays.

    Parameters
    ----------
    network : of which kind the convolutions are decides the precision (`resolve_precision`).
    """
    return replace(
        speed,
        precision=resolve_precision(speed.precision, device, network),  # type: ignore[arg-type]
        threads=torch.get_num_threads() if speed.threads is None else speed.threads,
    )


def workers_for(speed: SpeedSettings, device: str, *, decoded: bool) -> int:
    """Processes that open files: as many as were asked for, else one less than the cores.

    None where pictures lie ``decoded`` beside a network on the CPU: they would cost more than they do
    (`datasets.spectrograms.decoded.keep`). And none where processes are not forked: each worker of each
    epoch would import all libraries anew.
    """
    if speed.workers is not None:
        return speed.workers
    alone = not processes.FORKS or (decoded and not device.startswith("cuda"))
    return 0 if alone else max(1, processes.cores() - 1)


def resolve_precision(wanted: str, device: str, network: nn.Module) -> str:
    """fp32, fp16 or bf16 of training steps, for a wish that may be "auto".

    auto follows from the hardware and the kind of network alone:

    ===============  =============================  ======================
    it has           dense convolutions, attention  depthwise convolutions
    ===============  =============================  ======================
    a GPU with bf16  bf16                           bf16
    an older GPU     fp16                           fp16
    a CPU with AMX   bf16                           fp32
    any other CPU    fp32                           fp32
    a GPU of Apple   fp32                           fp32
    ===============  =============================  ======================

    Depthwise convolutions cannot use AMX's matrix units, and a CPU without any emulates bf16.

    Raises
    ------
    SecondhandError : fp16 on a CPU, which trains in it neither fast nor stably; either half on a GPU
        of Apple, where no training in it was tried.
    """
    check_precision(wanted, device)
    if wanted != "auto":
        return wanted
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if device == "mps":
        return "fp32"
    matrix_units = torch.cpu.get_capabilities().get("amx_tile", False)
    return "bf16" if matrix_units and not _has_depthwise(network) else "fp32"


def check_precision(wanted: str, device: str) -> None:
    """Raise SecondhandError for fp16 on a CPU, and for all but fp32 on a GPU of Apple."""
    if device == "mps" and wanted in ("fp16", "bf16"):
        raise SecondhandError(f"--precision {wanted}: a GPU of Apple trains in fp32 here; use auto")
    if wanted == "fp16" and not device.startswith("cuda"):
        raise SecondhandError("--precision fp16 needs a CUDA GPU: use bf16, fp32 or auto here")


def in_words(speed: SpeedSettings, workers: int) -> str:
    """Settled settings, for the log."""
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
