"""Requests that take several transactions, or name an instant, and are sent again after the reply got lost: done once,
and answered with the whole of what was done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.operations import batches, dead_letters
from tenuto.store import one_shots
from tenuto.store.access import idempotency_keys
from tenuto.store.access.audit_recorder import Deed, RequestKey, on_record
from tests.api.conftest import Api, serving
from tests.support.waiting import eventually

FEW = 2
"""Letters in one transaction, here."""


async def crash(*_: object, **__: object) -> None:
    raise ConnectionError("the process is gone")


def crashing_after(times: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """It goes well so many times, and then the process is gone."""
    done = 0

    async def until_then(*given: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        return await (crash() if done > times else work(*given, **more))

    return until_then


async def failed(service: Api, number: int) -> str:
    """A batch whose items have all failed for good."""
    await service.post("/api/v1/manifests", json={"external_id": "m", "job": "boom", "on_demand": True})
    batch = await service.app.bulk_enqueue("m", [{"why": str(each)} for each in range(number)])
    await batch.wait(30)
    return str(batch.id)


async def test_a_request_cut_off_between_its_transactions_is_finished_and_answers_with_the_whole(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_LISTED", FEW)
    select = "/api/v1/dead-letters/selections"
    async with service.app.worker(slots=10):
        batch = await failed(service, 7)
        retry_failed = f"/api/v1/batches/{batch}/retry-failed"
        with monkeypatch.context() as patched:
            patched.setattr(dead_letters, "retry", crashing_after(2, dead_letters.retry))
            with pytest.raises(ConnectionError):
                await service.post(retry_failed, headers={"Idempotency-Key": "b"})
        # Four were run again, and have failed again meanwhile: those letters are none of what was asked for.
        await so_many_are_open(service, batch, 7)
        again = await service.post(retry_failed, headers={"Idempotency-Key": "b"})
        assert (again.status_code, again.json()) == (202, {"retried": 7})
        await so_many_are_open(service, batch, 7)
        found = await service.app.dead_letters.list(status="retried", limit=100)
        assert len(found) == 7, "what failed again after the request was run again by it"

        chosen = (await service.post(select, json={})).json()["ids"]
        for path, word, name in (("retry", "retried", "retry"), ("acknowledge", "acknowledged", "acknowledge")):
            some, chosen = (chosen[:3], chosen[3:]) if path == "retry" else (chosen, [])
            asked: dict[str, Any] = {"json": {"ids": some, "note": "all of them"}, "headers": {"Idempotency-Key": path}}
            with monkeypatch.context() as patched:
                patched.setattr(dead_letters, name, crashing_after(1, getattr(dead_letters, name)))
                with pytest.raises(ConnectionError):
                    await service.post(f"/api/v1/dead-letters/{path}", **asked)
            with monkeypatch.context() as patched:
                patched.setattr(idempotency_keys, "answered", crash)
                with pytest.raises(ConnectionError):
                    await service.post(f"/api/v1/dead-letters/{path}", **asked)
            again = await service.post(f"/api/v1/dead-letters/{path}", **asked)
            assert again.json() == {word: len(some)}, path
            third = await service.post(f"/api/v1/dead-letters/{path}", **asked)
            assert (third.json(), third.headers["idempotent-replayed"]) == ({word: len(some)}, "true")


async def so_many_are_open(service: Api, batch: str, number: int) -> None:
    """Wait until so many letters of a batch are."""

    async def look() -> bool:
        answer = await service.post("/api/v1/dead-letters/selections", json={"batch": batch})
        return bool(answer.json()["total"] == number)

    await eventually(look, timeout=30)


async def test_what_answers_with_nothing_answers_so_again(service: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service.app.worker(slots=10):
        await failed(service, 1)
    (letter,) = await service.app.dead_letters.list()
    other = await service.app.bulk_enqueue("m", [{"why": str(each)} for each in range(5)])
    for path in (
        f"/api/v1/dead-letters/{letter['id']}/acknowledge",
        f"/api/v1/batches/{other.id}/pause",
        f"/api/v1/batches/{other.id}/resume",
        f"/api/v1/batches/{other.id}/cancel",
    ):
        with monkeypatch.context() as patched:
            patched.setattr(batches, "SOME", 2)
            patched.setattr(idempotency_keys, "answered", crash)
            with pytest.raises(ConnectionError):
                await service.post(path, headers={"Idempotency-Key": path})
        again = await service.post(path, headers={"Idempotency-Key": path})
        assert again.status_code == 204, (path, again.text)
        assert (await service.post(path)).status_code == 409, "who asks anew is told how it stands"
    assert (await other.progress())["state"] == "cancelled"


async def test_a_switch_that_was_thrown_is_told_as_thrown_and_not_thrown_again(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.post("/api/v1/schedules", json={"name": "s", "steps": [{"job": "boom"}]})
    await service.post("/api/v1/manifests", json={"external_id": "m", "job": "boom", "on_demand": True})
    for path in ("/api/v1/schedules/s", "/api/v1/manifests/m"):
        key = {"Idempotency-Key": path}
        with monkeypatch.context() as patched:
            patched.setattr(idempotency_keys, "answered", crash)
            with pytest.raises(ConnectionError):
                await service.post(f"{path}/disable", headers=key)
        assert (await service.post(f"{path}/enable")).json() == {"changed": True}, "somebody else has decided since"
        assert (await service.post(f"{path}/disable", headers=key)).json() == {"changed": True}
        assert (await service.read(path))["enabled"]


async def test_a_one_shot_whose_instant_has_passed_answers_as_the_first_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(url, tmp_path, one_shots_in_the_past="refuse") as service:
        clock = (await service.app.open()).clock
        soon = (clock.now() + timedelta(hours=1)).astimezone(UTC).isoformat()
        asked: dict[str, Any] = {"json": {"exec_at": soon, "prompt_type": "double", "payload": {"n": 1}}}
        key = {"Idempotency-Key": "late"}
        with monkeypatch.context() as patched:
            patched.setattr(idempotency_keys, "answered", crash)
            with pytest.raises(ConnectionError):
                await service.post("/api/schedule", **asked, headers=key)

        clock.heard(clock.now() + timedelta(hours=2))
        (shot,) = await service.app.one_shots.list()
        again = await service.post("/api/schedule", **asked, headers=key)
        assert (again.status_code, again.json()["transaction_id"]) == (202, str(shot["id"])), again.text
        assert datetime.fromisoformat(again.json()["exec_at_utc"]) == datetime.fromisoformat(soon)
        assert (await service.post("/api/schedule", **asked)).status_code == 422, "anew it is past"
        assert len(await service.app.one_shots.list()) == 1


async def test_a_key_that_was_used_meanwhile_lets_nothing_be_done(service: Api) -> None:
    def asked(subject: UUID) -> Deed:
        return Deed(Actor.system("test"), "queue.limit", "here", request_key=RequestKey("a", "k", b"print", subject))

    first = new_id()
    for _ in range(2):  # the second time only because its reply was lost
        with on_record(asked(first)):
            await service.app.limit_queue("mail", 3)
    with on_record(asked(new_id())), pytest.raises(Conflict, match="has just been done"):
        await service.app.limit_queue("mail", 5)
    assert [queue["max_running"] for queue in await service.app.queues()] == [3]


async def test_a_one_shot_that_was_made_before_is_looked_for_and_not_sent_again(
    service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end between a look into the past and an insert: so there must be no insert."""
    sent = 0
    create = one_shots.create_on_record

    async def counted(*given: Any) -> Any:
        nonlocal sent
        sent += 1
        return await create(*given)

    monkeypatch.setattr(one_shots, "create_on_record", counted)
    asked: dict[str, Any] = {
        "json": {"exec_at": "2056-07-07T15:00:00Z", "prompt_type": "log.append", "payload": {"message": "Hello"}},
        "headers": {"Idempotency-Key": "once"},
    }
    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "answered", crash)
        with pytest.raises(ConnectionError):
            await service.post("/api/schedule", **asked)
    (made,) = await service.app.one_shots.list()
    again = await service.post("/api/schedule", **asked)
    assert (again.status_code, again.json()["transaction_id"]) == (202, str(made["id"]))
    assert sent == 1
