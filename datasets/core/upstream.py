"""Workarounds for libraries without a public hook: all patched attributes and private names are here.

Each names its reason and the upstream issue, if there is one; `CHECKED` lists the versions. The tests in
``tests/datasets/core/test_upstream.py`` show whether the installed versions still need them.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from concurrent.futures import Executor, ProcessPoolExecutor

    import torch
    from fastai.data.load import DataLoader
    from fastxtend.callback.ema import EMACallback
    from PIL import Image

#: Versions that the workarounds were checked with, by package.
CHECKED = {
    "fastai": "2.8.12", "fastxtend": "0.1.7", "gradio": "6.31.0", "huggingface_hub": "2.4.0",
    "scipy": "1.17.1", "timm": "1.0.31", "torch": "2.15.0",
}  # fmt: skip


#: Numbers of the tags of a TIFF (TIFF 6.0, sections 2 and 8).
_BITS, _SAMPLES, _PLANAR = 258, 277, 284


def planes_described(picture: Image.Image) -> Image.Image:
    """An opened TIFF whose channels are stored one after the other without compression, read as it is stored.

    Pillow describes each plane by the first letters of the pixels' format alone: 16-bit planes as 8-bit ones, and a
    single channel as if it had neither bits nor byte order. Any other picture stays as it is.
    """
    tags: Any = getattr(picture, "tag_v2", {})
    if tags.get(_PLANAR) != 2 or not picture.tile or picture.tile[0].codec_name != "raw":  # type: ignore[attr-defined]
        return picture
    if tags.get(_SAMPLES, 1) == 1:  # then the tag says nothing
        tags[_PLANAR] = 1
        picture._setup()  # type: ignore[attr-defined]
    elif max(tags.get(_BITS, (1,))) == 16:
        order = ";16L" if tags.prefix == b"II" else ";16B"
        picture.tile = [  # type: ignore[attr-defined]
            tile._replace(args=(tile.args[0] + order, *tile.args[1:]))
            for tile in picture.tile  # type: ignore[attr-defined]
        ]
    return picture


def rle4_decoded(picture: Image.Image, file: BinaryIO) -> Image.Image:
    """A bitmap that is compressed to runs of four-bit pixels, decoded; any other picture as it is.

    Pillow's decoder drops half a byte of an odd run, and does not stop at the end of a row.
    """
    if picture.format != "BMP" or picture.info.get("compression") != 2:
        return picture
    import numpy as np
    from PIL import Image

    file.seek(picture.tile[0].offset)  # type: ignore[attr-defined]
    body = file.read()
    width, height = picture.size
    pixels = np.zeros((height, width), np.uint8)
    x = y = at = 0
    while True:
        count, value = body[at : at + 2]  # ValueError where the file ends before the picture
        at += 2
        if count or value > 2:
            stored = np.frombuffer(
                body, np.uint8, 1 if count else (value + 1) // 2, at - bool(count)
            )
            at += 0 if count else len(stored) + len(stored) % 2
            run = np.resize(np.stack([stored >> 4, stored & 15], -1).ravel(), count or value)
            if y < height:
                pixels[y, x : x + len(run)] = run[: max(0, width - x)]
            x += len(run)
        elif value == 2:
            x, y, at = x + body[at], y + body[at + 1], at + 2
        else:
            x, y = 0, y + 1
            if value == 1 or y == height:
                break
    palette = picture.palette  # getpalette would decode the picture
    if palette is None:  # black and white, or all grey
        return Image.fromarray(pixels[::-1] * np.uint8(255 if picture.mode == "1" else 1))
    decoded = Image.fromarray(pixels[::-1])
    decoded.putpalette(palette.palette, palette.rawmode or "RGB")
    return decoded


@cache
def real_fft() -> Callable[[Any], Any]:
    """``scipy.fft.rfft`` along the last axis, loaded from its compiled module alone if possible.

    Since scipy 1.12 (scipy#19005, support for other arrays) importing `scipy.fft` takes 0.3 s. NumPy's
    transform of float32 takes five times as long and differs in the last bits.
    """
    import numpy as np

    root, loaded = find_spec("scipy"), "scipy.fft" in sys.modules
    if root is not None and root.origin is not None and not loaded:
        with suppress(Exception):  # another version of scipy: use the public function
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
    """Seed the workers of a fastai DataLoader from this generator.

    Otherwise torch uses the global generator, which dropout uses too (pytorch#20749, also without
    workers). torch's loader has an argument for it that fastai does not pass on.
    """
    loader.fake_l.generator = generator


def untangled_buffers(ema: EMACallback) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of an integer buffer of the network and of its average, to be copied after each step; call it when a fit
    begins.

    fastxtend pairs buffers of the network with themselves, so they never reach the average. This takes these pairs
    from it. Its floating-point buffers, such as BatchNorm's averages, are only right with ``foreach``.
    """
    ema.model_buffers, ema.ema_buffers = [], []
    pairs = zip(ema.learn.model.buffers(), ema.ema_model.buffers(), strict=True)
    return [(source, average) for source, average in pairs if not source.is_floating_point()]


def close_writer_of_results(pool: ProcessPoolExecutor) -> None:
    """Leave the pipe of a pool's results to its workers, once they are forked.

    The pool keeps an end to write to, although it only reads. If a worker is killed half way through a result, the
    pool's thread would wait for the other half for ever, because that end stays open.
    """
    pool._result_queue._writer.close()  # type: ignore[attr-defined]


def threads_of(pool: Executor) -> list[threading.Thread]:
    """The threads that end with a pool, without the calling one, which cannot wait for itself: garbage may be collected
    in any thread. A pool's own ``shutdown`` waits for them without a limit."""
    threads = [getattr(pool, "_executor_manager_thread", None), *getattr(pool, "_threads", ())]
    here = threading.current_thread()
    return [one for one in threads if isinstance(one, threading.Thread) and one is not here]


def deliver_late_interrupts() -> None:
    """Deliver a Ctrl-C that arrives while Python forks or finalises an object a moment later.

    Python calls its handler there, too, but only prints the KeyboardInterrupt ("Exception ignored in …") and drops it.
    """
    report = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        timer = threading.Timer(0.05, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook


@contextmanager
def hub_offline() -> Iterator[None]:
    """Make the Hugging Face client use its cache only.

    Otherwise it retries ten times, for most of a minute. It reads its environment variable only when it
    is imported (huggingface_hub#3593 only reports the value), and timm 1.0 does not pass
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
    """Set the level of loggers for the length of a block."""
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
    """Raise RuntimeError if a weights file lacks tensors of a timm network, which would stay random.

    Without a classifier timm loads weights leniently, even with ``pretrained_strict``
    (pytorch-image-models#2142), and only logs the missing tensors.
    """
    logger, check = logging.getLogger("timm.models._builder"), _MissingTensors()
    with logger_levels(logging.INFO, logger.name):
        logger.addFilter(check)
        try:
            yield
        finally:
            logger.removeFilter(check)


@contextmanager
def wait_for_gradio_server(prepare: Callable[[Any], None]) -> Iterator[None]:
    """Make Gradio's ``launch`` wait until its server has started or failed, after ``prepare`` has been given it.

    Otherwise it gives up after five seconds on a slow machine (gradio#4624) and reports that the port is
    in use (gradio#13693). Its request to itself goes without the environment's proxies and certificates.
    """
    import httpx
    from gradio.exceptions import ServerFailedToStartError
    from gradio.http_server import Server

    def run_in_thread(server: Any) -> None:
        prepare(server)
        server.thread = threading.Thread(target=server.run, daemon=True)
        server.thread.start()
        while not server.started:
            if not server.thread.is_alive():
                raise ServerFailedToStartError("the server has ended")
            time.sleep(1e-3)

    def get(url: str, **options: Any) -> Any:
        itself: dict[str, Any] = (
            {"trust_env": False} if str(url).endswith("/startup-events") else {}
        )
        return original_get(url, **options, **itself)

    original, original_get = Server.run_in_thread, httpx.get
    Server.run_in_thread = run_in_thread  # type: ignore[method-assign]
    httpx.get = get  # type: ignore[assignment]
    try:
        yield
    finally:
        Server.run_in_thread = original  # type: ignore[method-assign]
        httpx.get = original_get


@contextmanager
def without_proxies() -> Iterator[None]:
    """Hide proxies and certificates of the environment while Gradio is imported: it opens a client for them, which
    fails for a missing certificate file and for SOCKS."""
    hidden = {"http_proxy", "https_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir"}
    kept = {name: os.environ.pop(name) for name in [*os.environ] if name.lower() in hidden}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextmanager
def as_single_process() -> Iterator[None]:
    """Make fastai treat this as the only process of a distributed run.

    Otherwise its learning rate search, which saves and loads weights, waits for the other processes
    (fastai#3132, fastai#3688).
    """
    size = os.environ["WORLD_SIZE"]
    os.environ["WORLD_SIZE"] = "1"
    try:
        yield
    finally:
        os.environ["WORLD_SIZE"] = size
