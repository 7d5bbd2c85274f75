"""HTTP protocols of the web server with limits on the size and duration of a request head.

Without them, unauthenticated clients could fill the memory with headers, or all connections with partial requests.
Uvicorn has no settings for all of them, but accepts a protocol class. `tests/api/test_http_protocol.py` fails if the
methods that these classes override change.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 4 * 1024
"""h11 limits only incomplete heads, so it gets data in pieces; a head may exceed the maximum by one piece."""


def select_protocol() -> type[asyncio.Protocol]:
    """Return the protocol of httptools, or that of h11 where httptools is not installed (see `extras`)."""
    if find_spec("httptools") is None:
        return BoundedH11Protocol
    from tenuto.api.security.httptools_protocol import BoundedHttpToolsProtocol  # its base class imports httptools

    return BoundedHttpToolsProtocol


class HeadTimer:
    """Closes a connection whose request head is not complete in time."""

    head_timeout_seconds = 20.0
    loop: Any
    transport: Any
    _head_timer: asyncio.TimerHandle | None = None

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self.head_timeout_seconds, self._close_connection)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_connection(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class BoundedH11Protocol(HeadTimer, H11Protocol):
    """Protocol for Python implementations without httptools. Uvicorn passes the maximum size of a head to h11."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and self._head_timer is None:
            self._start_head_timer()
        for start in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():  # the head was too large
                break
            super().data_received(data[start : start + _PIECE_BYTES])
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_timer()
