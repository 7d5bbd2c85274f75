"""Requests before the routes: problems, headers, idempotency keys, rate limits and cursors."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from typing import Any

import pytest

from tenuto.model.access.actors import Role
from tenuto.store.access import api_keys, idempotency_keys
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually

TASK = {"job": "double", "input": {"n": 1}}
JSON = {"Content-Type": "application/json"}


async def test_api_returns_every_error_as_a_problem_with_its_code(service: ApiClient) -> None:
    assert_problem(await service.get("/nowhere"), 404, "request.not_found")
    assert_problem(await service.send("PATCH", "/api/v1/schedules"), 405, "request.method_not_allowed")
    assert_problem(await service.send("TRACE", "/api/v1/schedules"), 405)
    assert_problem(await service.get("/api/v1/schedules/", role=Role.VIEWER), 404)
    assert_problem(await service.post("/api/v1/tasks", content=b"{", headers=JSON), 400, "request.json.invalid")
    assert_problem(await service.post("/api/v1/tasks", content=b"x" * 2_000_000), 413, "request.too_large")

    async def without_end() -> Any:
        while True:
            yield b"x" * 100_000

    endless = await service.post("/api/v1/tasks", content=without_end(), headers=JSON)
    assert_problem(endless, 413, "request.too_large")
    for headers in ({"Content-Type": "text/plain"}, {}):
        wrong_type = await service.post("/api/v1/tasks", content=json.dumps(TASK), headers=headers)
        assert_problem(wrong_type, 415, "request.content_type.unsupported")
    invalid = await service.post("/api/v1/tasks", json={"job": 1, "input": [], "x": 1})
    errors = assert_problem(invalid, 422, "request.invalid")["errors"]
    assert {each["field"] for each in errors} == {"job", "input", "x"}
    assert_problem(
        await service.get("/api/v1/schedules", headers={"Host": "evil.example"}), 421, "request.host.unknown"
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"job": "double", "input": {"n": 1}, "tags": ["a", "b\0"]}, "tags[1]"),
        ({"job": "double", "input": {"of": [{"text": "\0"}]}}, "input.of[0].text"),
        ({"job": "double", "input": {"a\0": 1}}, "input"),
    ],
)
async def test_api_names_the_place_of_a_nul_character(service: ApiClient, body: dict[str, Any], field: str) -> None:
    problem = assert_problem(await service.post("/api/v1/tasks", json=body), 422, "request.text.nul")
    assert problem["errors"][0]["field"] == field


async def test_api_names_the_place_of_an_invalid_step(service: ApiClient) -> None:
    steps = [
        {"job": "double", "input": {"n": 1}},
        [{"job": "doubl"}, {"kind": "manifest", "arguments": {"manifest": "m"}}],
    ]
    refused = await service.post("/api/v1/schedules", json={"name": "bad", "steps": steps}, role=Role.EDITOR)
    problem = assert_problem(refused, 422, "job.unknown")
    assert problem["errors"][0]["field"] == "steps[1][0]"
    assert problem["remedy"].startswith("did you mean 'double'?")
    steps[1] = steps[1][1:]  # type: ignore[index]
    refused = await service.post("/api/v1/schedules", json={"name": "bad", "steps": steps}, role=Role.EDITOR)
    problem = assert_problem(refused, 422, "schedule.step.manifest_not_found")
    assert problem["errors"][0]["field"] == "steps[1][0].arguments.manifest"


async def test_api_refuses_unauthorized_callers_before_it_reads_the_body(service: ApiClient) -> None:
    async def unreadable_body() -> Any:
        for piece in (b"{", b"}"):
            assert not piece, "the body was read"
            yield piece

    for role, status in ((None, 401), (Role.VIEWER, 403)):
        assert_problem(await service.post("/api/v1/tasks", role=role, content=unreadable_body(), headers=JSON), status)


async def test_every_response_has_a_request_id_and_security_headers(service: ApiClient) -> None:
    response = await service.get("/api/v1/schedules", headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in response.headers
    forged = await service.get("/api/v1/schedules", headers={"X-Request-Id": "a b\x01"})
    assert forged.headers["x-request-id"] != "a b\x01"
    document = await service.get("/api/v1/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert document.headers["content-encoding"] == "gzip"
    assert document.json()["paths"]


async def test_repeated_request_with_idempotency_key_replays_the_response(service: ApiClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await service.post("/api/v1/tasks", json=TASK, headers=key)
    second = await service.post("/api/v1/tasks", json=TASK, headers=key)
    assert (second.status_code, second.json(), second.headers["location"]) == (
        first.status_code,
        first.json(),
        first.headers["location"],
    )
    assert second.headers["idempotent-replayed"] == "true"
    assert len(await service.app.tasks()) == 1
    other = await service.post("/api/v1/tasks", json={**TASK, "queue": "q"}, headers=key)
    assert_problem(other, 422, "request.idempotency_key.reused")
    assert_problem(await service.post("/api/v1/queues/q/pause", headers=key), 422)
    auth = await service.post("/api/v1/tasks", role=Role.OPERATOR, json=TASK, headers=key)
    assert auth.json()["id"] != first.json()["id"], "idempotency keys of two callers must be independent"
    assert_problem(
        await service.post("/api/v1/tasks", json=TASK, headers={"Idempotency-Key": "x" * 256}),
        422,
        "request.idempotency_key.invalid",
    )

    refused = {"Idempotency-Key": "k2"}
    assert_problem(await service.post("/api/v1/tasks", json={"job": "nope"}, headers=refused), 422)
    corrected = await service.post("/api/v1/tasks", json=TASK, headers=refused)
    assert corrected.status_code == 202, "a refused request must not use up its key"


async def test_concurrent_requests_with_one_idempotency_key_create_one_task(service: ApiClient) -> None:
    async def send() -> Any:
        return await service.post("/api/v1/tasks", json=TASK, headers={"Idempotency-Key": "together"})

    responses = await asyncio.gather(*(send() for _ in range(12)))
    assert {response.status_code for response in responses} <= {202, 409}
    assert len({response.json()["id"] for response in responses if response.status_code == 202}) == 1
    assert len(await service.app.tasks()) == 1
    for response in responses:
        if response.status_code == 409:
            assert assert_problem(response, 409)["errors"][0]["field"] == "Idempotency-Key"


async def test_request_repeated_after_a_crash_before_its_response_changes_nothing_twice(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"external_id": "m", "job": "double", "on_demand": True}
    schedule = {"name": "s", "steps": [{"job": "boom"}]}
    requests: list[tuple[str, dict[str, Any] | None]] = [
        ("/api/v1/tasks", TASK),
        ("/api/v1/manifests", manifest),
        ("/api/v1/schedules", schedule),
        ("/api/v1/manifests/m/enqueue", {"arguments": {"n": 2}}),
        ("/api/v1/schedules/s/run", None),
    ]

    async def crash(*_: object) -> None:
        raise ConnectionError("process crashed")

    bodies = []
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        for number, (path, body) in enumerate(requests):
            with pytest.raises(ConnectionError):
                await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
    for number, (path, body) in enumerate(requests):
        again = await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
        assert again.status_code in (201, 202), (path, again.text)
        third = await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
        assert (third.json(), third.headers["idempotent-replayed"]) == (again.json(), "true")
        bodies.append(again.json())
    assert len(await service.app.tasks(name="double")) == 2
    assert len(await service.app.executions.list()) == 1
    trail = [entry.action for entry in await service.app.audit.list()]
    assert sorted(trail) == sorted(set(trail)), "a repeated request wrote an audit entry"
    run = bodies[-1]["execution_id"]
    cancel = f"/api/v1/executions/{run}/cancel"
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        with pytest.raises(ConnectionError):
            await service.post(cancel, headers={"Idempotency-Key": "stop"})
    repeated = await service.post(cancel, headers={"Idempotency-Key": "stop"})
    assert_problem(repeated, 409, "request.idempotency_key.already_done")
    stored = await (await service.app.open()).fetch_all("SELECT answer::text FROM tenuto.requests")
    assert all("tnt_" not in (row["answer"] or "") for row in stored)


async def test_text_of_a_new_api_key_is_not_stored(service: ApiClient) -> None:
    created = await service.post(
        "/api/v1/keys", json={"name": "ci", "role": "viewer"}, headers={"Idempotency-Key": "new key"}
    )
    stored = await (await service.app.open()).fetch_all("SELECT answer::text AS answer FROM tenuto.requests")
    assert [row["answer"] for row in stored] == [None]
    again = await service.post(
        "/api/v1/keys", json={"name": "ci", "role": "viewer"}, headers={"Idempotency-Key": "new key"}
    )
    assert created.status_code == 201
    assert_problem(again, 409)


async def test_rate_limiter_refuses_an_address_after_failed_authentications(service: ApiClient) -> None:
    wrong = {"Authorization": "Bearer tnt_aaaaaaaa_" + "A" * 43}
    began = time.monotonic()
    responses = [await service.get("/api/v1/schedules", role=None, headers=wrong) for _ in range(24)]
    failures = [response.status_code for response in responses].count(401)
    assert 20 <= failures <= 21 + (time.monotonic() - began) / 3  # one more every three seconds
    assert assert_problem(responses[-1], 429, "rate_limit.failed_authentications")["remedy"]
    assert responses[-1].headers["retry-after"] == "60"
    assert (await service.get("/api/v1/schedules")).status_code == 200, (
        "a valid key was refused because of failures from its address"
    )


async def test_rate_limiter_answers_401_to_requests_without_credentials(service: ApiClient) -> None:
    for _ in range(24):
        await service.get("/api/v1/schedules", role=None, headers=make_unknown_key_header())
    assert_problem(await service.get("/api/v1/schedules", role=None), 401, "auth.missing")


async def test_rate_limiter_admits_a_new_key_of_an_attacked_address(service: ApiClient) -> None:
    victim = (await service.app.api_keys.create("victim", Role.VIEWER))[1]
    for _ in range(40):
        await service.get("/api/v1/schedules", role=None, headers=make_unknown_key_header())
    # Never used before, and looked up although 20 lookups of unknown keys were refused in the same second.
    admitted = await service.get("/api/v1/schedules", role=None, headers={"Authorization": f"Bearer {victim}"})
    assert admitted.status_code == 200


async def test_rate_limiter_refuses_guesses_of_one_key_and_admits_others(service: ApiClient) -> None:
    guessed, other = [(await service.app.api_keys.create(name, Role.VIEWER))[1] for name in ("guessed", "other")]
    tried = []
    for _ in range(60):
        guess = f"Bearer {guessed[:13]}{secrets.token_urlsafe(32)}"
        tried.append(await service.get("/api/v1/schedules", role=None, headers={"Authorization": guess}))
    assert {response.status_code for response in tried[-20:]} == {429}
    admitted = await service.get("/api/v1/schedules", role=None, headers={"Authorization": f"Bearer {other}"})
    assert admitted.status_code == 200


def record_lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry for every database lookup of credentials."""
    lookups: list[str] = []

    def record(name: str) -> None:
        lookup = getattr(api_keys, name)

        async def recorded(*args: Any) -> Any:
            lookups.append(name)
            return await lookup(*args)

        monkeypatch.setattr(api_keys, name, recorded)

    for name in ("load_active_key", "load_session_key", "redeem_login_link"):
        record(name)
    return lookups


