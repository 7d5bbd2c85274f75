"""`q=` on every filtered list: the same rows as Python, the count, and errors that name position and nearest key."""

from __future__ import annotations

import pytest

from tenuto import Step, every
from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually

LISTS = ("executions", "tasks", "activities", "dead-letters", "batches", "audit")


@pytest.mark.parametrize("name", LISTS)
async def test_unknown_filter_key_is_rejected_with_its_position(service: ApiClient, name: str) -> None:
    for path in (f"/api/v1/{name}", f"/api/v1/{name}/count"):
        problem = assert_problem(await service.get(f"{path}?q=text%20idd:01"), 422, "filter.key.unknown")
        [field] = problem["errors"]
        assert (field["field"], field["position"]) == ("q", 5)
        assert "did you mean id?" in problem["remedy"]
    assert_problem(await service.get("/api/schedule?q=idd:01"), 422, "filter.key.unknown")


async def test_tasks_are_filtered_and_counted_by_query(service: ApiClient) -> None:
    for number in range(3):
        new_task = {"job": "double", "input": {"n": number}, "delay": f"{number + 1}h", "tags": [f"t{number}"]}
        await service.post("/api/v1/tasks", json=new_task)
    await service.post("/api/v1/tasks", json={"job": "mail/send", "input": {"to": "ana"}})
    page = await service.get_json("/api/v1/tasks?q=state:scheduled+-tag:t1")
    assert [each["tags"] for each in page["items"]] == [["t2"], ["t0"]]
    assert page["searched"] == 100_000, "tags are searched in a stated window"
    assert (await service.get_json("/api/v1/tasks?q=queue:mail"))["searched"] is None
    assert await service.get_json("/api/v1/tasks/count?q=name:double") == {"count": 3, "is_exact": True}
    first = await service.get_json("/api/v1/tasks?q=name:double&limit=2")
    rest = await service.get_json(f"/api/v1/tasks?q=name:double&limit=2&after={first['next']}")
    assert [len(first["items"]), len(rest["items"])] == [2, 1]
    assert (await service.get_json("/api/v1/tasks?q=name:double&state=queued"))["items"] == [], "parameters are added"


async def test_failed_attempts_are_found_by_time_worker_and_text(service: ApiClient) -> None:
    await service.post("/api/v1/tasks", json={"job": "boom", "input": {"why": "no flour left"}})
    await service.post("/api/v1/tasks", json={"job": "double", "input": {"n": 1}})
    async with service.app.worker(name="box-1"):
        await eventually(lambda: _has_ended(service, 2))

    async def names(query: str) -> list[str]:
        return [each["name"] for each in (await service.get_json(f"/api/v1/activities?q={query}"))["items"]]

    assert await names("state:failed+final:yes+ended:>1h") == ["boom"]
    assert await names("error:~FLOUR") == await names("%22flour left%22") == ["boom"]
    assert sorted(await names("worker:box-1")) == ["boom", "double"]
    assert await names("ended:<1h") == await names("worker:box-2") == []
    assert (await service.get_json("/api/v1/activities?worker=box-1&final=true&state=failed"))["items"][0][
        "name"
    ] == "boom"


async def _has_ended(service: ApiClient, count: int) -> bool:
    return bool((await service.get_json("/api/v1/activities/count"))["count"] == count)


async def test_one_shots_and_audit_entries_are_filtered_by_query(service: ApiClient) -> None:
    for day in (1, 2):
        body = {
            "exec_at": f"2131-01-0{day}T00:00:00Z",
            "prompt_type": "log.append",
            "payload": {"message": f"day {day}"},
        }
        await service.post("/api/schedule", json={**body, "tags": [f"d{day}"]})
    assert len(await service.get_json("/api/schedule?q=due:2131-01-02")) == 1
    assert len(await service.get_json("/api/schedule?q=tag:d1,d2+state:pending")) == 2
    assert await service.get_json("/api/schedule/count?q=%22day 2%22") == {"count": 1, "is_exact": True}
    assert await service.get_json("/api/schedule/count?q=state:pending&ended=true") == {"count": 0, "is_exact": True}
    entries = await service.get_json("/api/v1/audit?q=action:one_shot+by:admin+at:>1h")
    assert [each["action"] for each in entries["items"]] == ["one_shot.create"] * 2
    assert (await service.get_json("/api/v1/audit/count?q=action:one_shot.create"))["count"] == 2


async def test_viewer_searches_objects_and_reads_their_history(service: ApiClient) -> None:
    await service.post("/api/v1/queues/mail/pause", json={"reason": "server down"})
    hits = await service.get_json("/api/v1/search?q=mai", role=Role.VIEWER)
    assert hits["items"] == [{"kind": "queue", "id": None, "name": "mail", "state": None, "path": None}]
    history = await service.get_json("/api/v1/history?target=queue:mail", role=Role.VIEWER)
    [entry] = history["items"]
    assert (entry["action"], entry["actor_name"], entry["reason"]) == ("queue.pause", "admin", "server down")
    assert "source" not in entry
    assert_problem(await service.get("/api/v1/history?target=secret:x"), 422, "history.target.invalid")
    assert_problem(await service.get("/api/v1/search"), 422)


async def test_ledger_and_logs_are_filtered_by_query(service: ApiClient) -> None:
    app = service.app
    for name in ("a", "b"):
        app.schedule(name, every("1h"), [Step.job(app.jobs.jobs_by_name["double"], 1)])
    await app.schedules.deploy()
    for name in ("a", "b", "b"):
        await app.schedules.run(name)
    for message in ("order taken", "order refused", "quiet"):
        await app.logs.append("orders", message, {"from": "ana"} if message == "quiet" else None)
    await app.logs.append("night", "order")

    async def count(path: str) -> int:
        return len((await service.get_json(path))["items"])

    assert await count("/api/v1/ledger?q=schedule:b") == 2
    assert await count("/api/v1/ledger?q=schedule:a,b+decision:fired+due:>1h") == 2
    assert await count("/api/v1/ledger?q=-decision:fired") == 1
    assert await count("/api/log/orders?q=ORDER") == 2
    assert await count("/api/log/orders?q=order+-message:~refused+at:>1h") == 1
    assert await count("/api/log/orders?q=ana") == 1, "fields are searched too"
    assert await count("/api/log/orders?q=order&order=oldest&window=2") == 1, (
        "the oldest entry is outside of the window"
    )
    assert await count("/api/log?search=ORD") == 1
    assert_problem(await service.get("/api/v1/ledger?q=decisio:fired"), 422, "filter.key.unknown")
    assert_problem(await service.get("/api/log/orders?q=mesage:x"), 422, "filter.key.unknown")
