"""Bad inputs over HTTP: each is refused with a problem, or stored and shown unchanged. Never a 5xx or a hang.

The numbers are those of `tests/bad_inputs/bad_input_list.py`.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import httpx2
import pytest

from tenuto import Context
from tenuto.model.access.actors import Role
from tenuto.model.validation import INVISIBLE_CHARACTERS
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually

JSON = {"Content-Type": "application/json"}
TASKS = "/api/v1/tasks"
SCHEDULES = "/api/v1/schedules"
LISTS = (
    "/api/v1/schedules", "/api/v1/ledger", "/api/v1/executions", "/api/v1/tasks", "/api/v1/activities",
    "/api/v1/manifests", "/api/v1/polls", "/api/v1/batches", "/api/v1/dead-letters", "/api/v1/secrets",
    "/api/v1/audit", "/api/log", "/api/log/x", "/api/schedule",
)  # fmt: skip
HOSTILE_TEXTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea>", "{{7*7}}", "${7*7}", "javascript:x",
    "\x1b]52;c;aGk=\x07", "\u202egnp.exe", "a\u200bb", "\u0430dmin", "a\r\nSet-Cookie: x=1", "</script>",
    "'; DROP TABLE tenuto.tasks;--", "100%_\\", "cafe\u0301",
)  # fmt: skip


class Case(NamedTuple):
    """A request and its allowed statuses."""

    number: str
    method: str
    path: str
    options: dict[str, Any]
    allowed: tuple[int, ...]
    role: Role | None = Role.ADMIN


def raw_body(text: str | bytes, **headers: str) -> dict[str, Any]:
    return {"content": text if isinstance(text, bytes) else text.encode(), "headers": {**JSON, **headers}}


def task_body(**fields: Any) -> dict[str, Any]:
    return {"json": {"job": "double", "input": {"n": 1}, **fields}}


def schedule_body(**fields: Any) -> dict[str, Any]:
    return {"json": {"name": "bad", "steps": [{"job": "double", "input": {"n": 1}}], **fields}}


MANY_STEPS = [{"job": "double", "name": f"s{number}", "input": {"n": number}} for number in range(15_000)]
UNKNOWN_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
DUPLICATE_HEADER = [("Authorization", "Bearer KEY"), ("Authorization", "Bearer KEY")]
NULL_ORIGIN = {"Origin": "null", "Cookie": "tenuto_session=x"}
OTHER_ORIGIN = {"Origin": "http://evil"}
SPOOFED = {"X-Forwarded-User": "admin", "X-Forwarded-For": "127.0.0.1"}
ONE_SHOT = {"exec_at": "2031-01-01T00:00:00Z", "prompt_type": "double", "payload": {"n": 1}}
INSTANTS = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "2031-01-01T00:00:00", "soon", "0000-00-00")

REQUESTS = [
    # authentication
    Case("B1", "GET", SCHEDULES, {}, (401,), None),
    Case("B2", "GET", SCHEDULES, {"headers": {"Authorization": "Bearer "}}, (401,), None),
    Case("B2", "GET", SCHEDULES, {"headers": {"Authorization": "Basic YTpi"}}, (401,), None),
    Case("B3", "GET", SCHEDULES, {"headers": {"Authorization": f"Bearer tnt_aaaaaaaa_{'A' * 43}"}}, (401,), None),
    Case("B6", "GET", f"{SCHEDULES}?key=KEY&access_token=KEY", {}, (401,), None),
    Case("B7", "GET", SCHEDULES, {"headers": DUPLICATE_HEADER}, (400,), None),
    Case("B8", "GET", "/api/v1/schedules/healthz", {}, (401,), None),
    Case("B9", "GET", "//api/v1/schedules", {}, (404,), None),
    Case("B9", "GET", "/API/v1/schedules", {}, (404,), None),
    Case("B9", "GET", "/api/./v1/schedules", {}, (401, 404), None),
    Case("B9", "GET", "/api/%2e%2e/api/v1/schedules", {}, (401, 404), None),
    Case("B9", "GET", "/healthz/../api/v1/schedules", {}, (401, 404), None),
    Case("B9", "GET", "/healthz%2f..%2fapi%2fv1%2fschedules", {}, (404,), None),
    Case("B9", "GET", "/api/v1/schedules;a=b", {}, (404,), None),
    Case("B10", "GET", SCHEDULES, {"headers": {"X-HTTP-Method-Override": "DELETE"}}, (200,)),
    Case("B11", "GET", SCHEDULES, {"headers": SPOOFED}, (401,), None),
    Case("B11", "GET", SCHEDULES, {"headers": {"X-Forwarded-Host": "evil.example"}}, (200,)),
    Case("B12", "GET", "/healthz", {"headers": {"X-Original-URL": "/api/v1/keys"}}, (200,), None),
    Case("B13", "GET", f"{TASKS}/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1", {}, (404,)),
    Case("B14", "POST", "/api/v1/dead-letters/retry", {"json": {"ids": [UNKNOWN_ID]}}, (202,)),
    Case("B15", "POST", TASKS, task_body(state="succeeded"), (422,)),
    Case("B15", "POST", TASKS, task_body(initiator_name="root"), (422,)),
    Case("B15", "POST", SCHEDULES, schedule_body(owner="root"), (422,)),
    Case("B15", "POST", "/api/v1/keys", {"json": {"name": "x", "role": "viewer", "digest": "00"}}, (422,)),
    *(Case("B16", method, path, {}, (405,)) for method in ("OPTIONS", "TRACE", "HEAD", "PATCH") for path in LISTS),
    # cross-site requests
    Case("B17", "POST", TASKS, {"content": b'{"job":"double"}', "headers": {"Content-Type": "text/plain"}}, (415,)),
    Case("B17", "POST", TASKS, {"data": {"job": "double"}}, (415,)),
    Case("B19", "POST", TASKS, {"json": {}, "headers": NULL_ORIGIN}, (401, 403), None),
    Case("B20", "POST", "/api/v1/session", {"json": {"link": "tnl_x"}, "headers": OTHER_ORIGIN}, (403,), None),
    Case("B20", "POST", "/api/v1/session", {"json": {"link": "tnl_x"}}, (401,), None),
    # SQL
    *(Case("B58", "GET", f"{path}?limit=1;DROP", {}, (405, 422)) for path in LISTS),
    *(Case("B59", "GET", f"{path}?after=(SELECT 1)", {}, (422,)) for path in LISTS),
    *(Case("B59", "GET", f"{path}?after=WyJ4Il0", {}, (200, 422)) for path in LISTS),
    *(Case("B59", "GET", f"{path}?after=W10", {}, (422,)) for path in LISTS),
    Case("B62", "POST", TASKS, raw_body('{"job":"double","input":{"n":1},"unique_key":"a\\u0000b"}'), (422,)),
    Case("B62", "POST", TASKS, raw_body('{"job":"double","input":{"n":1},"unique_key":"\\ud800"}'), (422,)),
    Case("B62", "POST", TASKS, raw_body('{"job":"mail/send","input":{"to":"\\ud800"}}'), (422,)),
    Case("B62", "POST", TASKS, raw_body(b'{"job":"\xff"}'), (400,)),
    Case("B62", "GET", f"{SCHEDULES}/%00", {}, (400,)),
    Case("B62", "GET", f"{SCHEDULES}/%ff", {}, (404,)),
    Case("B62", "GET", f"{SCHEDULES}?search=%00", {}, (422,)),
    Case("B62", "GET", f"{TASKS}?tag=%00", {}, (422,)),
    Case("B62", "GET", f"{SCHEDULES}?search=%ff%fe", {}, (200,)),
    Case("B63", "GET", f"{SCHEDULES}?search=%25_%5C", {}, (200,)),
    Case("B63", "GET", "/api/v1/manifests?search=%5C", {}, (200,)),
    *(Case("B64", "GET", f"{TASKS}/{id}", {}, (422,)) for id in ("1e3", "%201", "%EF%BC%99", str(2**63), "-1", "null")),
    # payload
    Case("B78", "POST", TASKS, raw_body("[" * 100_000), (400,)),
    Case("B78", "POST", TASKS, raw_body('{"job":"double","input":' + '{"a":' * 300 + "1" + "}" * 301), (400,)),
    *(
        Case("B79", "POST", TASKS, raw_body(f'{{"job":"double","input":{{"n":{number}}}}}'), (400, 422))
        for number in ("NaN", "Infinity", "-Infinity", "9" * 5000, "1e999", "-1e999", "9223372036854775808", "1.5")
    ),
    Case("B80", "POST", TASKS, raw_body('{"job":"double","job":"boom","input":{"n":1}}'), (400,)),
    Case("B80", "POST", TASKS, raw_body('{"job":"double","input":{"n":1,"n":2}}'), (400,)),
    Case("B81", "POST", TASKS, task_body(input={"n": 1, "__class__": "os.system"}), (422,)),
    Case("B81", "POST", TASKS, task_body(input={"n": {"py/object": "os.system"}}), (422,)),
    Case("B82", "POST", TASKS, raw_body("x" * 1_100_000), (413,)),
    Case("B82", "POST", TASKS, raw_body("{}", **{"Content-Length": "99999999999999999999"}), (413,)),
    Case("B82", "POST", TASKS, raw_body("{}", **{"Content-Length": "-1"}), (400, 422)),
    *(
        Case("B83", "GET", f"{path}?limit={limit}", {}, (405, 422))
        for path in LISTS
        for limit in ("-1", "0", "1000000000", "x")
    ),
    Case("B83", "GET", "/api/v1/activities/stats?since=9999-12-31T23:59:59Z", {}, (200, 422)),
    Case("B83", "GET", "/api/v1/activities/stats?since=0000-01-01T00:00:00Z", {}, (422,)),
    Case("B83", "GET", "/api/v1/activities/stats?since=0001-01-01T00:00:00Z", {}, (200, 422)),
    Case("B83", "GET", "/api/v1/audit?since=0001-01-01T00:00:00%2B14:00", {}, (200, 422)),
    Case("B83", "POST", SCHEDULES, schedule_body(cron="0 0 * * *", zone="../../etc"), (422,)),
    Case("B84", "GET", f"{SCHEDULES}?search=(a%2B)%2B%24", {}, (200,)),
    Case("B85", "POST", TASKS, task_body(tags=[f"t{number}" for number in range(10_000)]), (422,)),
    Case("B85", "POST", TASKS, task_body(tags=["x" * 1000]), (422,)),
    Case("B85", "POST", SCHEDULES, schedule_body(name="x" * 500_000), (422,)),
    Case("B85", "POST", SCHEDULES, schedule_body(steps=MANY_STEPS), (413, 422)),
    Case("B85", "POST", SCHEDULES, schedule_body(steps=[{"schedule": "bad"}]), (422,)),
    Case("B85", "POST", SCHEDULES, schedule_body(steps=[]), (422,)),
    Case("B85", "POST", SCHEDULES, schedule_body(steps=[[]]), (422,)),
    Case("B85", "POST", "/api/v1/manifests", {"json": {"external_id": "m", "job": "double", "after": "m"}}, (422,)),
    # time
    *(
        Case("B89", "POST", SCHEDULES, schedule_body(cron=cron), (422,))
        for cron in (
            "* * * * * *",
            "*/0 * * * *",
            "0-99999999 * * * *",
            ",".join(["1"] * 10_000) + " * * * *",
            "@reboot",
            "0 0 30 2 *",
            "0 0 31 4 *",
            "0 0 * * Montag",
            "0 0 L * *",
            "0 0 1W * *",
            "0 0 * * 1#2",
            "",
            " ",
        )
    ),
    *(
        Case("B90", "POST", SCHEDULES, schedule_body(cron="0 0 * * *", zone=zone), (422,))
        for zone in ("", "Mars/Base", "x" * 999)
    ),
    *(Case("B91", "POST", TASKS, task_body(run_at=instant), (422,)) for instant in INSTANTS),
    *(Case("B91", "POST", TASKS, task_body(delay=delay), (422,)) for delay in ("-1", -1, "1e99", "NaN", 1e300, True)),
    # true is not a number
    Case("B79", "POST", TASKS, task_body(priority=True), (422,)),
    Case("B79", "POST", TASKS, task_body(limit_key="k", limit=True), (422,)),
    Case("B79", "PUT", "/api/v1/queues/q/limit", {"json": {"max_running": True}}, (422,)),
    Case("B79", "PUT", "/api/v1/manifest-groups/g", {"json": {"max_active": True}}, (422,)),
    Case("B79", "PUT", "/api/v1/manifest-groups/g", {"json": {"priority": False}}, (422,)),
    Case("B79", "POST", "/api/schedule", {"json": {**ONE_SHOT, "timeout_seconds": True}}, (422,)),
    Case("B79", "POST", "/api/schedule", {"json": {**ONE_SHOT, "retry": {"max_attempts": True}}}, (422,)),
    Case("B91", "POST", SCHEDULES, schedule_body(every=-1), (422,)),
    Case("B91", "POST", SCHEDULES, schedule_body(every="NaN"), (422,)),
]


@pytest.fixture
async def client(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> ApiClient:
    """Client without the limit on failed authentications, which has its own tests."""
    monkeypatch.setattr(service.api.state.rate_limiter, "count_failure", lambda *_scope: None)
    return service


async def test_api_answers_bad_requests_with_an_allowed_status_and_a_problem(client: ApiClient) -> None:
    wrong: list[str] = []
    for bad in REQUESTS:
        began = time.monotonic()
        response = await _send(client, bad)
        seconds = time.monotonic() - began
        if response.status_code not in bad.allowed or seconds > 10:
            description = f"{bad.number} {bad.method} {bad.path[:80]} {str(bad.options)[:100]}"
            wrong.append(f"{description}: {response.status_code} {response.text[:200]} ({seconds:.1f} s)")
        elif response.status_code >= 400 and bad.method != "HEAD":
            assert_problem(response, response.status_code)
    assert wrong == []


async def _send(service: ApiClient, bad: Case) -> httpx2.Response:
    key = service.keys[Role.ADMIN]
    options = dict(bad.options)
    if isinstance(options.get("headers"), list):
        options["headers"] = httpx2.Headers([(name, value.replace("KEY", key)) for name, value in options["headers"]])
        return await service.client.request(bad.method, bad.path, **options)
    return await service.send(bad.method, bad.path.replace("KEY", key), bad.role, **options)


async def test_api_stores_and_shows_hostile_text_unchanged(client: ApiClient) -> None:
    """B24, B26, B28, B30, B58, B63, B87: in descriptions, reasons and inputs; visible text also in names and tags."""
    for number, text in enumerate(HOSTILE_TEXTS):
        name = f"{text} {number}"
        is_visible = not INVISIBLE_CHARACTERS.search(text)
        created = await client.post(SCHEDULES, **schedule_body(name=name, description=text))
        if not is_visible:
            assert assert_problem(created, 422)["errors"][0]["field"] == "name"
        else:
            assert created.status_code == 201, created.text
            path = created.headers["location"]
            assert "\n" not in path
            shown = await client.get(path)
            assert (shown.json()["name"], shown.json()["description"]) == (name, text)
            assert shown.headers["content-type"] == "application/json"
            found = await client.get_json(SCHEDULES, params={"search": name})
            assert [each["name"] for each in found["items"]] == [name], "a wildcard matched other names"
        task = {"job": "mail/send", "input": {"to": text}, "unique_key": name}
        asked = await client.post(TASKS, json={**task, "tags": [text]})
        if not is_visible:
            assert assert_problem(asked, 422)["errors"][0]["field"] == "tags"
            asked = await client.post(TASKS, json=task)
        assert asked.status_code == 202, asked.text
        shown = await client.get_json(asked.headers["location"])
        assert (shown["input"]["to"], shown["tags"] or [], shown["unique_key"]) == (text, [text] * is_visible, name)
        assert len((await client.get_json(TASKS, params={"tag": text}))["items"]) == is_visible
        paused = await client.post("/api/v1/queues/q/pause", json={"reason": text})
        assert paused.status_code == 204, paused.text
    twin = await client.post(SCHEDULES, **schedule_body(name="caf\u00e9 14"))
    assert twin.status_code in (201, 409), twin.text
    task_count = await (await client.app.open()).fetch_value("SELECT count(*) FROM tenuto.tasks")
    assert task_count == len(HOSTILE_TEXTS)


async def test_api_returns_bounded_logs_for_a_very_long_line(client: ApiClient) -> None:
    """B29: ten million characters in the log of a job, in a named log and in a line of a batch."""
    line = "x" * 10_000_000

    @client.app.job
    async def noisy(ctx: Context) -> None:
        ctx.log.info(line)
        print(line)

    created = (await client.post(TASKS, json={"job": "noisy"})).json()["id"]
    async with client.app.worker():
        await client.app.wait(UUID(created), 30)
    log = await client.get(f"/api/v1/activities/{created}/log")
    assert (log.status_code, log.text.count("x") > 1000, len(log.content) < 1_000_000) == (200, True, True)
    assert len((await client.get(f"/api/v1/activities/{created}")).content) < 1_000_000
    append = {"exec_at": "2031-01-01T00:00:00Z", "prompt_type": "log.append", "payload": {"message": line}}
    assert_problem(await client.post("/api/schedule", json=append), 413, "request.too_large")
    append["payload"] = {"message": line[:900_000]}
    assert_problem(await client.post("/api/schedule", json=append), 422)
    await client.post("/api/v1/manifests", json={"external_id": "m", "job": "double", "on_demand": True})
    ndjson = {"Content-Type": "application/x-ndjson"}
    bulk = await client.post("/api/v1/manifests/m/bulk", content=f'{{"n": 1}}\n"{line}"\n'.encode(), headers=ndjson)
    assert assert_problem(bulk, 422)["errors"][0]["field"].startswith("line 2")


async def test_api_refuses_expired_and_revoked_keys(client: ApiClient) -> None:
    """B4, B5."""
    database = await client.app.open()
    later = database.clock.now() + timedelta(hours=1)
    for name, expires_at in (("short", later), ("gone", None)):
        _, text = await client.app.api_keys.create(name, Role.VIEWER, expires_at=expires_at)
        auth = {"Authorization": f"Bearer {text}"}
        assert (await client.get(SCHEDULES, role=None, headers=auth)).status_code == 200
        if expires_at:
            await database.fetch_all("UPDATE tenuto.api_keys SET expires_at = clock_timestamp() WHERE name = $1", name)
        else:
            await client.delete(f"/api/v1/keys/{name}")
        refused = await eventually(partial(_get_refusal, client, auth))
        assert_problem(refused, 401, "auth.invalid")


async def _get_refusal(service: ApiClient, headers: dict[str, str]) -> httpx2.Response | None:
    response = await service.get(SCHEDULES, role=None, headers=headers)
    return None if response.status_code == 200 else response


async def test_api_accepts_old_zone_names_and_previews_skipped_hours_once(client: ApiClient) -> None:
    """B90, B92: old names of time zones are known; a wall-clock time that is skipped or repeated runs once."""
    for zone in ("Europe/Kyiv", "EST5EDT", "UTC"):
        created = await client.post(SCHEDULES, **schedule_body(name=zone, cron="30 2 * * *", zone=zone))
        assert created.status_code == 201, (zone, created.text)
    created = await client.post(SCHEDULES, **schedule_body(name="gap", cron="30 2 * 3 *", zone="Europe/Berlin"))
    runs = (await client.get_json(f"{created.headers['location']}/preview?count=40"))["runs"]
    assert len({run[:10] for run in runs}) == 40


async def test_api_refuses_values_of_the_wrong_type(client: ApiClient) -> None:
    """B67, B81: other JSON types instead of texts, lists and objects."""
    for wrong in (["x"], {"a": 1}, 1, True, None):
        assert_problem(await client.post(SCHEDULES, **schedule_body(name=wrong)), 422)
        assert_problem(await client.post(SCHEDULES, **schedule_body(steps=wrong)), 422)
        assert_problem(await client.post(TASKS, json={"job": wrong}), 422)
        assert_problem(await client.post("/api/v1/manifests", json={"external_id": wrong, "job": "double"}), 422)
        if wrong is not None:
            assert_problem(await client.post(TASKS, content=json.dumps(wrong), headers=JSON), 422)
            assert_problem(await client.post(SCHEDULES, content=json.dumps(wrong), headers=JSON), 422)
