"""The web service process: uvicorn with bounded request heads, TLS checks and the first API key.

It binds to loopback by default. On other addresses it requires TLS, or a proxy that provides it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from tenuto import processes
from tenuto.api.application import add_middleware
from tenuto.api.long_polling import waiting_requests
from tenuto.api.problems import SuppressLoggedErrors
from tenuto.api.replica_reads import replica_reads
from tenuto.api.routes.event_stream import close_event_streams
from tenuto.api.security.http_protocol import MAX_HEAD_BYTES, select_protocol
from tenuto.api.security.proxy_login import ProxyMiddleware, check_proxy_login
from tenuto.app import Tenuto
from tenuto.errors import Conflict, Invalid, TenutoError
from tenuto.logs import Log
from tenuto.service.health_file import HealthFile
from tenuto.service.polling_loop import (
    PollingLoop,
    leave_loaded_code_out_of_garbage_collections,
    reduce_garbage_collection,
    retry_until_database_answers,
)
from tenuto.service.process_identity import ProcessIdentity
from tenuto.service.service_protocol import ProcessRole, Service, run_services
from tenuto.settings import Settings
from tenuto.web.application import create_web_application
from tenuto.web.rendering import compile_templates

_SOCKET_BACKLOG = 2048
_HEARTBEAT_SECONDS = 5.0
_GARBAGE_COLLECTION_THRESHOLD = 50_000
"""A large page consists of 30,000 objects. With a threshold below that, nearly each request for one was interrupted by
a collection, which took a sixth of its time (benchmark `dashboard`)."""

log = Log("tenuto.web")


# --- running the server -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def web_server(
    app: Tenuto, host: str | None = None, port: int | None = None, *, reload: bool = False
) -> AsyncIterator[str]:
    """Run the web server for the duration of the block; yield its address.

    For ``reload`` see `create_web_application`.
    """
    settings = app.settings
    host, port = host or settings.web_host, settings.web_port if port is None else port
    require_tls_beyond_loopback(settings, host)
    check_tls_files(settings)
    check_proxy_login(settings)
    warn_about_unknown_proxies(settings, host)
    api = create_web_application(app, reload=reload)
    reads = replica_reads(api)
    config = uvicorn.Config(
        ProxyMiddleware(SuppressLoggedErrors(add_middleware(app, api)), settings),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        proxy_headers=False,  # ProxyMiddleware does it, after it has seen the address of the peer
        ssl_certfile=settings.web_tls_certificate,
        ssl_keyfile=settings.web_tls_key,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        http=select_protocol(),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=5000,
    )
    server = _Server(config)
    reduce_garbage_collection(_GARBAGE_COLLECTION_THRESHOLD)
    scheme = "https" if settings.web_tls_certificate else "http"
    url_host = f"[{host}]" if ":" in host else host
    with _listen(host, port) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]), name="tenuto-web")
        warming: asyncio.Task[None] | None = None
        # In a thread, so that requests are answered meanwhile; until then they would be slow.
        compiling = asyncio.create_task(asyncio.to_thread(compile_templates, api.state.dashboard.environment))
        try:
            while not server.started:
                if running.done():
                    await running
                    raise Conflict("the web server did not start", code="web.start.failed")
                await asyncio.sleep(0.005)
            await compiling
            leave_loaded_code_out_of_garbage_collections("web")
            warming = asyncio.create_task(_warm_up(app), name="tenuto-web-warm-up")
            services: list[Service] = [*app.extension_registry.background_services(ProcessRole.WEB)]
            if reads is not None:
                services.append(PollingLoop("tenuto-replica", reads.replica.run_cycle, log))
            async with run_services(services):
                yield f"{scheme}://{url_host}:{listener.getsockname()[1]}{settings.web_path}"
        finally:
            server.should_exit = True
            waiting_requests(api).close()
            await close_event_streams(api)
            await running
            await compiling
            if warming is not None:
                warming.cancel()
                await asyncio.gather(warming, return_exceptions=True)
            if reads is not None:
                await reads.replica.close()


async def _warm_up(app: Tenuto) -> None:
    """Load the overview, so that the first visitor does not wait for a connection and the plans of its statements: they
    took two thirds of the time of that page (benchmark `dashboard`)."""
    with suppress(TenutoError):  # the page itself reports that the database does not answer
        await app.reports.overview()


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: `service.signals` handles them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def web_server_with_health(
    app: Tenuto, host: str | None = None, port: int | None = None, *, reload: bool = False
) -> AsyncIterator[str]:
    """Run the web server beside other services of the process, and write its health file; yield its address."""
    identity = ProcessIdentity.acquire("web", app.settings.home)
    file = HealthFile(app.settings.home, "web", lambda: identity.name)

    async def write_health_file() -> None:
        while True:
            file.write()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    try:
        async with web_server(app, host, port, reload=reload) as address:
            file.announce(address)
            heartbeats = asyncio.create_task(write_health_file(), name="tenuto-web-health")
            try:
                yield address
            finally:
                heartbeats.cancel()
    finally:
        file.remove()
        identity.release()


async def run_web_service(
    app: Tenuto,
    *,
    host: str | None = None,
    port: int | None = None,
    name: str | None = None,
    reload: bool = False,
    ready: Callable[[str, Path | None], None] = lambda _address, _key: None,
) -> None:
    """Run the web service until a signal stops it.

    ``ready`` is called with the address and with the path of the first API key, if this start created it.
    """
    identity = ProcessIdentity.acquire("web", app.settings.home, name)

    async def serve(stopped: asyncio.Event, health_file: HealthFile) -> None:
        key_path: Path | None = None

        async def create_first_key() -> None:
            nonlocal key_path
            created = await app.api_keys.create_initial_key(app.settings.home)
            key_path = None if created is None else created[0]

        async with web_server(app, host, port, reload=reload) as address:
            if not await retry_until_database_answers(create_first_key, stopped.is_set, log):
                return
            log.info("web service started", address=address)
            health_file.announce(address)
            ready(address, key_path)
            while not stopped.is_set():
                health_file.write()
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        await stopped.wait()
                except TimeoutError:
                    continue

    try:
        connect = partial(app.connect_for_services, connect_seconds=0.0)
        await processes.run_web(connect, app.settings, app.extension_registry, identity, serve)
    finally:
        await app.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_SOCKET_BACKLOG)
    except OSError as error:
        listener.close()
        raise Conflict(
            f"the web service cannot listen on {host}:{port}: {error.strerror}",
            code="web.port.unavailable",
            field="web_port",
            remedy="another process may use the port: choose one with `--port N` (0 for any free port) or"
            " `TENUTO_WEB_PORT`, or use `tenuto up --no-web`",
        ) from error
    listener.setblocking(False)
    return listener


# --- checks of the settings -------------------------------------------------------------------------------------------


def require_tls_beyond_loopback(settings: Settings, host: str) -> None:
    """Refuse to listen beyond loopback without TLS or a proxy that provides it."""
    if _is_loopback(host) or settings.web_behind_proxy or settings.web_tls_certificate:
        return
    raise Invalid(
        f"web_host {host} is reachable from other machines, but TLS is not configured",
        code="web.tls.missing",
        field="web_host",
        remedy="set TENUTO_WEB_TLS_CERTIFICATE and TENUTO_WEB_TLS_KEY; behind a TLS proxy TENUTO_WEB_BEHIND_PROXY=true",
    )


def check_tls_files(settings: Settings) -> None:
    """Check that certificate and key are readable and fit together, before the server listens."""
    certificate, key = settings.web_tls_certificate, settings.web_tls_key
    if certificate is None:
        if key is None:
            return
        raise Invalid(
            "web_tls_key is set, but web_tls_certificate is not",
            code="web.tls.certificate.missing",
            field="web_tls_certificate",
            remedy="set both or none",
        )
    _check_readable(certificate, "web_tls_certificate")
    _check_readable(key or certificate, "web_tls_key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise Invalid(
            f"web_tls_certificate {certificate} contains no certificate: {_ssl_reason(error)}",
            code="web.tls.certificate.invalid",
            field="web_tls_certificate",
            remedy="name a file in PEM format with the certificate, followed by its intermediate certificates",
        ) from error
    try:
        context.load_cert_chain(
            certificate, key, password=lambda: ""
        )  # an encrypted key must not prompt for a password
    except ssl.SSLError as error:
        raise Invalid(
            f"{key or certificate} contains no key for the certificate in {certificate}: {_ssl_reason(error)}",
            code="web.tls.key.invalid",
            field="web_tls_key",
            remedy="name the file with the key of the certificate, in PEM format and without a password",
        ) from error


def _check_readable(path: Path, field: str) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise Invalid(
            f"{field} {path} cannot be read: {error.strerror}",
            code="web.tls.file.unreadable",
            field=field,
            remedy="name an existing file that the user of the web service may read",
        ) from error


def _ssl_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def warn_about_unknown_proxies(settings: Settings, host: str) -> None:
    """Warn if a proxy on another machine is configured without its address.

    Its forwarded headers are then ignored: all callers share its address, so failed authentications of one caller limit
    all of them, and their requests count as plain HTTP.
    """
    if settings.web_behind_proxy and not settings.web_proxies and not _is_loopback(host):
        log.warning(
            "forwarded headers ignored: address of the proxy not configured",
            setting="web_proxies",
            remedy="set web_proxies to the addresses or networks of the proxy",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
