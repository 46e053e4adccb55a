"""The machine that a process computes on: its devices, its threads, what it is, and the settings of speed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from datasets.core.options import option
from datasets.core.processes import cores


@dataclass(frozen=True)
class SpeedSettings:
    """speed"""

    device: str = option("auto", "Device: auto, cpu, cuda, cuda:N or mps (Apple).", metavar="NAME")
    precision: Literal["auto", "fp32", "fp16", "bf16"] = option(
        "auto",
        "Floating-point precision of training; auto depends on the hardware and the network.",
    )
    compile: bool = option(False, "Compile the training step with torch.compile.")
    workers: int | None = option(
        None,
        "Number of processes that read files. Default: one less than the cores; 0 if the pictures are cached "
        "and the training runs on the CPU.",
    )
    threads: int | None = option(
        None, "Number of CPU threads of the training process. Default: torch's number."
    )


#: Libraries that send their makers usage data, and by which variable each is told not to.
TELEMETRY_OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: keeps a device id and a queue of events in the cache folder
    "GRADIO_ANALYTICS_ENABLED": "False",  # asks for news, too
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_ERROR_REPORTING": "false",  # its crashes; the run itself is what --track wandb asks for
}


def disable_telemetry() -> None:
    """Sets `TELEMETRY_OFF`, also over what was set. The libraries read it as they are imported: call it before."""
    os.environ.update(TELEMETRY_OFF)


def has_cuda() -> bool:
    """Whether torch has a GPU to compute on. torch itself is asked only where a driver is."""
    if "torch" not in sys.modules and not _gpu_driver():
        return False
    import torch

    return torch.cuda.is_available()


def has_mps() -> bool:
    """Whether torch has Apple's GPU to compute on; elsewhere torch is not asked."""
    if platform.system() != "Darwin":
        return False
    import torch

    return torch.backends.mps.is_available()


def _gpu_driver() -> bool:
    """NVIDIA's driver, which has this library for all programs, or AMD's."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return os.path.exists("/dev/kfd")
    return True


_own = threading.local()


def threads() -> int:
    """Threads that arithmetic may take here: torch's number of them; where torch is not loaded what
    it would be, ``OMP_NUM_THREADS`` or one for each core, or what `keep_thread_count` says."""
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    said = os.environ.get("OMP_NUM_THREADS", "")
    return getattr(_own, "threads", None) or (int(said) if said.isdecimal() else cores()) or 1


@contextmanager
def keep_thread_count(meanwhile: int | None = None) -> Iterator[None]:
    """Puts the number of torch's threads back at the end; until then it is ``meanwhile``, if given.

    Two threads add up in another order than one, and the last bits differ: what one call leaves
    behind would change the results of the next in the same process. Where torch is not loaded the
    number holds for `threads`, in this thread.
    """
    if "torch" not in sys.modules:
        _own.threads = meanwhile
        try:
            yield
        finally:
            _own.threads = None
        return
    import torch

    before = torch.get_num_threads()
    if meanwhile is not None:
        torch.set_num_threads(meanwhile)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def software_and_hardware() -> dict[str, Any]:
    """The versions and the machine that something is done with."""
    from importlib.metadata import version

    import torch

    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: version(name) for name in ("fastai", "timm")},
        },
        "machine": f"{platform.machine()}, {cores()} cores"
        + (f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ""),
    }
