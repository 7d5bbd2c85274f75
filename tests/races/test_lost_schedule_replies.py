"""The database committed, but the reply is lost: a schedule is created, changed, run, retried or cancelled once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.lifecycle import completion, execution_control
from tenuto.model.access.operation_context import OperationContext
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry
from tenuto.store.definitions import schedules
from tenuto.store.work import executions
from tests.races.proxy import Proxy
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    claim_steps,
    create_schedule,
    fire_due_schedules,
    load_execution,
    make_change_context,
    make_definition,
    make_settlement,
    open_task_states,
    read_table,
    run_claimable_steps,
    run_schedule_now,
    start_execution,
)
from tests.support.tasks import Register


@pytest.fixture
async def proxied_db(proxy: Proxy) -> AsyncIterator[Database]:
    """The database behind the proxy."""
    database = await Database.open(proxy.url, generic_plans=True)
    yield database
    await database.close()


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


def lose_commit_reply(proxy: Proxy, statement: str) -> None:
    """Commit the next transaction with this statement, but lose the reply."""
    proxy.lose_reply("COMMIT", within=statement)


async def change_count(db: Database) -> list[str]:
    return [version["change"] for version in await read_table(db, "schedule_versions")]


@pytest.fixture
def now(db: Database) -> datetime:
    return db.clock.now()


async def test_schedule_creation_with_lost_reply_happens_once_and_is_reported(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    lose_commit_reply(proxy, schedules.SQL.insert_definition)
    made = await schedule_definitions.create(proxied_db, make_definition(), make_change_context(now))
    assert proxy.lost == 1
    assert (made.version, await change_count(db)) == (1, ["created"])


async def test_declaration_with_lost_reply_reports_creation(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    lose_commit_reply(proxy, schedules.SQL.insert_definition)
    assert await schedule_definitions.declare(proxied_db, make_definition(), make_change_context(now)) == "created"
    assert proxy.lost == 1
    assert await change_count(db) == ["created"]


async def test_declaration_with_lost_reply_reports_change(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.update_definition)
    assert (
        await schedule_definitions.declare(proxied_db, make_definition("b"), make_change_context(now + MINUTE))
        == "changed"
    )
    assert proxy.lost == 1
    assert await change_count(db) == ["created", "edited"]


async def test_unchanged_edit_with_lost_reply_leaves_no_history_entry(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.lock_definition)
    entry = AuditEntry(OperationContext(ANA, "schedule.change"))
    context = replace(make_change_context(now + MINUTE), entry=entry)
    await schedule_definitions.edit(AuditedDatabase(proxied_db, entry), NAME, make_definition(), context)
    assert proxy.lost == 1
    assert await change_count(db) == ["created"]
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit_unsealed") == 0


@pytest.mark.parametrize("name", [NAME, "renamed"])
async def test_edit_with_lost_reply_creates_one_version_even_with_expected_version(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime, name: str
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.update_definition)
    made = await schedule_definitions.edit(
        proxied_db, NAME, make_definition("b", name=name), make_change_context(now + MINUTE), version=1
    )
    assert proxy.lost == 1
    assert (made.version, await change_count(db)) == (2, ["created", "edited"])


async def test_enable_and_disable_with_lost_reply_report_the_change(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.update_definition)
    assert await schedule_definitions.set_enabled(proxied_db, NAME, make_change_context(now + MINUTE), enabled=False)
    assert proxy.lost == 1
    assert await change_count(db) == ["created", "disabled"]


async def test_deletion_with_lost_reply_does_not_report_not_found(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.delete_definition)
    await schedule_definitions.delete(proxied_db, NAME, make_change_context(now))
    assert proxy.lost == 1
    assert await change_count(db) == ["created", "deleted"]


async def test_deletion_with_lost_reply_spares_a_new_schedule_of_the_same_name(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(), now)
    lose_commit_reply(proxy, schedules.SQL.delete_definition)
    proxy.after_loss = lambda: create_schedule(db, make_definition("b"), now)
    await schedule_definitions.delete(proxied_db, NAME, make_change_context(now))
    assert proxy.lost == 1
    assert await change_count(db) == ["created", "deleted", "created"]
    assert (await schedule_definitions.get(db, NAME)).definition == make_definition("b")


@pytest.mark.parametrize("ended", [False, True], ids=["still active", "ended meanwhile"])
@pytest.mark.parametrize("at_once", [False, True], ids=["in a transaction", "at once"])
async def test_manual_run_with_lost_reply_starts_once(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime, worker_id: UUID, ended: bool, at_once: bool
) -> None:
    await create_schedule(db, make_definition(), now)
    if at_once:
        proxy.lose_reply(executions.SQL.create_manual_execution)
    else:
        lose_commit_reply(proxy, executions.SQL.create_executions)
    if ended:
        proxy.after_loss = lambda: run_claimable_steps(db, worker_id)
    given: dict[str, Any] = {} if at_once else {"change": lambda plan: plan}
    result = await run_schedule_now(proxied_db, now=now, **given)
    assert proxy.lost == 1
    assert result.decision == "fired"
    (run,) = await read_table(db, "executions")
    assert (run["id"], run["state"]) == (result.execution_id, "completed" if ended else "in_progress")
    assert len(await read_table(db, "occurrences")) == 1


async def test_due_instant_with_lost_reply_fires_once(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    await create_schedule(db, make_definition(overlap="allow"), now)
    lose_commit_reply(proxy, executions.SQL.create_executions)
    await fire_due_schedules(proxied_db, now + MINUTE)
    assert proxy.lost == 1
    assert len(await read_table(db, "executions")) == 1
    assert len(await read_table(db, "occurrences")) == 1


@pytest.mark.parametrize("ended", [False, True], ids=["still active", "ended meanwhile"])
async def test_retry_with_lost_reply_starts_once(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime, worker_id: UUID, ended: bool
) -> None:
    run = await start_execution(db, "a")
    await run_claimable_steps(db, worker_id, a="failed")
    lose_commit_reply(proxy, executions.SQL.create_executions)
    if ended:
        proxy.after_loss = lambda: run_claimable_steps(db, worker_id)
    repeated = await execution_control.retry_execution(proxied_db, run, now, ANA)
    assert proxy.lost == 1
    assert [row["id"] for row in await read_table(db, "executions", "retry_of = $1", run)] == [repeated]


async def test_cancel_pause_and_resume_with_lost_reply_report_the_change(
    db: Database, proxied_db: Database, proxy: Proxy, now: datetime
) -> None:
    run = await start_execution(db, "a", "b")
    lose_commit_reply(proxy, executions.SQL.pause_execution)
    await execution_control.pause_execution(proxied_db, run, now, ANA)
    assert proxy.lost == 1
    lose_commit_reply(proxy, executions.SQL.resume_execution)
    await execution_control.resume_execution(proxied_db, run, now + MINUTE)
    assert proxy.lost == 1
    assert await open_task_states(db) == {"a": "queued", "b": "waiting"}
    lose_commit_reply(proxy, executions.SQL.mark_cancelled)
    assert await execution_control.cancel_execution(proxied_db, run, now, ANA) == "cancelled"
    assert proxy.lost == 1
    assert (await load_execution(db, run)).state == "cancelled"
    assert len(await read_table(db, "activities")) == 2


@pytest.mark.parametrize("at_a_stroke", [True, False])
async def test_end_of_a_group_with_lost_reply_advances_once(
    at_a_stroke: bool,
    db: Database,
    proxied_db: Database,
    proxy: Proxy,
    worker_id: UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await start_execution(db, "a", "b", "c")
    held = await claim_steps(proxied_db, worker_id)
    if at_a_stroke:
        proxy.lose_reply(executions.SQL.finish_group)
    else:
        monkeypatch.setattr(completion, "FAST_PATH_MAX_STEPS", 0)
        lose_commit_reply(proxy, executions.SQL.start_groups)
    await completion.finish(proxied_db, [make_settlement(held["a"], proxied_db.clock.now())])
    assert proxy.lost == 1
    assert (await load_execution(db, run)).current_group == 1
    assert await open_task_states(db) == {"b": "queued", "c": "waiting"}
