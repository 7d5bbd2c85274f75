"""Bad inputs over the API: each is refused with a problem, or kept and shown as the text it is. Never a 5xx or a hang.

The numbers are those of the list of bad inputs that every surface is tried with.
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
from tenuto.model.actors import Role
from tenuto.model.stored_values import UNSEEN
from tests.api.conftest import Api, problem
from tests.support.waiting import eventually

JSON = {"Content-Type": "application/json"}
TASKS = "/api/v1/tasks"
SCHEDULES = "/api/v1/schedules"
LISTS = (
    "/api/v1/schedules", "/api/v1/ledger", "/api/v1/executions", "/api/v1/tasks", "/api/v1/activities",
    "/api/v1/manifests", "/api/v1/polls", "/api/v1/batches", "/api/v1/dead-letters", "/api/v1/secrets",
    "/api/v1/audit", "/api/log", "/api/log/x", "/api/schedule",
)  # fmt: skip
TEXTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea>", "{{7*7}}", "${7*7}", "javascript:x",
    "\x1b]52;c;aGk=\x07", "\u202egnp.exe", "a\u200bb", "\u0430dmin", "a\r\nSet-Cookie: x=1", "</script>",
    "'; DROP TABLE tenuto.tasks;--", "100%_\\", "cafe\u0301",
)  # fmt: skip


class Bad(NamedTuple):
    """One request, and how it may be answered."""

    number: str
    method: str
    path: str
    given: dict[str, Any]
    allowed: tuple[int, ...]
    role: Role | None = Role.ADMIN


def body(text: str | bytes, **headers: str) -> dict[str, Any]:
    return {"content": text if isinstance(text, bytes) else text.encode(), "headers": {**JSON, **headers}}


def task(**fields: Any) -> dict[str, Any]:
    return {"json": {"job": "double", "input": {"n": 1}, **fields}}


def schedule(**fields: Any) -> dict[str, Any]:
    return {"json": {"name": "bad", "steps": [{"job": "double", "input": {"n": 1}}], **fields}}


MANY_STEPS = [{"job": "double", "name": f"s{number}", "input": {"n": number}} for number in range(15_000)]
UNKNOWN = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
TWICE = [("Authorization", "Bearer KEY"), ("Authorization", "Bearer KEY")]
NO_ORIGIN = {"Origin": "null", "Cookie": "tenuto_session=x"}
EVIL = {"Origin": "http://evil"}
SPOOFED = {"X-Forwarded-User": "admin", "X-Forwarded-For": "127.0.0.1"}
ONE_SHOT = {"exec_at": "2031-01-01T00:00:00Z", "prompt_type": "double", "payload": {"n": 1}}
INSTANTS = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "2031-01-01T00:00:00", "soon", "0000-00-00")

REQUESTS = [
    # who asks
    Bad("B1", "GET", SCHEDULES, {}, (401,), None),
    Bad("B2", "GET", SCHEDULES, {"headers": {"Authorization": "Bearer "}}, (401,), None),
    Bad("B2", "GET", SCHEDULES, {"headers": {"Authorization": "Basic YTpi"}}, (401,), None),
    Bad("B3", "GET", SCHEDULES, {"headers": {"Authorization": f"Bearer tnt_aaaaaaaa_{'A' * 43}"}}, (401,), None),
    Bad("B6", "GET", f"{SCHEDULES}?key=KEY&access_token=KEY", {}, (401,), None),
    Bad("B7", "GET", SCHEDULES, {"headers": TWICE}, (400,), None),
    Bad("B8", "GET", "/api/v1/schedules/healthz", {}, (401,), None),
    Bad("B9", "GET", "//api/v1/schedules", {}, (404,), None),
    Bad("B9", "GET", "/API/v1/schedules", {}, (404,), None),
    Bad("B9", "GET", "/api/./v1/schedules", {}, (401, 404), None),
    Bad("B9", "GET", "/api/%2e%2e/api/v1/schedules", {}, (401, 404), None),
    Bad("B9", "GET", "/healthz/../api/v1/schedules", {}, (401, 404), None),
    Bad("B9", "GET", "/healthz%2f..%2fapi%2fv1%2fschedules", {}, (404,), None),
    Bad("B9", "GET", "/api/v1/schedules;a=b", {}, (404,), None),
    Bad("B10", "GET", SCHEDULES, {"headers": {"X-HTTP-Method-Override": "DELETE"}}, (200,)),
    Bad("B11", "GET", SCHEDULES, {"headers": SPOOFED}, (401,), None),
    Bad("B11", "GET", SCHEDULES, {"headers": {"X-Forwarded-Host": "evil.example"}}, (200,)),
    Bad("B12", "GET", "/healthz", {"headers": {"X-Original-URL": "/api/v1/keys"}}, (200,), None),
    Bad("B13", "GET", f"{TASKS}/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1", {}, (404,)),
    Bad("B14", "POST", "/api/v1/dead-letters/retry", {"json": {"ids": [UNKNOWN]}}, (202,)),
    Bad("B15", "POST", TASKS, task(state="succeeded"), (422,)),
    Bad("B15", "POST", TASKS, task(initiator_name="root"), (422,)),
    Bad("B15", "POST", SCHEDULES, schedule(owner="root"), (422,)),
    Bad("B15", "POST", "/api/v1/keys", {"json": {"name": "x", "role": "viewer", "digest": "00"}}, (422,)),
    *(Bad("B16", method, path, {}, (405,)) for method in ("OPTIONS", "TRACE", "HEAD", "PATCH") for path in LISTS),
    # from where
    Bad("B17", "POST", TASKS, {"content": b'{"job":"double"}', "headers": {"Content-Type": "text/plain"}}, (415,)),
    Bad("B17", "POST", TASKS, {"data": {"job": "double"}}, (415,)),
    Bad("B19", "POST", TASKS, {"json": {}, "headers": NO_ORIGIN}, (401, 403), None),
    Bad("B20", "POST", "/api/v1/session", {"json": {"link": "tnl_x"}, "headers": EVIL}, (403,), None),
    Bad("B20", "POST", "/api/v1/session", {"json": {"link": "tnl_x"}}, (401,), None),
    Bad("B21", "GET", "/?next=//evil.example", {}, (200,), None),
    Bad("B21", "GET", "/login?next=//evil.example", {}, (200,), None),
    # SQL
    *(Bad("B58", "GET", f"{path}?limit=1;DROP", {}, (405, 422)) for path in LISTS),
    *(Bad("B59", "GET", f"{path}?after=(SELECT 1)", {}, (422,)) for path in LISTS),
    *(Bad("B59", "GET", f"{path}?after=WyJ4Il0", {}, (200, 422)) for path in LISTS),
    *(Bad("B59", "GET", f"{path}?after=W10", {}, (422,)) for path in LISTS),
    Bad("B62", "POST", TASKS, body('{"job":"double","input":{"n":1},"key":"a\\u0000b"}'), (422,)),
    Bad("B62", "POST", TASKS, body('{"job":"double","input":{"n":1},"key":"\\ud800"}'), (422,)),
    Bad("B62", "POST", TASKS, body('{"job":"mail/send","input":{"to":"\\ud800"}}'), (422,)),
    Bad("B62", "POST", TASKS, body(b'{"job":"\xff"}'), (400,)),
    Bad("B62", "GET", f"{SCHEDULES}/%00", {}, (400,)),
    Bad("B62", "GET", f"{SCHEDULES}/%ff", {}, (404,)),
    Bad("B62", "GET", f"{SCHEDULES}?search=%00", {}, (422,)),
    Bad("B62", "GET", f"{TASKS}?tag=%00", {}, (422,)),
    Bad("B62", "GET", f"{SCHEDULES}?search=%ff%fe", {}, (200,)),
    Bad("B63", "GET", f"{SCHEDULES}?search=%25_%5C", {}, (200,)),
    Bad("B63", "GET", "/api/v1/manifests?search=%5C", {}, (200,)),
    *(Bad("B64", "GET", f"{TASKS}/{id}", {}, (422,)) for id in ("1e3", "%201", "%EF%BC%99", str(2**63), "-1", "null")),
    # payload
    Bad("B78", "POST", TASKS, body("[" * 100_000), (400,)),
    Bad("B78", "POST", TASKS, body('{"job":"double","input":' + '{"a":' * 300 + "1" + "}" * 301), (400,)),
    *(
        Bad("B79", "POST", TASKS, body(f'{{"job":"double","input":{{"n":{number}}}}}'), (400, 422))
        for number in ("NaN", "Infinity", "-Infinity", "9" * 5000, "1e999", "-1e999", "9223372036854775808", "1.5")
    ),
    Bad("B80", "POST", TASKS, body('{"job":"double","job":"boom","input":{"n":1}}'), (400,)),
    Bad("B80", "POST", TASKS, body('{"job":"double","input":{"n":1,"n":2}}'), (400,)),
    Bad("B81", "POST", TASKS, task(input={"n": 1, "__class__": "os.system"}), (422,)),
    Bad("B81", "POST", TASKS, task(input={"n": {"py/object": "os.system"}}), (422,)),
    Bad("B82", "POST", TASKS, body("x" * 1_100_000), (413,)),
    Bad("B82", "POST", TASKS, body("{}", **{"Content-Length": "99999999999999999999"}), (413,)),
    Bad("B82", "POST", TASKS, body("{}", **{"Content-Length": "-1"}), (400, 422)),
    *(
        Bad("B83", "GET", f"{path}?limit={limit}", {}, (405, 422))
        for path in LISTS
        for limit in ("-1", "0", "1000000000", "x")
    ),
    Bad("B83", "GET", "/api/v1/activities/stats?since=9999-12-31T23:59:59Z", {}, (200, 422)),
    Bad("B83", "GET", "/api/v1/activities/stats?since=0000-01-01T00:00:00Z", {}, (422,)),
    Bad("B83", "GET", "/api/v1/activities/stats?since=0001-01-01T00:00:00Z", {}, (200, 422)),
    Bad("B83", "GET", "/api/v1/audit?since=0001-01-01T00:00:00%2B14:00", {}, (200, 422)),
    Bad("B83", "POST", SCHEDULES, schedule(cron="0 0 * * *", zone="../../etc"), (422,)),
    Bad("B84", "GET", f"{SCHEDULES}?search=(a%2B)%2B%24", {}, (200,)),
    Bad("B85", "POST", TASKS, task(tags=[f"t{number}" for number in range(10_000)]), (422,)),
    Bad("B85", "POST", TASKS, task(tags=["x" * 1000]), (422,)),
    Bad("B85", "POST", SCHEDULES, schedule(name="x" * 500_000), (422,)),
    Bad("B85", "POST", SCHEDULES, schedule(steps=MANY_STEPS), (413, 422)),
    Bad("B85", "POST", SCHEDULES, schedule(steps=[{"schedule": "bad"}]), (422,)),
    Bad("B85", "POST", SCHEDULES, schedule(steps=[]), (422,)),
    Bad("B85", "POST", SCHEDULES, schedule(steps=[[]]), (422,)),
    Bad("B85", "POST", "/api/v1/manifests", {"json": {"external_id": "m", "job": "double", "after": "m"}}, (422,)),
    # time
    *(
        Bad("B89", "POST", SCHEDULES, schedule(cron=cron), (422,))
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
        Bad("B90", "POST", SCHEDULES, schedule(cron="0 0 * * *", zone=zone), (422,))
        for zone in ("", "Mars/Base", "x" * 999)
    ),
    *(Bad("B91", "POST", TASKS, task(run_at=instant), (422,)) for instant in INSTANTS),
    *(Bad("B91", "POST", TASKS, task(delay=delay), (422,)) for delay in ("-1", -1, "1e99", "NaN", 1e300, True)),
    # true is no number
    Bad("B79", "POST", TASKS, task(priority=True), (422,)),
    Bad("B79", "POST", TASKS, task(limit_key="k", limit=True), (422,)),
    Bad("B79", "PUT", "/api/v1/queues/q/limit", {"json": {"max_running": True}}, (422,)),
    Bad("B79", "PUT", "/api/v1/manifest-groups/g", {"json": {"max_active": True}}, (422,)),
    Bad("B79", "PUT", "/api/v1/manifest-groups/g", {"json": {"priority": False}}, (422,)),
    Bad("B79", "POST", "/api/schedule", {"json": {**ONE_SHOT, "timeout_seconds": True}}, (422,)),
    Bad("B79", "POST", "/api/schedule", {"json": {**ONE_SHOT, "retry": {"max_retries": True}}}, (422,)),
    Bad("B91", "POST", SCHEDULES, schedule(every=-1), (422,)),
    Bad("B91", "POST", SCHEDULES, schedule(every="NaN"), (422,)),
]


@pytest.fixture
async def quiet(service: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Nobody is made to wait for having guessed: that is tried elsewhere."""
    monkeypatch.setattr(service.made.state.rates, "guessed", lambda _address: None)
    return service


