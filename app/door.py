"""The door of the page: what it answers at all, host names, requests of other sites, and requests that never end."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import compile_path

from app.settings import LOCAL

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Requests that may be read at once: each holds one of the descriptors that a process has, commonly 1 024.
ARRIVING = 256
#: Seconds that a request may take to arrive, and bytes a second below which it is cut off after that.
PATIENCE, SLOWEST = 30.0, 16 << 10


#: What is answered: the API, and those of Gradio's routes that the page uses in a browser. Others let a visitor do more
#: than the page offers, such as run the machine's ffmpeg on an upload.
API = ("/health", "/models", "/predict")
USED = (
    *("/", "/config", "/login", "/logout", "/theme.css", "/favicon.ico"),
    *("/assets/{path:path}", "/static/{path:path}", "/svelte/{path:path}"),
    *("/gradio_api/theme.css", "/gradio_api/startup-events", "/gradio_api/app_id"),
    *("/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/run/{api_name}"),
    *("/gradio_api/reset", "/gradio_api/cancel", "/gradio_api/heartbeat/{session_hash}"),
    *("/gradio_api/upload", "/gradio_api/upload_progress", "/gradio_api/file={path_or_url:path}"),
)
_USED = [compile_path(path)[0] for path in (*API, *USED)]


@dataclass
class Traffic:
    """Counts of a page's requests, and the host names that they may use.

    Attributes
    ----------
    names : host names of the page, in small letters; a numeric address is always allowed.
    arriving : requests whose bodies are being read.
    disconnected : requests that never arrived completely: the client left, or was too slow.
    """

    names: set[str] = field(default_factory=set)
    arriving: int = 0
    disconnected: int = 0


def host_names(host: str, more: Iterable[str] = ()) -> set[str]:
    """Host names of a page: "localhost", its address, ``more``, and this machine's name if others can reach it."""
    names = {"localhost", host, *more}
    if host not in LOCAL:
        names |= {socket.gethostname(), f"{socket.gethostname()}.local"}
    return {name.lower().rstrip(".") for name in names}


class Door:
    """ASGI middleware that refuses requests of other sites' pages, and requests that never end.

    The header ``Host`` shows a site whose name resolves to this machine (DNS rebinding), ``Sec-Fetch-Site``
    or ``Origin`` a page of another site that posts here. Programs send neither of the last two.

    Parameters
    ----------
    traffic : host names of the page, and counters.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self.app, self.traffic = app, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        if scope["type"] != "http" or not any(used.fullmatch(path) for used in _USED):
            await refuse(404, f"{path[:100]!r}: this page has nothing here.")(scope, receive, send)
            return
        message = wrong_host(headers, self.traffic.names) or cross_site(
            headers, scope.get("method", "")
        )
        if message:
            await refuse(403, message)(scope, receive, send)
        elif "transfer-encoding" in headers:  # such a request says nowhere how large it is
            message = "The header Content-Length is missing. Send the request's length in it."
            await refuse(411, message)(scope, receive, send)
        elif headers.get("content-length", "0") != "0":
            await self._with_body(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.traffic.arriving >= ARRIVING:
            message = f"Busy: {self.traffic.arriving} requests are arriving already. Try again in a moment."
            await refuse(503, message, {"Retry-After": "1"})(scope, receive, send)
            return
        body, responded = _Body(receive, self.traffic), False

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
    """The body of a request, with a time limit of `PATIENCE` and one second for each `SLOWEST` bytes."""

    def __init__(self, receive: Receive, traffic: Traffic) -> None:
        self._receive, self._traffic = receive, traffic
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
            async with asyncio.timeout_at(self._began + PATIENCE + self.bytes / SLOWEST):
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
    header, host = headers.get("host", ""), ""
    with suppress(ValueError):
        host = (urlsplit(f"//{header}").hostname or "").rstrip(".")  # in small letters
        ipaddress.ip_address(host)
        return ""
    if host in names:
        return ""
    return (
        f"Host {header[:100]!r}: not a name of this page. Its owner can add one: --allow-host NAME"
    )


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
