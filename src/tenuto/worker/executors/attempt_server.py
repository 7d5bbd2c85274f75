"""The server of a worker to which the processes of a cluster connect. It runs on the event loop of the executor.

A session is one process of the cluster and survives lost connections. After each, the process sends the numbered
messages again that the server has not confirmed. The server handles every number once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Iterable
from typing import Any, Protocol

from pydantic_core import from_json

from tenuto.logs import Log
from tenuto.worker.executors.attempt_messages import MAX_LINE_BYTES, PROTOCOL, Message, encode_line

HELLO_SECONDS = 5.0

log = Log("tenuto.executor")


class Session:
    """One process of the cluster that runs attempts for this worker."""

    def __init__(self, id: str, place: dict[str, Any]) -> None:
        self.id = id
        self.place = place
        """Where the process runs: pid, host, and the name that the engine has for it."""
        self.received = 0
        """Number of the last message that was handled."""
        self.replies: dict[int, Message] = {}
        """The latest replies to calls. The process may have lost them with the connection."""
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def send(self, message: Message) -> None:
        """Send a message if the process is connected. It is not sent again after a lost connection."""
        if self._writer is not None:
            self._writer.write(encode_line(message))

    def attach(self, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = writer

    def detach(self, writer: asyncio.StreamWriter) -> bool:
        """Forget the connection; return whether it was the current one."""
        is_current = self._writer is writer
        if is_current:
            self._writer = None
        return is_current

    def disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def describe(self) -> str:
        return f"process {self.place.get('pid')} on {self.place.get('host')}"


class SessionEvents(Protocol):
    """Receiver of the events of sessions."""

    def on_connected(self, session: Session, attempts: Iterable[str]) -> None:
        """Handle a process that has connected, for the first time or again, and runs these attempts."""
        ...

    def on_message(self, session: Session, message: Message) -> None: ...

    def on_disconnected(self, session: Session) -> None: ...

    def leases_of(self, session: Session) -> dict[str, tuple[float, float]]:
        """Renew the leases of a session. Return the seconds until code and process must have ended, by attempt."""
        ...


class AttemptServer:
    """Accepts connections of processes that know its token."""

    def __init__(self, events: SessionEvents) -> None:
        self.token = secrets.token_hex(24)
        self.port = 0
        self._events = events
        self._sessions: dict[str, Session] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, host: str | None, port: int) -> None:
        """Listen on a further address, or on all. Earlier addresses stay open for the processes that know them."""
        if host is None:
            listener = _listen_on_all_addresses(port)
            server = await asyncio.start_server(self._serve, sock=listener, limit=MAX_LINE_BYTES)
        else:
            server = await asyncio.start_server(self._serve, host, port, limit=MAX_LINE_BYTES)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for writer in list(self._connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        session: Session | None = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await _read_message(reader)
            # guard: executors.token
            if hello is None or not hmac.compare_digest(str(hello.get("token")), self.token):
                return
            if hello["protocol"] != PROTOCOL:
                log.error("cluster process rejected", reason="it runs another version of Tenuto", place=hello["place"])
                return
            session = self._sessions.setdefault(hello["session"], Session(hello["session"], hello["place"]))
            session.attach(writer)
            session.send({"kind": "welcome", "received": session.received})
            for call in hello["calls"]:
                if call in session.replies:
                    session.send(session.replies[call])
            self._events.on_connected(session, hello["attempts"])
            while (message := await _read_message(reader)) is not None:
                self._handle(session, message)
        except (OSError, ValueError, KeyError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the connection was lost, or its other side is not a process of the cluster
        finally:
            self._connections.discard(writer)
            writer.close()
            if session is not None and session.detach(writer):
                self._events.on_disconnected(session)

    def _handle(self, session: Session, message: Message) -> None:
        if message["kind"] == "ping":
            leases = self._events.leases_of(session)
            session.send({"kind": "pong", "received": session.received, "leases": leases})
            return
        if message["number"] <= session.received:  # already handled; processes skip these after the welcome
            return
        session.received = message["number"]
        self._events.on_message(session, message)
        if message["kind"] == "ended":
            session.send({"kind": "confirm", "received": session.received})

    def forget(self, session: Session) -> None:
        self._sessions.pop(session.id, None)


def _listen_on_all_addresses(port: int) -> socket.socket:
    """Listen on one port of IPv4 and, if the machine has it, IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be disabled
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


async def _read_message(reader: asyncio.StreamReader) -> Message | None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        line = await reader.readuntil(b"\n")
        message: Message = from_json(line)
        return message
    return None