async def test_bad_requests_are_refused_with_a_problem_and_never_break_anything(quiet: Api) -> None:
    wrong: list[str] = []
    for bad in REQUESTS:
        began = time.monotonic()
        answer = await _sent(quiet, bad)
        seconds = time.monotonic() - began
        if answer.status_code not in bad.allowed or seconds > 10:
            asked = f"{bad.number} {bad.method} {bad.path[:80]} {str(bad.given)[:100]}"
            wrong.append(f"{asked}: {answer.status_code} {answer.text[:200]} ({seconds:.1f} s)")
        elif answer.status_code >= 400 and bad.method != "HEAD":
            problem(answer, answer.status_code)
    assert wrong == []


async def _sent(service: Api, bad: Bad) -> httpx2.Response:
    key = service.keys[Role.ADMIN]
    given = dict(bad.given)
    if isinstance(given.get("headers"), list):
        given["headers"] = httpx2.Headers([(name, value.replace("KEY", key)) for name, value in given["headers"]])
        return await service.client.request(bad.method, bad.path, **given)
    return await service.send(bad.method, bad.path.replace("KEY", key), bad.role, **given)


async def test_hostile_text_is_shown_as_the_text_it_is(quiet: Api) -> None:
    """B24, B26, B28, B30, B58, B63, B87: as descriptions, reasons, searches, inputs; if seen, as names, tags."""
    for number, text in enumerate(TEXTS):
        name = f"{text} {number}"
        seen = not UNSEEN.search(text)
        made = await quiet.post(SCHEDULES, **schedule(name=name, description=text))
        if not seen:
            assert problem(made, 422)["errors"][0]["field"] == "name"
        else:
            assert made.status_code == 201, made.text
            path = made.headers["location"]
            assert "\n" not in path
            shown = await quiet.get(path)
            assert (shown.json()["name"], shown.json()["description"]) == (name, text)
            assert shown.headers["content-type"] == "application/json"
            found = await quiet.read(SCHEDULES, params={"search": name})
            assert [each["name"] for each in found["items"]] == [name], "a wildcard stands for itself"
        given = {"job": "mail/send", "input": {"to": text}, "key": name}
        asked = await quiet.post(TASKS, json={**given, "tags": [text]})
        if not seen:
            assert problem(asked, 422)["errors"][0]["field"] == "tags"
            asked = await quiet.post(TASKS, json=given)
        assert asked.status_code == 202, asked.text
        told = await quiet.read(asked.headers["location"])
        assert (told["input"]["to"], told["tags"] or [], told["unique_key"]) == (text, [text] * seen, name)
        assert len((await quiet.read(TASKS, params={"tag": text}))["items"]) == seen
        paused = await quiet.post("/api/v1/queues/q/pause", json={"reason": text})
        assert paused.status_code == 204, paused.text
    twin = await quiet.post(SCHEDULES, **schedule(name="caf\u00e9 14"))
    assert twin.status_code in (201, 409), twin.text
    tables = await (await quiet.app.open()).value("SELECT count(*) FROM tenuto.tasks")
    assert tables == len(TEXTS)


