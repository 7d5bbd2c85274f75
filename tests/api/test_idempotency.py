"""Idempotency keys of requests with several transactions or with an instant: a repeated request continues the first one
and returns its complete result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.app import Tenuto
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import IdempotencyKey
from tenuto.operations.work import batches, dead_letters
from tenuto.store.access import idempotency_keys
from tenuto.store.work import task_creation
from tests.api.conftest import ApiClient, assert_problem, running_api
from tests.support.errors import raises_code
from tests.support.waiting import eventually

DEAD_LETTERS_PER_TRANSACTION = 2
COMPLETED_BY_REPEATS = (
    "approvals_approve", "approvals_reject", "batches_pause", "batches_resume", "batches_cancel", "operations_abort",
)  # fmt: skip
"""Operations that a repeated call completes, or finds done."""


async def crash(*_: object, **__: object) -> None:
    raise ConnectionError("process crashed")


def crash_after(call_count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which crashes after this number of calls."""
    calls = 0

    async def crashing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return await (crash() if calls > call_count else function(*args, **kwargs))

    return crashing


async def create_failed_batch(service: ApiClient, item_count: int) -> str:
    """Create a batch whose items have all become dead letters; return its id."""
    await service.post("/api/v1/manifests", json={"external_id": "m", "job": "boom", "on_demand": True})
    batch = await service.app.bulk_enqueue("m", [{"why": str(each)} for each in range(item_count)])
    await batch.wait(30)
    return str(batch.id)


