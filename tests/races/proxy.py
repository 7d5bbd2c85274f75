"""A man in the middle: between a client and the real server, it loses replies, falls silent, or forgets notifications.

It understands just enough of PostgreSQL's protocol to know which statement a client has sent and where a reply ends.
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
class _Line:
    """One connection through the proxy."""

    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    prepared: dict[str, str] = field(default_factory=dict)
    current: str = ""
    transaction: str = ""
    """Everything sent since the last BEGIN."""
    said: set[str] = field(default_factory=set)
    silent: bool = False
    held_until: float = 0.0
    losing: bool = False
    """The reply under way does not reach the client; at its end both sides are cut off."""

    def cut(self) -> None:
        for _, writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Listens on a port of this machine and leads to the server of an address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        where = parse_qs(parts.query)
        self._socket = Path(where["host"][0]) / f".s.PGSQL.{where['port'][0]}"
        self._user, self._database = parts.username, parts.path
        self._lines: set[_Line] = set()
        self._carriers: set[asyncio.Task[None]] = set()
        self._to_lose: Callable[[_Line], bool] = lambda _line: False
        self._lose_before = False
        self.delays: dict[str, float] = {}
        """How many seconds the reply to a statement takes."""
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self.deaf = False
        """Notifications get lost."""
        self.lost = 0
        """How many replies were lost so proxied_db."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What happens between the loss of a reply and the moment the client learns that its line is cut."""
        self.before: tuple[str, Callable[[], Awaitable[object]]] | None = None
        """A statement, and what happens just before it reaches the server; once."""
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._arrived, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}{self._database}?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        while self._carriers:
            for carrier in self._carriers:
                carrier.cancel()
            await asyncio.wait(self._carriers, timeout=1)

    # --- faults -----------------------------------------------------------------------------------------------------

    def lose_reply(self, statement: str, *, within: str = "", times: int = 1) -> None:
        """The next statement that begins so is carried out, but its reply does not arrive and the line is cut.

        ``within`` narrows it to transactions that have sent such a text.
        """
        self._lose(statement, within, times, before=False)

    def lose_request(self, statement: str, *, within: str = "", times: int = 1) -> None:
        """The next statement that begins so never reaches the server, and the line is cut."""
        self._lose(statement, within, times, before=True)

    def fall_silent(self) -> None:
        """Nothing passes any more, and nobody is told: not even new lines are answered."""
        self._open.clear()

    def silence(self, statement: str) -> None:
        """The lines that have said so, so proxied_db, fall silent for ever and without an end; new ones work."""
        for line in self._lines:
            line.silent = line.silent or any(said.startswith(statement) for said in line.said)

    def heal(self) -> None:
        """What was said meanwhile arrives after all."""
        self._open.set()

    def cut_all(self) -> None:
        for line in list(self._lines):
            line.cut()

    @property
    def listeners(self) -> int:
        """How many lines that hear have said LISTEN."""
        return sum(not line.silent and any(said.startswith("LISTEN") for said in line.said) for line in self._lines)

    def _lose(self, statement: str, within: str, times: int, *, before: bool) -> None:
        left = times
        self.lost = 0
        self._lose_before = before

        def chosen(line: _Line) -> bool:
            nonlocal left
            if left and line.current.startswith(statement) and within in line.transaction:
                left -= 1
                self.lost += 1
                return True
            return False

        self._to_lose = chosen

    # --- carrying ---------------------------------------------------------------------------------------------------

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrier = asyncio.create_task(self._carry(reader, writer))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_unix_connection(str(self._socket))
        except OSError:  # it is down: so is the line to it
            writer.transport.abort()
            return
        line = _Line((reader, writer), server)
        self._lines.add(line)
        try:
            await asyncio.gather(self._upwards(line), self._downwards(line))
        finally:
            self._lines.discard(line)
            line.cut()
            for _, end in (line.client, line.server):
                with suppress(OSError):
                    await end.wait_closed()

    async def _upwards(self, line: _Line) -> None:
        """From the client to the server."""
        reader, writer = line.client[0], line.server[1]
        try:
            first = await reader.readexactly(8)
            length, code = struct.unpack("!ii", first)
            writer.write(first + await reader.readexactly(length - 8))
            while code != _CANCEL_REQUEST:
                kind, body = await _message(reader)
                await self._open.wait()
                self._notice(line, kind, body)
                if self.before is not None and self._is_sent_off(line, kind) and line.current == self.before[0]:
                    _, action = self.before
                    self.before = None
                    await action()
                if line.silent:
                    continue
                if self._is_sent_off(line, kind) and self._to_lose(line):
                    if self._lose_before:
                        break
                    line.losing = True
                if self._is_sent_off(line, kind) and line.current in self.delays:
                    line.held_until = time.monotonic() + self.delays[line.current]
                writer.write(kind + struct.pack("!i", len(body) + 4) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not line.losing and not line.silent:
            line.cut()

    async def _downwards(self, line: _Line) -> None:
        """From the server to the client."""
        reader, writer = line.server[0], line.client[1]
        try:
            while True:
                kind, body = await _message(reader)
                await self._open.wait()
                await asyncio.sleep(max(0, line.held_until - time.monotonic()))
                if line.losing:
                    if kind == b"Z":
                        if self.meanwhile is not None:
                            await self.meanwhile()
                        break
                elif not line.silent and not (self.deaf and kind == b"A"):
                    writer.write(kind + struct.pack("!i", len(body) + 4) + body)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        if not line.silent:
            line.cut()

    def _notice(self, line: _Line, kind: bytes, body: bytes) -> None:
        """Remember what is being said."""
        if kind == b"P":
            name, statement, _ = body.split(b"\0", 2)
            line.prepared[name.decode()] = statement.decode()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            line.current = line.prepared.get(name.decode(), "")
        elif kind == b"Q":
            line.current = body.rstrip(b"\0").decode()
        if kind in (b"B", b"Q"):
            line.transaction = line.current if line.current.startswith("BEGIN") else line.transaction + line.current
            line.said.add(line.current)

    def _is_sent_off(self, line: _Line, kind: bytes) -> bool:
        """Whether with this message the current statement is on its way; a COPY is with its last one."""
        return kind == b"c" if line.current.startswith("COPY") else kind in (b"B", b"Q")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)
