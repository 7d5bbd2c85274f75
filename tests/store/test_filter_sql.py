"""Filters as SQL: every key of every resource has a column, conditions select the right rows, values are parameters."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.ids import new_ids
from tenuto.lifecycle.completion import finish
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.filters import Filter, FilterKey, FilterSchema, KeyType, parse_filter
from tenuto.model.work.tasks import OutcomeReason, Settlement, expired_outcome
from tenuto.postgres.database import Database
from tenuto.store.filter_sql import ACTIVITIES, FILTER_TABLES, TASKS, CappedCount, FilterTable
from tenuto.store.work import activities, tasks
from tests.support.model_values import NOON
from tests.support.tasks import create_task

EXAMPLES = {
    KeyType.TEXT: ["x", "~x", '"a \'; DROP TABLE tenuto.tasks;--"'],
    KeyType.TAGS: ["x,y", "~x"],
    KeyType.ID: ["01a8c3f0", "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"],
    KeyType.NUMBER: ["3", ">=3", "1..5"],
    KeyType.DURATION: [">30s", "1s..2s"],
    KeyType.INSTANT: [">2h", "2031-05-04", "7d..1d"],
    KeyType.FLAG: ["yes", "no"],
}

PAST = """
INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at, run_at,
                               claimed_at, started_at, ended_at, fence, failures, losses, input, error, tags,
                               initiator_type, initiator_name)
SELECT id, id, 1, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END, n % 20 = 0, 'job',
       CASE WHEN n <= 3 THEN 'rare_job' ELSE 'job' || n % 5 END, 'default', 0, $2::timestamptz,
       $2::timestamptz, $2::timestamptz,
       $2::timestamptz, $2::timestamptz + n * interval '1 second', 1, 0, 0, '{}',
       CASE WHEN n % 10 = 0 THEN '{"type": "ValueError", "message": "no \\"flour\\" left"}'::jsonb END,
       CASE WHEN n = 1 THEN ARRAY['oldest'] END, 'user', 'ana'
