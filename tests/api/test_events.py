"""What changes is told to whoever watches: coalesced, by topic, from where they left off, as long as they may."""

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
from tenuto.api.routes import events as module
from tenuto.api.server import serving
from tenuto.model.actors import Role
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
    """The events of one line, which is open once this is entered."""
    given = {"Authorization": f"Bearer {key}", **headers}
    async with (
        httpx2.AsyncClient(timeout=20) as client,
        client.stream("GET", f"{address}/api/v1/events{query}", headers=given) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        yield _events(lines)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    event: Event = {}
    async for line in lines:
        if line == "" and event:
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


async def until(events: AsyncIterator[Event], wanted: Any) -> list[Event]:
    """What comes until something wanted does."""
    seen: list[Event] = []
    async with asyncio.timeout(15):
        async for event in events:
            seen.append(event)
            if wanted(event):
                return seen
    raise AssertionError(f"it did not come; seen: {seen}")


async def test_who_watches_hears_of_what_runs_and_takes_up_where_the_line_broke(app: Tenuto) -> None:
    _, key = await app.keys.make("watcher", Role.VIEWER)
    async with serving(app, port=0) as address, app.worker(slots=5):
        async with stream(address, key) as events, stream(address, key, "?topics=activities") as few:
            first = await app.schedules.run("Greeting")
            assert first.execution_id is not None
            seen = await until(events, lambda event: event["data"].get("state") == "Completed")
            assert {"executions"} <= {event["event"] for event in seen}
            assert all(event["id"].isdigit() for event in seen)
            only = await until(few, lambda event: event["event"] == "activities")
            assert {event["event"] for event in only} == {"activities"}
            assert {each["name"] for each in only[0]["data"]["ended"]} == {"hello"}
        last = seen[-1]["id"]
        second = await app.schedules.run("Greeting")
        assert second.execution_id is not None
        await app.executions.wait(second.execution_id, 15)
        async with stream(address, key, "?topics=executions", **{"Last-Event-ID": last}) as events:
            missed = await until(events, lambda event: event["data"].get("id") == str(second.execution_id))
            assert missed[-1]["data"]["state"] == "Completed"


async def test_who_was_away_for_too_long_is_told_to_look_anew(app: Tenuto) -> None:
    _, key = await app.keys.make("watcher", Role.VIEWER)
    long_ago = (await app.open()).clock.now() - timedelta(hours=2)
    async with (
        serving(app, port=0) as address,
        stream(address, key, **{"Last-Event-ID": str(int(long_ago.timestamp() * 1e6))}) as events,
    ):
        assert (await until(events, lambda event: True))[0]["event"] == "reset"


async def test_a_service_that_stops_lets_those_go_who_watch(app: Tenuto, caplog: pytest.LogCaptureFixture) -> None:
    _, key = await app.keys.make("watcher", Role.VIEWER)
    async with AsyncExitStack() as stack:
        async with serving(app, port=0) as address:
            streams = [await stack.enter_async_context(stream(address, key)) for _ in range(3)]
        # What the server says once it has waited for as long as it does for those who do not leave.
        assert "graceful shutdown exceeded" not in caplog.text, "it waited for them to leave by themselves"
        for events in streams:
            assert [event["event"] async for event in events if event["event"] not in ("queues", "workers")] == []


async def test_a_revoked_key_cuts_the_line(app: Tenuto) -> None:
    _, key = await app.keys.make("watcher", Role.VIEWER)
    async with serving(app, port=0) as address, stream(address, key, "?topics=dead_letters") as events:
        await app.keys.revoke("watcher")
        async with asyncio.timeout(15):
            assert [event async for event in events] == []
        async with httpx2.AsyncClient() as client:
            again = await client.get(f"{address}/api/v1/events", headers={"Authorization": f"Bearer {key}"})
        assert again.status_code == 401


async def test_of_more_streams_than_may_be_open_the_rest_are_refused(  # B86
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OF_ONE", 3)
    monkeypatch.setattr(module, "MOST_STREAMS", 5)
    keys = [(await app.keys.make(f"watcher-{number}", Role.VIEWER))[1] for number in range(2)]
    async with serving(app, port=0) as address, AsyncExitStack() as stack:

        async def open_one(key: str) -> int:
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
            given = {"Authorization": f"Bearer {key}"}
            line = client.stream("GET", f"{address}/api/v1/events?topics=definitions", headers=given)
            answer = await stack.enter_async_context(line)
            if answer.status_code == 429:
                assert answer.headers["retry-after"] == "30"
            return answer.status_code

        assert sorted(await asyncio.gather(*(open_one(keys[0]) for _ in range(8)))) == [200] * 3 + [429] * 5
        assert sorted(await asyncio.gather(*(open_one(keys[1]) for _ in range(4)))) == [200] * 2 + [429] * 2
        await stack.pop_all().aclose()

        async def there_is_room() -> bool:
            return await open_one(keys[1]) == 200

        await eventually(there_is_room)


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [("?topics=everything", {}, "topics"), ("", {"Last-Event-ID": "yesterday"}, "Last-Event-ID")],
)
async def test_what_nobody_can_watch_is_refused(app: Tenuto, query: str, headers: dict[str, str], field: str) -> None:
    _, key = await app.keys.make("watcher", Role.VIEWER)
    async with serving(app, port=0) as address, httpx2.AsyncClient() as client:
        given = {"Authorization": f"Bearer {key}", **headers}
        answer = await client.get(f"{address}/api/v1/events{query}", headers=given)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
