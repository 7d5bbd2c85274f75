"""The web service's process: a uvicorn server for as long as it is wanted.

It binds to loopback unless told otherwise; further out it asks for TLS, or for the word that a proxy has it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from tenuto import processes
from tenuto.api.application import api, guarded
from tenuto.api.http_protocol import BoundedLine
from tenuto.api.problems import ToldOnce
from tenuto.api.routes.events import end_streams
from tenuto.app import Tenuto
from tenuto.errors import Conflict, Invalid
from tenuto.logs import Log
from tenuto.service.polling_loop import collect_garbage_less_often, once_the_database_answers
from tenuto.service.process_identity import Identity
from tenuto.settings import Settings

_BACKLOG = 2048
_BEAT_SECONDS = 5.0

log = Log("tenuto.web")


@asynccontextmanager
async def serving(app: Tenuto, host: str | None = None, port: int | None = None) -> AsyncIterator[str]:
    """The web service beside the caller's own code, for as long as the block lasts; its address."""
    settings = app.settings
    host, port = host or settings.web_host, settings.web_port if port is None else port
    refuse_to_be_seen(settings, host)
    refuse_unusable_tls(settings)
    warn_of_unknown_proxies(settings, host)
    made = api(app)
    config = uvicorn.Config(
        ToldOnce(guarded(app, made)),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        proxy_headers=settings.web_behind_proxy,
        forwarded_allow_ips=",".join(settings.web_proxies) or "127.0.0.1",
        ssl_certfile=settings.web_tls_certificate,
        ssl_keyfile=settings.web_tls_key,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        http=BoundedLine,
        limit_concurrency=5000,
    )
    server = _Server(config)
    collect_garbage_less_often()
    scheme = "https" if settings.web_tls_certificate else "http"
    shown = f"[{host}]" if ":" in host else host
    with _listen(host, port) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]), name="tenuto-web")
        try:
            while not server.started:
                if running.done():
                    await running
                    raise Conflict("the web server did not start")
                await asyncio.sleep(0.005)
            yield f"{scheme}://{shown}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await end_streams(made)
            await running


class _Server(uvicorn.Server):
    """Signals are the service's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: see `service.signals`."""
        yield


async def run_web(
    app: Tenuto,
    *,
    host: str | None = None,
    port: int | None = None,
    name: str | None = None,
    ready: Callable[[str, Path | None], None] = lambda _address, _key: None,
) -> None:
    """Be a web service until told to stop by a signal. ``ready`` hears where it listens, and where the first key is
    kept if it has just been made."""
    identity = Identity.take("web", app.settings.home, name)

    async def serve(stopped: asyncio.Event, beat: Callable[[], None]) -> None:
        place: Path | None = None

        async def make_the_first_key() -> None:
            nonlocal place
            made = await app.keys.first(app.settings.home)
            place = None if made is None else made[0]

        async with serving(app, host, port) as address:
            # Told below: not before it is sure that it listens.
            if not await once_the_database_answers(make_the_first_key, stopped.is_set, log):
                return
            log.info("web ready", address=address)
            ready(address, place)
            while not stopped.is_set():
                beat()
                try:
                    async with asyncio.timeout(_BEAT_SECONDS):
                        await stopped.wait()
                except TimeoutError:
                    continue

    try:
        await processes.run_beside(app.connect_for_services, app.settings, identity, serve)
    finally:
        await app.close()


def refuse_to_be_seen(settings: Settings, host: str) -> None:
    """Beyond this machine only with TLS, or behind a proxy that has it."""
    if _is_loopback(host) or settings.web_behind_proxy or settings.web_tls_certificate:
        return
    raise Invalid(
        f"{host} can be reached from other machines, and there is no TLS",
        field="web_host",
        remedy="give web_tls_certificate and web_tls_key, or say web_behind_proxy if a proxy has them",
    )


def refuse_unusable_tls(settings: Settings) -> None:
    """What is to prove who we are can be read and fits together; said before anybody listens."""
    certificate, key = settings.web_tls_certificate, settings.web_tls_key
    if certificate is None:
        if key is None:
            return
        raise Invalid("is missing, and web_tls_key is given", field="web_tls_certificate", remedy="give both or none")
    _refuse_unreadable(certificate, "web_tls_certificate")
    _refuse_unreadable(key or certificate, "web_tls_key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise Invalid(
            f"{certificate} holds no certificate: {_words(error)}",
            field="web_tls_certificate",
            remedy="name a file in PEM format: the certificate, and after it those that vouch for it",
        ) from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise Invalid(
            f"{key or certificate} holds no key for the certificate in {certificate}: {_words(error)}",
            field="web_tls_key",
            remedy="name the file with the certificate's own key, in PEM format and without a password",
        ) from error


def _refuse_unreadable(path: Path, field: str) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror}",
            field=field,
            remedy="name a file that is there, and that the account of the web service may read",
        ) from error


def _no_password() -> str:
    """Asked for if a key is sealed with one: nobody is here to type it, and it would be waited for."""
    return ""


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def warn_of_unknown_proxies(settings: Settings, host: str) -> None:
    """A proxy elsewhere than on this machine is believed only if it is known. If not, nothing fails, and much is
    lost: all callers come from its one address, which the guesses of one close to others, and by plain HTTP."""
    if settings.web_behind_proxy and not settings.web_proxies and not _is_loopback(host):
        log.warning(
            "the proxy is not known, and what it says of callers is not believed unless it is on this machine",
            setting="web_proxies",
            remedy="set web_proxies to the addresses or networks its requests come from",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror}",
            field="web_port",
            remedy="another process may have it: `--port N` (0 for any that is free), `TENUTO_WEB_PORT`,"
            " or `tenuto up --no-web`",
        ) from error
    listening.setblocking(False)
    return listening
