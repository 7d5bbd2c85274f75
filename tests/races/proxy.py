"""A proxy between a client and the real server that loses replies, stalls connections or drops notifications.

It parses just enough of the PostgreSQL protocol to know the current statement and the end of a reply.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_CANCEL_REQUEST = 80877102


@dataclass(eq=False)
class _ProxiedConnection:
    """One connection through the proxy."""

    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    prepared: dict[str, str] = field(default_factory=dict)
    statement: str = ""
    transaction_text: str = ""
    """All statements since the last BEGIN."""
    sent_statements: set[str] = field(default_factory=set)
    is_stalled: bool = False
    delayed_until: float = 0.0
    is_losing_reply: bool = False
    """The current reply is dropped; at its end both sides are disconnected."""

    def disconnect(self) -> None:
        for _, writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Listens on a local port and forwards to the server of a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        where = parse_qs(parts.query)
        self._socket = Path(where["host"][0]) / f".s.PGSQL.{where['port'][0]}"
        self._user, self._database = parts.username, parts.path
        self._connections: set[_ProxiedConnection] = set()
        self._forwarders: set[asyncio.Task[None]] = set()
        self._should_lose: Callable[[_ProxiedConnection], bool] = lambda _line: False
        self._lose_request_itself = False
        self.delays: dict[str, float] = {}
        """Delay in seconds of the reply to a statement."""
        self._forwarding = asyncio.Event()
        self._forwarding.set()
        self._server: asyncio.Server | None = None
        self.drops_notifications = False
        self._is_refusing = False
        self.lost = 0
        """Number of lost replies and requests."""
        self.after_loss: Callable[[], Awaitable[object]] | None = None
        """Runs between the loss of a reply and the disconnection of the client."""
        self.before_statement: tuple[str, Callable[[], Awaitable[object]]] | None = None
        """A statement, and a callback that runs once just before the statement reaches the server."""
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}{self._database}?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        while self._forwarders:
            for carrier in self._forwarders:
                carrier.cancel()
            await asyncio.wait(self._forwarders, timeout=1)

    # --- faults -----------------------------------------------------------------------------------------------------

    def lose_reply(self, statement: str, *, within: str = "", times: int = 1) -> None:
        """Execute the next statement with this prefix, but drop its reply and disconnect.

        ``within`` restricts this to transactions that contain the text.
        """
        self._lose(statement, within, times, before=False)

    def lose_request(self, statement: str, *, within: str = "", times: int = 1) -> None:
        """Drop the next statement with this prefix before it reaches the server, and disconnect."""
        self._lose(statement, within, times, before=True)

    def stall(self) -> None:
        """Forward nothing more, without disconnecting; new connections get no reply either."""
        self._forwarding.clear()

    def stall_connections(self, statement: str) -> None:
        """Stall the connections that have sent this statement; new connections work."""
        for connection in self._connections:
            connection.is_stalled = connection.is_stalled or any(
                sent.startswith(statement) for sent in connection.sent_statements
            )

    def resume(self) -> None:
        """Forward again, including the messages sent meanwhile."""
        self._forwarding.set()

    def refuse(self) -> None:
        """Disconnect all clients and refuse new ones, as a stopped server does."""
        self._is_refusing = True
        self.disconnect_all()

    def accept(self) -> None:
        """Accept connections again."""
        self._is_refusing = False

    def disconnect_all(self) -> None:
        for connection in list(self._connections):
            connection.disconnect()

    @property
    def listener_count(self) -> int:
        """Number of working connections that have sent LISTEN."""
        return sum(
            not connection.is_stalled and any(sent.startswith("LISTEN") for sent in connection.sent_statements)
            for connection in self._connections
        )

    def _lose(self, statement: str, within: str, times: int, *, before: bool) -> None:
        left = times
        self.lost = 0
        self._lose_request_itself = before

        def chosen(connection: _ProxiedConnection) -> bool:
            nonlocal left
            if left and connection.statement.startswith(statement) and within in connection.transaction_text:
                left -= 1
                self.lost += 1
                return True
            return False

        self._should_lose = chosen

    # --- forwarding -------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        carrier = asyncio.create_task(self._forward(reader, writer))
        self._forwarders.add(carrier)
        carrier.add_done_callback(self._forwarders.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_unix_connection(str(self._socket))
        except OSError:  # the server is down
            writer.transport.abort()
            return
        connection = _ProxiedConnection((reader, writer), server)
        self._connections.add(connection)
        try:
            await asyncio.gather(self._forward_to_server(connection), self._forward_to_client(connection))
        finally:
            self._connections.discard(connection)
            connection.disconnect()
            for _, end in (connection.client, connection.server):
                with suppress(OSError):
                    await end.wait_closed()

    async def _forward_to_server(self, connection: _ProxiedConnection) -> None:
        reader, writer = connection.client[0], connection.server[1]
        try:
            first = await reader.readexactly(8)
            length, code = struct.unpack("!ii", first)
            writer.write(first + await reader.readexactly(length - 8))
            while code != _CANCEL_REQUEST:
                kind, body = await _read_message(reader)
                await self._forwarding.wait()
                self._track_statement(connection, kind, body)
                if (
                    self.before_statement is not None
                    and self._completes_request(connection, kind)
                    and connection.statement == self.before_statement[0]
                ):
                    _, action = self.before_statement
                    self.before_statement = None
                    await action()
                if connection.is_stalled:
                    continue
                if self._completes_request(connection, kind) and self._should_lose(connection):
                    if self._lose_request_itself:
                        break
                    connection.is_losing_reply = True
                if self._completes_request(connection, kind) and connection.statement in self.delays:
                    connection.delayed_until = time.monotonic() + self.delays[connection.statement]
                writer.write(kind + struct.pack("!i", len(body) + 4) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not connection.is_losing_reply and not connection.is_stalled:
            connection.disconnect()

    async def _forward_to_client(self, connection: _ProxiedConnection) -> None:
        reader, writer = connection.server[0], connection.client[1]
        try:
            while True:
                kind, body = await _read_message(reader)
                await self._forwarding.wait()
                await asyncio.sleep(max(0, connection.delayed_until - time.monotonic()))
                if connection.is_losing_reply:
                    if kind == b"Z":
                        if self.after_loss is not None:
                            await self.after_loss()
                        break
                elif not connection.is_stalled and not (self.drops_notifications and kind == b"A"):
                    writer.write(kind + struct.pack("!i", len(body) + 4) + body)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not connection.is_stalled:
            connection.disconnect()

    def _track_statement(self, connection: _ProxiedConnection, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, statement, _ = body.split(b"\0", 2)
            connection.prepared[name.decode()] = statement.decode()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            connection.statement = connection.prepared.get(name.decode(), "")
        elif kind == b"Q":
            connection.statement = body.rstrip(b"\0").decode()
        if kind in (b"B", b"Q"):
            connection.transaction_text = (
                connection.statement
                if connection.statement.startswith("BEGIN")
                else connection.transaction_text + connection.statement
            )
            connection.sent_statements.add(connection.statement)

    def _completes_request(self, connection: _ProxiedConnection, kind: bytes) -> bool:
        """Return whether this message sends the current statement; for COPY, the last message does."""
        return kind == b"c" if connection.statement.startswith("COPY") else kind in (b"B", b"Q")


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)
