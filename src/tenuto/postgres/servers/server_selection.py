"""Connect to the server of a database that has the wanted role.

The driver tries the servers of a URL one after the other under one time limit, so that a machine that answers nothing
would hide the servers behind it. Here a further server is tried when one fails or has not answered within a second, and
the first one with the wanted role is used. New connections try the last one used first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

import asyncpg

from tenuto.postgres.servers.server_addresses import (
    PREFER_STANDBY,
    DatabaseAddress,
    ServerAddress,
    parse_database_url,
)

_NEXT_SERVER_SECONDS = 1.0
"""How long a server may take to answer before the next one is tried too."""
_UNACKNOWLEDGED_SECONDS = 10
"""How long a machine may leave data unacknowledged, and an idle connection unanswered, before it counts as lost."""

_last_used: dict[str, ServerAddress] = {}
"""The server that was used last, by URL. All event loops of the process share it; it only affects the order."""

_FIRST_OWN_TYPE = 16384
"""Types with smaller numbers are built in, and the same on all servers of one version."""
_built_in_types: dict[tuple[int, frozenset[int]], Any] = {}
"""What the driver reads about built-in types, by version of the server and types."""


class NoSuitableServer(ConnectionError):
    """None of the servers of a URL can be used now."""


class UnsuitableServer(ConnectionError):
    """The server of a URL must not be used."""


class ReadOnlyServer(UnsuitableServer):
    """The server of a URL does not have the wanted role."""


ConnectionCheck = Callable[[asyncpg.Connection], Awaitable[None]]
"""Raises `UnsuitableServer` if the server of a new connection must not be used."""


class ConnectionGate:
    """Checks every new connection of a database; without a check, all are accepted."""

    def __init__(self) -> None:
        self.check: ConnectionCheck | None = None


class ServerConnection(asyncpg.Connection):
    """A connection that breaks when the machine of the server has vanished, instead of waiting for minutes."""

    def __init__(self, protocol: Any, transport: asyncio.Transport, *arguments: Any) -> None:
        super().__init__(protocol, transport, *arguments)
        _limit_silence(transport.get_extra_info("socket"))

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> tuple[Any, Any]:
        """Return the descriptions of types that the driver does not know, such as arrays.

        The driver reads them on every connection, for each statement with further types: three round trips and 4 ms of
        the server's CPU time. Those of built-in types are read once per process.
        """
        if max(typeoids) >= _FIRST_OWN_TYPE:
            return await super()._introspect_types(typeoids, timeout)  # type: ignore[misc, no-any-return]
        key = self.get_server_version().major, frozenset(typeoids)
        types = _built_in_types.get(key)
        if types is not None:
            return types, _NotExecuted
        types, statement = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        _built_in_types[key] = types
        return types, statement


class _NotExecuted:
    """What the driver needs to know of a query that was not executed: it has not replaced the unnamed statement."""

    name = "not executed"


def _limit_silence(connection: Any) -> None:
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    options = {
        "TCP_USER_TIMEOUT": _UNACKNOWLEDGED_SECONDS * 1000,
        "TCP_KEEPIDLE": _UNACKNOWLEDGED_SECONDS // 2,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 3,
    }
    with suppress(OSError):  # not every platform has these; statements have time limits of their own
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def connect(
    url: str,
    *,
    timeout: float = 10.0,
    connection_class: type[asyncpg.Connection] = ServerConnection,
    gate: ConnectionGate | None = None,
    **options: Any,
) -> asyncpg.Connection:
    """Connect to a server of the URL that has the role ``target_session_attrs`` and that the gate accepts.

    It takes the arguments of `asyncpg.connect`, so that a pool can use it.
    """
    address = parse_database_url(url)
    options |= {"connection_class": connection_class}
    async with asyncio.timeout(timeout):
        if address.target != PREFER_STANDBY:
            return await _connect_to_any(url, address, address.target, gate, options)
        try:
            return await _connect_to_any(url, address, "standby", gate, options)
        except (NoSuitableServer, UnsuitableServer):
            return await _connect_to_any(url, address, None, gate, options)


async def _connect_to_any(
    url: str, address: DatabaseAddress, target: str | None, gate: ConnectionGate | None, options: dict[str, Any]
) -> asyncpg.Connection:
    options = {**options, "target_session_attrs": target or "any"}
    if not address.has_several_servers:
        return await _connect_to_server(address, address.servers[0], target, gate, options)
    waiting = sorted(address.servers, key=lambda server: server != _last_used.get(url))
    pending: dict[asyncio.Task[asyncpg.Connection], ServerAddress] = {}
    failures: dict[ServerAddress, BaseException] = {}
    try:
        while waiting or pending:
            if waiting:
                server = waiting.pop(0)
                pending[
                    asyncio.create_task(
                        _connect_to_server(
                            address, server, target, gate, {**options, "host": server.host, "port": server.port}
                        )
                    )
                ] = server
            done, _ = await asyncio.wait(
                pending, timeout=_NEXT_SERVER_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            chosen: asyncpg.Connection | None = None
            for task in done:
                server = pending.pop(task)
                failure = task.exception()
                if failure is not None:
                    failures[server] = failure
                elif chosen is None:
                    chosen = task.result()
                    _last_used[url] = server
                else:
                    task.result().terminate()
            if chosen is not None:
                return chosen
        raise _summarize(failures)
    finally:
        for task in pending:
            task.cancel()
            task.add_done_callback(_discard)


async def _connect_to_server(
    address: DatabaseAddress,
    server: ServerAddress,
    target: str | None,
    gate: ConnectionGate | None,
    options: dict[str, Any],
) -> asyncpg.Connection:
    try:
        connection: asyncpg.Connection = await asyncpg.connect(address.url, **options)
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise _wrong_role_error(server, target) from error
    if gate is not None and gate.check is not None:
        try:
            await gate.check(connection)
        except BaseException:
            connection.terminate()
            raise
    return connection


def _discard(task: asyncio.Task[asyncpg.Connection]) -> None:
    """Close a connection that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _wrong_role_error(server: ServerAddress, target: str | None) -> ReadOnlyServer:
    if target in ("read-write", "primary"):
        return ReadOnlyServer(f"the server on {server} is a read-only standby")
    return ReadOnlyServer(f"the server on {server} is not a standby")


def _summarize(failures: dict[ServerAddress, BaseException]) -> BaseException:
    """Return one error for all servers. If one of them may be usable later, so may be the database."""
    lasting = [error for error in failures.values() if not _is_transient(error)]
    if len(lasting) == len(failures):
        return lasting[0]
    return NoSuitableServer("; ".join(_describe_failure(server, error) for server, error in failures.items()))


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(("08", "53", "57"))
    return isinstance(error, (OSError, asyncpg.InternalClientError, TimeoutError))


def _describe_failure(server: ServerAddress, error: BaseException) -> str:
    if isinstance(error, UnsuitableServer):
        return str(error)
    if isinstance(error, ConnectionRefusedError):
        return f"no server listens on {server}"
    if isinstance(error, socket.gaierror):
        return f"unknown host name {server.host}"
    return f"{server}: {str(error).partition(chr(10))[0] or type(error).__name__}"
