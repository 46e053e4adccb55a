"""Devices, threads and versions of the machine that a process runs on, and the speed settings."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets.cli.options import option
from datasets.core.errors import SecondhandError
from datasets.core.processes import cores


@dataclass(frozen=True)
class SpeedSettings:
    """speed"""

    device: str = option("auto", "Device: auto, cpu, cuda, cuda:N or mps (Apple).", metavar="NAME")
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = option(
        "auto",
        "Floating-point precision of training; auto depends on the hardware and the network. tf32 is fp32 with products "
        "rounded to TF32 on a CUDA GPU.",
    )
    compile: bool | None = option(
        None,
        "Compile the training step with torch.compile. Default: in a long training on a CUDA GPU.",
    )
    deterministic: bool = option(
        False,
        "Train on a CUDA GPU by methods that repeat bit for bit, some of which are slower. A CPU repeats in any case.",
    )
    workers: int | None = option(
        None,
        "Number of processes that read files. Default: one less than the cores, fewer for few files; 0 if the pictures "
        "are cached and the training runs on the CPU.",
    )
    threads: int | None = option(
        None, "Number of CPU threads of the training process. Default: torch's number."
    )


#: Environment variables that turn off the usage data that libraries send to their makers.
TELEMETRY_OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: keeps a device id and a queue of events in the cache folder
    "GRADIO_ANALYTICS_ENABLED": "False",  # asks for news, too
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_ERROR_REPORTING": "false",  # its crashes; the run itself is what --track wandb asks for
}


def disable_telemetry() -> None:
    """Set the variables `TELEMETRY_OFF`, whatever they were; call this before the libraries are imported."""
    os.environ.update(TELEMETRY_OFF)


def has_cuda() -> bool:
    """Whether torch can use a CUDA or ROCm GPU; torch is imported only where a driver is installed."""
    if "torch" not in sys.modules and not _gpu_driver():
        return False
    import torch

    return torch.cuda.is_available()


def has_mps() -> bool:
    """Whether torch can use Apple's GPU; torch is imported on macOS only."""
    if platform.system() != "Darwin":
        return False
    import torch

    return torch.backends.mps.is_available()


def _gpu_driver() -> bool:
    """Whether NVIDIA's driver library or AMD's device file is there."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return os.path.exists("/dev/kfd")
    return True


def allow_tf32(on: bool) -> None:
    """Let CUDA round the factors of float32 products to TF32, whose fraction has 10 bits instead of 23, or forbid it.

    By default torch allows it in convolutions, and forbids it in products of matrices.
    """
    import torch

    backends: Any = torch.backends  # what torch says of its types is not complete
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions say that these will go
        # Both generations of settings: torch refuses to answer by one what only the other knows.
        backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = on
    for of in (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul):
        of.fp32_precision = "tf32" if on else "ieee"


def keep_float32(device: str) -> None:
    """Compute float32 on a CUDA GPU as on a CPU, from now on and in the whole process."""
    if device.startswith("cuda"):
        allow_tf32(False)


def repeat_exactly(device: str, on: bool) -> None:
    """Compute on a CUDA GPU by methods that repeat bit for bit, as far as torch has such, or by the fastest ones.

    Convolutions are never tried out (``cudnn.benchmark``): what is fastest would depend on what else the machine does, and the
    numbers on that. Call this before anything is computed.
    """
    if not device.startswith("cuda"):
        return
    import torch

    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, on
    torch.use_deterministic_algorithms(on, warn_only=True)


def missing_to_compile(device: str) -> str:
    """What ``torch.compile`` needs on this machine and does not find; "" if it can compile."""
    if device == "mps":
        return "a CUDA GPU or a CPU"
    on_gpu = device.startswith("cuda")
    variable, names = ("CC", ("gcc", "clang")) if on_gpu else ("CXX", ("g++", "clang++", "cl"))
    if not (os.environ.get(variable) or any(map(shutil.which, names))):
        return f"a C{'' if on_gpu else '++'} compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's header files"
    if on_gpu:
        from torch.utils._triton import has_triton

        return "" if has_triton() else "Triton, and a GPU that it supports"
    return ""


def check_compile(compile: bool | None, device: str) -> None:
    """Raise SecondhandError if the training is to be compiled, and the machine cannot."""
    if compile and (missing := missing_to_compile(device)):
        raise SecondhandError(
            f"--compile on the device {device} needs {missing}, which this machine does not have. "
            "Install it, or leave --compile out"
        )


def check_precision(precision: str, device: str) -> None:
    """Raise SecondhandError for fp16 on a CPU (slow and unstable), for TF32 outside of CUDA, and for fp16 or bf16 on an
    Apple GPU (untested)."""
    if device == "mps" and precision in ("fp16", "bf16"):
        raise SecondhandError(
            f"--precision {precision} is not supported on Apple GPUs, which train in fp32. Use --precision auto"
        )
    if precision in ("fp16", "tf32") and not device.startswith("cuda"):
        raise SecondhandError(
            f"--precision {precision} needs a CUDA GPU, and the device is {device}. Use bf16, fp32 or auto"
        )


_thread_local = threading.local()


def threads() -> int:
    """Number of threads to compute with: torch's number.

    Where torch is not imported it is the number of `keep_thread_count`, else ``OMP_NUM_THREADS``, else the
    number of cores.
    """
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return (
        getattr(_thread_local, "threads", None)
        or (int(variable) if variable.isdecimal() else cores())
        or 1
    )


@contextmanager
def keep_thread_count(meanwhile: int | None = None) -> Iterator[None]:
    """Restore torch's number of threads at the end of the block; set it to ``meanwhile`` within, if given.

    The number of threads changes the order of sums and so the last bits of results: without this, one
    call would change the results of the next. Where torch is not imported, the number applies to
    `threads` in this thread.
    """
    if "torch" not in sys.modules:
        _thread_local.threads = meanwhile
        try:
            yield
        finally:
            _thread_local.threads = None
        return
    import torch

    before = torch.get_num_threads()
    if meanwhile is not None:
        torch.set_num_threads(meanwhile)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread(only: bool = True) -> Iterator[None]:
    """Compute with one thread in the block, as pays where matrices are small: of NumPy's and SciPy's BLAS, and of torch,
    whose own BLAS threadpoolctl does not know. Without ``only``, nothing changes.
    """
    if not only:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), keep_thread_count(1):
        yield


def software_and_hardware() -> dict[str, Any]:
    """Versions of Python, torch, fastai and timm, and a description of the machine."""
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
