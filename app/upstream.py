"""Workarounds for Gradio, where its server starts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Versions that it was checked with, by package.
CHECKED = {"gradio": "6.31.0"}


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
