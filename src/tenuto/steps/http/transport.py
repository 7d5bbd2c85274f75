"""Dials for the calls of steps: a name is resolved once, what it stands for is checked, and the checked address itself
is dialled. Host, SNI and certificate go by the name all the same.

So a name that answers otherwise when it is asked again leads nowhere: nobody asks again. Decides nothing about
addresses (see `addresses`) and knows nothing about steps. Imported only when a call is made: HTTP is heavy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import httpcore2
import httpx2

from tenuto.errors import EngineError
from tenuto.steps.http import address_policy
from tenuto.steps.http.address_policy import Address, Allowance

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses a host name stands for."""

_SHARE_SECONDS = 5.0
"""How long one of several addresses may keep silent before the next is tried."""


_LOOKUP_SECONDS = 20.0
_MOST_LOOKUPS = 32
Found = Sequence[tuple[Any, ...]]


class Lookups:
    """Asks the system for addresses, on a few threads of its own.

    Not on those everybody on the loop shares: asking blocks, for as long as a name server keeps silent, and nothing
    can break it off. Whoever asks while all are busy waits for his turn, and for no longer than he likes. The threads
    keep no process from ending.
    """

    def __init__(self, most: int = _MOST_LOOKUPS) -> None:
        self._most = most
        self._asked: SimpleQueue[tuple[Future[Found], str, int]] = SimpleQueue()
        self._counting = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that have nothing to do, and for which nothing is meant that waits to be fetched."""
        self._behind = 0
        """What came while there was none, and no more could be had."""

    async def find(self, host: str, port: int) -> Sequence[str]:
        answer: Future[Found] = Future()
        with self._counting:
            if self._free:
                self._free -= 1
            elif self._threads < self._most:
                threading.Thread(target=self._serve, name="tenuto-lookup", daemon=True).start()
                self._threads += 1
            else:
                self._behind += 1
            self._asked.put((answer, host, port))
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await asyncio.wrap_future(answer)
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    def _serve(self) -> None:
        while True:
            answer, host, port = self._asked.get()
            if answer.set_running_or_notify_cancel():  # else nobody waits for it any more
                try:
                    answer.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
                except BaseException as error:  # noqa: BLE001 — whatever it is, it is for whoever asked
                    answer.set_exception(error)
            with self._counting:
                if self._behind:
                    self._behind -= 1
                else:
                    self._free += 1


_lookups = Lookups()


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system."""
    return await _lookups.find(host, port)


class OwnAddressesUnknown(EngineError):
    """The system does not say which addresses this machine has."""


def own_addresses() -> frozenset[Address]:
    """The addresses of this machine. Whoever cannot have them must not call: one that is not known is not closed."""
    import psutil

    try:
        interfaces = psutil.net_if_addrs()
    except OSError as error:
        raise OwnAddressesUnknown(
            f"the system does not list the addresses of this machine: {_reason(error)}",
            remedy="let the worker use AF_NETLINK sockets; under systemd it belongs into RestrictAddressFamilies",
        ) from error
    found = set()
    for interface in interfaces.values():
        for each in interface:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                found.add(ipaddress.ip_address(each.address.partition("%")[0]))
    return frozenset(found)


class Dialler(httpcore2.AsyncNetworkBackend):
    """Opens connections to addresses that may be called, and to no others."""

    def __init__(self, allowance: Allowance, resolve: Resolve, own: Collection[Address]) -> None:
        self._allowance = allowance
        self._resolve = resolve
        self._own = own
        self._wire = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._addresses(host, port)
        *others, last = address_policy.callable_ones(host, found, self._allowance, self._own)
        for address in others:
            try:
                return await self._wire.connect_tcp(str(address), port, timeout=_SHARE_SECONDS)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        try:
            return await self._wire.connect_tcp(str(last), port)
        except httpcore2.ConnectError as error:
            raise httpcore2.ConnectError(_reason(error)) from None

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        given = address_policy.literal(host)
        if given is not None:
            return [given]
        try:
            answer = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectError("its name could not be resolved in time") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("its name cannot be resolved") from None
        if not answer:
            raise httpcore2.ConnectError("its name stands for no address")
        return [ipaddress.ip_address(each) for each in answer]


def _reason(error: BaseException) -> str:
    """The innermost reason; the outer ones say that all attempts failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)


class CheckedTransport(httpx2.AsyncHTTPTransport):
    """HTTP over what a `Dialler` opens: certificates verified, no proxies, nothing kept from call to call."""

    def __init__(self, dialler: Dialler, trust: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust or _trust(), max_connections=1, max_keepalive_connections=0, network_backend=dialler
        )


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """Whose certificates are taken: those the system trusts, or SSL_CERT_FILE. Reading them takes a while."""
    return httpx2.create_ssl_context()
