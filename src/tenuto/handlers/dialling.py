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
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

import httpcore2
import httpx2

from tenuto.handlers import addresses
from tenuto.handlers.addresses import Address, Allowance

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses a host name stands for."""

_SHARE_SECONDS = 5.0
"""How long one of several addresses may keep silent before the next is tried."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def own_addresses() -> frozenset[Address]:
    """The addresses of this machine."""
    import psutil

    found = set()
    for interface in psutil.net_if_addrs().values():
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
        *others, last = addresses.callable_ones(host, found, self._allowance, self._own)
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
        given = addresses.literal(host)
        if given is not None:
            return [given]
        try:
            answer = await self._resolve(host, port)
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