def make_unknown_key_header() -> dict[str, str]:
    return {"Authorization": f"Bearer tnt_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"}


async def test_rate_limiter_bounds_lookups_of_unknown_credentials_and_admits_known_keys(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await service.get("/api/v1/schedules", Role.ADMIN)).status_code == 200  # the key is known from here on
    lookups = record_lookups(monkeypatch)
    began = time.monotonic()
    first = [await service.get("/api/v1/schedules", None, headers=make_unknown_key_header()) for _ in range(20)]
    assert ({response.status_code for response in first}, len(lookups)) == ({401}, 20)

    def make_unknown_session_header() -> dict[str, str]:
        return {"Cookie": f"tenuto_session=tns_{secrets.token_urlsafe(32)}"}

    lookups.clear()
    tried = []
    for _ in range(40):
        tried += [
            await service.get("/api/v1/schedules", None, headers=make_unknown_key_header()),
            await service.get("/api/v1/schedules", None, headers=make_unknown_session_header()),
            await service.get("/api/v1/executions", None, headers=make_unknown_session_header()),
            await service.post("/api/v1/session", None, json={"link": f"tnl_{secrets.token_urlsafe(32)}"}),
        ]
    took = time.monotonic() - began
    most = 6 + 6 * took  # five per second, and one more failure every three seconds
    assert sum(response.status_code == 429 for response in tried) >= 160 - most
    assert len(lookups) <= 2 * most, f"{len(lookups)} lookups for 160 requests in {took:.1f} s"  # a link takes two

    await service.app.api_keys.create("other", Role.VIEWER)
    await service.app.api_keys.revoke("other")  # clears the cache of keys, not the set of recently valid ones
    lookups.clear()
    unknown = [service.get("/api/v1/schedules", None, headers=make_unknown_key_header()) for _ in range(30)]
    await asyncio.gather(*unknown)
    admin = await service.get("/api/v1/schedules", Role.ADMIN)
    assert admin.status_code == 200, "a valid key was refused because of failures from its address"

    async def new_key_is_admitted() -> bool:
        return (await service.get("/api/v1/schedules", Role.VIEWER)).status_code == 200

    assert await eventually(new_key_is_admitted), "a new valid key was refused for long"


