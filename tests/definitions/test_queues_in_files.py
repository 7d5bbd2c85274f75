"""Queues in definition files: limits, rate limits and pauses are planned, applied and pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.definitions.definition_files import parse_queues
from tenuto.definitions.document_parser import Document, parse_document
from tenuto.errors import Invalid
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.queues import QueueSettings, apply_declaration
from tenuto.operations.definitions.plans import ApplyPlan, Declarations, read_declarations
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import queues
from tenuto.store.work.workers import QueueRecord
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


def declare(*queues: dict[str, Any], **sections: Any) -> Declarations:
    return read_declarations([Document("file.yaml", {"queues": list(queues), **sections})])


async def apply(app: Tenuto, *queues: dict[str, Any], prune: bool = False) -> ApplyPlan:
    planned = await app.plans.plan(declare(*queues), prune=prune)
    await app.plans.apply(planned, reason="release 42")
    return planned


def effects(planned: ApplyPlan) -> dict[str, str]:
    return {change.key: change.effect for change in planned.queues.changes}


async def find(app: Tenuto, name: str) -> QueueRecord | None:
    return next((each for each in await app.queues() if each.name == name), None)


async def settings(app: Tenuto, name: str) -> tuple[int | None, str | None, bool, str | None]:
    found = await find(app, name)
    assert found is not None
    return found.max_running, found.rate_limit, found.paused_at is not None, found.reason


def test_queues_of_a_file_have_only_the_options_that_it_contains() -> None:
    text = (
        "queues:\n- {name: mail, max_running: 20, rate_limit: 100/minute}\n- {name: open, max_running: none}\n"
        "- {name: shop, paused: true, reason: Provider is down}\n- {name: old, paused: false, rate_limit: none}\n"
    )
    assert [(each.name, each.options) for each in parse_queues([parse_document("file.yaml", text.encode())])] == [
        ("mail", {"max_running": 20, "rate_limit": "100/m"}),
        ("open", {"max_running": None}),
        ("shop", {"paused": "Provider is down"}),
        ("old", {"paused": False, "rate_limit": None}),
    ]


@pytest.mark.parametrize(
    ("entry", "path", "code", "remedy"),
    [
        ("{max_running: 3}", "[0].name", "definition.field.missing", "needs name"),
        ("{name: 'a b'}", "[0].name", "value.name.invalid", ""),
        ("{name: q, max_running: 0}", "[0].max_running", "definition.field.out_of_range", "paused: true"),
        ("{name: q, max_running: many}", "[0].max_running", "definition.field.out_of_range", "none for no limit"),
        ("{name: q, max_runing: 3}", "[0].max_runing", "definition.field.unknown", "did you mean max_running?"),
        ("{name: q, rate_limit: fast}", "[0].rate_limit", "rate_limit.text.invalid", "100/m"),
        ("{name: q, rate_limit: 7}", "[0].rate_limit", "rate_limit.text.invalid", "100/m"),
        ("{name: q, paused: 1}", "[0].paused", "definition.field.not_boolean", ""),
        ("{name: q, paused: true, reason: 7}", "[0].reason", "definition.field.not_text", ""),
        ("{name: q, reason: x}", "[0].reason", "queue.reason.not_applicable", "paused: true"),
        ("{name: q, paused: false, reason: x}", "[0].reason", "queue.reason.not_applicable", "paused: true"),
        ("{name: q}, {name: q}", "[1].name", "definition.duplicate", "rename or remove"),
    ],
)
def test_invalid_queue_in_a_file_is_rejected_with_its_location(entry: str, path: str, code: str, remedy: str) -> None:
    with pytest.raises(Invalid) as rejected:
        parse_queues([parse_document("file.yaml", f"queues: [{entry}]".encode())])
    assert rejected.value.code == code
    assert rejected.value.field == f"file.yaml, line 1: queues{path}"
    assert remedy in (rejected.value.remedy or "")


def test_pause_without_a_reason_is_met_by_a_pause_with_a_reason() -> None:
    paused = QueueSettings(paused="incident")
    assert apply_declaration(paused, None, {"paused": True}).changed == ()
    assert apply_declaration(paused, None, {"paused": "other"}).changed == ("paused",)
    assert apply_declaration(paused, {"paused": "other"}, {"paused": "other"}).kept == ("paused",)


async def test_queue_plan_changes_nothing_and_applying_is_idempotent(app: Tenuto, sql: Sql) -> None:
    mail = {"name": "mail", "max_running": 20, "rate_limit": "100/m"}
    shop = {"name": "shop", "paused": True, "reason": "Provider is down"}
    planned = await app.plans.plan(declare(mail, shop))
    assert effects(planned) == {"mail": "created", "shop": "created"}
    assert await sql("SELECT * FROM tenuto.queues") == []
    await app.plans.apply(planned, reason="release 42")
    assert await settings(app, "mail") == (20, "100/m", False, None)
    assert await settings(app, "shop") == (None, None, True, "Provider is down")
    before = await sql("SELECT * FROM tenuto.queues ORDER BY name")
    again = await apply(app, mail, shop)
    assert (again.has_changes, effects(again)) == (False, {"mail": "unchanged", "shop": "unchanged"})
    assert await sql("SELECT * FROM tenuto.queues ORDER BY name") == before
    await app.plans.apply(planned)  # the same plan again, as after a lost acknowledgement
    assert await sql("SELECT * FROM tenuto.queues ORDER BY name") == before


async def test_applied_queues_are_in_the_audit_entry_of_the_plan(app: Tenuto) -> None:
    ana = app.acting_as(Actor.user("Ana"), source="test")
    await app.limit_queue("mail", 5)
    for _ in range(2):
        await apply(ana, {"name": "mail", "max_running": 20}, {"name": "shop", "paused": True})
    (entry,) = await app.audit.list(action="plan.apply")
    assert (entry.actor_name, entry.reason) == ("Ana", "release 42")
    assert [each["is"]["max_running"] for each in entry.before] == [5, None]
    assert [(each["target"], each["is"]["max_running"], each["is"]["paused"]) for each in entry.after] == [
        ("queue mail", 20, False),
        ("queue shop", None, True),
    ]
    (pause,) = [each for each in await app.queues() if each.name == "shop"]
    assert pause.paused_by == "Ana"


async def test_operators_change_of_a_queue_is_kept_until_its_declaration_changes(app: Tenuto) -> None:
    declared = {"name": "mail", "max_running": 20, "rate_limit": "100/m", "paused": False}
    await apply(app, declared)
    await app.limit_queue("mail", 5)
    await app.pause_queue("mail", "incident 7")
    kept = await apply(app, declared)
    assert (effects(kept), kept.has_changes) == ({"mail": "kept"}, False)
    assert await settings(app, "mail") == (5, "100/m", True, "incident 7")
    changed = await apply(app, {**declared, "rate_limit": "50/m"})
    assert effects(changed) == {"mail": "changed"}
    assert await settings(app, "mail") == (5, "50/m", True, "incident 7"), "each option is by itself"
    replaced = await apply(app, {**declared, "max_running": 30, "rate_limit": "50/m"})
    (change,) = replaced.queues.changes
    assert change.differences == {"max_running": (5, 30)}
    assert any("the file replaces that change" in note for note in change.notes)
    assert await settings(app, "mail") == (30, "50/m", True, "incident 7")


async def test_prune_removes_the_declared_settings_of_a_queue_and_nothing_else(app: Tenuto) -> None:
    await app.limit_queue("own", 3)
    await apply(app, {"name": "mail", "max_running": 20}, {"name": "shop", "rate_limit": "5/s", "max_running": 4})
    await app.limit_queue("shop", 9)
    await app.pause_queue("shop", "incident 7")
    listed = await apply(app)
    assert [each.name for each in listed.queues.undeclared] == ["mail", "shop"]
    assert await settings(app, "mail") == (20, None, False, None), "without prune nothing is removed"
    pruned = await apply(app, prune=True)
    assert list(pruned.deleted) == ["queue mail", "queue shop"]
    assert await find(app, "mail") is None
    assert await settings(app, "shop") == (9, None, True, "incident 7"), "what operators set remains"
    assert await settings(app, "own") == (3, None, False, None)
    assert not (await apply(app, prune=True)).has_changes


async def test_queues_are_applied_in_the_transaction_of_the_other_definitions(app: Tenuto) -> None:
    @app.job
    async def load() -> None: ...

    schedule = {"name": "nightly", "steps": [{"job": "load"}]}
    planned = await app.plans.plan(declare({"name": "mail", "max_running": 2}, schedules=[schedule]))
    await app.limit_queue("mail", 7)
    with raises_code("definition.changed_since_plan"):
        await app.plans.apply(planned)
    assert await app.schedules.list() == []
    assert await settings(app, "mail") == (7, None, False, None)


async def test_queue_plan_conflicts_if_an_operator_changed_the_queue_since(app: Tenuto) -> None:
    await apply(app, {"name": "mail", "max_running": 2})
    planned = await app.plans.plan(declare({"name": "mail", "max_running": 3}))
    await app.pause_queue("mail", "incident 7")
    with raises_code("definition.changed_since_plan"):
        await app.plans.apply(planned)
    assert await settings(app, "mail") == (2, None, True, "incident 7")


async def test_queues_locked_by_a_plan_are_not_changed_by_others(app: Tenuto, db: Database, url: str) -> None:
    await apply(app, {"name": "mail", "max_running": 2})
    operator = await asyncpg.connect(url, server_settings={"lock_timeout": "200ms"})

    async def lock(connection: Connection) -> None:
        await queues.lock_queues(connection, ["mail"])
        with pytest.raises(asyncpg.LockNotAvailableError):
            await operator.execute("UPDATE tenuto.queues SET max_running = 9 WHERE name = 'mail'")

    try:
        await db.transaction(lock)
    finally:
        await operator.close()


async def test_plan_waits_for_a_concurrent_change_of_a_queue_and_conflicts(app: Tenuto, url: str, sql: Sql) -> None:
    await apply(app, {"name": "mail", "max_running": 2})
    planned = await app.plans.plan(declare({"name": "mail", "max_running": 3}))
    operator = await asyncpg.connect(url)
    try:
        change = operator.transaction()
        await change.start()
        await operator.execute("UPDATE tenuto.queues SET max_running = 9 WHERE name = 'mail'")
        applying = asyncio.create_task(app.plans.apply(planned))

        async def waits() -> bool:
            return bool(await sql("SELECT FROM pg_locks WHERE NOT granted"))

        await eventually(waits)
        await change.commit()
        with raises_code("definition.changed_since_plan"):
            await applying
    finally:
        await operator.close()
    assert await settings(app, "mail") == (9, None, False, None)


async def test_workers_resume_a_queue_as_soon_as_its_declaration_is_applied(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(queue="mail")
    async def send() -> None: ...

    await apply(app, {"name": "mail", "paused": True, "reason": "Provider is down"})
    async with worker(queues=["mail"]):
        task = await app.enqueue(send)
        await apply(app, {"name": "mail", "paused": False})
        ended = await app.wait(task, timeout=20)
    assert ended.state == "completed"