async def test_repeated_request_finishes_an_interrupted_one_and_returns_the_total(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_LIMIT", DEAD_LETTERS_PER_TRANSACTION)
    select = "/api/v1/dead-letters/selections"
    async with service.app.worker(slots=10):
        batch = await create_failed_batch(service, 7)
        retry_failed = f"/api/v1/batches/{batch}/retry-failed"
        with monkeypatch.context() as patched:
            patched.setattr(dead_letters, "retry_dead_letters", crash_after(2, dead_letters.retry_dead_letters))
            with pytest.raises(ConnectionError):
                await service.post(retry_failed, headers={"Idempotency-Key": "b"})
        # Four were retried and have failed again: the new dead letters are not part of the request.
        await wait_for_open_dead_letters(service, batch, 7)
        again = await service.post(retry_failed, headers={"Idempotency-Key": "b"})
        assert (again.status_code, again.json()) == (202, {"retried": 7})
        await wait_for_open_dead_letters(service, batch, 7)
        found = await service.app.dead_letters.list(state="retried", limit=100)
        assert len(found) == 7, "the repeated request retried later failures"

        chosen = (await service.post(select, json={})).json()["ids"]
        for path, field, name in (
            ("retry", "retried", "retry_dead_letters"),
            ("acknowledge", "acknowledged", "acknowledge_dead_letters"),
        ):
            ids, chosen = (chosen[:3], chosen[3:]) if path == "retry" else (chosen, [])
            asked: dict[str, Any] = {"json": {"ids": ids, "note": "all of them"}, "headers": {"Idempotency-Key": path}}
            with monkeypatch.context() as patched:
                patched.setattr(dead_letters, name, crash_after(1, getattr(dead_letters, name)))
                with pytest.raises(ConnectionError):
                    await service.post(f"/api/v1/dead-letters/{path}", **asked)
            with monkeypatch.context() as patched:
                patched.setattr(idempotency_keys, "store_response", crash)
                with pytest.raises(ConnectionError):
                    await service.post(f"/api/v1/dead-letters/{path}", **asked)
            again = await service.post(f"/api/v1/dead-letters/{path}", **asked)
            assert again.json() == {field: len(ids)}, path
            third = await service.post(f"/api/v1/dead-letters/{path}", **asked)
            assert (third.json(), third.headers["idempotent-replayed"]) == ({field: len(ids)}, "true")


async def wait_for_open_dead_letters(service: ApiClient, batch: str, count: int) -> None:
    """Wait until the batch has this number of open dead letters."""

    async def has_count() -> bool:
        response = await service.post("/api/v1/dead-letters/selections", json={"batch": batch})
        return bool(response.json()["total"] == count)

    await eventually(has_count, timeout=30)


async def test_repeated_request_without_body_returns_no_content(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service.app.worker(slots=10):
        await create_failed_batch(service, 1)
    (dead_letter,) = await service.app.dead_letters.list()
    other = await service.app.bulk_enqueue("m", [{"why": str(each)} for each in range(5)])
    for path in (
        f"/api/v1/dead-letters/{dead_letter.id}/acknowledge",
        f"/api/v1/batches/{other.id}/pause",
        f"/api/v1/batches/{other.id}/resume",
        f"/api/v1/batches/{other.id}/cancel",
    ):
        with monkeypatch.context() as patched:
            patched.setattr(batches, "CHUNK_SIZE", 2)
            patched.setattr(idempotency_keys, "store_response", crash)
            with pytest.raises(ConnectionError):
                await service.post(path, headers={"Idempotency-Key": path})
        again = await service.post(path, headers={"Idempotency-Key": path})
        assert again.status_code == 204, (path, again.text)
        assert (await service.post(path)).status_code == 409, "a new request must conflict"
    assert (await other.progress()).state == "cancelled"


async def test_repeated_request_runs_only_routes_that_handle_repeats(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: dict[str, Any] = {"path": "/api/v1/keys/viewer/link", "headers": {"Idempotency-Key": "link"}}
    assert (await service.post(**link)).status_code == 201
    assert_problem(await service.post(**link), 409, "request.idempotency_key.already_done")
    pause: dict[str, Any] = {"path": "/api/v1/queues/mail/pause", "headers": {"Idempotency-Key": "pause"}}
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        with pytest.raises(ConnectionError):
            await service.post(**pause)
    await service.post("/api/v1/queues/mail/resume")
    assert (await service.post(**pause)).status_code == 204, "the first request succeeded"
    (queue,) = [each for each in await service.app.queues() if each.name == "mail"]
    assert queue.paused_at is None, "the repeated request paused the queue again"
    actions = sorted(entry.action for entry in await service.app.audit.list())
    assert actions == ["key.link", "queue.pause", "queue.resume"]


async def test_repeated_change_of_a_batch_completes_an_interrupted_one(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "m", "job": "boom", "on_demand": True})
    batch = await service.app.bulk_enqueue("m", [{"why": str(each)} for each in range(5)])
    database = await service.app.open()
    for verb, waiting_count, open_count in (("pause", 5, 5), ("resume", 0, 5), ("cancel", 0, 0)):
        change: dict[str, Any] = {"path": f"/api/v1/batches/{batch.id}/{verb}", "headers": {"Idempotency-Key": verb}}
        with monkeypatch.context() as patched:
            patched.setattr(batches, "_repeat_until_zero", crash)
            with pytest.raises(ConnectionError):
                await service.post(**change)
        assert (await service.post(**change)).status_code == 204, verb
        waiting = await database.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE state = 'waiting'")
        assert (waiting, (await batch.progress()).open_count) == (waiting_count, open_count), verb


async def test_routes_that_use_the_id_of_the_first_request_declare_that_they_handle_repeats(service: ApiClient) -> None:
    routes = [context.route for context in iter_route_contexts(service.api.routes)]
    posts = [route for route in routes if isinstance(route, ApiRoute) and "POST" in (route.methods or ())]
    differing = []
    for route in posts:
        uses_id = re.search(r"call\.(object_id|is_repeat)", inspect.getsource(route.endpoint)) is not None
        declared = route.required_role is not None and route.required_role.handles_repeats
        if uses_id != declared and route.operation_id not in COMPLETED_BY_REPEATS:
            differing.append(route.path)
    assert len(posts) > 25
    assert differing == []


async def test_repeated_disable_reports_its_change_without_disabling_again(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"job": "boom"}]})
    await service.post("/api/v1/manifests", json={"external_id": "m", "job": "boom", "on_demand": True})
    for path in ("/api/v1/schedules/s", "/api/v1/manifests/m"):
        key = {"Idempotency-Key": path}
        with monkeypatch.context() as patched:
            patched.setattr(idempotency_keys, "store_response", crash)
            with pytest.raises(ConnectionError):
                await service.post(f"{path}/disable", headers=key)
        assert (await service.post(f"{path}/enable")).json() == {"changed": True}, (
            "another request enables it in between"
        )
        assert (await service.post(f"{path}/disable", headers=key)).json() == {"changed": True}
        assert (await service.get_json(path))["enabled"]


