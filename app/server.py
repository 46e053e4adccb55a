"""A page on a port: who may ask, how long a request may take to arrive, and a folder for uploads that is
emptied."""

from __future__ import annotations

import asyncio
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

from app.serving import Limits, Served, Site, Visits
from datasets.core.errors import SecondhandError
from datasets.core.upstream import wait_for_gradio_server
from learners.machine import disable_telemetry
from learners.templates import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: All uploads together; the oldest go first.
MAX_UPLOADS = 4 << 30
#: Seconds that a thread of Python's may keep others waiting: less than Python's own 5 ms, for the
#: network's threads need the interpreter between any two layers.
SWITCH = 5e-4
#: Bytes a second that keep a request going beyond the seconds that each has.
SLOWEST = 16 << 10


@contextmanager
def serve(
    models: dict[str, Served],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    share: bool = False,
    auth: list[tuple[str, str]] | None = None,
    feedback: Path | None = None,
    label: Path | None = None,
    pool: Path | None = None,
    names: Sequence[str] = (),
) -> Iterator[str]:
    """Serve the models until the context ends, by the limits of the first.

    Parameters
    ----------
    port : 0 takes any that is free.
    auth : names and passwords; None lets everybody in who reaches the port.
    feedback : the folder for corrections.
    label : a folder to label for the first model.
    pool : a folder, or a file of embeddings, in which the first model looks for more like an answer.
    names : that visitors know the page by besides `names_of` its host.

    Yields
    ------
    The page's address on this machine.

    Raises
    ------
    SecondhandError : the port is taken, the address is not one of this machine's, or a pool cannot be
        used.
    """
    wanted = [flag for flag, path in (("--feedback", feedback), ("--label", label)) if path]
    for name, served in models.items():
        if wanted and not served.predictor.confidence.exclusive:
            raise SecondhandError(
                f"{', '.join(wanted)}: takes one label an item, and those of {name} have several; leave it out"
            )
    port = free_port(host, port)
    first = next(iter(models.values()))
    visits, stop = Visits(names_of(host, names)), threading.Event()
    with ExitStack() as opened:
        uploads = opened.enter_context(_uploads())
        from app.api import routes
        from app.feedback import Feedback
        from app.interface import build_page, theme
        from app.pool import Alike, Labelling

        for served in models.values():
            opened.callback(served.close)
        labelling = opened.enter_context(closing(Labelling(first, label))) if label else None
        alike = opened.enter_context(closing(Alike(first, pool))) if pool else None
        site = Site(models, uploads, Feedback(feedback) if feedback else None)
        page = build_page(site, labelling, alike)
        opened.callback(page.close, verbose=False)
        opened.callback(stop.set)
        page.queue(max_size=8 * first.limits.queue, api_open=False)
        with wait_for_gradio_server():
            _, url, link = page.launch(
                server_name=host,
                server_port=port,
                share=share,
                auth=auth or None,
                max_file_size=f"{first.limits.megabytes}mb",
                max_threads=max(40, 2 * first.limits.queue),
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
                    "routes": routes(site, auth, visits),
                    "middleware": [Middleware(Door, limits=first.limits, visits=visits)],
                    "docs_url": None,
                    "redoc_url": None,
                },
                _frontend=False,  # no look at the page that ends it where an answer takes three seconds
            )
        # Until the page answers there, however long the machine takes; no proxy is asked.
        build_opener(ProxyHandler({})).open(f"{url}health").close()
        if link:
            visits.names.add(urlsplit(link).hostname or "")
        sweeper = (uploads, first.limits.keep, stop)
        threading.Thread(target=_sweep, args=sweeper, daemon=True).start()
        for one in (labelling, alike):
            if one is not None:
                one.begin()
        yield url


@contextmanager
def _uploads() -> Iterator[str]:
    """The folder for uploads, and the process as Gradio, which is imported only then, is to find it."""
    disable_telemetry()
    interval = sys.getswitchinterval()
    with tempfile.TemporaryDirectory(prefix="secondhand-", ignore_cleanup_errors=True) as folder:
        ours = {"GRADIO_TEMP_DIR": folder, "GRADIO_ALLOWED_PATHS": ""}
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        sys.setswitchinterval(min(SWITCH, interval))
        try:
            yield folder
        finally:
            sys.setswitchinterval(interval)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


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
    files = []
    for file in Path(folder).rglob("*"):
        with suppress(OSError):
            state = file.lstat()
            if not S_ISDIR(state.st_mode):
                files.append((max(state.st_mtime, state.st_ctime), state.st_size, file))
    total, gone, now = sum(size for _, size, _ in files), 0, time.time()
    for changed, size, path in sorted(files):
        if now - changed <= keep and total <= most:
            break
        with suppress(OSError):  # the folder holds more, or another was first
            path.unlink()
            path.parent.rmdir()
        total, gone = total - size, gone + 1
    return gone


