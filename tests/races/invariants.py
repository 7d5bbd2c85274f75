"""Invariants of the task tables that must hold after any fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tests.races.effect_ledger import Effect

# Each query returns the rows that violate the invariant. $1: number of submitted tasks.
_INVARIANTS = {
    "no task is lost or created": """
        SELECT count(*) AS known, $1::bigint AS submitted
        FROM (SELECT id FROM tenuto.tasks UNION SELECT task_id FROM tenuto.activities) AS everything
        HAVING count(*) <> $1""",
    "a task has at most one final activity": """
        SELECT task_id, count(*)
        FROM tenuto.activities
        WHERE final AND $1::bigint >= 0
        GROUP BY task_id
        HAVING count(*) > 1""",
    "a finished task is not open": """
        SELECT tasks.id, tasks.state
        FROM tenuto.tasks JOIN tenuto.activities ON task_id = tasks.id
        WHERE final AND $1::bigint >= 0""",
    "a task that is not open is finished": """
        SELECT task_id
        FROM tenuto.activities
        WHERE $1::bigint >= 0 AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE id = task_id)
        GROUP BY task_id
        HAVING NOT bool_or(final)""",
    "attempts are numbered without gaps, and the last one is final": """
        SELECT task_id, array_agg(attempt ORDER BY attempt) AS attempts
        FROM tenuto.activities
        WHERE $1::bigint >= 0
        GROUP BY task_id
        HAVING count(*) <> max(attempt) OR min(attempt) <> 1
            OR max(attempt) FILTER (WHERE final) < max(attempt)""",
    "the open attempt follows the recorded ones": """
        SELECT id, attempt
        FROM tenuto.tasks
        WHERE attempt <> 1 + (SELECT count(*) FROM tenuto.activities WHERE task_id = tasks.id) AND $1::bigint >= 0""",
    "every activity has a greater fence than the previous one": """
        SELECT later.task_id, later.attempt
        FROM tenuto.activities AS later
        JOIN tenuto.activities AS earlier
          ON earlier.task_id = later.task_id AND earlier.attempt = later.attempt - 1
        WHERE later.worker_id IS NOT NULL AND later.fence <= earlier.fence AND $1::bigint >= 0""",
    "the counts of losses and failures match the activities": """
        SELECT task_id
        FROM tenuto.activities
        WHERE $1::bigint >= 0
        GROUP BY task_id
        HAVING max(losses) <> count(*) FILTER (WHERE reason = 'lost')
            OR max(failures) <> count(*) FILTER (WHERE status = 'failed' AND reason <> 'lost')""",
    "a task succeeds at most once": """
        SELECT task_id
        FROM tenuto.activities
        WHERE status LIKE 'completed%' AND $1::bigint >= 0
        GROUP BY task_id
        HAVING count(*) > 1""",
}


async def violated_invariants(connection: asyncpg.Connection, submitted: int) -> dict[str, list[Any]]:
    """Return the violated invariants with the rows that violate them."""
    found = {name: await connection.fetch(query + "\nLIMIT 5", submitted) for name, query in _INVARIANTS.items()}
    return {name: rows for name, rows in found.items() if rows}


async def assert_invariants_hold(url: str, submitted: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        assert await violated_invariants(connection, submitted) == {}
    finally:
        await connection.close()


async def assert_all_completed(url: str, submitted: int, effects: Sequence[Effect]) -> None:
    """Assert that every invariant holds, every task completed, and the ledger confirms each recorded success."""
    await assert_invariants_hold(url, submitted)
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM tenuto.tasks") == 0
        finals = await connection.fetch("SELECT task_id, attempt, fence, status FROM tenuto.activities WHERE final")
    finally:
        await connection.close()
    assert len(finals) == submitted
    assert {row["status"] for row in finals} == {"completed"}
    whole = {(effect.task, effect.attempt, effect.fence) for effect in effects if effect.ended_ns is not None}
    assert [row for row in finals if (row["task_id"], row["attempt"], row["fence"]) not in whole][:5] == []
