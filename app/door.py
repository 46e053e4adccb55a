"""Who may ask the page, and how long a request may take to arrive: looked at before anything is read."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from app.serving import Limits

#: Bytes a second that keep a request going beyond the seconds that each has.
SLOWEST = 16 << 10


@dataclass
class Visits:
    """What the door of one page knows of those who come.

    Attributes
    ----------
    names : hosts that the page is asked by, in small letters; an address in numbers is one always.
    arriving : requests whose bodies are being read.
    broken_off : requests so far whose bodies never came whole: the client left, or was too slow.
    """

    names: set[str] = field(default_factory=set)
    arriving: int = 0
    broken_off: int = 0


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
