"""One-shots: created several at once, and read along an index of their own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.operations import one_shots as engine
from tenuto.postgres.database import Database
from tenuto.store import one_shots
from tenuto.store.access.audit_recorder import Deed, RequestKey, on_record
from tenuto.store.one_shots import SQL, TaskRow
from tests.store.test_query_plans import FILL, plan_of
from tests.support.model_values import NOON, a_new_task
from tests.support.schedules import ANA
from tests.support.tasks import rows
from tests.support.waiting import eventually


async def test_the_registry_and_the_past_are_read_along_their_indexes(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("UPDATE tenuto.tasks SET origin = 'once' WHERE rank = 3")
        await connection.execute("ANALYZE tenuto.tasks")
        for name in ("registry", "hold_waiting", "hold_some"):
            nodes = await plan_of(connection, name, getattr(SQL, name))
            assert "tasks_once" in {node.get("Index Name") for node in nodes}, name
            assert not {"Sort", "Seq Scan"} & {node["Node Type"] for node in nodes}, name
        found = await plan_of(connection, "past", SQL.past)
        assert "Seq Scan" not in {node["Node Type"] for node in found}


def asked(at: int, id: UUID | None = None, key: str | None = None) -> tuple[TaskRow, Deed]:
    task = a_new_task(origin="once", run_at=NOON + timedelta(hours=at), tags=["a", 'b "c"'] if at % 2 else None)
    task.id = id or task.id
    deed = Deed(ANA, "one_shot.create", "here", target=str(task.id), after={"at": at})
    if key is not None:
        deed.request_key = RequestKey("user:u-17", key, key.encode(), task.id)
    return one_shots.row_of_one(task), deed


async def test_several_are_created_at_once_each_with_its_entry_and_each_with_its_answer(db: Database) -> None:
    before = asked(1, key="used before")
    assert await one_shots.create_on_record(db, [before]) == [True]
    several = [asked(2), asked(3, before[0][0]), asked(4, key="new"), asked(5, key="used before"), asked(6)]
    assert await one_shots.create_on_record(db, several) == [True, False, True, None, True]
    assert [deed.written for _, deed in several] == [True, False, True, False, True]
    made = {row[0] for row, deed in [before, *several] if deed.written}
    assert {row["id"] for row in await rows(db)} == made
    assert {UUID(row["target"]) for row in await rows(db, "audit")} == made
    assert await db.value("SELECT count(*) FROM tenuto.audit_unsealed") == len(made)
    assert {row["key"] for row in await rows(db, "requests")} == {"used before", "new"}
    assert [row["tags"] for row in await rows(db) if row["run_at"] == NOON + timedelta(hours=1)] == [["a", 'b "c"']]


async def test_of_two_with_one_id_at_once_the_first_is_created_and_on_record(db: Database) -> None:
    id = new_id()
    assert await one_shots.create_on_record(db, [asked(1, id), asked(2, id), asked(3)]) == [True, False, True]
    assert sorted(row["after"] for row in await rows(db, "audit")) == ['{"at": 1}', '{"at": 3}']


async def test_of_two_with_one_key_at_once_one_is_created(app: Tenuto) -> None:
    async def create(_: int) -> object:
        with on_record(asked(1, key="the same")[1]):
            return await app.one_shots.create(NOON + timedelta(days=3650), "log.append", {"message": "Hello"})

    made = await asyncio.gather(*map(create, range(3)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["Conflict", "Conflict", "OneShot"]
    assert len(await (await app.open()).all("SELECT id FROM tenuto.tasks")) == 1


@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "with another"])
async def test_one_that_has_ended_while_its_request_comes_again_is_not_made_anew(
    db: Database, url: str, beside: int
) -> None:
    """The second request waits for the first one's key, and has looked for the past before."""
    first = asked(1, key="the same")
    assert await one_shots.create_on_record(db, [first]) == [True]
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.fetchval("SELECT key FROM tenuto.requests WHERE key = 'the same' FOR UPDATE")
        all_of_them = [first, *(asked(2) for _ in range(beside))]
        again = asyncio.create_task(one_shots.create_on_record(db, all_of_them))
        await eventually(lambda: db.value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        assert await engine.cancel(db, first[0][0], ANA) == "terminated"
    created = await again
    assert created == [False, True][: 1 + beside]
    assert first[0][0] not in {row["id"] for row in await rows(db)}
    await other.close()