async def test_a_log_of_one_line_without_end_stays_small(quiet: Api) -> None:
    """B29: ten million characters, in the log of a job, in a named log, in a line of bulk."""
    line = "x" * 10_000_000

    @quiet.app.job
    async def noisy(ctx: Context) -> None:
        ctx.log.info(line)
        print(line)

    made = (await quiet.post(TASKS, json={"job": "noisy"})).json()["id"]
    async with quiet.app.worker():
        await quiet.app.wait(UUID(made), 30)
    log = await quiet.get(f"/api/v1/activities/{made}/log")
    assert (log.status_code, log.text.count("x") > 1000, len(log.content) < 1_000_000) == (200, True, True)
    assert len((await quiet.get(f"/api/v1/activities/{made}")).content) < 1_000_000
    append = {"exec_at": "2031-01-01T00:00:00Z", "prompt_type": "log.append", "payload": {"message": line}}
    problem(await quiet.post("/api/schedule", json=append), 413)
    append["payload"] = {"message": line[:900_000]}
    problem(await quiet.post("/api/schedule", json=append), 422)
    await quiet.post("/api/v1/manifests", json={"external_id": "m", "job": "double", "on_demand": True})
    kind = {"Content-Type": "application/x-ndjson"}
    bulk = await quiet.post("/api/v1/manifests/m/bulk", content=f'{{"n": 1}}\n"{line}"\n'.encode(), headers=kind)
    assert problem(bulk, 422)["errors"][0]["field"].startswith("line 2")


