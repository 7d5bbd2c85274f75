"""Requests: problems are told as problems, what is sent twice is done once, and what stands before every route."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from typing import Any

import pytest

from tenuto.model.actors import Role
from tenuto.store.access import api_keys, idempotency_keys
from tests.api.conftest import Api, problem
from tests.support.waiting import eventually

TASK = {"job": "double", "input": {"n": 1}}


async def test_whatever_goes_wrong_is_told_as_a_problem(service: Api) -> None:
    problem(await service.get("/nowhere"), 404)
    problem(await service.send("PATCH", "/api/v1/schedules"), 405)
    problem(await service.send("TRACE", "/api/v1/schedules"), 405)
    problem(await service.get("/api/v1/schedules/", role=Role.VIEWER), 404)
    problem(await service.post("/api/v1/tasks", content=b"{", headers={"Content-Type": "application/json"}), 400)
    problem(await service.post("/api/v1/tasks", content=b"x" * 2_000_000), 413)

    async def without_end() -> Any:
        while True:
            yield b"x" * 100_000

    endless = await service.post("/api/v1/tasks", content=without_end(), headers={"Content-Type": "application/json"})
    problem(endless, 413)
    problem(await service.post("/api/v1/tasks", content=json.dumps(TASK), headers={"Content-Type": "text/plain"}), 415)
    problem(await service.post("/api/v1/tasks", content=json.dumps(TASK)), 415)
    told = problem(await service.post("/api/v1/tasks", json={"job": 1, "input": [], "x": 1}), 422)
    assert {each["field"] for each in told["errors"]} == {"job", "input", "x"}
    problem(await service.get("/api/v1/schedules", headers={"Host": "evil.example"}), 421)


async def test_a_stranger_is_sent_away_before_the_body_is_read(service: Api) -> None:
    async def never_to_be_read() -> Any:
        for piece in (b"{", b"}"):
            assert not piece, "the body was read"
            yield piece

    kind = {"Content-Type": "application/json"}
    for role, status in ((None, 401), (Role.VIEWER, 403)):
        problem(await service.post("/api/v1/tasks", role=role, content=never_to_be_read(), headers=kind), status)


async def test_every_answer_carries_its_id_and_what_browsers_heed(service: Api) -> None:
    answer = await service.get("/api/v1/schedules", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
    forged = await service.get("/api/v1/schedules", headers={"X-Request-Id": "a b\x01"})
    assert forged.headers["x-request-id"] != "a b\x01"
    document = await service.get("/api/v1/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert document.headers["content-encoding"] == "gzip"
    assert document.json()["paths"]


async def test_a_request_that_is_sent_twice_is_done_once_and_answered_alike(service: Api) -> None:
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
    other = problem(await service.post("/api/v1/tasks", json={**TASK, "queue": "q"}, headers=key), 422)
    assert "another request" in other["detail"]
    problem(await service.post("/api/v1/queues/q/pause", headers=key), 422)
    mine = await service.post("/api/v1/tasks", role=Role.OPERATOR, json=TASK, headers=key)
    assert mine.json()["id"] != first.json()["id"], "keys of two callers have nothing to do with each other"
    problem(await service.post("/api/v1/tasks", json=TASK, headers={"Idempotency-Key": "x" * 256}), 422)

    refused = {"Idempotency-Key": "k2"}
    problem(await service.post("/api/v1/tasks", json={"job": "nope"}, headers=refused), 422)
    mended = await service.post("/api/v1/tasks", json=TASK, headers=refused)
    assert mended.status_code == 202, "what did nothing does not use up its key"


async def test_of_requests_with_one_key_that_come_together_one_is_done(service: Api) -> None:
    async def ask() -> Any:
        return await service.post("/api/v1/tasks", json=TASK, headers={"Idempotency-Key": "together"})

    answers = await asyncio.gather(*(ask() for _ in range(12)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    assert len(await service.app.tasks()) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert problem(answer, 409)["errors"][0]["field"] == "Idempotency-Key"


async def test_a_crash_between_the_commit_and_the_answer_doubles_nothing(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"external_id": "m", "job": "double", "on_demand": True}
    schedule = {"name": "s", "steps": [{"job": "boom"}]}
    asked: list[tuple[str, dict[str, Any] | None]] = [
        ("/api/v1/tasks", TASK),
        ("/api/v1/manifests", manifest),
        ("/api/v1/schedules", schedule),
        ("/api/v1/manifests/m/enqueue", {"arguments": {"n": 2}}),
        ("/api/v1/schedules/s/run", None),
    ]

    async def crash(*_: object) -> None:
        raise ConnectionError("the process is gone")

    firsts = []
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "answered", crash)
        for number, (path, body) in enumerate(asked):
            with pytest.raises(ConnectionError):
                await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
    for number, (path, body) in enumerate(asked):
        again = await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
        assert again.status_code in (201, 202), (path, again.text)
        third = await service.post(path, json=body, headers={"Idempotency-Key": f"c{number}"})
        assert (third.json(), third.headers["idempotent-replayed"]) == (again.json(), "true")
        firsts.append(again.json())
    assert len(await service.app.tasks(name="double")) == 2
    assert len(await service.app.executions.list()) == 1
    trail = [entry["action"] for entry in await service.app.audit.list()]
    assert sorted(trail) == sorted(set(trail)), "what was there already when it was asked for again left an entry"
    run = firsts[-1]["execution_id"]
    cancel = f"/api/v1/executions/{run}/cancel"
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "answered", crash)
        with pytest.raises(ConnectionError):
            await service.post(cancel, headers={"Idempotency-Key": "stop"})
    told = problem(await service.post(cancel, headers={"Idempotency-Key": "stop"}), 409)
    assert "was done before" in told["remedy"]
    kept = await (await service.app.open()).all("SELECT answer::text FROM tenuto.requests")
    assert all("tnt_" not in (row["answer"] or "") for row in kept)


async def test_the_text_of_a_key_is_kept_nowhere(service: Api) -> None:
    made = await service.post(
        "/api/v1/keys", json={"name": "ci", "role": "viewer"}, headers={"Idempotency-Key": "new key"}
    )
    kept = await (await service.app.open()).all("SELECT answer::text AS answer FROM tenuto.requests")
    assert [row["answer"] for row in kept] == [None]
    again = await service.post(
        "/api/v1/keys", json={"name": "ci", "role": "viewer"}, headers={"Idempotency-Key": "new key"}
    )
    assert made.status_code == 201
    problem(again, 409)


async def test_whoever_guesses_keys_waits_and_whoever_asks_too_often_too(service: Api) -> None:
    wrong = {"Authorization": "Bearer tnt_aaaaaaaa_" + "A" * 43}
    began = time.monotonic()
    answers = [await service.get("/api/v1/schedules", role=None, headers=wrong) for _ in range(24)]
    heard = [answer.status_code for answer in answers].count(401)
    assert 20 <= heard <= 21 + (time.monotonic() - began) / 3  # one more every three seconds
    assert problem(answers[-1], 429)["remedy"]
    assert answers[-1].headers["retry-after"] == "60"
    assert (await service.get("/api/v1/schedules")).status_code == 200, "who has a key pays for a neighbour's guesses"


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time somebody who comes is looked up in the database."""
    asked: list[str] = []

    def listen(name: str) -> None:
        ask = getattr(api_keys, name)

        async def count(*given: Any) -> Any:
            asked.append(name)
            return await ask(*given)

        monkeypatch.setattr(api_keys, name, count)

    for name in ("in_force", "of_session", "follow"):
        listen(name)
    return asked


