"""COPY of tasks: every column value is stored as if the driver had encoded the rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tenuto.ids import new_id
from tenuto.postgres.bulk_copy import copy_tasks
from tenuto.postgres.database import Database

PLAIN = {
    "state": "queued", "queue": "default", "rank": 0, "kind": "job", "name": "bake", "policy": "{}",
    "initiator_type": "user", "initiator_name": "Ada",
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rank", -32768),
        ("rank", 32767),
        ("run_at", datetime(1970, 1, 1, tzinfo=UTC)),
        ("run_at", datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("run_at", datetime(9000, 12, 31, 23, 59, 59, 1, tzinfo=UTC)),
        ("policy", '{"word": "Öl 🫒", "max_attempts": 3}'),
        ("tags", ["a"]),
        ("tags", ["Öl", "with space", 'quo"te', "back\\slash", "{brace}", "NULL", "🫒"]),
        ("name", "x" * 200),
        ("initiator_name", "Zoë 🫒"),
        ("initiator_id", ""),
        ("correlation_id", "c"),
        ("parent_id", UUID(int=7)),
        ("batch_id", UUID(int=8)),
        ("limit_group", "ovens"),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_copied_tasks_store_every_shared_column(db: Database, column: str, value: Any) -> None:
    ids = [new_id(), new_id()]
    async with db.connection() as connection:
        await copy_tasks(connection, {**PLAIN, column: value}, ids, ['{"n": 1}', '{"n": "Öl 🫒 \\\\ \\""}'])
    stored = await db.fetch_all(f"SELECT id, activity_id, input, {column} AS found FROM tenuto.tasks ORDER BY id")
    assert [(row["id"], row["activity_id"], row["found"]) for row in stored] == [(id, id, value) for id in ids]
    assert [row["input"] for row in stored] == ['{"n": 1}', '{"n": "Öl 🫒 \\\\ \\""}']


async def test_copied_tasks_store_their_limit(db: Database) -> None:
    async with db.connection() as connection:
        await copy_tasks(connection, {**PLAIN, "limit_key": "gas", "limit_max": 100_000}, [new_id()], ["{}"])
    stored = await db.fetch_one("SELECT limit_key, limit_max FROM tenuto.tasks")
    assert stored is not None
    assert tuple(stored) == ("gas", 100_000)


@pytest.mark.parametrize("count", [0, 1, 249, 250, 251, 1000])
async def test_copy_stores_any_number_of_tasks_and_reports_when_all_are_sent(db: Database, count: int) -> None:
    said: list[str] = []
    async with db.connection() as connection:
        ids = [new_id() for _ in range(count)]
        await copy_tasks(connection, PLAIN, ids, ["{}"] * count, lambda: said.append("sent"))
    assert said == ["sent"]
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == count