async def test_a_key_that_has_expired_or_was_revoked_opens_nothing(quiet: Api) -> None:
    """B4, B5."""
    database = await quiet.app.open()
    later = database.clock.now() + timedelta(hours=1)
    for name, given in (("short", {"expires_at": later}), ("gone", {})):
        _, text = await quiet.app.keys.make(name, Role.VIEWER, **given)
        mine = {"Authorization": f"Bearer {text}"}
        assert (await quiet.get(SCHEDULES, role=None, headers=mine)).status_code == 200
        if given:
            await database.all("UPDATE tenuto.api_keys SET expires_at = clock_timestamp() WHERE name = $1", name)
        else:
            await quiet.delete(f"/api/v1/keys/{name}")
        refused = await eventually(partial(_refused, quiet, mine))
        problem(refused, 401)


async def _refused(service: Api, headers: dict[str, str]) -> httpx2.Response | None:
    answer = await service.get(SCHEDULES, role=None, headers=headers)
    return None if answer.status_code == 200 else answer


async def test_zones_and_hours_that_do_not_exist_have_their_rule(quiet: Api) -> None:
    """B90, B92: old names of zones are known; a wall time that is skipped or comes twice runs once."""
    for zone in ("Europe/Kyiv", "EST5EDT", "UTC"):
        made = await quiet.post(SCHEDULES, **schedule(name=zone, cron="30 2 * * *", zone=zone))
        assert made.status_code == 201, (zone, made.text)
    made = await quiet.post(SCHEDULES, **schedule(name="gap", cron="30 2 * 3 *", zone="Europe/Berlin"))
    runs = (await quiet.read(f"{made.headers['location']}/preview?count=40"))["runs"]
    assert len({run[:10] for run in runs}) == 40


async def test_a_number_is_not_taken_for_a_text_nor_a_text_for_a_key(quiet: Api) -> None:
    """B67, B81: of the wrong kind."""
    for wrong in (["x"], {"a": 1}, 1, True, None):
        problem(await quiet.post(SCHEDULES, **schedule(name=wrong)), 422)
        problem(await quiet.post(SCHEDULES, **schedule(steps=wrong)), 422)
        problem(await quiet.post(TASKS, json={"job": wrong}), 422)
        problem(await quiet.post("/api/v1/manifests", json={"external_id": wrong, "job": "double"}), 422)
        if wrong is not None:
            problem(await quiet.post(TASKS, content=json.dumps(wrong), headers=JSON), 422)
            problem(await quiet.post(SCHEDULES, content=json.dumps(wrong), headers=JSON), 422)
