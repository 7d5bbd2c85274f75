"""The web service on a real socket: one start, and what only a real one can show."""

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
from tenuto.api.server import refuse_to_be_seen, serving
from tenuto.errors import EngineError, Invalid
from tenuto.model.actors import Role
from tenuto.settings import load
from tests.api.conftest import problem, with_jobs
from tests.support.certificates import a_certificate
from tests.support.waiting import eventually

LINES = 60_000


async def test_a_server_answers_takes_in_streams_and_refuses_what_is_no_request(url: str, tmp_path: Path) -> None:
    app = with_jobs(Tenuto(url, home=tmp_path))
    _, key = await app.keys.make("admin", Role.ADMIN)
    mine = {"Authorization": f"Bearer {key}"}
    async with serving(app, port=0) as address, httpx2.AsyncClient(base_url=address, headers=mine, timeout=60) as http:
        manifest = {"external_id": "many/all", "job": "double", "on_demand": True}
        assert (await http.post("/api/v1/manifests", json=manifest)).status_code == 201
        assert (await http.get("/api/v1/manifests/many%2Fall")).json()["external_id"] == "many/all"

        path = "/api/v1/manifests/many%2Fall/bulk"
        kind = {"Content-Type": "application/x-ndjson"}
        tracemalloc.start()
        done = await http.post(f"{path}?batch_key=all", content=_lines(), headers=kind)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (done.status_code, done.json()["total"]) == (202, LINES), done.text
        assert peak < 24_000_000, f"{peak:,} bytes for {LINES:,} lines"

        await _cut_off(address, key, f"{path}?batch_key=cut")
        batch = await eventually(lambda: _filling(app))
        again = await http.post(f"{path}?batch_key=cut", content=b'{"n": 1}\n' * 3000, headers=kind)
        assert (again.json()["id"], again.json()["total"]) == (str(batch), 3000)

        host, _, port = address.removeprefix("http://").partition(":")
        assert b"400" in (await _raw(host, int(port), b"\x00\x01nonsense\r\n\r\n")).split(b"\r\n")[0]
        smuggled = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n{}"
        assert b"400" in (await _raw(host, int(port), smuggled)).split(b"\r\n")[0]
        foreign = await _raw(
            host, int(port), b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert b"421" in foreign.split(b"\r\n")[0]
        assert b"\nserver:" not in foreign.lower()
    await app.close()


async def _lines() -> AsyncIterator[bytes]:
    for start in range(0, LINES, 1000):
        yield b"".join(b'{"n": %d}\n' % number for number in range(start, start + 1000))


async def _cut_off(address: str, key: str, path: str) -> None:
    """A stream of which the rest never comes."""
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


async def _filling(app: Tenuto) -> object:
    found = [batch for batch in await app.batches.list() if batch["key"] == "cut"]
    return found[0]["id"] if found else None


async def _raw(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read(4096)
    writer.close()
    return answer


def test_beyond_this_machine_it_is_seen_only_with_tls_or_behind_a_proxy(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no TLS"):
        refuse_to_be_seen(load(home=tmp_path), "0.0.0.0")
    refuse_to_be_seen(load(home=tmp_path, web_behind_proxy=True), "0.0.0.0")
    refuse_to_be_seen(load(home=tmp_path), "::1")


# --- TLS ------------------------------------------------------------------------------------------------------------


async def test_a_certificate_that_cannot_be_used_is_told_before_anybody_listens(url: str, tmp_path: Path) -> None:
    certificate, key = a_certificate(tmp_path, "localhost", named="good")
    _, other = a_certificate(tmp_path, "localhost", named="other")
    locked_certificate, locked = a_certificate(tmp_path, "localhost", named="locked", password=b"pass")
    nonsense, nowhere = tmp_path / "nonsense", tmp_path / "nowhere"
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    wrong = [
        (nowhere, key, "web_tls_certificate", "No such file"),
        (tmp_path, key, "web_tls_certificate", "Is a directory"),
        (nonsense, key, "web_tls_certificate", "holds no certificate"),
        (None, key, "web_tls_certificate", "is missing"),
        (certificate, nowhere, "web_tls_key", "No such file"),
        (certificate, nonsense, "web_tls_key", "holds no key for the certificate"),
        (certificate, other, "web_tls_key", "holds no key for the certificate"),
        (certificate, None, "web_tls_key", "holds no key for the certificate"),
        (locked_certificate, locked, "web_tls_key", "holds no key for the certificate"),
    ]
    with socket.socket() as taken:  # whoever listened first would be told of that instead
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for given, its_key, field, words in wrong:
            app = Tenuto(settings=load(database=url, home=tmp_path, web_tls_certificate=given, web_tls_key=its_key))
            with pytest.raises(Invalid, match=words) as refused:
                async with serving(app, port=taken.getsockname()[1]):
                    pass
            assert (refused.value.field, bool(refused.value.remedy)) == (field, True), (given, its_key)
    app = Tenuto(settings=load(database=url, home=tmp_path, web_tls_certificate=certificate, web_tls_key=key))
    trust = ssl.create_default_context(cafile=certificate)
    async with serving(app, "localhost", 0) as address, httpx2.AsyncClient(base_url=address, verify=trust) as http:
        assert address.startswith("https://localhost:")
        assert (await http.get("/healthz")).text == "ok\n"
    await app.close()


# --- what is written down -------------------------------------------------------------------------------------------


async def test_a_proxy_elsewhere_that_is_not_known_is_warned_of(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beyond = "127.1"  # is loopback, but does not look like it
    for host, settings, warns in (
        (beyond, {"web_behind_proxy": True}, True),
        (beyond, {"web_behind_proxy": True, "web_proxies": ("10.0.0.1",)}, False),
        ("127.0.0.1", {"web_behind_proxy": True}, False),
        ("127.0.0.1", {}, False),
    ):
        caplog.clear()
        app = Tenuto(settings=load(database=url, home=tmp_path, **settings))
        async with serving(app, host, 0):
            pass
        await app.close()
        assert ("set web_proxies" in caplog.text) == warns, (host, settings)


@pytest.mark.parametrize("form", [None, "console", "json"])
@pytest.mark.parametrize("error", [ZeroDivisionError, EngineError])
async def test_what_nobody_foresaw_is_written_down_whole_and_once_whatever_logging_is_set_up(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    form: Literal["console", "json"] | None,
    error: type[Exception],
) -> None:
    app = Tenuto(url, home=tmp_path)
    _, key = await app.keys.make("admin", Role.ADMIN)

    async def fail_unforeseen(**_: Any) -> Any:
        raise error("a secret matter")

    monkeypatch.setattr(app, "workers", fail_unforeseen)
    if form is not None:
        logs.configure(form)
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "the-one"}
    async with serving(app, port=0) as address, httpx2.AsyncClient(base_url=address, headers=headers) as http:
        told = problem(await http.get("/api/v1/workers"), 500)
    await app.close()
    assert "secret" not in json.dumps(told)
    written = caplog.text if form is None else capfd.readouterr().err
    assert written.count("Traceback (most recent call last)") == 1, written
    assert written.count("in fail_unforeseen") == 1
    assert "a request failed" in written
    assert "the-one" in written
