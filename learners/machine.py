"""How a process uses the machine that it computes on: its cores, waiting threads and freed memory;
and what it is.

What acts on the whole process, `let_waiting_threads_sleep` and `keep_memory`, is for the commands to
call, and for programs that want it; no import and no class does so by itself. `report_to_nobody` is
also called where a library is imported that would report.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from datasets.core.options import option
from datasets.core.processes import cores

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class SpeedSettings:
    """speed"""

    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps (Apple)")
    precision: Literal["auto", "fp32", "fp16", "bf16"] = option(
        "auto", "of training steps; auto follows the hardware and the kind of network"
    )
    compile: bool | None = option(None, "torch.compile the training step; not if not given")
    channels_last: bool | None = option(
        None, "memory format of feature maps, yes if not given; no effect on transformers"
    )
    workers: int | None = option(
        None,
        "processes that open files; if not given one less than the cores, and none where pictures "
        "lie decoded beside a training on the CPU",
    )
    threads: int | None = option(
        None, "CPU threads of the training process; torch's own if not given"
    )


#: A thread that waits for its fellows spins, and takes the core that one of them, or a worker that
#: decodes pictures, needs: on two busy cores a training step was seen to take six times as long
#: (OpenMP), and a batch of a prediction a quarter longer (OpenBLAS, after NumPy's product of two
#: matrices). Told so they sleep at once, OpenBLAS after 2^4 cycles.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}


def let_waiting_threads_sleep() -> None:
    """Sets `SLEEPING` where the user has not. Read as torch and NumPy are loaded: call it before."""
    for name, value in SLEEPING.items():
        os.environ.setdefault(name, value)


#: Libraries that send their makers usage data, and by which variable each is told not to.
UNREPORTED = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: keeps a device id and a queue of events in the cache folder
    "GRADIO_ANALYTICS_ENABLED": "False",  # asks for news, too
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_ERROR_REPORTING": "false",  # its crashes; the run itself is what --track wandb asks for
}


def report_to_nobody() -> None:
    """Sets `UNREPORTED`, also over what was set. The libraries read it as they are imported: call it before."""
    os.environ.update(UNREPORTED)


def keep_memory() -> bool:
    """Let the C library keep the memory of activations from one batch to the next. True if it does.

    It gives large blocks back to the system as soon as they are free, and every batch then touches
    them anew, a page fault each 4 KiB: on a CPU a fifth of a training step and a third of a
    prediction (EfficientNet-Lite0, 160 px, 32 pictures). glibc only; elsewhere nothing is done.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6" if sys.platform == "linux" else None).mallopt
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return False
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
    # One arena: those of other threads are too small for activations, and give them back.
    wanted = {m_mmap_max: 0, m_trim_threshold: 2**31 - 1, m_arena_max: 1}
    return all(mallopt(*setting) for setting in wanted.items())


def cuda_here() -> bool:
    """Whether torch has a GPU to compute on. torch itself is asked only where a driver is."""
    if "torch" not in sys.modules and not _gpu_driver():
        return False
    import torch

    return torch.cuda.is_available()


def mps_here() -> bool:
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


def keep_memory_on_cpu(device: str) -> None:
    """`keep_memory`, where ``--device`` means the CPU. Each command calls it that computes."""
    if device == "cpu" or (device == "auto" and not cuda_here()):
        keep_memory()


_own = threading.local()


def threads() -> int:
    """Threads that arithmetic may take here: torch's number of them; where torch is not loaded what
    it would be, ``OMP_NUM_THREADS`` or one for each core, or what `threads_kept` says."""
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    said = os.environ.get("OMP_NUM_THREADS", "")
    return getattr(_own, "threads", None) or (int(said) if said.isdecimal() else cores()) or 1


@contextmanager
def threads_kept(meanwhile: int | None = None) -> Iterator[None]:
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


class CoreEach:
    """Calls side by side, each with one thread to compute on: the parts of a batch.

    Threads that share a batch wait for the slowest of them after every layer, and all of them where
    a core is taken from one; parts wait once. On two cores a batch took this part of the time, of
    32 pictures, of 8 and of one, which one core has to itself: EfficientNet-Lite0 at 160 px 0.69,
    0.67 and 0.51; ViT-Tiny at 224 px 0.86, 0.80 and 0.75; ResNet-18 at 160 px 0.97, 0.93 and 1.02.

    Parameters
    ----------
    start : makes a pool of so many threads; by default such that torch computes on one in each.
    """

    def __init__(self, start: Callable[[int], ThreadPoolExecutor] | None = None) -> None:
        self._start = start or _single_threads
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._lock = threading.Lock()

    def map(self, task: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """The answers in order; at most `threads()` parts make sense."""
        with self._lock:
            if self._pool is None or self._threads < len(parts):
                if self._pool is not None:
                    self._pool.shutdown(wait=False)
                self._pool, self._threads = self._start(len(parts)), len(parts)
            return list(self._pool.map(task, parts))


def _single_threads(count: int) -> ThreadPoolExecutor:
    import torch

    begun = threading.Barrier(count)

    def begin() -> None:
        torch.get_num_threads()  # the first question gives a thread the number of the process
        torch.set_num_threads(1)
        begun.wait()

    with threads_kept():  # a thread's number becomes that of every later one
        pool = ThreadPoolExecutor(count, initializer=begin)
        for done in [pool.submit(int) for _ in range(count)]:
            done.result()
    return pool


def surroundings() -> dict[str, Any]:
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
