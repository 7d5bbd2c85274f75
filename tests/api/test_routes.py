"""The routes of the API through the whole application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tenuto.api.routes import batches
from tenuto.ids import new_id
from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually

NIGHTLY_SCHEDULE: dict[str, Any] = {
    "name": "HR / nightly",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "one", "job": "double", "input": {"n": 1}, "timeout": "30m", "retry": {"max_attempts": 5}},
        [
            {"name": "two", "job": "mail/send", "input": {"to": "x"}, "continue_on_failure": True},
            {"name": "three", "job": "double", "input": {"n": 3}, "queue": "other", "priority": 7},
        ],
    ],
    "overlap": "queue_one",
    "misfire": {"policy": "skip", "grace_seconds": 60},
}


async def test_schedule_routes_create_show_change_and_delete(service: ApiClient) -> None:
    created = await service.post("/api/v1/schedules", json={**NIGHTLY_SCHEDULE, "enabled": False})
    assert created.status_code == 201, created.text
    path = created.headers["location"]
    assert path == "/api/v1/schedules/HR%20%2F%20nightly"
    shown = await service.get(path)
    assert shown.headers["etag"] == created.headers["etag"] == '"v1"'
    assert shown.json()["enabled"] is False

    same = await service.put(path, json=shown.json(), headers={"If-Match": '"v1"'})
    assert same.status_code == 200, same.text
    assert same.headers["etag"] == '"v1"', "an unchanged definition created a version"
    assert same.json() == shown.json()

    new = {**shown.json(), "description": "at three", "trigger": {**NIGHTLY_SCHEDULE["trigger"], "cron": "0 3 * * *"}}
    new["steps"][0]["timeout"] = 60
    changed = await service.put(path, json=new, headers={"If-Match": '"v1"', "X-Reason": "too early"})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"'), changed.text
    assert changed.json()["steps"][0] == {**shown.json()["steps"][0], "timeout": 60.0}
    assert changed.json()["steps"][1] == shown.json()["steps"][1]
    stale = await service.put(path, json=new, headers={"If-Match": '"v1"'})
    assert_problem(stale, 409, "definition.version_conflict")
    assert_problem(await service.put(path, json={**new, "enabled": True}), 422, "definition.enabled.read_only")
    assert (await service.get_json(f"{path}/versions"))["items"][0]["reason"] == "too early"

    assert (await service.post(f"{path}/enable")).json() == {"changed": True}
    assert (await service.post(f"{path}/disable", role=Role.OPERATOR)).json() == {"changed": True}
    assert len((await service.get_json(f"{path}/preview?count=3"))["runs"]) == 3
    listed = await service.get_json("/api/v1/schedules?search=nightly&limit=1")
    assert (listed["items"][0]["name"], listed["items"][0]["step_count"]) == ("HR / nightly", 3)
    assert (await service.get_json(f"/api/v1/schedules?after={listed['next']}"))["items"] == []

    assert_problem(await service.delete(path, headers={"If-Match": '"v1"'}), 409)
    assert (await service.delete(path, headers={"If-Match": '"v4"'})).status_code == 204
    assert_problem(await service.get(path), 404)


async def test_why_routes_explain_schedules_and_manifests(service: ApiClient) -> None:
    schedule = {"name": "s/1", "trigger": {"kind": "cron", "cron": "0 2 * * *"}, "steps": [{"job": "boom"}]}
    assert (await service.post("/api/v1/schedules", json=schedule)).status_code == 201
    await service.post("/api/v1/schedules/s%2F1/disable", headers={"X-Reason": "holidays"})
    why = await service.get_json("/api/v1/schedules/s%2F1/why")
    (reason,) = why["reasons"]
    assert (why["name"], why["state"], reason["code"]) == ("s/1", "disabled", "disabled")
    assert (reason["command"], reason["fields"]["disable_reason"]) == ("tenuto schedule enable s/1", "holidays")
    assert reason["fields"]["disabled_at"].endswith("Z")

    assert (await service.post("/api/v1/manifests", json=MAIL_MANIFEST)).status_code == 201
    why = await service.get_json("/api/v1/manifests/mail%2Fall/why")
    assert (why["name"], [each["code"] for each in why["reasons"]]) == ("mail/all", ["manual_only"])
    assert_problem(await service.get("/api/v1/schedules/none/why"), 404, "schedule.not_found")
    assert_problem(await service.get("/api/v1/manifests/none/why"), 404, "manifest.not_found")


async def test_execution_routes_run_pause_cancel_and_retry(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"name": "a", "job": "boom"}]})
    started = await service.post("/api/v1/schedules/s/run", json={"arguments": {"a": {"why": "on request"}}})
    assert started.status_code == 202, started.text
    path = started.headers["location"]
    assert (await service.get_json(path))["steps"][0]["state"] == "queued"
    assert (await service.get_json(f"{path}/why"))["reasons"][0]["code"] == "no_worker"
    assert (await service.post(f"{path}/pause")).status_code == 204
    assert_problem(await service.post(f"{path}/pause"), 409)
    assert (await service.get_json(f"{path}/why"))["reasons"][0]["code"] == "execution_paused"
    assert (await service.post(f"{path}/resume")).status_code == 204
    cancelled = await service.post(f"{path}/cancel", json={"reason": "not today"})
    assert (cancelled.status_code, cancelled.json()) == (202, {"state": "cancelled"})
    assert (await service.get_json(path))["state"] == "cancelled"
    assert_problem(await service.post(f"{path}/cancel"), 409)

    async with service.app.worker():
        again = await service.post(f"{path}/retry")
        assert again.status_code == 202, again.text
        ended = await eventually(lambda: _find_ended(service, again.headers["location"]))
    assert ended["state"] == "failed"
    assert ended["steps"][0]["error"] == "on request"
    listed = await service.get_json("/api/v1/executions?state=failed&schedule=s&limit=1")
    assert [each["id"] for each in listed["items"]] == [ended["id"]]
    rest = await service.get_json(f"/api/v1/executions?after={listed['next']}")
    assert [each["state"] for each in rest["items"]] == ["cancelled"]
    entry = (await service.get_json("/api/v1/ledger?schedule=s&decision=fired"))["items"][0]
    assert entry["schedule_name"] == "s"
    assert_problem(await service.get("/api/v1/executions/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"), 404)
    assert_problem(await service.get("/api/v1/executions/17"), 422)


async def _find_ended(service: ApiClient, path: str) -> Any:
    found = await service.get_json(path)
    return found if found["ended_at"] else None


async def test_task_routes_enqueue_show_and_cancel(service: ApiClient) -> None:
    new_task = {"job": "double", "input": {"n": 4}, "unique_key": "four", "delay": "1h", "tags": ["t"], "priority": 5}
    created = await service.post("/api/v1/tasks", role=Role.OPERATOR, json=new_task)
    assert (created.status_code, created.json()["created"]) == (202, True), created.text
    path, id = created.headers["location"], created.json()["id"]
    again = await service.post("/api/v1/tasks", json=new_task)
    shown = await service.get_json(path)
    assert again.json() == {**shown, "created": False}
    assert created.json() == {**shown, "created": True}, "one shape from the creation on"
    assert (shown["state"], shown["input"], shown["initiator_name"]) == ("scheduled", {"n": 4}, "operator")
    assert (await service.get_json(f"{path}/why"))["reasons"][0]["code"] == "not_due"
    listed = await service.get_json("/api/v1/tasks?state=scheduled&name=double&queue=default&tag=t")
    assert [each["id"] for each in listed["items"]] == [id]
    assert (await service.post(f"{path}/cancel")).json() == {"state": "cancelled"}
    assert_problem(await service.post(f"{path}/cancel"), 409)
    assert (await service.get_json(path))["state"] == "cancelled", "an ended task is shown by its last attempt"
    assert len((await service.get_json(f"{path}/attempts"))["items"]) == 1
    assert (await service.get_json(f"{path}/steps"))["items"] == []
    unknown_job = assert_problem(await service.post("/api/v1/tasks", json={"job": "nope"}), 422, "job.unknown")
    assert unknown_job["type"] == "urn:tenuto:unknown-job"
    no_offset = await service.post("/api/v1/tasks", json={**new_task, "run_at": "2027-01-01T00:00:00", "delay": None})
    assert_problem(no_offset, 422, "task.run_at.no_utc_offset")
    wrong = assert_problem(await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": "x"}}), 422)
    assert wrong["errors"][0]["field"] == "n"


async def test_activity_routes_show_attempts_children_logs_and_statistics(service: ApiClient) -> None:
    created = await service.post("/api/v1/tasks", json={"job": "family", "input": {"children": 3}})
    async with service.app.worker():
        await eventually(lambda: _has_count(service, "/api/v1/activities", 4))
    id = created.json()["id"]
    shown = await service.get_json(f"/api/v1/activities/{id}")
    assert (shown["state"], shown["input"]) == ("completed", {"children": 3})
    log = await service.get(f"/api/v1/activities/{id}/log")
    assert "a family" in log.text
    assert log.headers["content-type"].startswith("text/plain")
    first = await service.get_json(f"/api/v1/activities/{id}/children?limit=2")
    rest = await service.get_json(f"/api/v1/activities/{id}/children?limit=2&after={first['next']}")
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)
    assert {each["name"] for each in first["items"]} == {"double"}
    stats = {each["name"]: each for each in (await service.get_json("/api/v1/activities/stats"))["items"]}
    assert (stats["double"]["done_count"], stats["double"]["failed_count"], stats["family"]["attempt_count"]) == (
        3,
        0,
        1,
    )
    assert_problem(await service.get("/api/v1/activities/stats?since=2030-01-01T00:00:00"), 422)
    page = await service.get_json("/api/v1/activities?state=completed&limit=3")
    assert len((await service.get_json(f"/api/v1/activities?after={page['next']}"))["items"]) == 1


async def _has_count(service: ApiClient, path: str, count: int) -> bool:
    return len((await service.get_json(path))["items"]) == count


MAIL_MANIFEST: dict[str, Any] = {
    "external_id": "mail/all",
    "job": "mail/send",
    "properties": {"subject": "hello"},
    "on_demand": True,
    "retry": {"max_attempts": 1, "base_seconds": 5},
    "timeout": 30,
    "group": "bulk",
}


async def test_manifest_routes_create_show_change_run_and_delete(service: ApiClient) -> None:
    created = await service.post("/api/v1/manifests", json=MAIL_MANIFEST, headers={"X-Reason": "new"})
    assert created.status_code == 201, created.text
    path = created.headers["location"]
    shown = await service.get(path)
    assert shown.json()["schedule_type"] == "on_demand"
    same = await service.put(path, json=shown.json(), headers={"If-Match": shown.headers["etag"]})
    assert (same.status_code, same.headers["etag"]) == (200, '"v1"'), same.text
    new = {**shown.json(), "priority": 3, "properties": {"subject": "good day"}}
    changed = await service.put(path, json=new, headers={"If-Match": '"v1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"'), changed.text
    assert changed.json()["retry"] == shown.json()["retry"]
    assert_problem(await service.put(path, json=new, headers={"If-Match": '"v1"'}), 409)
    wrong = assert_problem(await service.put(path, json={**new, "properties": {"times": "x"}}), 422)
    assert wrong["errors"][0]["field"] == "properties.times"
    assert assert_problem(await service.put(path, json={**new, "job": "nope"}), 422)["errors"][0]["field"] == "job"
    assert (await service.post(f"{path}/disable")).json() == {"changed": True}
    assert (await service.post(f"{path}/enable")).json() == {"changed": True}
    assert len((await service.get_json(f"{path}/versions"))["items"]) == 4
    assert (await service.get_json("/api/v1/manifests?group=bulk&search=MAIL&enabled=true"))["items"][0][
        "open_task_count"
    ] == 0

    run = await service.post(f"{path}/enqueue", json={"arguments": {"to": "a"}})
    assert run.status_code == 202, run.text
    assert_problem(await service.post(f"{path}/enqueue", json={"arguments": {"to": "a"}}), 409)
    item = await service.post(f"{path}/enqueue", json={"item": {"to": "b"}, "key": "b"})
    assert (await service.get_json(item.headers["location"]))["input"] == {"to": "b", "subject": "good day", "times": 1}
    assert_problem(await service.post(f"{path}/enqueue", json={"key": "b"}), 422, "manifest.run.item_missing")
    assert (await service.get_json(f"{path}/details"))["open_counts"] == {"queued": 2}
    assert_problem(await service.delete(path), 409)

    group = await service.put("/api/v1/manifest-groups/bulk", json={"max_active": 2, "priority": 1})
    assert (group.json()["max_active"], group.json()["manifest_count"]) == (2, 1)
    assert (await service.put("/api/v1/manifest-groups/bulk", json={"max_active": None})).json()["priority"] == 1
    assert [each["name"] for each in (await service.get_json("/api/v1/manifest-groups"))["items"]] == ["bulk"]
    await service.app.manifests.poll()
    assert len((await service.get_json("/api/v1/polls"))["items"]) == 1

    for task in (run, item):
        await service.post(f"{task.headers['location']}/cancel")
    assert (await service.delete(path)).status_code == 204


async def test_manifest_route_sets_what_happens_on_a_dead_letter(service: ApiClient) -> None:
    fields = {"external_id": "nightly", "job": "double", "properties": {"n": 1}}
    assert (await service.post("/api/v1/manifests", json=fields)).json()["on_dead_letter"] == "block"
    changed = await service.put("/api/v1/manifests/nightly", json={**fields, "on_dead_letter": "continue"})
    assert changed.json()["on_dead_letter"] == "continue"
    wrong = {**fields, "on_dead_letter": "ignore"}
    assert_problem(await service.put("/api/v1/manifests/nightly", json=wrong), 422, "manifest.on_dead_letter.invalid")


async def test_task_retry_route_runs_a_failed_task_again(service: ApiClient) -> None:
    @service.app.job(max_attempts=1)
    async def halve(n: int) -> float:
        return 1 / n

    task = (await service.post("/api/v1/tasks", json={"job": "halve", "input": {"n": 0}})).json()["id"]
    path = f"/api/v1/tasks/{task}/retry"
    assert_problem(await service.post(path), 409, "task.not_retryable")
    async with service.app.worker(slots=1):
        assert (await service.app.wait(UUID(task), timeout=10)).state == "failed"
        assert_problem(await service.post(path, json={"input": {"n": "x"}}), 422, "job.input.invalid")
        retried = await service.post(path, json={"input": {"n": 2}, "note": "typo"})
        assert retried.status_code == 202, retried.text
        assert (await service.app.wait(UUID(retried.json()["task_id"]), timeout=10)).output == 0.5
    assert_problem(await service.post(path), 409, "dead_letter.already_resolved")
    assert_problem(await service.post(f"/api/v1/tasks/{new_id()}/retry"), 404, "task.not_found")


async def test_manifest_route_accepts_max_retries_for_max_attempts(service: ApiClient) -> None:
    fields = {"external_id": "mails", "job": "mail/send", "on_demand": True, "max_retries": 4}
    created = await service.post("/api/v1/manifests", json=fields)
    assert (created.status_code, created.json()["retry"]["max_attempts"]) == (201, 4), created.text
    both = {**fields, "external_id": "other", "max_attempts": 4}
    wrong = assert_problem(await service.post("/api/v1/manifests", json=both), 422, "retry.max_attempts.conflict")
    assert wrong["errors"][0]["field"] == "max_retries"


async def test_plan_routes_plan_and_apply_definitions(service: ApiClient) -> None:
    definitions = {
        "schedules": [{"name": "nightly", "cron": "0 2 * * *", "steps": [{"job": "double", "input": {"n": 1}}]}],
        "manifests": [{"external_id": "m", "job": "double", "on_demand": True, "group": "g"}],
        "groups": [{"name": "g", "max_active": 3}],
    }
    planned = await service.post("/api/v1/plans", role=Role.VIEWER, json=definitions)
    assert planned.status_code == 200, planned.text
    assert [each["effect"] for each in planned.json()["changes"]] == ["created"] * 3
    assert_problem(await service.get("/api/v1/schedules/nightly"), 404)
    assert_problem(await service.post("/api/v1/plans/apply?plan=other", json=definitions), 409, "plan.changed")
    applied = await service.post(f"/api/v1/plans/apply?plan={planned.json()['plan']}", json=definitions)
    assert applied.status_code == 200, applied.text
    assert (await service.post("/api/v1/plans", json=definitions)).json()["changes_something"] is False
    shown = await service.get_json("/api/v1/schedules/nightly")
    renamed = await service.put("/api/v1/schedules/nightly", json={**shown, "name": "by day"})
    assert_problem(renamed, 409)
    gone = await service.post("/api/v1/plans?prune=true", json={"groups": definitions["groups"]})
    assert gone.json()["deleted"] == ["nightly", "m"]
    wrong = assert_problem(await service.post("/api/v1/plans", json={"schedules": [{"name": "x", "stepz": []}]}), 422)
    assert wrong["errors"][0]["field"] == "schedules[0].stepz"
    assert_problem(await service.post("/api/v1/plans", json={}), 422)


async def test_plan_routes_plan_apply_and_prune_queues(service: ApiClient) -> None:
    definitions = {"queues": [{"name": "mail", "max_running": 20, "paused": True, "reason": "Provider is down"}]}
    planned = (await service.post("/api/v1/plans", role=Role.VIEWER, json=definitions)).json()
    (change,) = planned["changes"]
    assert (change["what"], change["name"], change["effect"]) == ("queue", "mail", "created")
    assert change["changes"]["paused"] == {"before": False, "after": "Provider is down"}
    assert_problem(await service.post("/api/v1/plans/apply", role=Role.OPERATOR, json=definitions), 403)
    applied = await service.post(f"/api/v1/plans/apply?plan={planned['plan']}", role=Role.EDITOR, json=definitions)
    assert applied.status_code == 200, applied.text
    (mail,) = (await service.get_json("/api/v1/queues"))["items"]
    assert (mail["name"], mail["max_running"], mail["reason"]) == ("mail", 20, "Provider is down")
    wrong = {"queues": [{"name": "mail", "max_running": 0}]}
    problem = assert_problem(await service.post("/api/v1/plans", json=wrong), 422, "definition.field.out_of_range")
    assert problem["errors"][0]["field"] == "queues[0].max_running"
    pruned = await service.post("/api/v1/plans/apply?prune=true", json={"queues": []})
    assert pruned.json()["deleted"] == ["queue mail"]
    assert (await service.get_json("/api/v1/queues"))["items"] == []


async def test_idempotency_key_of_a_batch_is_bound_to_caller_and_lines(service: ApiClient) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines, others = "/api/v1/manifests/many/bulk", '{"n": 1}\n{"n": 2}', '{"n": 3}\n{"n": 4}'
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "run-1"}
    first = (await service.post(path, content=lines, headers=headers)).json()
    assert (await service.post(path, content=lines, headers=headers)).json()["id"] == first["id"]
    assert_problem(await service.post(path, content=others, headers=headers), 409)
    other_callers = (await service.post(path, role=Role.OPERATOR, content=others, headers=headers)).json()
    assert other_callers["id"] != first["id"]
    assert (first["item_count"], other_callers["item_count"]) == (2, 2)


async def test_batch_upload_ends_when_its_key_is_revoked(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_AUTHORIZATION_CHECK_SECONDS", 0.05)
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines = "/api/v1/manifests/many/bulk?batch_key=may", [b'{"n": %d}\n' % number for number in range(6000)]

    async def body() -> AsyncIterator[bytes]:
        yield b"".join(lines[:2500])
        await service.app.api_keys.revoke(Role.OPERATOR.key)
        await asyncio.sleep(0.1)
        yield b"".join(lines[2500:])

    ndjson = {"Content-Type": "application/x-ndjson"}
    refused = assert_problem(
        await service.post(path, role=Role.OPERATOR, content=body(), headers=ndjson), 401, "auth.revoked"
    )
    assert "batch_key=may" in refused["remedy"]
    (batch,) = (await service.get_json("/api/v1/batches"))["items"]
    assert (batch["item_count"], batch["complete_at"]) == (2000, None)
    whole = (await service.post(path, content=b"".join(lines), headers=ndjson)).json()
    assert (whole["id"], whole["item_count"]) == (batch["id"], 6000)


async def test_idle_batch_upload_ends_when_its_key_is_revoked(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_AUTHORIZATION_CHECK_SECONDS", 0.05)
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines = "/api/v1/manifests/many/bulk?batch_key=may", [b'{"n": %d}\n' % number for number in range(2500)]
    body_closed = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"".join(lines)
        await service.app.api_keys.revoke(Role.OPERATOR.key)
        try:
            await asyncio.Event().wait()
        finally:
            body_closed.set()

    ndjson = {"Content-Type": "application/x-ndjson"}
    async with asyncio.timeout(20):
        assert_problem(
            await service.post(path, role=Role.OPERATOR, content=body(), headers=ndjson), 401, "auth.revoked"
        )
        await body_closed.wait()
    (batch,) = (await service.get_json("/api/v1/batches"))["items"]
    assert (batch["item_count"], batch["complete_at"]) == (2000, None)


async def test_batch_upload_with_pauses_loses_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_AUTHORIZATION_CHECK_SECONDS", 0.001)
    idle_tick = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        for piece in (b"one", b"two", b"three"):
            await idle_tick.wait()
            idle_tick.clear()
            yield piece

    seen = []
    async for piece in batches._with_idle_ticks(body()):
        seen.append(piece)
        if not piece:
            idle_tick.set()
    assert [piece for piece in seen if piece] == [b"one", b"two", b"three"]


async def test_batch_upload_is_resumed_by_its_batch_key(service: ApiClient) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path = "/api/v1/manifests/many/bulk"
    ndjson = {"Content-Type": "application/x-ndjson"}
    lines = [json.dumps({"n": number, "id": f"i{number}"}) for number in range(5000)]
    broken = "\n".join([*lines[:4500], '{"n": "x", "id": "y"}', *lines[4500:]])
    refused = assert_problem(await service.post(f"{path}?batch_key=may&key=id", content=broken, headers=ndjson), 422)
    assert refused["errors"][0]["field"] == "line 4501: n"
    assert "batch_key=may" in refused["remedy"]

    async def pieces() -> Any:
        whole = ("\n".join([*lines, "", lines[0]])).encode()
        for start in range(0, len(whole), 7777):
            yield whole[start : start + 7777]

    done = await service.post(f"{path}?batch_key=may&key=id", content=pieces(), headers=ndjson)
    assert done.status_code == 202, done.text
    batch = done.json()
    assert (batch["item_count"], batch["duplicate_count"], batch["state"], batch["open_count"]) == (
        5000,
        1,
        "in_progress",
        5000,
    )
    assert batch["open_counts"] == {"queued": 5000}
    again = await service.post(f"{path}?batch_key=may&key=id", content=pieces(), headers=ndjson)
    assert again.json()["id"] == batch["id"]
    for other in ("", "\n".join(lines), "\n".join([*lines, lines[0], lines[1]]), "\n".join(reversed(lines))):
        refused = assert_problem(await service.post(f"{path}?batch_key=may&key=id", content=other, headers=ndjson), 409)
        assert refused["errors"][0]["field"] == "batch_key"
    assert_problem(await service.post(path, json={"n": 1}), 415, "request.content_type.unsupported")
    assert_problem(await service.post(path, content="[" * 1000, headers=ndjson), 422, "request.json.too_deep")
    assert_problem(await service.post(path, content="x" * 600_000, headers=ndjson), 422, "batch.line.too_long")
    assert_problem(await service.post("/api/v1/manifests/nope/bulk", content="", headers=ndjson), 404)

    location = done.headers["location"]
    items = await service.get_json(f"{location}/items?state=queued&limit=500")
    following = await service.get_json(f"{location}/items?limit=1&after={items['next']}")
    assert following["items"][0]["item_key"] == "i500"
    assert (await service.post(f"{location}/pause")).status_code == 204
    assert (await service.get_json(location))["state"] == "paused"
    assert (await service.post(f"{location}/resume")).status_code == 204
    assert (await service.post(f"{location}/cancel")).status_code == 204
    assert_problem(await service.post(f"{location}/cancel"), 409)
    listed = await service.get_json("/api/v1/batches?manifest=many")
    assert batch["id"] in [each["id"] for each in listed["items"]]
    assert_problem(await service.get("/api/v1/batches/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1/items"), 404)


async def test_dead_letter_routes_resolve_single_and_selected(service: ApiClient) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "bad", "job": "boom", "on_demand": True})
    lines = "\n".join(json.dumps({"why": f"case {number % 2}"}) for number in range(6))
    batch = await service.post(
        "/api/v1/manifests/bad/bulk", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    async with service.app.worker():
        await eventually(lambda: _has_count(service, "/api/v1/dead-letters", 6))
    dead_letters = (await service.get_json("/api/v1/dead-letters?manifest=bad"))["items"]
    assert {each["state"] for each in dead_letters} == {"awaiting_intervention"}
    path = f"/api/v1/dead-letters/{dead_letters[0]['id']}"
    assert (await service.get_json(path))["attempts"][0]["state"] == "failed"
    retried = await service.post(f"{path}/retry", json={"note": "again", "input": {"why": "still"}})
    assert (await service.get_json(retried.headers["location"]))["input"] == {"why": "still"}
    assert_problem(await service.post(f"{path}/retry"), 409)
    assert (await service.post(f"/api/v1/dead-letters/{dead_letters[1]['id']}/acknowledge")).status_code == 204

    groups = (await service.get_json("/api/v1/dead-letters/groups"))["items"]
    assert sum(group["dead_letter_count"] for group in groups) == 4
    fingerprint = groups[0]["fingerprint"]
    chosen = await service.post("/api/v1/dead-letters/selections", json={"fingerprint": fingerprint})
    assert chosen.json()["total"] == len(chosen.json()["ids"]), chosen.text
    assert (await service.post("/api/v1/dead-letters/retry", json={"ids": chosen.json()["ids"][:1]})).json() == {
        "retried": 1
    }
    rest = await service.post("/api/v1/dead-letters/acknowledge", json={"ids": chosen.json()["ids"], "note": "seen"})
    assert rest.json() == {"acknowledged": chosen.json()["total"] - 1}, "resolved dead letters were counted"
    assert len((await service.get_json("/api/v1/dead-letters?state=any"))["items"]) == 6
    left = (await service.get_json("/api/v1/dead-letters"))["items"]
    retried = await service.post(f"{batch.headers['location']}/retry-failed")
    assert retried.json() == {"retried": len(left)}


async def test_queue_worker_job_and_settings_routes(service: ApiClient) -> None:
    assert (await service.post("/api/v1/queues/mail/pause", json={"reason": "late"})).status_code == 204
    assert (await service.put("/api/v1/queues/mail/limit", json={"max_running": 3})).status_code == 204
    queue = (await service.get_json("/api/v1/queues"))["items"][0]
    assert (queue["name"], queue["max_running"], queue["reason"]) == ("mail", 3, "late")
    assert (await service.post("/api/v1/queues/mail/resume")).status_code == 204
    assert_problem(await service.put("/api/v1/queues/mail/limit", json={"max_running": 0}), 422)
    assert_problem(await service.put("/api/v1/queues/mail/limit", json={}), 422)
    async with service.app.worker():
        worker = (await service.get_json("/api/v1/workers"))["items"][0]
        assert worker["silent_seconds"] < 60
    assert (await service.get_json("/api/v1/workers?ended=true"))["items"][0]["ended_at"]
    jobs = {each["name"]: each for each in (await service.get_json("/api/v1/jobs"))["items"]}
    assert jobs["mail/send"]["required"] == ["to"]
    assert (await service.get_json("/api/v1/jobs/mail%2Fsend"))["input_schema"]["required"] == ["to"]
    assert_problem(await service.get("/api/v1/jobs/none"), 404)
    assert "schedule" in [each["name"] for each in (await service.get_json("/api/v1/step-kinds"))["items"]]
    settings = (await service.get_json("/api/v1/settings"))["settings"]
    assert settings["retention_days"] == 90.0
    document = await service.get_json("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")


async def test_log_secret_and_audit_routes(service: ApiClient) -> None:
    await service.app.logs.append("imports/hr", "one")
    await service.app.logs.append("imports/hr", "two", {"n": 2})
    assert (await service.get_json("/api/log"))["items"][0]["log"] == "imports/hr"
    newest = await service.get_json("/api/log/imports%2Fhr?limit=1")
    assert newest["items"][0]["message"] == "two"
    older = await service.get_json(f"/api/log/imports%2Fhr?after={newest['next']}")
    assert [each["message"] for each in older["items"]] == ["one"]
    oldest = await service.get_json("/api/log/imports%2Fhr?order=oldest")
    assert [each["message"] for each in oldest["items"]] == ["one", "two"]

    set_ = await service.put("/api/v1/secrets/hr%2Fpassword", json={"value": "correct horse battery"})
    assert (set_.status_code, set_.json()) == (200, {"name": "hr/password", "version": 1}), set_.text
    assert "correct horse" not in (await service.get("/api/v1/secrets")).text
    assert (await service.delete("/api/v1/secrets/hr%2Fpassword")).status_code == 204
    assert_problem(await service.delete("/api/v1/secrets/hr%2Fpassword"), 404)

    trail = (await service.get_json("/api/v1/audit?action=secret"))["items"]
    assert [each["action"] for each in trail] == ["secret.delete", "secret.set"]
    assert (await service.get_json(f"/api/v1/audit/{trail[0]['id']}"))["actor_name"] == "admin"
    assert "is_sound" in await service.get_json("/api/v1/audit/verification")
    export = await service.get("/api/v1/audit/export")
    assert len(export.text.splitlines()) >= 2
    assert "correct horse" not in export.text


async def test_api_key_routes_show_the_text_once_and_revoke(service: ApiClient) -> None:
    created = await service.post("/api/v1/keys", json={"name": "ci", "role": "viewer"})
    assert created.status_code == 201, created.text
    text = created.json()["key"]
    assert "digest" not in created.text
    assert text not in (await service.get("/api/v1/keys")).text
    auth = {"Authorization": f"Bearer {text}"}
    assert (await service.get("/api/v1/schedules", role=None, headers=auth)).status_code == 200
    assert_problem(await service.post("/api/v1/keys", json={"name": "ci", "role": "viewer"}), 409)
    assert_problem(await service.post("/api/v1/keys", json={"name": "x", "role": "god"}), 422)
    assert (await service.delete("/api/v1/keys/ci")).json()["revoked_by"] == "admin"
    assert_problem(await service.get("/api/v1/schedules", role=None, headers=auth), 401)
    assert (await service.get_json("/api/v1/keys/admin"))["role"] == "admin"


async def test_session_routes_open_and_close_a_browser_session(service: ApiClient) -> None:
    link = (await service.post("/api/v1/keys/operator/link")).json()["link"]
    opened = await service.post("/api/v1/session", role=None, json={"link": link})
    assert opened.status_code == 201, opened.text
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    service.client.cookies.clear()
    assert_problem(await service.post("/api/v1/session", role=None, json={"link": link}), 401, "auth.link.invalid")
    browser = {"Cookie": cookie.partition(";")[0]}
    assert (await service.get("/api/v1/session", role=None, headers=browser)).json() == {
        "name": "operator",
        "role": "operator",
        "session": True,
    }
    pause = "/api/v1/queues/q/pause"
    assert_problem(await service.post(pause, role=None, headers=browser), 403, "auth.csrf")
    cross_site = {**browser, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert_problem(await service.post(pause, role=None, headers=cross_site), 403)
    same_origin = {**browser, "Origin": "http://localhost", "Tenuto-Page": "1"}
    assert (await service.post(pause, role=None, headers=same_origin)).status_code == 204
    link = (await service.post("/api/v1/keys/operator/link")).json()["link"]
    assert_problem(await service.post("/api/v1/session", role=None, json={"link": link}, headers=cross_site), 403)
    secure = await service.post("https://localhost/api/v1/session", role=None, json={"link": link})
    assert "Secure" in secure.headers["set-cookie"]
    service.client.cookies.clear()
    assert (await service.delete("/api/v1/session", role=None, headers=same_origin)).status_code == 204
    assert_problem(await service.get("/api/v1/session", role=None, headers=browser), 401)


async def test_timeline_route_returns_attempts_and_refuses_a_wrong_window(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json=NIGHTLY_SCHEDULE)
    started = await service.post("/api/v1/schedules/HR%20%2F%20nightly/run")
    path = f"/api/v1/executions/{started.json()['execution_id']}/timeline"
    found = await service.get_json(path)
    assert [[step["name"] for step in group["steps"]] for group in found["groups"]] == [["one"], ["two", "three"]]
    assert found["groups"][0]["steps"][0]["attempts"][0]["state"] == "queued"
    assert_problem(await service.get(f"{path}?groups=one"), 422, "execution.groups.invalid")
    unknown = "/api/v1/executions/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1/timeline"
    assert_problem(await service.get(unknown), 404, "execution.not_found")


async def test_series_route_returns_points_and_refuses_unknown_divisions(service: ApiClient) -> None:
    found = await service.get_json("/api/v1/series?window=15m")
    assert (found["point_seconds"], len(found["series"][0]["points"])) == (10, 90)
    assert (await service.get_json("/api/v1/series?window=24h&by=name"))["series"] == []
    assert_problem(await service.get("/api/v1/series?by=mood"), 422, "request.invalid")
    assert_problem(await service.get("/api/v1/series?window=1s"), 422, "series.window.out_of_range")


async def test_overview_route_names_what_needs_attention(service: ApiClient) -> None:
    await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": 1}})
    await service.post("/api/v1/queues/mail/pause", json={"reason": "server down"})
    found = await service.get_json("/api/v1/overview", role=Role.VIEWER)
    assert (found["waiting_count"], found["paused"][0]["reason"]) == (1, "server down")
    assert [queue["name"] for queue in found["unserved_queues"]] == ["default"]


async def test_log_route_returns_text_and_the_next_offset(service: ApiClient) -> None:
    task = await service.app.enqueue(service.app.jobs.get_job("double"), n=1)
    path = f"/api/v1/activities/{task.id}/log"
    waiting = await service.get(f"{path}?tail=5")
    assert (waiting.text, waiting.headers["tenuto-log-offset"]) == ("", "0")
    assert waiting.headers["tenuto-log-complete"] == "false"
    await service.app.cancel(task)
    ended = await service.get(f"{path}?from=0", role=Role.VIEWER)
    assert (ended.status_code, ended.headers["tenuto-log-complete"]) == (200, "true")
    assert_problem(await service.get(f"{path}?from=0&tail=1"), 422, "activity.log.range")


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "order-7"}], ids=["without a key", "with a key"])
async def test_created_task_is_described_as_a_query_describes_it(service: ApiClient, headers: dict[str, str]) -> None:
    options = {
        "queue": "ovens",
        "priority": 3,
        "delay": "1h",
        "tags": ["b", "a"],
        "unique_key": "one",
        "correlation_id": "c",
    }
    created = await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": 4}, **options}, headers=headers)
    assert created.status_code == 202, created.text
    stored = await service.get_json(created.headers["location"])
    assert created.json() == {**stored, "created": True}


async def test_run_of_a_schedule_that_the_overlap_policy_skips_is_refused(service: ApiClient) -> None:
    schedule = {"name": "night", "steps": [{"name": "a", "job": "double", "input": {"n": 1}}]}
    await service.post("/api/v1/schedules", json=schedule)
    first = await service.post("/api/v1/schedules/night/run")
    assert (first.status_code, first.json()["decision"]) == (202, "fired")
    assert_problem(await service.post("/api/v1/schedules/night/run"), 409, "schedule.run.rejected")
