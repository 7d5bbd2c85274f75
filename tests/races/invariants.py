"""The auditor: what must be true of the tables after any fault, however the work went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tests.races.effect_ledger import Effect

# Each answers with the rows that break it. $1: how many tasks were submitted.
_INVARIANTS = {
    "nothing vanishes and nothing appears": """
        SELECT count(*) AS known, $1::bigint AS submitted
        FROM (SELECT id FROM tenuto.tasks UNION SELECT task_id FROM tenuto.activities) AS everything
        HAVING count(*) <> $1""",
    "a task ends once": """
        SELECT task_id, count(*)
        FROM tenuto.activities
        WHERE final AND $1::bigint >= 0
        GROUP BY task_id
        HAVING count(*) > 1""",
    "a task that has ended is not open": """
        SELECT tasks.id, tasks.state
        FROM tenuto.tasks JOIN tenuto.activities ON task_id = tasks.id
        WHERE final AND $1::bigint >= 0""",
    "a task that is not open has ended": """
        SELECT task_id
        FROM tenuto.activities
        WHERE $1::bigint >= 0 AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE id = task_id)
        GROUP BY task_id
        HAVING NOT bool_or(final)""",
    "attempts are numbered without a gap, and the last one is the final one": """
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
    "every record has a later fence than the one before": """
        SELECT later.task_id, later.attempt
        FROM tenuto.activities AS later
        JOIN tenuto.activities AS earlier
          ON earlier.task_id = later.task_id AND earlier.attempt = later.attempt - 1
        WHERE later.worker_id IS NOT NULL AND later.fence <= earlier.fence AND $1::bigint >= 0""",
    "losses and failures are what the records say": """
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


async def broken(connection: asyncpg.Connection, submitted: int) -> dict[str, list[Any]]:
    """The invariants that do not hold, with the rows that break them."""
    found = {name: await connection.fetch(query + "\nLIMIT 5", submitted) for name, query in _INVARIANTS.items()}
    return {name: rows for name, rows in found.items() if rows}


async def assert_sound(url: str, submitted: int) -> None:
    """Every invariant holds."""
    connection = await asyncpg.connect(url)
    try:
        assert await broken(connection, submitted) == {}
    finally:
        await connection.close()


async def assert_all_done(url: str, submitted: int, effects: Sequence[Effect]) -> None:
    """Every invariant holds, every task has completed, and what the records say was done has been done."""
    await assert_sound(url, submitted)
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM tenuto.tasks") == 0
        finals = await connection.fetch("SELECT task_id, attempt, fence, status FROM tenuto.activities WHERE final")
    finally:
        await connection.close()
    assert len(finals) == submitted
    assert {row["status"] for row in finals} == {"completed"}
    whole = {(effect.task, effect.attempt, effect.fence) for effect in effects if effect.ended is not None}
    assert [row for row in finals if (row["task_id"], row["attempt"], row["fence"]) not in whole][:5] == []