FROM unnest($1::uuid[]) WITH ORDINALITY AS new (id, n)
"""


def parse(schema: FilterSchema, text: str) -> Filter:
    return parse_filter(schema, text, NOON, zone=UTC)


@pytest.mark.parametrize("table", FILTER_TABLES, ids=lambda table: f"{table.schema.noun} in {table.relation}")
async def test_every_key_of_a_resource_has_a_column(db: Database, table: FilterTable) -> None:
    assert set(table.columns) == {key.name for key in table.schema.keys}
    statement = f"SELECT 1 FROM {table.relation} WHERE (/* filter */ true)"
    clauses = [f"{key.name}:{value}" for key in table.schema.keys for value in examples_of(key)]
    for clause in [*clauses, "text", *(f"-{clause}" for clause in clauses)]:
        await db.fetch_all(*table.add_filter(statement, parse(table.schema, clause)))


def examples_of(key: FilterKey) -> list[str]:
    return [",".join(key.choices)] if key.type is KeyType.CHOICE else EXAMPLES[key.type]


def test_values_of_a_filter_are_parameters() -> None:
    hostile = "'; DROP TABLE tenuto.tasks;--"
    statement, *values = TASKS.add_filter(
        "SELECT /* filter */ true",
        parse(TASK_KEYS, f'name:"{hostile}" -tag:"{hostile}" queue:~"{hostile}" "{hostile}"'),
    )
    assert hostile not in statement
    assert str(values).count("DROP TABLE") == 4


def test_filter_of_another_resource_is_rejected() -> None:
    with pytest.raises(ValueError, match="a filter of activities does not apply to tasks"):
        TASKS.add_filter("SELECT /* filter */ true", Filter(ACTIVITY_KEYS))
    with pytest.raises(ValueError, match="no place"):
        TASKS.add_filter("SELECT true", Filter(TASK_KEYS))


async def test_filter_selects_activities_by_each_kind_of_clause(db: Database) -> None:
    ids = [UUID(str(id)) for id in new_ids(100)]
    async with db.connection() as connection:
        await connection.execute(PAST, ids, NOON - timedelta(hours=1))

    async def numbers(text: str, **options: Any) -> list[int]:
        filter = parse_filter(ACTIVITY_KEYS, text, NOON, zone=UTC, **options)
        found = await activities.list_activities(db, filter, limit=500)
        assert await activities.count_activities(db, filter) == CappedCount(len(found), True)
        return sorted(ids.index(row.id) + 1 for row in found)

    assert await numbers("name:rare_job") == [1, 2, 3]
    assert await numbers("state:failed final:yes") == [20, 40, 60, 80, 100]
    assert await numbers("state:failed -final:yes") == [10, 30, 50, 70, 90]
    assert await numbers("error:~FLOUR name:job0") == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert await numbers("valueerror -final:yes ran:<=30s") == [10, 30]
    assert await numbers("tag:oldest") == [1]
    assert await numbers("-tag:oldest ran:<3s") == [2], "a row without tags does not have the tag"
    assert await numbers("ended:>2020-01-01") == list(range(1, 101))
    assert await numbers(f"started:>=2h ended:<{(NOON - timedelta(minutes=59)).isoformat()}") == list(range(1, 60))
    assert await numbers(f"id:{ids[4]}") == [5]
    assert await numbers("by:ana by_type:user name:rare_job,job1 ran:..6s") == [1, 2, 3, 6]
    assert await numbers("tag:oldest", window=99) == [], "the oldest row is outside of the window"
    assert await numbers("tag:oldest name:rare_job", window=3) == [1], "the window counts matches of indexed keys"
    assert await numbers("worker:nobody") == []


async def test_expired_attempts_are_selected_as_an_outcome_of_their_own(db: Database, register_worker: Any) -> None:
    for reason in ("expired", "requested"):
        task = await create_task(db)
        await db.write_all(
            "UPDATE tenuto.tasks SET expires_at = now() - interval '1 s' WHERE id = $1 RETURNING id", task
        )
        (found,) = await tasks.list_expired_tasks(db, db.clock.now(), 10)
        outcome = replace(expired_outcome(found, db.clock.now()), reason=OutcomeReason(reason))
        await finish(db, [Settlement(found, outcome)])

    async def reasons(text: str) -> list[OutcomeReason | None]:
        found = await activities.list_activities(db, parse(ACTIVITY_KEYS, text), limit=9)
        return [each.reason for each in found]

    assert await reasons("state:expired") == ["expired"]
    assert await reasons("state:completed,expired") == ["expired"]
    assert await reasons("state:cancelled") == ["requested", "expired"]
    assert await reasons("state:cancelled -state:expired") == ["requested"]


async def test_count_is_exact_up_to_ten_thousand(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(PAST, new_ids(10_001), NOON)
    everything = Filter(ACTIVITY_KEYS)
    assert await activities.count_activities(db, everything) == CappedCount(10_000, False)
    rare = everything.where(name="rare_job")
    assert await activities.count_activities(db, rare) == CappedCount(3, True)
    both = await activities.count_activities_of_each(
        db, [rare, everything, everything.where(name="rare_job", final=True)]
    )
    assert both == [CappedCount(3, True), CappedCount(10_000, False), CappedCount(0, True)]
    assert await activities.count_activities_of_each(db, []) == []


async def test_filter_selects_tasks_by_worker_and_batch(db: Database, register_worker: Any) -> None:
    worker_id = await register_worker("box-1")
    first, second = await create_task(db), await create_task(db)
    await db.write_all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, lease_until = now(), claimed_at = now()"
        " WHERE id = $2",
        worker_id,
        first,
    )

    async def select(text: str) -> list[UUID]:
        return [row.id for row in await activities.list_tasks(db, parse(TASK_KEYS, text), limit=10)]

    [name] = [row["name"] for row in await db.fetch_all("SELECT name FROM tenuto.workers WHERE id = $1", worker_id)]
    assert await select(f"worker:{name}") == [first]
    assert await select(f"-worker:{name}") == [second]
    assert await select(f"worker:~{name[:3]}") == [first]
    assert await select("batch:01a1") == []


def test_every_indexed_clause_is_searched_without_a_window() -> None:
    statement, *_ = ACTIVITIES.add_filter("SELECT /* filter */ true", parse(ACTIVITY_KEYS, "name:x state:failed"))
    assert "OFFSET" not in statement
    assert "IN ('failed')" in statement, "a literal, so that partial indexes apply"