async def test_revoked_key_is_not_recently_valid(service: ApiClient) -> None:
    viewer = service.keys[Role.VIEWER]
    assert not service.app.api_keys.was_recently_valid(viewer)
    assert (await service.get("/api/v1/schedules", Role.VIEWER)).status_code == 200
    assert service.app.api_keys.was_recently_valid(viewer)
    await service.app.api_keys.revoke("viewer")
    assert_problem(await service.get("/api/v1/schedules", Role.VIEWER), 401)
    assert not service.app.api_keys.was_recently_valid(viewer)
    assert not service.app.api_keys.was_recently_valid("")


async def test_reason_header_applies_if_the_body_has_no_reason(service: ApiClient) -> None:
    pause = "/api/v1/queues/mail/pause"
    for body, reason in (({}, "tidying"), ({"reason": None}, "tidying"), ({"reason": "down"}, "down")):
        response = await service.post(pause, json=body, headers={"X-Reason": "tidying"})
        assert response.status_code == 204, response.text
        assert (await service.get_json("/api/v1/queues"))["items"][0]["reason"] == reason
        await service.post("/api/v1/queues/mail/resume")


async def test_concurrent_conflicting_requests_do_not_exhaust_the_connection_pool(service: ApiClient) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"job": "double", "input": {"n": 1}}]})
    run = (await service.post("/api/v1/schedules/s/run")).json()["execution_id"]
    assert (await service.post(f"/api/v1/executions/{run}/cancel")).status_code == 202
    async with asyncio.timeout(25):  # requests that hold a connection and need a second one would block each other
        conflicts = await asyncio.gather(
            *(service.post(f"/api/v1/executions/{run}/{action}") for action in ("cancel", "pause", "resume") * 10)
        )
        again = await asyncio.gather(*(service.post(f"/api/v1/executions/{run}/retry") for _ in range(20)))
    assert {response.status_code for response in conflicts} == {409}
    assert sorted({response.status_code for response in again}) == [202, 409]
    assert len(await service.app.executions.list()) == 2


