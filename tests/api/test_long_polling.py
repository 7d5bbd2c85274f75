"""Long polling: `?wait=` on tasks and executions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from tenuto.api import long_polling
from tenuto.api.application import add_middleware
from tenuto.api.long_polling import waiting_requests
from tenuto.clock import monotonic_seconds
from tenuto.model.access.actors import Role
from tenuto.web.server import web_server
from tests.api.conftest import HOST, ApiClient
from tests.support.waiting import eventually


async def enqueue(service: ApiClient, **options: Any) -> str:
    created = await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": 4}, **options})
    assert created.status_code == 202, created.text
    return str(created.headers["location"])


def count_waiting(service: ApiClient) -> int:
    return waiting_requests(service.api).count


async def test_task_with_wait_is_answered_when_it_ends(service: ApiClient) -> None:
    path = await enqueue(service)
    answer = asyncio.create_task(service.get_json(f"{path}?wait=30"))
    await eventually(lambda: count_waiting(service) == 1)
    assert not answer.done()
    async with service.app.worker():
        ended = await asyncio.wait_for(answer, 10)
    assert (ended["state"], ended["is_ended"], ended["output"]) == ("completed", True, 8)
    assert await service.get_json(f"{path}?wait=30") == ended, "an ended task is returned at once"


async def test_execution_with_wait_is_answered_when_it_ends(service: ApiClient) -> None:
    await service.post(
        "/api/v1/schedules", json={"name": "s", "steps": [{"name": "a", "job": "double", "input": {"n": 2}}]}
    )
    path = (await service.post("/api/v1/schedules/s/run")).headers["location"]
    answer = asyncio.create_task(service.get_json(f"{path}?wait=30"))
    await eventually(lambda: count_waiting(service) == 1)
    async with service.app.worker():
        ended = await asyncio.wait_for(answer, 10)
    assert ended["state"] == "completed"


async def test_wait_that_times_out_returns_the_open_object(service: ApiClient) -> None:
    path = await enqueue(service)
    began_at = monotonic_seconds()
    shown = await service.get_json(f"{path}?wait=0.3")
    assert monotonic_seconds() - began_at >= 0.3
    assert (shown["state"], shown["is_ended"]) == ("queued", False)


@pytest.mark.parametrize("wait", ["-1", "61", "soon", "nan", "inf"])
async def test_wait_out_of_range_is_refused(service: ApiClient, wait: str) -> None:
    refused = await service.get(f"{await enqueue(service)}?wait={wait}")
    assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid")


async def test_wait_for_an_unknown_object_is_not_found_at_once(service: ApiClient) -> None:
    id = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
    for resource in ("tasks", "executions"):
        missing = await asyncio.wait_for(service.get(f"/api/v1/{resource}/{id}?wait=30"), 5)
        assert missing.status_code == 404


async def test_waiting_requests_hold_no_database_connections(service: ApiClient) -> None:
    path = await enqueue(service, delay="1h")
    answers = [asyncio.create_task(service.get_json(f"{path}?wait=30")) for _ in range(40)]  # the pool has 10
    await eventually(lambda: count_waiting(service) == 40)
    assert len((await asyncio.wait_for(service.get_json("/api/v1/tasks"), 5))["items"]) == 1
    assert (await service.post(f"{path}/cancel")).status_code == 202
    assert {answer["state"] for answer in await asyncio.wait_for(asyncio.gather(*answers), 10)} == {"cancelled"}
    assert count_waiting(service) == 0


async def test_waiting_request_ends_when_the_client_disconnects(service: ApiClient) -> None:
    path = await enqueue(service, delay="1h")
    gone = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None:
            await gone.wait()
        return message or {"type": "http.disconnect"}

    async def send(_message: Any) -> None: ...

    headers = {"host": HOST.removeprefix("http://"), "authorization": f"Bearer {service.keys[Role.VIEWER]}"}
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"wait=30",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 50000), "scheme": "http", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    application: Any = add_middleware(service.app, service.api)
    request = asyncio.create_task(application(scope, receive, send))
    await eventually(lambda: count_waiting(service) == 1)
    gone.set()
    await asyncio.wait_for(request, 5)
    assert count_waiting(service) == 0


async def test_waiting_requests_are_limited(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "MAX_WAITING_REQUESTS", 1)
    path = await enqueue(service, delay="1h")
    first = asyncio.create_task(service.get_json(f"{path}?wait=30"))
    await eventually(lambda: count_waiting(service) == 1)
    refused = await service.get(f"{path}?wait=30")
    assert (refused.status_code, refused.json()["code"]) == (429, "request.wait.limit")
    assert (await service.get(path)).status_code == 200, "without wait there is no limit"
    first.cancel()
    await eventually(lambda: count_waiting(service) == 0)


async def test_stopping_service_answers_waiting_requests(service: ApiClient) -> None:
    path = await enqueue(service, delay="1h")
    headers = {"Authorization": f"Bearer {service.keys[Role.VIEWER]}"}
    async with httpx2.AsyncClient(headers=headers) as client:
        async with web_server(service.app, port=0) as address:
            answer = asyncio.create_task(client.get(f"{address}{path}?wait=50", timeout=60))
            ready = await client.get(f"{address}{path}?wait=0.2")
            assert ready.status_code == 200
            stopped_at = monotonic_seconds()
        assert (await answer).json()["state"] == "scheduled"
    assert monotonic_seconds() - stopped_at < 3
