"""Many workers, one queue: nobody runs what another one holds, and no limit is passed, not even by one."""

from __future__ import annotations

import asyncpg
import pytest

from tenuto import Tenuto
from tests.races import work
from tests.races.audit import assert_all_done
from tests.races.ledger import Ledger, overlaps
from tests.races.processes import Workers, eventually


async def all_ended(url: str, *, within: float) -> None:
    """Wait until no task is open."""
    connection = await asyncpg.connect(url)

    async def empty() -> bool:
        return not await connection.fetchval("SELECT EXISTS (SELECT FROM tenuto.tasks)")

    try:
        await eventually("no task is open", empty, within=within)
    finally:
        await connection.close()


@pytest.mark.parametrize(("count", "tasks"), [(2, 4000), (4, 4000)])
async def test_worker_processes_never_hold_one_task_twice(
    app: Tenuto, url: str, workers: Workers, ledger: Ledger, count: int, tasks: int
) -> None:
    await app.enqueue_many(work.touch, ({"number": number} for number in range(tasks)))

    for number in range(count):
        workers.start(f"worker-{number}", slots=50)
    await all_ended(url, within=60)

    effects = ledger.effects()
    await assert_all_done(url, tasks, effects)
    assert len(effects) == tasks
    assert overlaps(effects, {}) == []
    assert len({effect.pid for effect in effects}) == count