async def test_api_refuses_forged_cursors(service: ApiClient) -> None:
    def encode(cursor: str) -> str:
        return base64.urlsafe_b64encode(cursor.encode()).rstrip(b"=").decode()

    naive = encode('["2031-01-01T00:00:00", "01a1e319-a307-7102-94ef-03aacf78560b"]')
    since = "2031-01-01T00:00:00Z"
    assert_problem(
        await service.get("/api/schedule", params={"after": naive, "since": since}), 422, "request.cursor.invalid"
    )
    assert_problem(await service.get("/api/v1/ledger", params={"after": naive}), 422, "request.cursor.invalid")
    assert_problem(
        await service.get("/api/log/default", params={"after": encode("[Infinity]")}), 422, "request.cursor.invalid"
    )


async def test_batch_upload_has_no_size_limit_for_names_with_a_slash(service: ApiClient) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "a/b", "job": "double", "on_demand": True})
    lines = b'{"n": 1}' + b" " * 400_000 + b"\n"
    ndjson = {"Content-Type": "application/x-ndjson"}
    done = await service.post("/api/v1/manifests/a%2Fb/bulk", content=lines * 3, headers=ndjson)
    assert (done.status_code, done.json().get("item_count")) == (202, 3), done.text


async def test_unknown_query_parameter_is_refused_with_the_allowed_ones(service: ApiClient) -> None:
    refused = assert_problem(await service.get("/api/v1/activities?status=failed"), 422, "request.parameter.unknown")
    assert refused["errors"][0]["field"] == "status"
    assert "did you mean state?" in refused["remedy"]
    assert "limit, after" in refused["remedy"]
    created = await service.post("/api/v1/tasks?delay=3", json={"job": "double", "input": {"n": 1}})
    assert "no query parameters" in assert_problem(created, 422, "request.parameter.unknown")["remedy"]
    assert_problem(await service.get("/api/v1/tasks?state=Queued"), 422, "request.invalid")
    assert_problem(await service.get("/api/v1/activities?x=1", role=None), 401, "auth.missing")
