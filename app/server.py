"""Serves the page on a port: access, time limits of requests, and the folder of uploads."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from app.serving import Limits, Served, Site, Traffic
from datasets.core.errors import SecondhandError
from datasets.core.upstream import wait_for_gradio_server, without_proxies
from learners.machine import disable_telemetry
from learners.templates import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from app.training import Training

#: Bytes of all uploads together; the oldest are deleted first.
MAX_UPLOADS = 4 << 30
#: Seconds between switches of Python's threads: less than the default 5 ms, because the network needs the
#: interpreter between any two layers.
SWITCH = 5e-4
#: Bytes a second below which a request is cut off after its time limit.
SLOWEST = 16 << 10


@contextmanager
def serve(
    models: dict[str, Served],
    *,
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    share: bool = False,
    auth: list[tuple[str, str]] | None = None,
    feedback: Path | None = None,
    label: Path | None = None,
    pool: Path | None = None,
    training: Training | None = None,
    names: Sequence[str] = (),
    failed: Mapping[str, SecondhandError] | None = None,
) -> Iterator[str]:
    """Serve the models until the context ends.

    Parameters
    ----------
    models : by their names; there may be none if there is a ``training``.
    limits : limits of the page; default: those of the first model.
    port : 0 selects a free port.
    auth : names and passwords; None lets everybody in.
    feedback : the folder for corrections, and for the table of labels of a folder.
    label : a folder, or the table of an audit, to label for the first model.
    pool : a folder, or a file of embeddings, in which the first model searches similar files.
    training : shows the tab *Train*, and adds the models that are trained there.
    names : host names of the page besides `host_names` its host.
    failed : the error of each model folder that could not be opened, for the page to tell.

    Yields
    ------
    The page's address on this machine.

    Raises
    ------
    SecondhandError : the port is taken, the address is not one of this machine's, or a pool cannot be
        used.
    """
    flags = [flag for flag, path in (("--feedback", feedback), ("--label", label)) if path]
    for name, served in models.items():
        if flags and not served.predictor.rule.exclusive:
            raise SecondhandError(
                f"{' and '.join(flags)}: {name} is a multi-label model, and a file gets only one label here; "
                f"leave {' and '.join(flags)} out"
            )
    first = next(iter(models.values()), None)
    limits = limits or (Limits() if first is None else first.limits)
    traffic, stop = Traffic(host_names(host, names)), threading.Event()
    with ExitStack() as opened:
        uploads = opened.enter_context(_uploads())
        with without_proxies():
            import gradio  # noqa: F401
        from app.api import routes
        from app.feedback import Feedback
        from app.interface import build_page, theme
        from app.pool import Alike, open_labelling

        opened.callback(_close, models)
        site = Site(
            models, uploads, limits, Feedback(feedback) if feedback else None, dict(failed or {})
        )
        if first is None and (label or pool):
            raise SecondhandError("--label and --pool need a model. Name a model folder")
        labelling = alike = None
        if first is not None and label:
            labelling = opened.enter_context(closing(open_labelling(first, label, feedback)))
        if first is not None and pool:
            alike = opened.enter_context(closing(Alike(first, pool)))
        page = build_page(site, labelling, alike, training)
        opened.callback(page.close, verbose=False)
        opened.callback(stop.set)
        page.queue(max_size=8 * limits.queue, api_open=False)
        port = free_port(host, port)
        with wait_for_gradio_server():
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
                head=None if labelling is None else render("app", "keys.html"),
                app_kwargs={
                    "routes": routes(site, auth, traffic),
                    "middleware": [Middleware(Door, limits=limits, traffic=traffic)],
                    "docs_url": None,
                    "redoc_url": None,
                },
                _frontend=False,  # Gradio's check of the page would end it if it took over three seconds
            )
        # Wait until the page answers, however long that takes, without a proxy.
        build_opener(ProxyHandler({})).open(f"{url}health").close()
        if link:
            traffic.names.add(urlsplit(link).hostname or "")
        sweeper = (uploads, limits.keep, stop)
        threading.Thread(target=_sweep, args=sweeper, daemon=True).start()
        for one in (labelling, alike):
            if one is not None:
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
    """Delete files older than ``keep`` seconds, and the oldest of too many bytes, until ``stop`` is set."""
    while not stop.wait(min(30.0, keep / 2)):
        sweep(folder, keep)


def sweep(folder: str, keep: float, most: int = MAX_UPLOADS) -> int:
    """Delete old files once. Returns the number of deleted files."""
    files = []
    for file in Path(folder).rglob("*"):
        with suppress(OSError):
            state = file.lstat()
            if not S_ISDIR(state.st_mode):
                files.append((max(state.st_mtime, state.st_ctime), state.st_size, file))
    total, deleted, now = sum(size for _, size, _ in files), 0, time.time()
    for changed, size, path in sorted(files):
        if now - changed <= keep and total <= most:
            break
        with suppress(OSError):  # the folder is not empty, or the file is gone
            path.unlink()
            path.parent.rmdir()
        total, deleted = total - size, deleted + 1
    return deleted


def host_names(host: str, more: Iterable[str] = ()) -> set[str]:
    """Host names of a page: "localhost", its address, ``more``, and this machine's name if others can reach it."""
    names = {"localhost", host, *more}
    if host not in ("localhost", "127.0.0.1", "::1"):
        names |= {socket.gethostname(), f"{socket.gethostname()}.local"}
    return {name.lower().rstrip(".") for name in names}


