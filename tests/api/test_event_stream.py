"""Event streams: coalesced changes by topic, resumed by event id, ended with the API key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenuto import Step, Tenuto, manual
from tenuto.api.routes import event_stream
from tenuto.api.routes.event_stream import ServerSentEvent
from tenuto.model.access.actors import Role
from tenuto.web.server import web_server
from tests.api.conftest import assert_problem
from tests.support.waiting import eventually

Event = dict[str, Any]


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    app = Tenuto(url, home=tmp_path)

    @app.job
    async def hello() -> None: ...

    app.schedule("Greeting", manual(), [Step.job(hello), Step.job(hello, name="again")])
    async with app:
        await app.schedules.deploy()
        yield app


@asynccontextmanager
async def stream(address: str, key: str, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    """Open an event stream; yield its events."""
    given = {"Authorization": f"Bearer {key}", **headers}
    async with (
        httpx2.AsyncClient(timeout=20) as client,
        client.stream("GET", f"{address}/api/v1/events{query}", headers=given) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        yield _parse_events(lines)


async def _parse_events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    event: Event = {}
    async for line in lines:
        if line == "" and event:
            ServerSentEvent.model_validate_json(json.dumps(event), extra="forbid")
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


async def collect_until(events: AsyncIterator[Event], is_last: Any) -> list[Event]:
    """Return the events up to the first for which ``is_last`` holds."""
    seen: list[Event] = []
    async with asyncio.timeout(15):
        async for event in events:
            seen.append(event)
            if is_last(event):
                return seen
    raise AssertionError(f"event did not arrive; seen: {seen}")


@pytest.mark.slow
async def test_event_stream_reports_changes_and_resumes_after_last_event_id(app: Tenuto) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    async with web_server(app, port=0) as address, app.worker(slots=5):
        async with stream(address, key) as events, stream(address, key, "?topics=activities") as activity_events:
            first = await app.schedules.run("Greeting")
            assert first.execution_id is not None
            seen = await collect_until(events, lambda event: event["data"].get("state") == "completed")
            assert {"executions"} <= {event["event"] for event in seen}
            assert all(event["id"].isdigit() for event in seen)
            only = await collect_until(activity_events, lambda event: event["event"] == "activities")
            assert {event["event"] for event in only} == {"activities"}
            assert {each["name"] for each in only[0]["data"]["ended"]} == {"hello"}
        last = seen[-1]["id"]
        second = await app.schedules.run("Greeting")
        assert second.execution_id is not None
        await app.executions.wait(second.execution_id, 15)
        async with stream(address, key, "?topics=executions", **{"Last-Event-ID": last}) as events:
            missed = await collect_until(events, lambda event: event["data"].get("id") == str(second.execution_id))
            assert missed[-1]["data"]["state"] == "completed"


@pytest.mark.slow
async def test_event_stream_reports_changes_of_single_objects(app: Tenuto) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    run = await app.schedules.run("Greeting")
    topic = f"execution:{run.execution_id}"
    async with web_server(app, port=0) as address, stream(address, key, f"?topics={topic},overview") as events:
        first = await collect_until(events, lambda event: event["data"]["topic"] == "overview")
        assert [(each["event"], each["data"]["topic"]) for each in first] == [
            ("changed", topic),
            ("changed", "overview"),
        ]
        async with app.worker(slots=5):
            seen = await collect_until(events, lambda event: event["data"]["topic"] == topic)
            assert {event["event"] for event in seen} == {"changed"}


async def test_event_stream_resumed_too_late_begins_with_reset(app: Tenuto) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    long_ago = (await app.open()).clock.now() - timedelta(hours=2)
    async with (
        web_server(app, port=0) as address,
        stream(address, key, **{"Last-Event-ID": str(int(long_ago.timestamp() * 1e6))}) as events,
    ):
        assert (await collect_until(events, lambda event: True))[0]["event"] == "reset"


async def test_stopping_web_service_ends_event_streams(app: Tenuto, caplog: pytest.LogCaptureFixture) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    async with AsyncExitStack() as stack:
        async with web_server(app, port=0) as address:
            streams = [await stack.enter_async_context(stream(address, key)) for _ in range(3)]
        # Uvicorn logs this after it has waited for clients that do not disconnect.
        assert "graceful shutdown exceeded" not in caplog.text, "the server waited for the clients to disconnect"
        for events in streams:
            assert [event["event"] async for event in events if event["event"] not in ("queues", "workers")] == []


async def test_event_stream_ends_when_its_key_is_revoked(app: Tenuto) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    async with web_server(app, port=0) as address, stream(address, key, "?topics=dead_letters") as events:
        await app.api_keys.revoke("watcher")
        async with asyncio.timeout(15):
            assert [event async for event in events] == []
        async with httpx2.AsyncClient() as client:
            again = await client.get(f"{address}/api/v1/events", headers={"Authorization": f"Bearer {key}"})
        assert again.status_code == 401


async def test_event_streams_beyond_the_limit_are_refused(  # B86
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_STREAMS_PER_CALLER", 3)
    monkeypatch.setattr(event_stream, "MAX_STREAMS", 5)
    keys = [(await app.api_keys.create(f"watcher-{number}", Role.VIEWER))[1] for number in range(2)]
    async with web_server(app, port=0) as address, AsyncExitStack() as stack:

        async def open_one(key: str) -> int:
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
            given = {"Authorization": f"Bearer {key}"}
            line = client.stream("GET", f"{address}/api/v1/events?topics=definitions", headers=given)
            response = await stack.enter_async_context(line)
            if response.status_code == 429:
                assert response.headers["retry-after"] == "30"
            return response.status_code

        assert sorted(await asyncio.gather(*(open_one(keys[0]) for _ in range(8)))) == [200] * 3 + [429] * 5
        assert sorted(await asyncio.gather(*(open_one(keys[1]) for _ in range(4)))) == [200] * 2 + [429] * 2
        await stack.pop_all().aclose()

        async def can_open_stream() -> bool:
            return await open_one(keys[1]) == 200

        await eventually(can_open_stream)


@pytest.mark.parametrize(
    ("query", "headers", "code"),
    [
        ("?topics=everything", {}, "events.topic.unknown"),
        ("?topics=execution:1", {}, "events.topic.unknown"),
        ("", {"Last-Event-ID": "yesterday"}, "events.last_event_id.invalid"),
    ],
)
async def test_event_stream_refuses_unknown_topics_and_event_ids(
    app: Tenuto, query: str, headers: dict[str, str], code: str
) -> None:
    _, key = await app.api_keys.create("watcher", Role.VIEWER)
    async with web_server(app, port=0) as address, httpx2.AsyncClient() as client:
        given = {"Authorization": f"Bearer {key}", **headers}
        response = await client.get(f"{address}/api/v1/events{query}", headers=given)
    assert_problem(response, 422, code)
