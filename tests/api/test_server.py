"""The web server on a real socket: streams, malformed requests, TLS settings, proxies and logging."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from tenuto import Tenuto, logs
from tenuto.errors import EngineError
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tenuto.web.server import require_tls_beyond_loopback, web_server
from tests.api.conftest import assert_problem, register_jobs
from tests.support.certificates import create_certificate
from tests.support.errors import raises_code
from tests.support.waiting import eventually

LINE_COUNT = 60_000


@pytest.mark.slow
async def test_web_server_accepts_streams_and_refuses_malformed_requests(url: str, tmp_path: Path) -> None:
    app = register_jobs(Tenuto(url, home=tmp_path))
    _, key = await app.api_keys.create("admin", Role.ADMIN)
    auth = {"Authorization": f"Bearer {key}"}
    async with (
        web_server(app, port=0) as address,
        httpx2.AsyncClient(base_url=address, headers=auth, timeout=60) as http,
    ):
        manifest = {"external_id": "many/all", "job": "double", "on_demand": True}
        assert (await http.post("/api/v1/manifests", json=manifest)).status_code == 201
        assert (await http.get("/api/v1/manifests/many%2Fall")).json()["external_id"] == "many/all"

        path = "/api/v1/manifests/many%2Fall/bulk"
        ndjson = {"Content-Type": "application/x-ndjson"}
        tracemalloc.start()
        done = await http.post(f"{path}?batch_key=all", content=_json_lines(), headers=ndjson)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (done.status_code, done.json()["item_count"]) == (202, LINE_COUNT), done.text
        assert peak < 24_000_000, f"{peak:,} bytes for {LINE_COUNT:,} lines"

        await _send_partial_body(address, key, f"{path}?batch_key=cut")
        batch = await eventually(lambda: _find_incomplete_batch(app))
        again = await http.post(f"{path}?batch_key=cut", content=b'{"n": 1}\n' * 3000, headers=ndjson)
        assert (again.json()["id"], again.json()["item_count"]) == (str(batch), 3000)

        host, _, port = address.removeprefix("http://").partition(":")
        assert b"400" in (await _send_raw(host, int(port), b"\x00\x01nonsense\r\n\r\n")).split(b"\r\n")[0]
        smuggled = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n{}"
        assert b"400" in (await _send_raw(host, int(port), smuggled)).split(b"\r\n")[0]
        other_host = await _send_raw(
            host, int(port), b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert b"421" in other_host.split(b"\r\n")[0]
        assert b"\nserver:" not in other_host.lower()
    await app.close()


async def _json_lines() -> AsyncIterator[bytes]:
    for start in range(0, LINE_COUNT, 1000):
        yield b"".join(b'{"n": %d}\n' % number for number in range(start, start + 1000))


async def _send_partial_body(address: str, key: str, path: str) -> None:
    """Send a part of the announced body and disconnect."""
    host, _, port = address.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/x-ndjson\r\nContent-Length: 999999\r\n\r\n".encode()
        + b"".join(json.dumps({"n": 1}).encode() + b"\n" for _ in range(2500))
    )
    await writer.drain()
    await asyncio.sleep(0)
    writer.close()
    await writer.wait_closed()


async def _find_incomplete_batch(app: Tenuto) -> object:
    found = [batch for batch in await app.batches.list() if batch.key == "cut"]
    return found[0].id if found else None


async def _send_raw(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(10):
        response = await reader.read(4096)
    writer.close()
    return response


def test_web_server_requires_tls_or_a_proxy_beyond_loopback(tmp_path: Path) -> None:
    with raises_code("web.tls.missing"):
        require_tls_beyond_loopback(load_settings(home=tmp_path), "0.0.0.0")
    require_tls_beyond_loopback(load_settings(home=tmp_path, web_behind_proxy=True), "0.0.0.0")
    require_tls_beyond_loopback(load_settings(home=tmp_path), "::1")


# --- TLS ------------------------------------------------------------------------------------------------------------


async def test_web_server_checks_the_certificate_before_it_listens(url: str, tmp_path: Path) -> None:
    certificate, key = create_certificate(tmp_path, "localhost", named="good")
    _, other = create_certificate(tmp_path, "localhost", named="other")
    locked_certificate, locked = create_certificate(tmp_path, "localhost", named="locked", password=b"pass")
    nonsense, nowhere = tmp_path / "nonsense", tmp_path / "nowhere"
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    cases = [
        (nowhere, key, "web_tls_certificate", "web.tls.file.unreadable"),
        (tmp_path, key, "web_tls_certificate", "web.tls.file.unreadable"),
        (nonsense, key, "web_tls_certificate", "web.tls.certificate.invalid"),
        (None, key, "web_tls_certificate", "web.tls.certificate.missing"),
        (certificate, nowhere, "web_tls_key", "web.tls.file.unreadable"),
        (certificate, nonsense, "web_tls_key", "web.tls.key.invalid"),
        (certificate, other, "web_tls_key", "web.tls.key.invalid"),
        (certificate, None, "web_tls_key", "web.tls.key.invalid"),
        (locked_certificate, locked, "web_tls_key", "web.tls.key.invalid"),
    ]
    with socket.socket() as taken:  # listening first would fail with another error
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for certificate_file, key_file, field, code in cases:
            app = Tenuto(
                settings=load_settings(
                    database=url, home=tmp_path, web_tls_certificate=certificate_file, web_tls_key=key_file
                )
            )
            with raises_code(code) as refused:
                async with web_server(app, port=taken.getsockname()[1]):
                    pass
            assert (refused.value.field, bool(refused.value.remedy)) == (field, True), (certificate_file, key_file)
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, web_tls_certificate=certificate, web_tls_key=key))
    trust = ssl.create_default_context(cafile=certificate)
    async with web_server(app, "localhost", 0) as address, httpx2.AsyncClient(base_url=address, verify=trust) as http:
        assert address.startswith("https://localhost:")
        assert (await http.get("/healthz")).text == "ok\n"
    await app.close()


# --- logging -------------------------------------------------------------------------------------------


async def test_web_server_warns_about_a_remote_proxy_without_address(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = "127.1"  # loopback, but not recognised as such
    for host, settings, warns in (
        (remote, {"web_behind_proxy": True}, True),
        (remote, {"web_behind_proxy": True, "web_proxies": ("10.0.0.1",)}, False),
        ("127.0.0.1", {"web_behind_proxy": True}, False),
        ("127.0.0.1", {}, False),
    ):
        caplog.clear()
        app = Tenuto(settings=load_settings(database=url, home=tmp_path, **settings))
        async with web_server(app, host, 0):
            pass
        await app.close()
        assert ("set web_proxies" in caplog.text) == warns, (host, settings)


@pytest.mark.parametrize("form", [None, "console", "json"])
@pytest.mark.parametrize("error", [ZeroDivisionError, EngineError])
async def test_web_server_logs_an_unexpected_error_once_with_its_request_id(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    form: Literal["console", "json"] | None,
    error: type[Exception],
) -> None:
    app = Tenuto(url, home=tmp_path)
    _, key = await app.api_keys.create("admin", Role.ADMIN)

    async def fail_unexpectedly(**_: Any) -> Any:
        raise error("a secret text")

    monkeypatch.setattr(app, "workers", fail_unexpectedly)
    if form is not None:
        logs.configure(form)
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "the-one"}
    async with web_server(app, port=0) as address, httpx2.AsyncClient(base_url=address, headers=headers) as http:
        problem = assert_problem(await http.get("/api/v1/workers"), 500, "internal.error")
    await app.close()
    assert "secret" not in json.dumps(problem)
    written = caplog.text if form is None else capfd.readouterr().err
    assert written.count("Traceback (most recent call last)") == 1, written
    assert written.count("in fail_unexpectedly") == 1
    assert "request failed" in written
    assert "the-one" in written
