"""The HTTP transport for plain code of extensions: it connects to allowed addresses only, as HTTP steps do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2
import pytest

from tenuto.errors import Forbidden
from tenuto.extension import open_http_transport
from tenuto.steps import http_transport
from tenuto.steps.address_policy import AllowList
from tests.support.waiting import eventually_blocking

BLOCKED = ("127.0.0.1", "169.254.169.254", "10.1.2.3", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1]")


@pytest.fixture
def port() -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(url: str, *allowed: str) -> int:
    with httpx2.Client(transport=open_http_transport(allowed), trust_env=False) as client:
        return client.get(url).status_code


@pytest.mark.parametrize("host", BLOCKED)
async def test_blocking_transport_refuses_what_http_steps_refuse(host: str) -> None:
    with pytest.raises(Forbidden) as refused:
        get(f"http://{host}:9/")
    assert refused.value.code == "step.http.url.not_allowed"
    backend = http_transport.CheckedNetworkBackend(AllowList(), http_transport.resolve)
    async with http_transport.CheckedTransport(backend) as transport:
        with pytest.raises(Forbidden) as same:
            await transport.handle_async_request(httpx2.Request("GET", f"http://{host}:9/"))
    assert same.value.message == refused.value.message


def test_blocking_transport_calls_listed_hosts_and_networks(port: int) -> None:
    assert get(f"http://127.0.0.1:{port}/", "127.0.0.0/8") == 204
    assert get(f"http://localhost:{port}/", "localhost") == 204
    with pytest.raises(Forbidden, match=r"localhost resolves to"):
        get(f"http://localhost:{port}/", "example.org")


def test_blocking_transport_connects_to_the_checked_address(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["127.0.0.1", "127.0.0.2"]
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        return original(answers.pop(0) if host == "rebinding.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert get(f"http://rebinding.test:{port}/", "127.0.0.1") == 204
    assert answers == ["127.0.0.2"], "the name was resolved a second time"


def test_blocking_transport_reports_a_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(httpx2.ConnectError, match="the host name cannot be resolved"):
        get("http://nowhere.test/")


def test_blocking_transport_gives_up_a_name_whose_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread for each call: lookups wait in the queue of the resolver, and abandoned ones are dropped."""
    is_released, looked_up = threading.Event(), list[str]()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> Any:
        looked_up.append(host)
        assert is_released.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    resolver = http_transport.NameResolver(max_threads=1, timeout_seconds=0.05)
    monkeypatch.setattr(http_transport, "_resolver", resolver)
    try:
        for name in ("first", "second", "third"):
            with pytest.raises(httpx2.ConnectError, match="could not be resolved in time"):
                get(f"http://{name}.test/")
    finally:
        is_released.set()
    eventually_blocking(lambda: resolver._idle_count == 1)
    assert resolver._thread_count == 1
    assert len(looked_up) <= 1, "an abandoned lookup was made"