def a_guess() -> dict[str, str]:
    return {"Authorization": f"Bearer tnt_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"}


async def test_guessers_are_not_looked_up_and_whoever_was_let_in_before_still_comes_in(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await service.get("/api/v1/schedules", Role.ADMIN)).status_code == 200  # known from here on
    asked = asked_for(monkeypatch)
    began = time.monotonic()
    first = [await service.get("/api/v1/schedules", None, headers=a_guess()) for _ in range(20)]
    assert ({answer.status_code for answer in first}, len(asked)) == ({401}, 20)

    def session() -> dict[str, str]:
        return {"Cookie": f"tenuto_session=tns_{secrets.token_urlsafe(32)}"}

    asked.clear()
    tried = []
    for _ in range(40):
        tried += [
            await service.get("/api/v1/schedules", None, headers=a_guess()),
            await service.get("/api/v1/schedules", None, headers=session()),
            await service.get("/", None, headers=session()),
            await service.post("/api/v1/session", None, json={"link": f"tnl_{secrets.token_urlsafe(32)}"}),
        ]
    took = time.monotonic() - began
    most = 6 + 6 * took  # five each second, and a guess every three seconds
    assert sum(answer.status_code == 429 for answer in tried) >= 160 - most
    assert len(asked) <= 2 * most, f"{len(asked)} lookups for 160 guesses in {took:.1f} s"  # of a link there are two

    await service.app.keys.make("other", Role.VIEWER)
    await service.app.keys.revoke("other")  # now no key is remembered as good; that they were is
    asked.clear()
    strangers = [service.get("/api/v1/schedules", None, headers=a_guess()) for _ in range(30)]
    await asyncio.gather(*strangers)
    admin = await service.get("/api/v1/schedules", Role.ADMIN)
    assert admin.status_code == 200, "who has a key pays for a neighbour's guesses"

    async def newcomer() -> bool:
        return (await service.get("/api/v1/schedules", Role.VIEWER)).status_code == 200

    assert await eventually(newcomer), "whoever is new here comes in where few guess at the same time"