class Door:
    """ASGI middleware that refuses requests of other sites' pages, and requests that never end.

    The header ``Host`` shows a site whose name resolves to this machine (DNS rebinding), ``Sec-Fetch-Site``
    or ``Origin`` a page of another site that posts here. Programs send neither of the last two.

    Parameters
    ----------
    limits : number of requests that are read at once, and time limit of each.
    traffic : host names of the page, and counters.
    """

    def __init__(self, app: ASGIApp, limits: Limits, traffic: Traffic) -> None:
        self.app, self.limits, self.traffic = app, limits, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        message = wrong_host(headers, self.traffic.names) or cross_site(
            headers, scope.get("method", "")
        )
        if message:
            await refuse(403, message)(scope, receive, send)
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            await self._with_body(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.traffic.arriving >= self.limits.arriving:
            message = f"Busy: {self.traffic.arriving} requests are arriving already. Try again in a moment."
            await refuse(503, message, {"Retry-After": "1"})(scope, receive, send)
            return
        body, responded = _Body(receive, self.limits.patience, self.traffic), False

        async def respond(message: Message) -> None:
            nonlocal responded
            responded = True
            await send(message)

        try:
            await self.app(scope, body.receive, respond)
        except OSError as error:
            if responded or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            message = "The disk of this page is full. Tell its owner, and try again later."
            await refuse(507, message)(scope, receive, send)
        except ClientDisconnect:
            if body.late and not responded:
                message = (
                    f"Too slow: {body.bytes} bytes arrived in {body.seconds:.0f} s. "
                    "Send a smaller file, or use a faster connection."
                )
                await refuse(408, message)(scope, receive, send)
        finally:
            body.end()


class _Body:
    """The body of a request, with a time limit of ``patience`` and one second for each `SLOWEST` bytes."""

    def __init__(self, receive: Receive, patience: float, traffic: Traffic) -> None:
        self._receive, self._patience, self._traffic = receive, patience, traffic
        self._began, self._open = asyncio.get_running_loop().time(), True
        self.bytes, self.late = 0, False
        traffic.arriving += 1

    @property
    def seconds(self) -> float:
        """Seconds since the header arrived."""
        return asyncio.get_running_loop().time() - self._began

    async def receive(self) -> Message:
        """The next message; a disconnect after the time limit."""
        if not self._open:
            return {"type": "http.disconnect"} if self.late else await self._receive()
        try:
            async with asyncio.timeout_at(self._began + self._patience + self.bytes / SLOWEST):
                message = await self._receive()
        except TimeoutError:
            self.late, message = True, {"type": "http.disconnect"}
        self.bytes += len(message.get("body", b""))
        if message["type"] == "http.disconnect":
            self._traffic.disconnected += 1
        if not message.get("more_body"):
            self.end()
        return message

    def end(self) -> None:
        """Stop counting it as arriving."""
        self._traffic.arriving -= self._open
        self._open = False


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error response that closes the connection, so the rest of the request is not read."""
    return JSONResponse({"error": message}, status, {"Connection": "close", **(headers or {})})


def wrong_host(headers: Headers, names: set[str]) -> str:
    """Message if the header ``Host`` is not a name of the page; "" otherwise."""
    header = headers.get("host", "")
    try:
        host = (urlsplit(f"//{header}").hostname or "").rstrip(".")  # in small letters
    except ValueError:
        host = ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host not in names:
            return f"Host {header[:100]!r}: not a name of this page. Its owner can add one: --allow-host NAME"
    return ""


def cross_site(headers: Headers, method: str) -> str:
    """Message if a page of another site sent the request, by the browser's headers; "" otherwise.

    Links to the page are allowed.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in ("same-origin", "none"):
        return ""
    if site is None:
        if origin is None or urlsplit(origin).netloc.lower() == headers["host"].lower():
            return ""
    elif method == "GET" and headers.get("sec-fetch-mode") == "navigate":
        return ""
    return (
        f"{(origin or site or '')[:100]}: a page of another site may not use this one. If this is a proxy's address, "
        "let the proxy pass on the Host header."
    )
