"""Rows of one-shots: created together with their audit entries, listed by index."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.model.access.operation_context import IdempotencyKey, OperationContext
from tenuto.model.work.tasks import NewTask
from tenuto.operations.work import one_shots as engine
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.work.one_shots import SQL
from tenuto.store.work.task_creation import insert_audited_tasks
from tests.store.test_query_plans import FILL, plan_of
from tests.support.model_values import NOON, make_new_task
from tests.support.schedules import ANA
from tests.support.tasks import read_rows
from tests.support.waiting import eventually


async def test_one_shot_lists_use_their_indexes(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("UPDATE tenuto.tasks SET origin = 'once' WHERE rank = 3")
        await connection.execute("ANALYZE tenuto.tasks")
        for name in ("list_open", "lock_unclaimed", "lock_open"):
            nodes = await plan_of(connection, name, getattr(SQL, name))
            assert "tasks_once" in {node.get("Index Name") for node in nodes}, name
            assert not {"Sort", "Seq Scan"} & {node["Node Type"] for node in nodes}, name
        found = await plan_of(connection, "list_ended", SQL.list_ended)
        assert "Seq Scan" not in {node["Node Type"] for node in found}


def make_request(at: int, id: UUID | None = None, key: str | None = None) -> tuple[NewTask, AuditEntry]:
    task = make_new_task(origin="once", run_at=NOON + timedelta(hours=at), tags=["a", 'b "c"'] if at % 2 else None)
    task.id = id or task.id
    wanted = None if key is None else IdempotencyKey("user:u-17", key, key.encode(), task.id)
    context = OperationContext(ANA, "one_shot.create", "here", idempotency_key=wanted)
    return task, AuditEntry(context, target=str(task.id), after={"at": at})


async def test_one_shots_are_created_together_with_audit_entries_and_results(db: Database) -> None:
    before = make_request(1, key="used before")
    assert await insert_audited_tasks(db, [before]) == [True]
    several = [
        make_request(2),
        make_request(3, before[0].id),
        make_request(4, key="new"),
        make_request(5, key="used before"),
        make_request(6),
    ]
    assert await insert_audited_tasks(db, several) == [True, False, True, None, True]
    assert [entry.is_written for _, entry in several] == [True, False, True, False, True]
    made = {task.id for task, entry in [before, *several] if entry.is_written}
    assert {row["id"] for row in await read_rows(db)} == made
    assert {UUID(row["target"]) for row in await read_rows(db, "audit")} == made
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit_unsealed") == len(made)
    assert {row["key"] for row in await read_rows(db, "requests")} == {"used before", "new"}
    assert [row["tags"] for row in await read_rows(db) if row["run_at"] == NOON + timedelta(hours=1)] == [
        ["a", 'b "c"']
    ]


async def test_two_one_shots_with_one_id_create_and_audit_one(db: Database) -> None:
    id = new_id()
    assert await insert_audited_tasks(db, [make_request(1, id), make_request(2, id), make_request(3)]) == [
        True,
        False,
        True,
    ]
    assert sorted(row["after"] for row in await read_rows(db, "audit")) == ['{"at": 1}', '{"at": 3}']


async def test_two_one_shots_with_one_idempotency_key_create_one(app: Tenuto) -> None:
    async def create(_: int) -> object:
        key = IdempotencyKey("user:u-17", "the same", b"the same", new_id())
        acting = app.acting_as(ANA, idempotency_key=key)
        return await acting.one_shots.create(NOON + timedelta(days=3650), "log.append", {"message": "Hello"})

    made = await asyncio.gather(*map(create, range(3)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Conflict", "Conflict", "OneShot"]
    assert len(await (await app.open()).fetch_all("SELECT id FROM tenuto.tasks")) == 1


@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "with another"])
async def test_one_shot_that_ends_during_a_repeated_request_is_not_created_again(
    db: Database, url: str, beside: int
) -> None:
    """The second request waits for the key of the first, and has read the activities before."""
    first = make_request(1, key="the same")
    assert await insert_audited_tasks(db, [first]) == [True]
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.fetchval("SELECT key FROM tenuto.requests WHERE key = 'the same' FOR UPDATE")
        all_of_them = [first, *(make_request(2) for _ in range(beside))]
        again = asyncio.create_task(insert_audited_tasks(db, all_of_them))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        assert await engine.cancel_one_shot(db, first[0].id, ANA) == "terminated"
    created = await again
    assert created == [False, True][: 1 + beside]
    assert first[0].id not in {row["id"] for row in await read_rows(db)}
    await other.close()
