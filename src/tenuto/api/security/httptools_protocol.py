"""The bounded HTTP protocol on httptools; `http_protocol` describes the limits."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenuto.api.security.http_protocol import MAX_HEAD_BYTES, HeadTimer


class BoundedHttpToolsProtocol(HeadTimer, HttpToolsProtocol):
    """Protocol for CPython."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._start_head_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head_bytes(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head_bytes(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        super().on_headers_complete()

    def _count_head_bytes(self, *parts: bytes) -> None:
        self._head_bytes += sum(len(part) for part in parts)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(f"the request head has more than {MAX_HEAD_BYTES:,} bytes")  # uvicorn answers with 400
