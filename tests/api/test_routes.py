"""Every route does what it says, through the whole application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenuto.api.routes import batch_submit
from tenuto.model.actors import Role
from tests.api.conftest import Api, problem
from tests.support.waiting import eventually

HR: dict[str, Any] = {
    "name": "HR / nightly",
    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
    "steps": [
        {"name": "one", "job": "double", "input": {"n": 1}, "timeout": "30m", "retry": {"max_retries": 5}},
        [
            {"name": "two", "job": "mail/send", "input": {"to": "x"}, "continue_on_failure": True},
            {"name": "three", "job": "double", "input": {"n": 3}, "queue": "other", "priority": 7},
        ],
    ],
    "overlap": "queue_one",
    "misfire": {"policy": "skip", "grace_seconds": 60},
}


async def test_a_schedule_is_made_seen_changed_and_deleted(service: Api) -> None:
    made = await service.post("/api/v1/schedules", json={**HR, "enabled": False})
    assert made.status_code == 201, made.text
    path = made.headers["location"]
    assert path == "/api/v1/schedules/HR%20%2F%20nightly"
    shown = await service.get(path)
    assert shown.headers["etag"] == made.headers["etag"] == '"v1"'
    assert shown.json()["enabled"] is False

    same = await service.put(path, json=shown.json(), headers={"If-Match": '"v1"'})
    assert same.status_code == 200, same.text
    assert same.headers["etag"] == '"v1"', "what is sent back as it is changes nothing"
    assert same.json() == shown.json()

    new = {**shown.json(), "description": "at three", "trigger": {**HR["trigger"], "cron": "0 3 * * *"}}
    new["steps"][0]["timeout"] = 60
    changed = await service.put(path, json=new, headers={"If-Match": '"v1"', "X-Reason": "too early"})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"'), changed.text
    assert changed.json()["steps"][0] == {**shown.json()["steps"][0], "timeout": 60.0}
    assert changed.json()["steps"][1] == shown.json()["steps"][1]
    stale = await service.put(path, json=new, headers={"If-Match": '"v1"'})
    assert "version 2" in problem(stale, 409)["detail"]
    assert problem(await service.put(path, json={**new, "enabled": True}), 422)["errors"][0]["field"] == "enabled"
    assert (await service.read(f"{path}/versions"))["items"][0]["reason"] == "too early"

    assert (await service.post(f"{path}/enable")).json() == {"changed": True}
    assert (await service.post(f"{path}/disable", role=Role.OPERATOR)).json() == {"changed": True}
    assert len((await service.read(f"{path}/preview?count=3"))["runs"]) == 3
    listed = await service.read("/api/v1/schedules?search=nightly&limit=1")
    assert (listed["items"][0]["name"], listed["items"][0]["total_steps"]) == ("HR / nightly", 3)
    assert (await service.read(f"/api/v1/schedules?after={listed['next']}"))["items"] == []

    problem(await service.delete(path, headers={"If-Match": '"v1"'}), 409)
    assert (await service.delete(path, headers={"If-Match": '"v4"'})).status_code == 204
    problem(await service.get(path), 404)


async def test_an_execution_is_run_paused_cancelled_and_retried(service: Api) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"name": "a", "job": "boom"}]})
    started = await service.post("/api/v1/schedules/s/run", json={"arguments": {"a": {"why": "said so"}}})
    assert started.status_code == 202, started.text
    path = started.headers["location"]
    assert (await service.read(path))["steps"][0]["status"] == "Queued"
    assert (await service.read(f"{path}/why"))["reasons"][0]["code"] == "no_worker"
    assert (await service.post(f"{path}/pause")).status_code == 204
    problem(await service.post(f"{path}/pause"), 409)
    assert (await service.read(f"{path}/why"))["reasons"][0]["code"] == "execution_paused"
    assert (await service.post(f"{path}/resume")).status_code == 204
    cancelled = await service.post(f"{path}/cancel", json={"reason": "not today"})
    assert (cancelled.status_code, cancelled.json()) == (202, {"state": "Cancelled"})
    assert (await service.read(path))["state"] == "Cancelled"
    problem(await service.post(f"{path}/cancel"), 409)

    async with service.app.worker():
        again = await service.post(f"{path}/retry")
        assert again.status_code == 202, again.text
        ended = await eventually(lambda: _ended(service, again.headers["location"]))
    assert ended["state"] == "Failed"
    assert ended["steps"][0]["error"] == "said so"
    listed = await service.read("/api/v1/executions?state=Failed&schedule=s&limit=1")
    assert [each["id"] for each in listed["items"]] == [ended["id"]]
    rest = await service.read(f"/api/v1/executions?after={listed['next']}")
    assert [each["state"] for each in rest["items"]] == ["Cancelled"]
    entry = (await service.read("/api/v1/ledger?schedule=s&decision=Fired"))["items"][0]
    assert entry["schedule_name"] == "s"
    problem(await service.get("/api/v1/executions/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"), 404)
    problem(await service.get("/api/v1/executions/17"), 422)


async def _ended(service: Api, path: str) -> Any:
    found = await service.read(path)
    return found if found["ended_at"] else None


async def test_a_task_is_asked_for_seen_and_cancelled(service: Api) -> None:
    wanted = {"job": "double", "input": {"n": 4}, "key": "four", "delay": "1h", "tags": ["t"], "priority": 5}
    made = await service.post("/api/v1/tasks", role=Role.OPERATOR, json=wanted)
    assert (made.status_code, made.json()["created"]) == (202, True), made.text
    path, id = made.headers["location"], made.json()["id"]
    again = await service.post("/api/v1/tasks", json=wanted)
    assert again.json() == {"id": id, "created": False}
    shown = await service.read(path)
    assert (shown["state"], shown["input"], shown["initiator_name"]) == ("Scheduled", {"n": 4}, "operator")
    assert (await service.read(f"{path}/why"))["reasons"][0]["code"] == "not_due"
    listed = await service.read("/api/v1/tasks?state=Scheduled&name=double&queue=default&tag=t")
    assert [each["id"] for each in listed["items"]] == [id]
    assert (await service.post(f"{path}/cancel")).json() == {"state": "Cancelled"}
    problem(await service.post(f"{path}/cancel"), 409)
    assert (await service.read(path))["status"] == "Cancelled", "an ended task is told by its last attempt"
    assert len((await service.read(f"{path}/attempts"))["items"]) == 1
    assert (await service.read(f"{path}/steps"))["items"] == []
    assert problem(await service.post("/api/v1/tasks", json={"job": "nope"}), 422)["type"] == "urn:tenuto:unknown-job"
    wrong = problem(await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": "x"}}), 422)
    assert wrong["errors"][0]["field"] == "n"


async def test_activities_tell_of_attempts_children_logs_and_figures(service: Api) -> None:
    made = await service.post("/api/v1/tasks", json={"job": "family", "input": {"children": 3}})
    async with service.app.worker():
        await eventually(lambda: _count(service, "/api/v1/activities", 4))
    id = made.json()["id"]
    shown = await service.read(f"/api/v1/activities/{id}")
    assert (shown["status"], shown["input"]) == ("Completed", {"children": 3})
    log = await service.get(f"/api/v1/activities/{id}/log")
    assert "a family" in log.text
    assert log.headers["content-type"].startswith("text/plain")
    first = await service.read(f"/api/v1/activities/{id}/children?limit=2")
    rest = await service.read(f"/api/v1/activities/{id}/children?limit=2&after={first['next']}")
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)
    assert {each["name"] for each in first["items"]} == {"double"}
    stats = {each["name"]: each for each in (await service.read("/api/v1/activities/stats"))["items"]}
    assert (stats["double"]["done"], stats["double"]["failed"], stats["family"]["attempts"]) == (3, 0, 1)
    problem(await service.get("/api/v1/activities/stats?since=2030-01-01T00:00:00"), 422)
    page = await service.read("/api/v1/activities?status=Completed&limit=3")
    assert len((await service.read(f"/api/v1/activities?after={page['next']}"))["items"]) == 1


async def _count(service: Api, path: str, wanted: int) -> bool:
    return len((await service.read(path))["items"]) == wanted


MAIL: dict[str, Any] = {
    "external_id": "mail/all",
    "job": "mail/send",
    "properties": {"subject": "hello"},
    "on_demand": True,
    "retry": {"max_retries": 1, "base_seconds": 5},
    "timeout": 30,
    "group": "bulk",
}


async def test_a_manifest_is_made_seen_changed_run_and_deleted(service: Api) -> None:
    made = await service.post("/api/v1/manifests", json=MAIL, headers={"X-Reason": "new"})
    assert made.status_code == 201, made.text
    path = made.headers["location"]
    shown = await service.get(path)
    assert shown.json()["schedule_type"] == "on_demand"
    same = await service.put(path, json=shown.json(), headers={"If-Match": shown.headers["etag"]})
    assert (same.status_code, same.headers["etag"]) == (200, '"v1"'), same.text
    new = {**shown.json(), "priority": 3, "properties": {"subject": "good day"}}
    changed = await service.put(path, json=new, headers={"If-Match": '"v1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"'), changed.text
    assert changed.json()["retry"] == shown.json()["retry"]
    problem(await service.put(path, json=new, headers={"If-Match": '"v1"'}), 409)
    wrong = problem(await service.put(path, json={**new, "properties": {"times": "x"}}), 422)
    assert wrong["errors"][0]["field"] == "properties.times"
    assert problem(await service.put(path, json={**new, "job": "nope"}), 422)["errors"][0]["field"] == "job"
    assert (await service.post(f"{path}/disable")).json() == {"changed": True}
    assert (await service.post(f"{path}/enable")).json() == {"changed": True}
    assert len((await service.read(f"{path}/versions"))["items"]) == 4
    assert (await service.read("/api/v1/manifests?group=bulk&search=MAIL&enabled=true"))["items"][0]["open_tasks"] == 0

    run = await service.post(f"{path}/enqueue", json={"arguments": {"to": "a"}})
    assert run.status_code == 202, run.text
    problem(await service.post(f"{path}/enqueue", json={"arguments": {"to": "a"}}), 409)
    item = await service.post(f"{path}/enqueue", json={"item": {"to": "b"}, "key": "b"})
    assert (await service.read(item.headers["location"]))["input"] == {"to": "b", "subject": "good day", "times": 1}
    problem(await service.post(f"{path}/enqueue", json={"key": "b"}), 422)
    assert (await service.read(f"{path}/details"))["open"] == {"Queued": 2}
    problem(await service.delete(path), 409)

    group = await service.put("/api/v1/manifest-groups/bulk", json={"max_active": 2, "priority": 1})
    assert (group.json()["max_active"], group.json()["manifests"]) == (2, 1)
    assert (await service.put("/api/v1/manifest-groups/bulk", json={"max_active": None})).json()["priority"] == 1
    assert [each["name"] for each in (await service.read("/api/v1/manifest-groups"))["items"]] == ["bulk"]
    await service.app.manifests.poll()
    assert len((await service.read("/api/v1/polls"))["items"]) == 1

    for task in (run, item):
        await service.post(f"{task.headers['location']}/cancel")
    assert (await service.delete(path)).status_code == 204


async def test_many_definitions_are_planned_looked_at_and_applied_as_one(service: Api) -> None:
    wanted = {
        "schedules": [{"name": "nightly", "cron": "0 2 * * *", "steps": [{"job": "double", "input": {"n": 1}}]}],
        "manifests": [{"external_id": "m", "job": "double", "on_demand": True, "group": "g"}],
        "groups": [{"name": "g", "max_active": 3}],
    }
    planned = await service.post("/api/v1/plans", role=Role.VIEWER, json=wanted)
    assert planned.status_code == 200, planned.text
    assert [each["effect"] for each in planned.json()["changes"]] == ["created"] * 3
    problem(await service.get("/api/v1/schedules/nightly"), 404)
    problem(await service.post("/api/v1/plans/apply?plan=other", json=wanted), 409)
    applied = await service.post(f"/api/v1/plans/apply?plan={planned.json()['plan']}", json=wanted)
    assert applied.status_code == 200, applied.text
    assert (await service.post("/api/v1/plans", json=wanted)).json()["changes_something"] is False
    shown = await service.read("/api/v1/schedules/nightly")
    renamed = await service.put("/api/v1/schedules/nightly", json={**shown, "name": "by day"})
    assert "declared in a file" in problem(renamed, 409)["detail"]
    gone = await service.post("/api/v1/plans?prune=true", json={"groups": wanted["groups"]})
    assert gone.json()["deleted"] == ["nightly", "m"]
    wrong = problem(await service.post("/api/v1/plans", json={"schedules": [{"name": "x", "stepz": []}]}), 422)
    assert wrong["errors"][0]["field"] == "schedules[0].stepz"
    problem(await service.post("/api/v1/plans", json={}), 422)


async def test_an_idempotency_key_on_bulk_is_the_callers_own_and_for_these_lines(service: Api) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines, others = "/api/v1/manifests/many/bulk", '{"n": 1}\n{"n": 2}', '{"n": 3}\n{"n": 4}'
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "run-1"}
    first = (await service.post(path, content=lines, headers=headers)).json()
    assert (await service.post(path, content=lines, headers=headers)).json()["id"] == first["id"]
    problem(await service.post(path, content=others, headers=headers), 409)
    theirs = (await service.post(path, role=Role.OPERATOR, content=others, headers=headers)).json()
    assert theirs["id"] != first["id"]
    assert (first["total"], theirs["total"]) == (2, 2)


async def test_no_more_lines_are_taken_in_once_their_key_is_revoked(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_submit, "_CHECKED_EVERY", 0.05)
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines = "/api/v1/manifests/many/bulk?batch_key=may", [b'{"n": %d}\n' % number for number in range(6000)]

    async def body() -> AsyncIterator[bytes]:
        yield b"".join(lines[:2500])
        await service.app.keys.revoke(Role.OPERATOR.word)
        await asyncio.sleep(0.1)
        yield b"".join(lines[2500:])

    kind = {"Content-Type": "application/x-ndjson"}
    refused = problem(await service.post(path, role=Role.OPERATOR, content=body(), headers=kind), 401)
    assert "batch_key=may" in refused["remedy"]
    (batch,) = (await service.read("/api/v1/batches"))["items"]
    assert (batch["total"], batch["complete_at"]) == (2000, None)
    whole = (await service.post(path, content=b"".join(lines), headers=kind)).json()
    assert (whole["id"], whole["total"]) == (batch["id"], 6000)


async def test_a_stream_of_lines_that_falls_silent_ends_with_its_key(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_submit, "_CHECKED_EVERY", 0.05)
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path, lines = "/api/v1/manifests/many/bulk?batch_key=may", [b'{"n": %d}\n' % number for number in range(2500)]
    left_alone = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"".join(lines)
        await service.app.keys.revoke(Role.OPERATOR.word)
        try:
            await asyncio.Event().wait()
        finally:
            left_alone.set()

    kind = {"Content-Type": "application/x-ndjson"}
    async with asyncio.timeout(20):
        problem(await service.post(path, role=Role.OPERATOR, content=body(), headers=kind), 401)
        await left_alone.wait()
    (batch,) = (await service.read("/api/v1/batches"))["items"]
    assert (batch["total"], batch["complete_at"]) == (2000, None)


async def test_a_stream_that_rests_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_submit, "_CHECKED_EVERY", 0.001)
    rested = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        for piece in (b"one", b"two", b"three"):
            await rested.wait()
            rested.clear()
            yield piece

    seen = []
    async for piece in batch_submit._also_while_nothing_comes(body()):
        seen.append(piece)
        if not piece:
            rested.set()
    assert [piece for piece in seen if piece] == [b"one", b"two", b"three"]


async def test_bulk_is_a_stream_of_lines_that_can_be_taken_up_again(service: Api) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "many", "job": "double", "on_demand": True})
    path = "/api/v1/manifests/many/bulk"
    kind = {"Content-Type": "application/x-ndjson"}
    lines = [json.dumps({"n": number, "id": f"i{number}"}) for number in range(5000)]
    broken = "\n".join([*lines[:4500], '{"n": "x", "id": "y"}', *lines[4500:]])
    refused = problem(await service.post(f"{path}?batch_key=may&key=id", content=broken, headers=kind), 422)
    assert refused["errors"][0]["field"] == "line 4501: n"
    assert "batch_key=may" in refused["remedy"]

    async def pieces() -> Any:
        whole = ("\n".join([*lines, "", lines[0]])).encode()
        for start in range(0, len(whole), 7777):
            yield whole[start : start + 7777]

    done = await service.post(f"{path}?batch_key=may&key=id", content=pieces(), headers=kind)
    assert done.status_code == 202, done.text
    batch = done.json()
    assert (batch["total"], batch["duplicates"], batch["state"], batch["left"]) == (5000, 1, "InProgress", 5000)
    assert batch["open"] == {"Queued": 5000}
    again = await service.post(f"{path}?batch_key=may&key=id", content=pieces(), headers=kind)
    assert again.json()["id"] == batch["id"]
    for other in ("", "\n".join(lines), "\n".join([*lines, lines[0], lines[1]]), "\n".join(reversed(lines))):
        refused = problem(await service.post(f"{path}?batch_key=may&key=id", content=other, headers=kind), 409)
        assert refused["errors"][0]["field"] == "batch_key"
    problem(await service.post(path, json={"n": 1}), 415)
    problem(await service.post(path, content="[" * 1000, headers=kind), 422)
    problem(await service.post(path, content="x" * 600_000, headers=kind), 422)
    problem(await service.post("/api/v1/manifests/nope/bulk", content="", headers=kind), 404)

    where = done.headers["location"]
    items = await service.read(f"{where}/items?status=Queued&limit=500")
    following = await service.read(f"{where}/items?limit=1&after={items['next']}")
    assert following["items"][0]["item_key"] == "i500"
    assert (await service.post(f"{where}/pause")).status_code == 204
    assert (await service.read(where))["state"] == "Paused"
    assert (await service.post(f"{where}/resume")).status_code == 204
    assert (await service.post(f"{where}/cancel")).status_code == 204
    problem(await service.post(f"{where}/cancel"), 409)
    listed = await service.read("/api/v1/batches?manifest=many")
    assert batch["id"] in [each["id"] for each in listed["items"]]
    problem(await service.get("/api/v1/batches/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1/items"), 404)


async def test_dead_letters_are_resolved_one_by_one_and_as_selected(service: Api) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "bad", "job": "boom", "on_demand": True})
    lines = "\n".join(json.dumps({"why": f"case {number % 2}"}) for number in range(6))
    batch = await service.post(
        "/api/v1/manifests/bad/bulk", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    async with service.app.worker():
        await eventually(lambda: _count(service, "/api/v1/dead-letters", 6))
    letters = (await service.read("/api/v1/dead-letters?manifest=bad"))["items"]
    assert {each["status"] for each in letters} == {"AwaitingIntervention"}
    path = f"/api/v1/dead-letters/{letters[0]['id']}"
    assert (await service.read(path))["tried"][0]["status"] == "Failed"
    retried = await service.post(f"{path}/retry", json={"note": "again", "input": {"why": "still"}})
    assert (await service.read(retried.headers["location"]))["input"] == {"why": "still"}
    problem(await service.post(f"{path}/retry"), 409)
    assert (await service.post(f"/api/v1/dead-letters/{letters[1]['id']}/acknowledge")).status_code == 204

    groups = (await service.read("/api/v1/dead-letters/groups"))["items"]
    assert sum(group["letters"] if "letters" in group else group["count"] for group in groups) == 4
    fingerprint = groups[0]["fingerprint"]
    chosen = await service.post("/api/v1/dead-letters/selections", json={"fingerprint": fingerprint})
    assert chosen.json()["total"] == len(chosen.json()["ids"]), chosen.text
    assert (await service.post("/api/v1/dead-letters/retry", json={"ids": chosen.json()["ids"][:1]})).json() == {
        "retried": 1
    }
    rest = await service.post("/api/v1/dead-letters/acknowledge", json={"ids": chosen.json()["ids"], "note": "seen"})
    assert rest.json() == {"acknowledged": chosen.json()["total"] - 1}, "those resolved meanwhile are left out"
    assert len((await service.read("/api/v1/dead-letters?status=Any"))["items"]) == 6
    left = (await service.read("/api/v1/dead-letters"))["items"]
    retried = await service.post(f"{batch.headers['location']}/retry-failed")
    assert retried.json() == {"retried": len(left)}


async def test_queues_workers_jobs_and_settings_are_told(service: Api) -> None:
    assert (await service.post("/api/v1/queues/mail/pause", json={"reason": "late"})).status_code == 204
    assert (await service.put("/api/v1/queues/mail/limit", json={"max_running": 3})).status_code == 204
    queue = (await service.read("/api/v1/queues"))["items"][0]
    assert (queue["name"], queue["max_running"], queue["reason"]) == ("mail", 3, "late")
    assert (await service.post("/api/v1/queues/mail/resume")).status_code == 204
    problem(await service.put("/api/v1/queues/mail/limit", json={"max_running": 0}), 422)
    problem(await service.put("/api/v1/queues/mail/limit", json={}), 422)
    async with service.app.worker():
        worker = (await service.read("/api/v1/workers"))["items"][0]
        assert worker["silent_for"] < 60
    assert (await service.read("/api/v1/workers?ended=true"))["items"][0]["ended_at"]
    jobs = {each["name"]: each for each in (await service.read("/api/v1/jobs"))["items"]}
    assert jobs["mail/send"]["required"] == ["to"]
    assert (await service.read("/api/v1/jobs/mail%2Fsend"))["input_schema"]["required"] == ["to"]
    problem(await service.get("/api/v1/jobs/none"), 404)
    assert "schedule" in [each["name"] for each in (await service.read("/api/v1/step-kinds"))["items"]]
    settings = (await service.read("/api/v1/settings"))["settings"]
    assert settings["retention_days"] == 90.0
    document = await service.read("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")


async def test_logs_secrets_and_the_audit_trail_are_read(service: Api) -> None:
    await service.app.logs.append("imports/hr", "one")
    await service.app.logs.append("imports/hr", "two", {"n": 2})
    assert (await service.read("/api/log"))["items"][0]["log"] == "imports/hr"
    newest = await service.read("/api/log/imports%2Fhr?limit=1")
    assert newest["items"][0]["message"] == "two"
    older = await service.read(f"/api/log/imports%2Fhr?after={newest['next']}")
    assert [each["message"] for each in older["items"]] == ["one"]
    oldest = await service.read("/api/log/imports%2Fhr?order=oldest")
    assert [each["message"] for each in oldest["items"]] == ["one", "two"]

    set_ = await service.put("/api/v1/secrets/hr%2Fpassword", json={"value": "correct horse battery"})
    assert (set_.status_code, set_.json()) == (200, {"name": "hr/password", "version": 1}), set_.text
    assert "correct horse" not in (await service.get("/api/v1/secrets")).text
    assert (await service.delete("/api/v1/secrets/hr%2Fpassword")).status_code == 204
    problem(await service.delete("/api/v1/secrets/hr%2Fpassword"), 404)

    trail = (await service.read("/api/v1/audit?action=secret"))["items"]
    assert [each["action"] for each in trail] == ["secret.delete", "secret.set"]
    assert (await service.read(f"/api/v1/audit/{trail[0]['id']}"))["actor_name"] == "admin"
    assert "sound" in await service.read("/api/v1/audit/verification")
    export = await service.get("/api/v1/audit/export")
    assert len(export.text.splitlines()) >= 2
    assert "correct horse" not in export.text


async def test_keys_are_made_shown_once_and_revoked(service: Api) -> None:
    made = await service.post("/api/v1/keys", json={"name": "ci", "role": "viewer"})
    assert made.status_code == 201, made.text
    text = made.json()["key"]
    assert "digest" not in made.text
    assert text not in (await service.get("/api/v1/keys")).text
    mine = {"Authorization": f"Bearer {text}"}
    assert (await service.get("/api/v1/schedules", role=None, headers=mine)).status_code == 200
    problem(await service.post("/api/v1/keys", json={"name": "ci", "role": "viewer"}), 409)
    problem(await service.post("/api/v1/keys", json={"name": "x", "role": "god"}), 422)
    assert (await service.delete("/api/v1/keys/ci")).json()["revoked_by"] == "admin"
    problem(await service.get("/api/v1/schedules", role=None, headers=mine), 401)
    assert (await service.read("/api/v1/keys/admin"))["role"] == "admin"


async def test_a_browser_opens_a_session_by_a_link_and_closes_it(service: Api) -> None:
    link = (await service.post("/api/v1/keys/operator/link")).json()["link"]
    opened = await service.post("/api/v1/session", role=None, json={"link": link})
    assert opened.status_code == 201, opened.text
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    service.client.cookies.clear()
    problem(await service.post("/api/v1/session", role=None, json={"link": link}), 401)
    browser = {"Cookie": cookie.partition(";")[0]}
    assert (await service.get("/api/v1/session", role=None, headers=browser)).json() == {
        "name": "operator",
        "role": "operator",
        "session": True,
    }
    pause = "/api/v1/queues/q/pause"
    problem(await service.post(pause, role=None, headers=browser), 403)
    foreign = {**browser, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    problem(await service.post(pause, role=None, headers=foreign), 403)
    ours = {**browser, "Origin": "http://localhost"}
    assert (await service.post(pause, role=None, headers=ours)).status_code == 204
    link = (await service.post("/api/v1/keys/operator/link")).json()["link"]
    problem(await service.post("/api/v1/session", role=None, json={"link": link}, headers=foreign), 403)
    secure = await service.post("https://localhost/api/v1/session", role=None, json={"link": link})
    assert "Secure" in secure.headers["set-cookie"]
    service.client.cookies.clear()
    assert (await service.delete("/api/v1/session", role=None, headers=ours)).status_code == 204
    problem(await service.get("/api/v1/session", role=None, headers=browser), 401)
