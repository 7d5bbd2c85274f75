"""`/api/v1/operations`: preview, start, follow and abort bulk operations; roles and idempotency."""

from __future__ import annotations

from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually

SELECTION = {"kind": "task.cancel", "q": "name:double"}


async def enqueue(service: ApiClient, count: int) -> None:
    for number in range(count):
        await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": number}})


async def test_operation_routes_preview_start_and_follow(service: ApiClient) -> None:
    await enqueue(service, 3)
    preview = (await service.post("/api/v1/operations/preview", role=Role.VIEWER, json=SELECTION)).json()
    assert (preview["count"], preview["is_exact"], preview["description"]) == (3, True, "name is double")
    await enqueue(service, 1)
    new = {**SELECTION, "until": preview["until"], "expected": 3, "reason": "not needed"}
    created = await service.post("/api/v1/operations", role=Role.OPERATOR, json=new)
    assert (created.status_code, created.json()["item_count"]) == (202, 3), created.text
    path = created.headers["location"]
    async with service.app.scheduler():
        ended = await eventually(lambda: _find_ended(service, path))
    assert (ended["state"], ended["succeeded_count"], ended["arrived_count"]) == ("ended", 3, 1)
    assert (await service.get_json("/api/v1/tasks/count"))["count"] == 1
    assert (await service.get_json(f"{path}/items"))["items"] == []
    assert [one["id"] for one in (await service.get_json("/api/v1/operations?state=ended"))["items"]] == [ended["id"]]
    assert_problem(await service.post(f"{path}/abort"), 409, "operation.already_ended")


async def _find_ended(service: ApiClient, path: str) -> dict[str, object] | None:
    found = await service.get_json(path)
    return found if found["ended_at"] else None


async def test_operation_routes_refuse_viewers_and_changed_selections(service: ApiClient) -> None:
    await enqueue(service, 3)
    assert_problem(await service.post("/api/v1/operations", role=Role.VIEWER, json=SELECTION), 403)
    changed = await service.post("/api/v1/operations", json={**SELECTION, "expected": 30})
    assert_problem(changed, 409, "operation.selection.changed")
    wrong = await service.post("/api/v1/operations", json={**SELECTION, "q": "stat:queued"})
    assert_problem(wrong, 422, "filter.key.unknown")
    assert_problem(await service.post("/api/v1/operations", json={"kind": "task.destroy"}), 422)
    assert_problem(await service.get("/api/v1/operations/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"), 404)


async def test_repeated_request_starts_one_operation_and_abort_keeps_the_rest(service: ApiClient) -> None:
    await enqueue(service, 2)
    headers = {"Idempotency-Key": "once"}
    first = await service.post("/api/v1/operations", json=SELECTION, headers=headers)
    again = await service.post("/api/v1/operations", json=SELECTION, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    aborted = await service.post(f"{first.headers['location']}/abort", role=Role.OPERATOR)
    assert (aborted.json()["state"], aborted.json()["aborted_by"]) == ("aborted", "operator")
    assert (await service.get_json("/api/v1/tasks/count"))["count"] == 2


async def test_backfill_routes_preview_start_pause_and_resume(service: ApiClient) -> None:
    new = {
        "name": "daily",
        "trigger": {"kind": "cron", "cron": "0 2 * * *"},
        "steps": [{"job": "double", "input": {"n": 1}}],
    }
    assert (await service.post("/api/v1/schedules", json=new)).status_code == 201
    path, period = "/api/v1/schedules/daily/backfill", {"start": "2025-03-01", "end": "2025-03-03T02:00:00Z"}
    preview = (await service.post(f"{path}/preview", role=Role.VIEWER, json=period)).json()
    assert preview["instants"] == [f"2025-03-0{day}T02:00:00Z" for day in (1, 2, 3)]
    assert_problem(await service.post(path, role=Role.VIEWER, json=period), 403)
    created = await service.post(path, role=Role.OPERATOR, json={**period, "parallel": 2})
    assert (created.status_code, created.json()["item_count"], created.json()["max_running"]) == (202, 3, 2)
    operation = created.headers["location"]
    assert (await service.post(f"{operation}/pause", role=Role.OPERATOR)).json()["paused_at"]
    assert (await service.post(f"{operation}/resume", role=Role.OPERATOR)).json()["paused_at"] is None
    assert_problem(await service.post(path, json={**period, "parallel": 0}), 422)
    assert_problem(await service.post(path, json={"start": "never", "end": "2025-03-01"}), 422, "value.instant.invalid")
    assert_problem(await service.post("/api/v1/operations", json={"kind": "schedule.backfill"}), 422)
