"""Limits of the page's connections: how many there are, and how long and how large a request's header may be.

uvicorn has no limit of time for a connection that sends nothing, or a header that never ends; its ``limit_concurrency``
counts such connections, and answers no others then.
"""

from __future__ import annotations

import logging
from asyncio import Transport
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn import Server

log = logging.getLogger(__name__)

#: Seconds that a connection may take to send a complete header, its first or its next one.
PATIENCE = 15.0
#: Bytes of a header.
LARGEST = 64 << 10
#: Connections at once, and the share of the descriptors of this process that they may be: answering needs some, too.
MOST, SHARE = 512, 0.5
#: Connections that wait to be accepted. All of them are accepted in one go, before any is counted.
BACKLOG = 128


def limit_connections(server: Server) -> None:
    """Make a server of uvicorn that has not started close connections that are too many, too slow or too large."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    connections: set[Any] = server.server_state.connections
    most, now = _most(), 0

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """A connection, and the second in which it began to wait for the header that it waits for."""

        waits_since, seen, in_header, unread = 0, None, False, 0

        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self.waits_since = now
            if len(connections) > most:
                waiting = [one for one in connections if _waits(one) and one is not self]
                # The one that has kept the page waiting for longest makes room; without any, the page is busy.
                _end(min(waiting, key=lambda one: one.waits_since, default=self))

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.unread = self.unread + len(data) if self.in_header else 0
            if self.unread > LARGEST:
                _end(self)

        # Of httptools, whose parser has no limit; h11 has one of 64 KiB.
        def on_message_begin(self) -> None:
            self.in_header = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.in_header = False
            super().on_headers_complete()

    async def look() -> None:
        nonlocal now
        now += 1
        for one in [*connections]:
            if not isinstance(one, Limited):
                continue
            if not _waits(one) or one.cycle is not one.seen:
                one.waits_since, one.seen = now, one.cycle
            elif now - one.waits_since > PATIENCE:
                _end(one)

    server.config.http = Limited
    server.config.backlog = BACKLOG
    server.config.callback_notify, server.config.timeout_notify = look, 1


def _waits(connection: Any) -> bool:
    """Whether a connection of uvicorn waits for a request's header."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or bool(cycle.response_complete)


def _end(connection: Any) -> None:
    """Close a connection without waiting for the other side; it counts no longer from now on."""
    if connection.transport is not None:
        connection.transport.abort()
    connection.connections.discard(connection)


def _most() -> int:
    """Number of connections at once: `MOST`, or less where a process may have few descriptors."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(8, min(MOST, int(SHARE * soft)))
