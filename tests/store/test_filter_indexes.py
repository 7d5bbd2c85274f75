"""Conditions that filters add so that an index applies: they never change which rows are found."""

from __future__ import annotations

from tenuto import Step, Tenuto, manual
from tenuto.postgres.database import Database
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

RAW_COUNTS = "SELECT state, count(*) AS number FROM tenuto.{table} GROUP BY state"


async def count_rows(database: Database, table: str) -> dict[str, int]:
    rows = await database.fetch_all(RAW_COUNTS.format(table=table))
    return {row["state"]: row["number"] for row in rows}


async def test_filter_by_state_finds_every_row_of_the_state(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def quick(n: int = 0) -> None: ...

    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("broken")

    app.schedule("Inner", manual(), [Step.job(quick, queue="nowhere")])
    app.schedule("Outer", manual(), [Step.schedule("Inner"), Step.job(quick)])
    app.schedule("Paused", manual(), [Step.job(quick), Step.job(quick, name="second")])
    app.schedule("Broken", manual(), [Step.job(broken)])
    app.schedule("Quick", manual(), [Step.job(quick)])
    app.manifest("bills", quick, on_demand=True)
    await app.schedules.deploy()
    await app.manifests.deploy()
    database = await app.open()
    async with worker():
        for name in ("Broken", "Quick"):
            run = await app.schedules.run(name)
            assert run.execution_id is not None
            await app.executions.wait(run.execution_id, 20)
        outer = await app.schedules.run("Outer")
        assert outer.execution_id is not None
        await eventually(
            lambda: database.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE waits_for IS NOT NULL"),
            20,
            what="the step of Outer waits for the execution that it started",
        )
    paused = await app.schedules.run("Paused")
    assert paused.execution_id is not None
    await app.executions.pause(paused.execution_id)
    cancelled = await app.schedules.run("Quick")
    assert cancelled.execution_id is not None
    await app.executions.cancel(cancelled.execution_id)
    batch = await app.bulk_enqueue("bills", [{"n": n} for n in range(3)])
    await app.batches.pause(batch.id)
    await app.enqueue(quick, 1)
    await app.enqueue(quick.using(limit_key="one", limit=1), 2)

    expected = await count_rows(database, "tasks")
    assert set(expected) >= {"waiting", "queued"}
    for state, number in expected.items():
        assert (await app.count_tasks(f"state:{state}")).count == number
        assert len(await app.tasks(f"state:{state}", limit=100)) == number
        rest = sum(expected.values()) - number
        assert (await app.count_tasks(f"-state:{state}")).count == rest
    expected = await count_rows(database, "executions")
    assert set(expected) == {"completed", "failed", "cancelled", "in_progress"}
    for state, number in expected.items():
        assert (await app.executions.count(f"state:{state}")).count == number
        assert len(await app.executions.list(f"state:{state}", limit=100)) == number
        assert (await app.executions.count(f"-state:{state}")).count == sum(expected.values()) - number
