"""A page on a port: limits, health, a folder of its own for uploads that is emptied."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from app.serving import Limits, Served
from datasets.core.errors import SecondhandError
from datasets.core.upstream import patient_gradio
from learners.machine import report_to_nobody
from learners.templates import render

if TYPE_CHECKING:
    from app.pool import Alike, Labelling

log = logging.getLogger(__name__)

#: All uploads together; the oldest go first.
MAX_UPLOADS = 4 << 30
#: Seconds that a thread of Python's may keep others waiting: less than Python's own 5 ms, for the
#: network's threads need the interpreter between any two layers.
SWITCH = 5e-4


@contextmanager
def serve(
    models: dict[str, Served],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    share: bool = False,
    auth: list[tuple[str, str]] | None = None,
    feedback: Path | None = None,
    limits: Limits | None = None,
    pools: tuple[Path | None, Path | None] = (None, None),
    names: Sequence[str] = (),
) -> Iterator[str]:
    """Serve the models until the context ends.

    Parameters
    ----------
    port : 0 takes any that is free.
    auth : names and passwords; None lets everybody in who reaches the port.
    pools : a folder to label for the first model, and a folder, or a file of embeddings, in which it
        looks for more like an answer.
    names : that visitors know the page by besides `app.door.names_of` its host.

    Yields
    ------
    The page's address on this machine.

    Raises
    ------
    SecondhandError : the port is taken, the address is not one of this machine's, or a pool cannot be
        used.
    """
    given = {"--feedback": feedback, "--label": pools[0]}
    wanted = [flag for flag, value in given.items() if value is not None]
    for name, served in models.items():
        if wanted and not served.predictor.confidence.exclusive:
            raise SecondhandError(
                f"{', '.join(wanted)}: takes one label an item, and those of {name} have several; leave it out"
            )
    port = free_port(host, port)
    opened = _open_pools(next(iter(models.values())), *pools)
    begun = [pool for pool in opened if pool is not None]
    uploads = tempfile.mkdtemp(prefix="secondhand-")
    report_to_nobody()
    # Gradio reads these whenever it needs them.
    ours = {"GRADIO_TEMP_DIR": uploads, "GRADIO_ALLOWED_PATHS": ""}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH, interval))
    from starlette.middleware import Middleware

    from app.api import routes
    from app.backend import Site
    from app.door import Door, Visits, names_of
    from app.feedback import Feedback
    from app.interface import build_page, theme

    limits, visits = limits or Limits(), Visits(names_of(host, names))
    kept = Feedback(feedback) if feedback is not None else None
    site = Site(models, uploads, kept, *opened)
    page = build_page(site)
    stop = threading.Event()
    sweeper = threading.Thread(target=_sweep, args=(uploads, limits.keep, stop), daemon=True)
    try:
        page.queue(max_size=8 * limits.queue, api_open=False)
        with patient_gradio():
            _, url, link = page.launch(
                server_name=host,
                server_port=port,
                share=share,
                auth=auth or None,
                max_file_size=f"{limits.megabytes}mb",
                max_threads=max(40, 2 * limits.queue),
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                ssr_mode=False,
                mcp_server=False,
                run_history=False,
                enable_monitoring=False,
                footer_links=["api"],
                theme=theme(),
                css=render("app", "page.css"),
                head=None if opened[0] is None else render("app", "keys.html"),
                app_kwargs={
                    "routes": routes(site, limits, auth, visits),
                    "middleware": [Middleware(Door, limits=limits, visits=visits)],
                    "docs_url": None,
                    "redoc_url": None,
                },
                _frontend=False,  # no look at the page that ends it where an answer takes three seconds
            )
        _wait_for(f"{url}health")
        if link:
            visits.names.add(urlsplit(link).hostname or "")
        sweeper.start()
        for pool in begun:
            pool.begin()
        yield url
    finally:
        stop.set()
        page.close(verbose=False)
        for one in (*begun, *models.values()):
            one.close()
        shutil.rmtree(uploads, ignore_errors=True)
        sys.setswitchinterval(interval)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _wait_for(url: str) -> None:
    """Until the page answers there, however long the machine takes; no proxy is asked."""
    build_opener(ProxyHandler({})).open(url).close()


def _open_pools(
    served: Served, label: Path | None, alike: Path | None
) -> tuple[Labelling | None, Alike | None]:
    if label is None and alike is None:
        return None, None
    from app.pool import Alike, Labelling

    labelling = None if label is None else Labelling(served, label)
    return labelling, None if alike is None else Alike(served, alike)


def free_port(host: str, port: int) -> int:
    """The port, or for 0 any that is free now. Raises SecondhandError where it cannot be had."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            return int(trial.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise SecondhandError(f"--host {host} --port {port}: {error}; choose another") from None


def _sweep(folder: str, keep: float, stop: threading.Event) -> None:
    """Delete what is older than ``keep`` seconds, and the oldest of what is too much."""
    while not stop.wait(min(30.0, keep / 2)):
        sweep(folder, keep)


def sweep(folder: str, keep: float, most: int = MAX_UPLOADS) -> int:
    """One round of it. Returns how many files went."""
    found = []
    for file in Path(folder).rglob("*"):
        with suppress(OSError):
            state = file.lstat()
            if not S_ISDIR(state.st_mode):
                found.append((max(state.st_mtime, state.st_ctime), state.st_size, file))
    total, gone, now = sum(size for _, size, _ in found), 0, time.time()
    for changed, size, path in sorted(found):
        if now - changed <= keep and total <= most:
            break
        with suppress(OSError):  # the folder holds more, or another was first
            path.unlink()
            path.parent.rmdir()
        total, gone = total - size, gone + 1
    return gone