async def test_a_key_that_was_revoked_is_no_longer_worth_looking_up(service: Api) -> None:
    viewer = service.keys[Role.VIEWER]
    assert not service.app.keys.has_let_in(viewer)
    assert (await service.get("/api/v1/schedules", Role.VIEWER)).status_code == 200
    assert service.app.keys.has_let_in(viewer)
    await service.app.keys.revoke("viewer")
    problem(await service.get("/api/v1/schedules", Role.VIEWER), 401)
    assert not service.app.keys.has_let_in(viewer)
    assert not service.app.keys.has_let_in("")


async def test_the_reason_may_stand_in_the_header_beside_an_empty_body(service: Api) -> None:
    pause = "/api/v1/queues/mail/pause"
    for given, reason in (({}, "tidying"), ({"reason": None}, "tidying"), ({"reason": "down"}, "down")):
        answer = await service.post(pause, json=given, headers={"X-Reason": "tidying"})
        assert answer.status_code == 204, answer.text
        assert (await service.read("/api/v1/queues"))["items"][0]["reason"] == reason
        await service.post("/api/v1/queues/mail/resume")


async def test_many_who_come_too_late_do_not_wait_for_one_another(service: Api) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"job": "double", "input": {"n": 1}}]})
    run = (await service.post("/api/v1/schedules/s/run")).json()["execution_id"]
    assert (await service.post(f"/api/v1/executions/{run}/cancel")).status_code == 202
    async with asyncio.timeout(25):  # each of them holding a connection and asking for another would last longer
        late = await asyncio.gather(
            *(service.post(f"/api/v1/executions/{run}/{what}") for what in ("cancel", "pause", "resume") * 10)
        )
        again = await asyncio.gather(*(service.post(f"/api/v1/executions/{run}/retry") for _ in range(20)))
    assert {answer.status_code for answer in late} == {409}
    assert sorted({answer.status_code for answer in again}) == [202, 409]
    assert len(await service.app.executions.list()) == 2


async def test_a_place_in_a_list_that_nobody_was_given_is_refused(service: Api) -> None:
    def text(place: str) -> str:
        return base64.urlsafe_b64encode(place.encode()).rstrip(b"=").decode()

    naive = text('["2031-01-01T00:00:00", "01a1e319-a307-7102-94ef-03aacf78560b"]')
    since = "2031-01-01T00:00:00Z"
    problem(await service.get("/api/schedule", params={"after": naive, "since": since}), 422)
    problem(await service.get("/api/v1/ledger", params={"after": naive}), 422)
    problem(await service.get("/api/log/default", params={"after": text("[Infinity]")}), 422)


async def test_bulk_may_be_long_whatever_the_name_of_the_manifest(service: Api) -> None:
    await service.post("/api/v1/manifests", json={"external_id": "a/b", "job": "double", "on_demand": True})
    lines = b'{"n": 1}' + b" " * 400_000 + b"\n"
    kind = {"Content-Type": "application/x-ndjson"}
    done = await service.post("/api/v1/manifests/a%2Fb/bulk", content=lines * 3, headers=kind)
    assert (done.status_code, done.json().get("total")) == (202, 3), done.text
