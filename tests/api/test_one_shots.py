"""``/api/schedule`` (O1–O6): the life of a one-shot as a client of the API sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from tenuto import Context, Tenuto
from tenuto.api.application import api, guarded
from tenuto.ids import new_id
from tenuto.model.actors import Role
from tests.support.waiting import eventually

HELLO = {"exec_at": "2056-07-07T15:00:00+08:00", "prompt_type": "log.append", "payload": {"message": "Hello"}}


@asynccontextmanager
async def calling(app: Tenuto, role: Role) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who calls with a key of this role."""
    _, key = await app.keys.make(f"client-{role.word}-{new_id().hex[-6:]}", role)
    transport = httpx2.ASGITransport(app=guarded(app, api(app)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


@pytest.fixture
async def client(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    async with calling(app, Role.ADMIN) as client:
        yield client


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def ended(client: httpx2.AsyncClient, location: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(location, params={"history": True})).json()
        return found if "ended_at" in found else None

    told: dict[str, Any] = await eventually(look)
    return told


async def test_the_life_of_a_one_shot_from_its_creation_to_the_wipe(app: Tenuto, client: httpx2.AsyncClient) -> None:
    made = await client.post("/api/schedule", json={**HELLO, "tags": ["a", "b"]})
    assert made.status_code == 202
    id = made.json()["transaction_id"]
    assert made.headers["location"] == f"/api/schedule/{id}/status"
    assert made.json() == {"transaction_id": id, "exec_at_utc": "2056-07-07T07:00:00Z", "prompt_type": "log.append"}
    status = (await client.get(made.headers["location"])).json()
    assert (status["transaction_id"], status["runtimeStatus"], status["output"]) == (id, "Pending", None)
    assert status["input"]["message"] == "Hello"
    assert "history" not in status
    listed = (await client.get("/api/schedule")).json()
    assert list(listed) == [id]
    assert listed[id]["exec_at_utc"] == "2056-07-07T07:00:00Z"
    assert (listed[id]["prompt_type"], listed[id]["tags"]) == ("log.append", ["a", "b"])
    assert (await client.delete(f"/api/schedule/{id}")).status_code == 204
    assert (await client.get("/api/schedule")).json() == {}
    assert (await client.get(made.headers["location"])).json()["runtimeStatus"] == "Terminated"
    assert (await client.delete(f"/api/schedule/{id}")).status_code == 204, "it is gone from the registry, as asked"
    for unknown in (str(new_id()), "nonsense"):
        assert (await client.delete(f"/api/schedule/{unknown}")).status_code == 404
        assert (await client.get(f"/api/schedule/{unknown}/status")).status_code == 404
    several = [(await client.post("/api/schedule", json=HELLO)).json()["transaction_id"] for _ in range(3)]
    wiped = (await client.delete("/api/schedule")).json()
    assert (sorted(wiped["terminated"]), wiped["total"]) == (sorted(several), 3)
    assert (await client.delete("/api/schedule")).json() == {"terminated": [], "total": 0, "stopping": []}
    assert len((await client.get("/api/schedule", params={"ended": True, "status": "Terminated"})).json()) == 4


async def test_it_runs_on_time_and_its_story_can_be_read(app: Tenuto, client: httpx2.AsyncClient) -> None:
    @app.job(name="report.send")
    async def send(to: str, ctx: Context) -> str:
        if to == "nobody":
            raise ValueError("nobody is there")
        if to == "for ever":
            await asyncio.sleep(60)
        return f"sent to {to}"

    async with app.worker(slots=5, poll_seconds=60, grace_seconds=0):
        at = soon(0.3)
        answers = [
            await client.post("/api/schedule", json={"exec_at": when, "prompt_type": type, "payload": payload, **more})
            for when, type, payload, more in [
                (at, "log.append", {"message": "Hello", "log": "greetings"}, {}),
                (soon(-3600), "report.send", {"to": "Ana"}, {}),
                (soon(0), "report.send", {"to": "nobody"}, {}),
                (soon(0), "report.send", {"to": "nobody"}, {"retry": {"max_retries": 2, "base_seconds": 0}}),
                (soon(0), "report.send", {"to": "for ever"}, {}),
            ]
        ]
        assert [answer.status_code for answer in answers] == [202] * 5, [answer.text for answer in answers]
        hello, late, failed, again, forever = (answer.headers["location"] for answer in answers)
        told = await ended(client, hello)
        assert told["runtimeStatus"] == "Completed"
        lateness = datetime.fromisoformat(told["started_at"]) - datetime.fromisoformat(at)
        assert timedelta(0) <= lateness < timedelta(seconds=10), "it was found by chance, at a look around"
        assert [event["event"] for event in told["history"]] == ["Created", "Scheduled", "Started", "Completed"]
        assert (await ended(client, late))["output"] == "sent to Ana"
        told = await ended(client, failed)
        assert (told["runtimeStatus"], told["error"]["message"]) == ("Failed", "nobody is there")
        assert "stack" not in str(told)
        told = await ended(client, again)
        assert (told["runtimeStatus"], told["attempts"]) == ("Failed", 2)
        assert "Retried" in [event["event"] for event in told["history"]]
        running = answers[4].json()["transaction_id"]

        async def has_begun() -> bool:
            return bool((await client.get(forever)).json()["runtimeStatus"] == "Running")

        await eventually(has_begun)
        assert list((await client.get("/api/schedule", params={"status": "running"})).json()) == [running]
        assert (await client.delete(f"/api/schedule/{running}")).status_code == 204
        assert (await client.get("/api/schedule")).json() == {}
        assert (await ended(client, forever))["runtimeStatus"] == "Terminated"


async def test_what_is_not_acceptable_is_refused_with_the_name_of_its_field(client: httpx2.AsyncClient) -> None:
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
        ({"retry": {"max_retries": -1}}, "retry.max_retries"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 1e9}, "timeout_seconds"),
        ({"prio": 1}, "prio"),
    ]
    for change, field in changes:
        refused = await client.post("/api/schedule", json={**HELLO, **change})
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json"), change
        assert [error["field"] for error in refused.json()["errors"]] == [field], change
    assert (await client.get("/api/schedule")).json() == {}


async def test_a_request_with_a_key_is_done_once_however_often_it_is_sent(client: httpx2.AsyncClient) -> None:
    key = {"Idempotency-Key": "order-7"}
    answers = [await client.post("/api/schedule", json=HELLO, headers=key) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    at_once = await asyncio.gather(
        *(client.post("/api/schedule", json=HELLO, headers={"Idempotency-Key": "order-8"}) for _ in range(5))
    )
    assert all(answer.status_code in (202, 409) for answer in at_once), [answer.text for answer in at_once]
    assert len({answer.json()["transaction_id"] for answer in at_once if answer.status_code == 202}) == 1
    assert len((await client.get("/api/schedule")).json()) == 2
    other = await client.post("/api/schedule", json={**HELLO, "tags": ["x"]}, headers=key)
    assert other.status_code == 422


async def test_the_registry_is_read_page_by_page_and_searched(client: httpx2.AsyncClient) -> None:
    made = [
        (await client.post("/api/schedule", json={**HELLO, "exec_at": soon(60 + n), "tags": [f"t{n % 2}"]})).json()
        for n in range(5)
    ]
    ids = [each["transaction_id"] for each in made]
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
    until = made[2]["exec_at_utc"]
    assert list((await client.get("/api/schedule", params={"until": until})).json()) == ids[:2]
    for query in ({"limit": 0}, {"after": "x"}, {"status": "Asleep"}, {"since": "yesterday"}, {"search": ""}):
        assert (await client.get("/api/schedule", params=query)).status_code == 422, query


async def test_who_may_do_what(app: Tenuto, client: httpx2.AsyncClient) -> None:
    id = (await client.post("/api/schedule", json=HELLO)).json()["transaction_id"]
    async with calling(app, Role.VIEWER) as viewer, calling(app, Role.OPERATOR) as operator:
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
    written = await (await app.open()).all("SELECT action, target, actor_name FROM tenuto.audit ORDER BY at, id")
    deeds = [(row["action"], row["target"]) for row in written if row["action"].startswith("one_shot")]
    assert deeds[0] == ("one_shot.create", id)
    assert deeds[-1] == ("one_shot.cancel", id)
    assert [action for action, _ in deeds] == ["one_shot.create", "one_shot.create", "one_shot.cancel"]
    assert len({target for _, target in deeds}) == 2


CALL = {"exec_at": HELLO["exec_at"], "prompt_type": "http.call"}


@pytest.mark.parametrize(
    "payload",
    [
        {"url": {"secret": "hr/database"}},
        {"url": "https://example.org", "headers": {"x-token": {"secret": "hr/database", "prefix": "Bearer "}}},
        {"url": "https://example.org", "method": "POST", "body": {"deep": [{"down": {"secret": "hr/database"}}]}},
    ],
    ids=["as the address", "in a header", "deep in a body"],
)
async def test_who_may_not_edit_definitions_cannot_have_a_secret_sent_anywhere(
    app: Tenuto, payload: dict[str, Any]
) -> None:
    async with calling(app, Role.OPERATOR) as operator, calling(app, Role.EDITOR) as editor:
        refused = await operator.post("/api/schedule", json={**CALL, "payload": payload})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "payload")
        assert (await editor.post("/api/schedule", json={**CALL, "payload": payload})).status_code == 202
