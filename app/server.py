"""Serves the page on a port, and keeps the folder of uploads."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from starlette.middleware import Middleware

from app.connections import limit_connections
from app.door import Door, Traffic, host_names
from app.serving import Served, Site
from app.settings import PageSettings
from app.upstream import wait_for_gradio_server, without_proxies
from datasets.core.errors import SecondhandError
from learners.machine.hardware import disable_telemetry
from learners.report.templates import render

log = logging.getLogger(__name__)

#: Bytes of all uploads together; the oldest are deleted first.
MAX_UPLOADS = 4 << 30
#: Seconds between switches of Python's threads: less than the default 5 ms, because the network needs the
#: interpreter between any two layers.
SWITCH = 5e-4


@contextmanager
def serve(
    models: dict[str, Served],
    settings: PageSettings | None = None,
    failed: Mapping[str, SecondhandError] | None = None,
) -> Iterator[str]:
    """Serve the models until the context ends.

    Parameters
    ----------
    models : by their names; what fields add, such as a tab, is of the first. There may be none with ``--train``.
    settings : default: those of the first model, on a free port.
    failed : the error of each model folder that could not be opened, for the page to tell.

    Yields
    ------
    The page's address on this machine.

    Raises
    ------
    SecondhandError : the port is taken, the address is not one of this machine's, or a folder that the settings name
        cannot be used.
    """
    settings = settings or PageSettings(port=0)
    first = next(iter(models.values()), None)
    traffic, stop = Traffic(host_names(settings.host, settings.allow_host)), threading.Event()
    with ExitStack() as opened:
        uploads = opened.enter_context(_uploads())
        with without_proxies():
            import gradio
        from app.api import routes
        from app.feedback import Feedback
        from app.interface import build_page, theme
        from app.tabs import TABS, Opened
        from app.training import Training

        opened.callback(_close, models)
        feedback = Feedback(settings.feedback) if settings.feedback else None
        site = Site(models, uploads, settings, feedback, dict(failed or {}))
        site.check_one_table()
        of_fields = list[Opened]()
        if first is not None:
            for tab in TABS.values():
                if (one := tab.open(settings, first)) is not None:
                    of_fields.append(opened.enter_context(closing(one)))
        training = Training(settings.train, settings.device) if settings.train else None
        page = build_page(site, of_fields, training)
        opened.callback(page.close, verbose=False)
        opened.callback(stop.set)
        page.queue(max_size=8 * settings.queue, api_open=False)
        with wait_for_gradio_server(limit_connections):
            _, url, link = page.launch(
                server_name=settings.host,
                server_port=free_port(settings.host, settings.port),
                share=settings.share,
                auth=settings.passwords or None,
                max_file_size=f"{settings.max_mb}mb",
                max_threads=max(40, 2 * settings.queue),
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                ssr_mode=False,
                mcp_server=False,
                # A key that Gradio tells screen readers, and has no words for in any language.
                i18n=gradio.I18n(en={"common.complete": "Done"}),
                run_history=False,
                enable_monitoring=False,
                footer_links=[],
                theme=theme(),
                css=render("app", "page.css"),
                head="".join(one.head for one in of_fields) or None,
                app_kwargs={
                    "routes": routes(site, traffic),
                    "middleware": [Middleware(Door, traffic=traffic)],
                    "docs_url": None,
                    "redoc_url": None,
                },
                _frontend=False,  # Gradio's check of the page would end it if it took over three seconds
            )
        # Wait until the page answers, however long that takes, without a proxy.
        build_opener(ProxyHandler({})).open(f"{url}health").close()
        if link:
            traffic.names.add(urlsplit(link).hostname or "")
        sweeper = (uploads, 60 * settings.keep, stop)
        threading.Thread(target=_sweep, args=sweeper, daemon=True).start()
        for one in of_fields:
            one.begin()
        yield url


def _close(models: dict[str, Served]) -> None:
    """Close all models, also those that joined later."""
    for served in models.values():
        served.close()


@contextmanager
def _uploads() -> Iterator[str]:
    """A temporary folder for uploads, and the environment that Gradio reads at its import."""
    disable_telemetry()
    interval = sys.getswitchinterval()
    with tempfile.TemporaryDirectory(prefix="secondhand-", ignore_cleanup_errors=True) as folder:
        variables = {"GRADIO_TEMP_DIR": folder, "GRADIO_ALLOWED_PATHS": ""}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        sys.setswitchinterval(min(SWITCH, interval))
        try:
            yield folder
        finally:
            sys.setswitchinterval(interval)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises SecondhandError if it cannot be used."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            return int(trial.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SecondhandError(f"--host {host} --port {port}: {reason}; choose another") from None


def _sweep(folder: str, keep: float, stop: threading.Event) -> None:
    """Delete files older than ``keep`` seconds, and the oldest of too many bytes, until ``stop`` is set.

    Whatever goes wrong is logged, and it looks again: visitors are promised that their files are deleted.
    """
    while not stop.wait(min(30.0, keep / 2)):
        try:
            sweep(folder, keep)
        except Exception:
            log.exception("uploads could not be deleted: tried again in a moment")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def sweep(folder: str, keep: float, most: int = MAX_UPLOADS) -> int:
    """Delete old files once. Returns the number of deleted files."""
    files = []
    # A folder that has gone since its parent was read is left out: each request has one.
    for parent, _, names in os.walk(folder, onerror=_unless_gone):
        for file in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                state = file.lstat()
                files.append((max(state.st_mtime, state.st_ctime), state.st_size, file))
    total, deleted, now = sum(size for _, size, _ in files), 0, time.time()
    for changed, size, path in sorted(files):
        if now - changed <= keep and total <= most:
            break
        with suppress(OSError):  # the folder is not empty, or the file is gone
            path.unlink()
            if path.parent != Path(folder):
                path.parent.rmdir()
        total, deleted = total - size, deleted + 1
    return deleted
