"""Rows of schedules and the occurrence ledger (S4, S5, S13): one final decision per due instant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenuto import Step
from tenuto.ids import new_id
from tenuto.model.triggers import manual
from tenuto.model.work.occurrences import Decision
from tenuto.postgres.bulk_copy import split_ids_and_versions
from tenuto.postgres.database import Database, DatabaseError
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerEntry
from tests.support.model_values import NOON
from tests.support.schedules import (
    MINUTE,
    create_schedule,
    fire_due_schedules,
    make_definition,
    read_table,
    run_schedule_now,
    start_execution,
)

SCHEDULE = new_id()


def make_entry(**fields: Any) -> LedgerEntry:
    given: dict[str, Any] = {
        "id": new_id(),
        "schedule_id": SCHEDULE,
        "schedule_name": "Nightly",
        "due_at": NOON,
        "until": None,
        "origin": "trigger",
        "decision": Decision.SKIPPED,
        "turn": None,
        "reason": "why",
        "execution_id": None,
        **fields,
    }
    return LedgerEntry(**given)


async def write_entries(db: Database, *entries: LedgerEntry) -> None:
    await db.transaction(lambda connection: schedules.write_ledger_entries(connection, entries, NOON, "test"))


async def test_schedule_is_loaded_as_stored(db: Database) -> None:
    definition = make_definition("a", ["b", "c"], overlap="queue_one", misfire={"policy": "all", "max_runs": 7})
    made = await create_schedule(db, definition)
    assert await schedules.load_schedule(db, "Nightly") == made
    assert made.definition == definition


async def test_ledger_allows_one_decision_per_due_instant_and_any_manual_runs(db: Database) -> None:
    await write_entries(db, make_entry())
    with pytest.raises(DatabaseError, match="occurrences_once"):
        await write_entries(db, make_entry(due_at=NOON + MINUTE), make_entry())
    assert len(await read_table(db, "occurrences")) == 1, "all of them or none"
    await write_entries(db, make_entry(origin="manual"), make_entry(origin="manual"), make_entry(schedule_id=new_id()))


async def test_ledger_entry_is_final_unless_queued(db: Database) -> None:
    await write_entries(db, make_entry())
    with pytest.raises(DatabaseError, match="is decided"):
        await db.fetch_all("UPDATE tenuto.occurrences SET reason = 'another'")
    await write_entries(db, make_entry(due_at=NOON + MINUTE, decision=Decision.QUEUED, turn="overlap"))
    run = new_id()
    await db.transaction(lambda c: start_queued_run(c, run))
    (row,) = await read_table(db, "occurrences", "execution_id IS NOT NULL")
    assert (row["decision"], row["execution_id"], row["decided_by"]) == ("fired", run, "test")


async def start_queued_run(connection: Any, run: Any) -> None:
    queued = await schedules.load_first_queued_run(connection, SCHEDULE)
    assert queued is not None
    await schedules.mark_queued_run_started(connection, queued.id, run, NOON, "test")


async def test_only_fired_ledger_entries_have_an_execution(db: Database) -> None:
    for wrong in (make_entry(decision=Decision.FIRED), make_entry(execution_id=new_id())):
        with pytest.raises(DatabaseError, match="occurrences_fired_means_run"):
            await write_entries(db, wrong)


async def test_ledger_allows_one_overlap_run_and_many_catch_up_runs_in_queue(db: Database) -> None:
    def waiting(minute: int, turn: str) -> LedgerEntry:
        return make_entry(due_at=NOON + minute * MINUTE, decision=Decision.QUEUED, turn=turn)

    await write_entries(db, waiting(0, "overlap"), waiting(1, "catch_up"), waiting(2, "catch_up"))
    with pytest.raises(DatabaseError, match="occurrences_one_queued"):
        await write_entries(db, waiting(3, "overlap"))
    with pytest.raises(DatabaseError, match="occurrences_queued_has_a_turn"):
        await write_entries(db, make_entry(due_at=NOON + 4 * MINUTE, decision=Decision.QUEUED))


async def test_next_due_instant_is_that_of_the_earliest_enabled_schedule(db: Database) -> None:
    assert await schedules.load_next_due_at(db) is None
    await create_schedule(db, make_definition(name="off"), NOON - MINUTE, enabled=False)
    await create_schedule(db, make_definition(name="by hand", trigger=manual()))
    assert await schedules.load_next_due_at(db) is None
    later = await create_schedule(db, make_definition(name="later"), NOON + MINUTE)
    first = await create_schedule(db, make_definition(name="first"))
    assert await schedules.load_next_due_at(db) == NOON + MINUTE
    assert await schedules.load_next_due_at(db, {(first.id, 1)}) == NOON + 2 * MINUTE
    assert await schedules.load_next_due_at(db, {(first.id, 1), (later.id, 1)}) is None
    assert await schedules.load_next_due_at(db, {(first.id, 2)}) == NOON + MINUTE, "it is not that version"


async def test_schedules_are_listed_by_name_with_their_last_run(db: Database) -> None:
    for name in ("beta", "alpha", "gamma"):
        await create_schedule(db, make_definition(name=name), enabled=name != "gamma")
    run = (await run_schedule_now(db, "beta")).execution_id
    everything: dict[str, Any] = {"after": None, "enabled": None, "search": None, "limit": 10}

    async def list_entries(**given: Any) -> list[schedules.ScheduleRecord]:
        return await schedules.list_schedules(db, **{**everything, **given})

    assert [row.name for row in await list_entries()] == ["alpha", "beta", "gamma"]
    assert [row.name for row in await list_entries(after="alpha", limit=1)] == ["beta"]
    assert [row.name for row in await list_entries(enabled=False)] == ["gamma"]
    assert [row.name for row in await list_entries(search="ALPH")] == ["alpha"]
    rows = {row.name: row for row in await list_entries()}
    assert (rows["beta"].last_execution_id, rows["beta"].last_state) == (run, "in_progress")
    assert rows["alpha"].last_execution_id is None


async def test_schedules_using_another_as_a_step_are_found(db: Database) -> None:
    await create_schedule(db, make_definition(name='in "quotes"'))
    await create_schedule(db, make_definition("a", Step.schedule('in "quotes"'), name="outer"))
    async with db.connection() as connection:
        assert await schedules.list_schedules_using(connection, 'in "quotes"') == ["outer"]
        assert await schedules.list_schedules_using(connection, "outer") == []
        assert set(await schedules.load_plans_with_schedule_steps(connection)) == {"outer"}


async def test_ledger_is_paged_newest_first(db: Database) -> None:
    for minute in range(4):
        await write_entries(
            db, make_entry(due_at=NOON + minute * MINUTE, decision=Decision.MISSED if minute else Decision.SKIPPED)
        )
    everything: dict[str, Any] = {"schedule_id": SCHEDULE, "before": None, "decision": None, "limit": 10}

    async def list_entries(**given: Any) -> list[int]:
        rows = await schedules.list_ledger_entries(db, **{**everything, **given})
        return [int((row.due_at - NOON) / MINUTE) for row in rows]

    assert await list_entries() == [3, 2, 1, 0]
    assert await list_entries(limit=2) == [3, 2]
    assert await list_entries(before=NOON + 2 * MINUTE) == [1, 0]
    assert await list_entries(decision="skipped") == [0]
    assert await list_entries(schedule_id=new_id()) == []
    assert await list_entries(schedule_id=None) == [3, 2, 1, 0]


async def test_old_ledger_entries_are_deleted_in_batches_except_queued_ones(
    db: Database,
) -> None:
    for minute in range(5):
        await write_entries(db, make_entry(due_at=NOON + minute * MINUTE))
    waits = make_entry(due_at=NOON + 9 * MINUTE, decision=Decision.QUEUED, turn="overlap")
    await write_entries(db, waits)
    cutoff = NOON + timedelta(days=90)
    assert [await schedules.delete_old_ledger_entries(db, cutoff, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert [row["id"] for row in await read_table(db, "occurrences")] == [waits.id]
    assert await schedules.delete_old_ledger_entries(db, NOON - MINUTE, 10) == 0


async def test_typical_durations_use_completed_runs(db: Database) -> None:
    await start_execution(db, "a")
    await db.fetch_all("UPDATE tenuto.executions SET state = 'completed', ended_at = started_at + interval '90 s'")
    assert await schedules.load_typical_durations(db, NOON - timedelta(days=9999)) == {"Nightly": 90.0}


async def test_due_schedules_are_locked_by_their_scheduler(db: Database) -> None:
    await create_schedule(db, make_definition())
    async with db.connection() as one, one.transaction():
        assert len(await schedules.lock_due_schedules(one, NOON + MINUTE, 10)) == 1
        async with db.connection() as other, other.transaction():
            assert await schedules.lock_due_schedules(other, NOON + MINUTE, 10) == []
        assert await fire_due_schedules(db, NOON + MINUTE) == 0
    assert await fire_due_schedules(db, NOON + MINUTE) == 1
    assert (await read_table(db, "occurrences"))[0]["schedule_name"] == "Nightly"


@pytest.mark.parametrize("excluded", [0, 3])
async def test_next_due_instant_of_many_schedules_uses_the_index(db: Database, excluded: int) -> None:
    made = await create_schedule(db, make_definition())
    await db.fetch_all(
        "INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version,"
        " origin, created_at, updated_at, next_run_at, planned)"
        " SELECT gen_random_uuid(), 'n' || n, '', true, trigger, plan, overlap, misfire, 1, origin, created_at,"
        " updated_at, next_run_at + n * interval '1 s', true"
        " FROM tenuto.schedules, generate_series(1, 20000) AS n"
    )
    await db.fetch_all("ANALYZE tenuto.schedules")
    without = [(made.id, 1), *((new_id(), 1) for _ in range(excluded - 1))] if excluded else []
    async with db.connection() as connection:
        plan = await connection.fetch(
            f"EXPLAIN (ANALYZE, BUFFERS OFF) {schedules.SQL.load_next_due_at}", *split_ids_and_versions(without)
        )
    plan_text = "\n".join(row[0] for row in plan)
    assert "schedules_due" in plan_text, plan_text
    assert "Seq Scan" not in plan_text, plan_text
    assert await schedules.load_next_due_at(db, without) == NOON + MINUTE + timedelta(seconds=bool(excluded))
