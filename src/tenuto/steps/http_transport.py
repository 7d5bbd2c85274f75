"""Connections for HTTP calls: resolve a host name once, check its addresses, and connect to a checked address.

The Host header, SNI and the certificate check still use the name. Because the name is not resolved again, a DNS server
that answers differently the second time gains nothing. `address_policy` decides which addresses are allowed. Imported
only when a call is made, because the HTTP libraries are slow to import.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import httpcore2
import httpx2

from tenuto.steps import address_policy
from tenuto.steps.address_policy import Address, AllowList

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name."""

_CONNECT_TIMEOUT_SECONDS = 5.0
"""How long one of several addresses may not respond before the next is tried."""
_RESOLVE_TIMEOUT_SECONDS = 20.0
_KEEPALIVE_SECONDS = 15.0
_MAX_RESOLVER_THREADS = 32
_DISCARD_PORT = 9
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
AddressInfos = Sequence[tuple[Any, ...]]


class NameResolver:
    """Resolves host names with the functions of the system, on a few dedicated threads.

    The shared threads of the event loop are not used: a lookup blocks for as long as a name server does not answer, and
    cannot be cancelled. Callers wait while all threads are busy, up to their own time limit. The threads are daemons.
    """

    def __init__(
        self, max_threads: int = _MAX_RESOLVER_THREADS, timeout_seconds: float = _RESOLVE_TIMEOUT_SECONDS
    ) -> None:
        self._max_threads = max_threads
        self._timeout_seconds = timeout_seconds
        self._requests: SimpleQueue[tuple[Future[AddressInfos], str, int]] = SimpleQueue()
        self._count_lock = threading.Lock()
        self._thread_count = 0
        self._idle_count = 0
        """Threads without work for which no queued request is intended."""
        self._backlog_count = 0
        """Requests queued while no thread was idle and no more could be started."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        answer = self._request(host, port)
        async with asyncio.timeout(self._timeout_seconds):
            return _distinct_addresses(await asyncio.wrap_future(answer))

    def resolve_blocking(self, host: str, port: int) -> Sequence[str]:
        """Like `resolve`, for plain code in a thread."""
        answer = self._request(host, port)
        try:
            return _distinct_addresses(answer.result(self._timeout_seconds))
        finally:
            answer.cancel()  # after the time limit, no thread looks up a name that is still queued

    def _request(self, host: str, port: int) -> Future[AddressInfos]:
        answer: Future[AddressInfos] = Future()
        with self._count_lock:
            if self._idle_count:
                self._idle_count -= 1
            elif self._thread_count < self._max_threads:
                threading.Thread(target=self._serve, name="tenuto-resolver", daemon=True).start()
                self._thread_count += 1
            else:
                self._backlog_count += 1
            self._requests.put((answer, host, port))
        return answer

    def _serve(self) -> None:
        while True:
            answer, host, port = self._requests.get()
            if answer.set_running_or_notify_cancel():  # else the caller has given up
                try:
                    answer.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
                except BaseException as error:  # noqa: BLE001 — the caller gets every error
                    answer.set_exception(error)
            with self._count_lock:
                if self._backlog_count:
                    self._backlog_count -= 1
                else:
                    self._idle_count += 1


def _distinct_addresses(infos: AddressInfos) -> Sequence[str]:
    return list(dict.fromkeys(str(each[4][0]) for each in infos))


_resolver = NameResolver()


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host name with the functions of the system."""
    return await _resolver.resolve(host, port)


def resolve_blocking(host: str, port: int) -> Sequence[str]:
    """Like `resolve`, with the same threads and time limit, for plain code in a thread."""
    return _resolver.resolve_blocking(host, port)


def is_local_address(address: Address) -> bool:
    """Whether an address belongs to this machine: the system then connects to it from that very address.

    Connecting a datagram socket sends nothing. An address without a route is not local, and cannot be called either.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:  # the answer is unknown, and a local address must not be called
            raise httpcore2.ConnectError(_root_cause(error)) from None
        return False


class CheckedNetworkBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections to allowed addresses only."""

    def __init__(self, allow_list: AllowList, resolve: Resolve) -> None:
        self._allow_list = allow_list
        self._resolve = resolve
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._addresses(host, port)
        *others, last = address_policy.check_addresses(host, found, self._allow_list, is_local_address)
        for address in others:
            try:
                return await self._backend.connect_tcp(str(address), port, timeout=_CONNECT_TIMEOUT_SECONDS)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        try:
            return await self._backend.connect_tcp(str(last), port)  # guard: http_call.checked_address
        except httpcore2.ConnectError as error:
            raise httpcore2.ConnectError(_root_cause(error)) from None

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        literal = address_policy.parse_address(host)
        if literal is not None:
            return [literal]
        try:
            answer = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectError("the host name could not be resolved in time") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("the host name cannot be resolved") from None
        if not answer:
            raise httpcore2.ConnectError("the host name has no address")
        return [ipaddress.ip_address(each) for each in answer]


def _root_cause(error: BaseException) -> str:
    """Return the text of the innermost error; the outer ones only say that all attempts failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)


class CheckedBlockingBackend(httpcore2.NetworkBackend):
    """Opens connections to allowed addresses only, for plain code in a thread. `CheckedNetworkBackend` has the same
    rules for coroutines; tests/steps/test_blocking_transport.py checks that both refuse the same addresses."""

    def __init__(self, allow_list: AllowList, resolve: Callable[[str, int], Sequence[str]] = resolve_blocking) -> None:
        self._allow_list = allow_list
        self._resolve = resolve
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        found = self._addresses(host, port)
        *others, last = address_policy.check_addresses(host, found, self._allow_list, is_local_address)
        for address in others:
            try:
                return self._backend.connect_tcp(str(address), port, timeout=_CONNECT_TIMEOUT_SECONDS)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        try:
            return self._backend.connect_tcp(str(last), port, timeout=timeout)  # guard: http_call.checked_blocking
        except httpcore2.ConnectError as error:
            raise httpcore2.ConnectError(_root_cause(error)) from None

    def _addresses(self, host: str, port: int) -> Sequence[Address]:
        literal = address_policy.parse_address(host)
        if literal is not None:
            return [literal]
        try:
            answer = self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectError("the host name could not be resolved in time") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("the host name cannot be resolved") from None
        if not answer:
            raise httpcore2.ConnectError("the host name has no address")
        return [ipaddress.ip_address(each) for each in answer]


class CheckedBlockingTransport(httpx2.HTTPTransport):
    """HTTP over a `CheckedBlockingBackend`: certificates are verified, no proxies; connections are reused."""

    def __init__(
        self, allow_list: AllowList, ssl_context: ssl.SSLContext | None = None, max_connections: int = 1
    ) -> None:
        self._pool = httpcore2.ConnectionPool(
            ssl_context=ssl_context or _default_ssl_context(),
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_KEEPALIVE_SECONDS,
            network_backend=CheckedBlockingBackend(allow_list),
        )


class CheckedTransport(httpx2.AsyncHTTPTransport):
    """HTTP over a `CheckedNetworkBackend`: certificates are verified, no proxies, no reuse of connections."""

    def __init__(self, backend: CheckedNetworkBackend, ssl_context: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or _default_ssl_context(),
            max_connections=1,
            max_keepalive_connections=0,
            network_backend=backend,
        )


@lru_cache(maxsize=1)
def _default_ssl_context() -> ssl.SSLContext:
    """Return the certificates that the system trusts, or SSL_CERT_FILE. Cached, because reading them is slow."""
    return httpx2.create_ssl_context()