def names_of(host: str, more: Iterable[str] = ()) -> set[str]:
    """The names of a page that listens on an address: "localhost", the address, what else is given, and
    where other machines reach it the name of this one."""
    names = {"localhost", host, *more}
    if host not in ("localhost", "127.0.0.1", "::1"):
        names |= {socket.gethostname(), f"{socket.gethostname()}.local"}
    return {name.lower().rstrip(".") for name in names}


class Door:
    """ASGI middleware that refuses what a browser sends on behalf of another site, and what never ends.

    A site that gives its own name this machine's address (DNS rebinding) is known by the ``Host`` that
    the browser sends; one that posts to the page from elsewhere by ``Sec-Fetch-Site`` or ``Origin``.
    Programs send neither of the two.

    Parameters
    ----------
    limits : how many bodies are read at once, and how long each may take.
    visits : whose names are let in, and where it is counted.
    """

    def __init__(self, app: ASGIApp, limits: Limits, visits: Visits) -> None:
        self.app, self.limits, self.visits = app, limits, visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        message = wrong_host(headers, self.visits.names) or from_elsewhere(
            headers, scope.get("method", "")
        )
        if message:
            await refuse(403, message)(scope, receive, send)
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            await self._with_body(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.visits.arriving >= self.limits.arriving:
            message = f"Busy: {self.visits.arriving} requests are arriving already. Try again in a moment."
            await refuse(503, message, {"Retry-After": "1"})(scope, receive, send)
            return
        body, answered = _Body(receive, self.limits.patience, self.visits), False

        async def answer(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, body.receive, answer)
        except ClientDisconnect:
            if body.late and not answered:
                message = f"Too slow: {body.bytes} bytes in {body.seconds:.0f} s."
                await refuse(408, message)(scope, receive, send)
        finally:
            body.end()


class _Body:
    """The rest of a request, which has so many seconds and one more for each `SLOWEST` bytes."""

    def __init__(self, receive: Receive, patience: float, visits: Visits) -> None:
        self._receive, self._patience, self._visits = receive, patience, visits
        self._began, self._open = asyncio.get_running_loop().time(), True
        self.bytes, self.late = 0, False
        visits.arriving += 1

    @property
    def seconds(self) -> float:
        """Since its head was there."""
        return asyncio.get_running_loop().time() - self._began

    async def receive(self) -> Message:
        """The next part; where it comes too late what is received of a client that has gone."""
        if not self._open:
            return {"type": "http.disconnect"} if self.late else await self._receive()
        try:
            async with asyncio.timeout_at(self._began + self._patience + self.bytes / SLOWEST):
                message = await self._receive()
        except TimeoutError:
            self.late, message = True, {"type": "http.disconnect"}
        self.bytes += len(message.get("body", b""))
        if message["type"] == "http.disconnect":
            self._visits.broken_off += 1
        if not message.get("more_body"):
            self.end()
        return message

    def end(self) -> None:
        """It is read no further."""
        self._visits.arriving -= self._open
        self._open = False


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer after which the connection is closed: what else was sent on it is not read."""
    return JSONResponse({"error": message}, status, {"Connection": "close", **(headers or {})})


def wrong_host(headers: Headers, names: set[str]) -> str:
    """What is wrong with the name that the page is asked by; "" where nothing is."""
    given = headers.get("host", "")
    host = _host(given)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host not in names:
            return (
                f"Host {given[:100]!r}: this page is not known by that name; "
                "--allow-host NAME adds one, where the page is started"
            )
    return ""


def from_elsewhere(headers: Headers, method: str) -> str:
    """Why a request is another site's, by what browsers say of it; "" where it is not.

    A link to the page is followed.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in ("same-origin", "none"):
        return ""
    if site is None:
        if origin is None or urlsplit(origin).netloc.lower() == headers["host"].lower():
            return ""
    elif method == "GET" and headers.get("sec-fetch-mode") == "navigate":
        return ""
    return f"A page of another site ({(origin or site or '')[:100]}) may not ask this one; a proxy hands on the Host that it was asked by."


def _host(given: str) -> str:
    """The name of "name:port", in small letters; "" where it is none."""
    try:
        return (urlsplit(f"//{given}").hostname or "").rstrip(".")
    except ValueError:
        return ""
