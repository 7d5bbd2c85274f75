"""The lines requests come in by: how much a head may hold and how long it may take, before anybody knows the caller.

Without a bound a stranger could fill the memory with headers, or all places with requests that never end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
HEAD_SECONDS = 20.0


class TooMuch(Exception):
    """The head of a request is larger than anybody needs."""


class BoundedLine(HttpToolsProtocol):
    """A line on which the head of a request is bounded in size and time."""

    _head = 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._be_patient()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_patience()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head = 0
        self._be_patient()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._lose_patience()
        super().on_headers_complete()

    def _count(self, *parts: bytes) -> None:
        self._head += sum(len(part) for part in parts)
        if self._head > MAX_HEAD:
            raise TooMuch(f"the head of a request may have {MAX_HEAD:,} bytes")  # answered with 400

    def _be_patient(self) -> None:
        self._lose_patience()
        self._patience = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        transport: Any = self.transport
        if transport is not None and not transport.is_closing():
            transport.close()
