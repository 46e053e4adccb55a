"""What has no public hook in the libraries this is built on: every attribute of theirs that is
replaced, and every private name of theirs, stands here and nowhere else.

Each says why, with the upstream issue where there is one, and `CHECKED` with which versions;
``tests/datasets/core/test_upstream.py`` looks whether those that are installed still need it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from fastai.data.load import DataLoader
    from torch import nn

#: Versions with which each was looked at, by the package's name.
CHECKED = {
    "fastai": "2.8.12", "fastxtend": "0.1.7", "gradio": "6.31.0", "huggingface_hub": "2.4.0",
    "scipy": "1.17.1", "timm": "1.0.31", "torch": "2.15.0",
}  # fmt: skip


@cache
def real_fft() -> Callable[[Any], Any]:
    """``scipy.fft.rfft`` along the last axis, by its compiled part alone where that is to be had.

    Since scipy 1.12 (scipy#19005, arrays that are not NumPy's) the import of `scipy.fft` takes 0.3 s;
    NumPy's own transform of float32 takes five times as long, and its last bits are others.
    """
    import numpy as np

    root, loaded = find_spec("scipy"), "scipy.fft" in sys.modules
    if root is not None and root.origin is not None and not loaded:
        with suppress(Exception):  # of another scipy: the public way is right as well
            folder = Path(root.origin).parent / "fft" / "_pocketfft"
            spec: Any = PathFinder.find_spec("pypocketfft", [str(folder)])
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            transform = partial(module.r2c, axes=(-1,), forward=True, inorm=0, out=None, nthreads=1)
            transform(np.ones((1, 16), np.float32))
            return transform
    from scipy.fft import rfft

    return rfft


def seed_workers_from(loader: DataLoader, generator: torch.Generator) -> None:
    """torch draws the seed of an epoch's workers from the loader's generator, else from the global
    one, which dropout draws from (pytorch#20749: also without workers). torch's loader takes it as an
    argument; fastai's ``DataLoader``, which makes torch's inside of itself, hands none through."""
    loader.fake_l.generator = generator


def skip_modules(modules: Iterable[nn.Module]) -> None:
    """The modules give back what they get, until `restore_modules`; their names in the state dict stay.

    A forward hook of torch's changes what goes in or comes out, but the module computes all the
    same; another module in its place would change the names, and the optimizer's groups.
    """
    for module in modules:
        module.forward = _as_it_is


def restore_modules(modules: Iterable[nn.Module]) -> None:
    """Undo `skip_modules`, also in copies that were made meanwhile."""
    for module in modules:
        if module.__dict__.get("forward") is _as_it_is:
            del module.forward


def _as_it_is(x: Any) -> Any:
    return x


@contextmanager
def hub_offline() -> Iterator[None]:
    """The hub's client answers from its cache, or not at all: it asks nobody.

    Else it tries ten times over most of a minute before it gives up. It reads its environment variable
    once, as it is imported (its public part, huggingface_hub#3593, only tells it); timm 1.0 passes no
    ``local_files_only`` on.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def logger_levels(level: int, *names: str) -> Iterator[None]:
    """Loggers of libraries at another level, which is put back."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, old_level in zip(loggers, before, strict=True):
            logger.setLevel(old_level)


class _MissingTensors(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith("Missing keys"):
            raise RuntimeError(message)
        return record.levelno > logging.INFO


@contextmanager
def require_all_tensors() -> Iterator[None]:
    """RuntimeError where a file of weights leaves tensors of timm's network as they were: random.

    Without its classifier timm loads a network leniently, also with ``pretrained_strict``
    (pytorch-image-models#2142), and only notes in the log which tensors the file lacks.
    """
    logger, check = logging.getLogger("timm.models._builder"), _MissingTensors()
    with logger_levels(logging.INFO, logger.name):
        logger.addFilter(check)
        try:
            yield
        finally:
            logger.removeFilter(check)


@contextmanager
def wait_for_gradio_server() -> Iterator[None]:
    """Gradio's ``launch`` waits for its server until it serves, or has ended.

    Else it gives up a server that a slow machine has not begun in five seconds (gradio#4624), which it
    calls a port that is taken (gradio#13693).
    """
    from gradio.exceptions import ServerFailedToStartError
    from gradio.http_server import Server

    def run_in_thread(server: Any) -> None:
        server.thread = threading.Thread(target=server.run, daemon=True)
        server.thread.start()
        while not server.started:
            if not server.thread.is_alive():
                raise ServerFailedToStartError("the server has ended")
            time.sleep(1e-3)

    original = Server.run_in_thread
    Server.run_in_thread = run_in_thread  # type: ignore[method-assign]
    try:
        yield
    finally:
        Server.run_in_thread = original  # type: ignore[method-assign]


@contextmanager
def as_single_process() -> Iterator[None]:
    """For fastai this is the only process of the run: it reads the environment at every question.

    Its search for a learning rate saves and loads weights, where it would wait for the others
    (fastai#3132, fastai#3688).
    """
    size = os.environ["WORLD_SIZE"]
    os.environ["WORLD_SIZE"] = "1"
    try:
        yield
    finally:
        os.environ["WORLD_SIZE"] = size
