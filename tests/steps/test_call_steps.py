"""The step kinds http.call and log.append in schedules, run by a worker, with a secret and with TLS."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tenuto import ScheduleDefinition, Step, Tenuto
from tenuto.model.definitions.schedules import Plan
from tenuto.model.triggers import ManualTrigger
from tenuto.settings import load_settings
from tenuto.steps import http_call, http_transport
from tenuto.steps.built_in_kinds import StepServices
from tests.support.certificates import create_certificate
from tests.support.http_site import Site, make_response

CANARY = "c4n4ry-0f-the-mine"
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    app = Tenuto(
        settings=load_settings(database=url, home=tmp_path, http_allowed_hosts=["127.0.0.0/8"], master_key=KEY)
    )
    yield app
    await app.close()


async def run_schedule(app: Tenuto, *steps: Step) -> tuple[str, list[dict[str, object]]]:
    """Create and run a schedule; return its state and the activities of its steps."""
    await app.schedules.create(ScheduleDefinition("Calls", ManualTrigger(), Plan.from_steps(steps)))
    started = await app.schedules.run("Calls")
    assert started.execution_id is not None
    async with app.worker(slots=4, poll_seconds=60, grace_seconds=0):
        ended = await app.executions.wait(started.execution_id, timeout=30)
    database = await app.open()
    rows = await database.fetch_all("SELECT * FROM tenuto.activities ORDER BY step_index, attempt")
    return ended.state, [dict(row) for row in rows]


async def test_schedule_with_http_calls_stores_no_secret(app: Tenuto) -> None:
    await app.secrets.set("hr-token", CANARY)
    with Site() as site:
        site.pages["/echo"] = lambda asked, send: send(
            make_response(200, json.dumps(asked.headers).encode(), "Content-Type: application/json", f"ETag: {CANARY}")
        )
        site.pages["/shy"] = [make_response(503, b"", "Retry-After: 0"), make_response(204)]
        state, records = await run_schedule(
            app,
            Step.http(site.url("/echo?a=b"), headers={"Authorization": {"secret": "hr-token", "prefix": "Bearer "}}),
            Step.http(site.url("/shy"), "PUT", body={"n": 1}, timeout=5),
            Step.log("all called", "calls", fields={"steps": 2}),
        )
        assert state == "completed"
        echo, shy, shy_again = site.requests
    assert echo.headers["authorization"] == f"Bearer {CANARY}"
    assert shy.headers["idempotency-key"] == shy_again.headers["idempotency-key"]
    assert (shy.headers["tenuto-attempt"], shy_again.headers["tenuto-attempt"]) == ("1", "2")
    assert int(shy_again.headers["tenuto-fence"]) > int(shy.headers["tenuto-fence"])
    assert [(record["name"], record["status"]) for record in records] == [
        ("http.call", "completed"),
        ("http.call", "failed"),
        ("http.call", "completed"),
        ("log.append", "completed"),
    ]
    assert CANARY not in str(records)
    (entry,) = await app.logs.read("calls")
    assert (entry.message, entry.fields) == ("all called", {"steps": 2})


async def test_http_call_verifies_the_certificate_against_the_host_name(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, key = create_certificate(tmp_path, "secure.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, key)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    app.jobs.handlers_by_kind[http_call.KIND] = http_call.create_job(
        StepServices(app.open, lambda: app.settings, app.secrets.resolve_text), resolve
    )
    with Site(ssl_context=context) as site:
        site.pages["/"] = make_response(200, b"safe")
        once: dict[str, Any] = {"max_attempts": 1, "continue_on_failure": True}
        try:
            http_transport._default_ssl_context.cache_clear()
            _, (unknown,) = await run_schedule(app, Step.http(site.url("/", "secure.example"), **once))
            assert "certificate" in str(unknown["error"]).lower()
            assert site.requests == []

            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            http_transport._default_ssl_context.cache_clear()
            await app.schedules.delete("Calls")
            _, (*_, good, wrong) = await run_schedule(
                app,
                Step.http(site.url("/", "secure.example"), name="good", **once),
                Step.http(site.url("/", "other.example"), name="wrong", **once),
            )
        finally:
            http_transport._default_ssl_context.cache_clear()
    assert json.loads(str(good["output"]))["body"] == "safe"
    assert "other.example" in str(wrong["error"])
    assert "certificate" in str(wrong["error"]).lower()
    assert [asked.headers["host"] for asked in site.requests] == [f"secure.example:{site.port}"]