async def test_repeated_pause_of_an_operation_returns_it_without_pausing_again(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.post("/api/v1/tasks", json={"job": "boom"})
    created = await service.post("/api/v1/operations", json={"kind": "task.cancel", "q": "name:boom"})
    path, key = f"/api/v1/operations/{created.json()['id']}", {"Idempotency-Key": "pause"}
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        with pytest.raises(ConnectionError):
            await service.post(f"{path}/pause", headers=key)
    assert (await service.get_json(path))["paused_at"] is not None
    await service.post(f"{path}/resume")  # another request
    repeated = await service.post(f"{path}/pause", headers=key)
    assert (repeated.status_code, repeated.json()["paused_at"]) == (200, None), repeated.text


async def test_repeated_one_shot_request_succeeds_after_its_instant_has_passed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_api(url, tmp_path, past_one_shots="refuse") as service:
        clock = (await service.app.open()).clock
        soon = (clock.now() + timedelta(hours=1)).astimezone(UTC).isoformat()
        asked: dict[str, Any] = {"json": {"exec_at": soon, "prompt_type": "double", "payload": {"n": 1}}}
        key = {"Idempotency-Key": "late"}
        with monkeypatch.context() as patched:
            patched.setattr(idempotency_keys, "store_response", crash)
            with pytest.raises(ConnectionError):
                await service.post("/api/schedule", **asked, headers=key)

        clock.synchronize(clock.now() + timedelta(hours=2))
        (shot,) = await service.app.one_shots.list()
        again = await service.post("/api/schedule", **asked, headers=key)
        assert (again.status_code, again.json()["transaction_id"]) == (202, str(shot.id)), again.text
        assert datetime.fromisoformat(again.json()["exec_at_utc"]) == datetime.fromisoformat(soon)
        assert (await service.post("/api/schedule", **asked)).status_code == 422, "a new request is refused"
        assert len(await service.app.one_shots.list()) == 1


async def test_concurrently_used_idempotency_key_prevents_the_change(service: ApiClient) -> None:
    def acting(subject: UUID) -> Tenuto:
        key = IdempotencyKey("a", "k", b"print", subject)
        return service.app.acting_as(Actor.system("test"), idempotency_key=key)

    first = new_id()
    for _ in range(2):  # the second time as after a lost reply
        await acting(first).limit_queue("mail", 3)
    with raises_code("request.idempotency_key.in_use"):
        await acting(new_id()).limit_queue("mail", 5)
    assert [queue.max_running for queue in await service.app.queues()] == [3]


async def test_repeated_one_shot_request_reads_the_existing_one_without_insert(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one-shot may end between a query of ended ones and an insert, so there must be no insert."""
    insert_count = 0
    create = task_creation.insert_audited_tasks

    async def counted(*given: Any) -> Any:
        nonlocal insert_count
        insert_count += 1
        return await create(*given)

    monkeypatch.setattr(task_creation, "insert_audited_tasks", counted)
    asked: dict[str, Any] = {
        "json": {"exec_at": "2056-07-07T15:00:00Z", "prompt_type": "log.append", "payload": {"message": "Hello"}},
        "headers": {"Idempotency-Key": "once"},
    }
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        with pytest.raises(ConnectionError):
            await service.post("/api/schedule", **asked)
    (created,) = await service.app.one_shots.list()
    again = await service.post("/api/schedule", **asked)
    assert (again.status_code, again.json()["transaction_id"]) == (202, str(created.id))
    assert insert_count == 1
