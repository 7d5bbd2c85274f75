"""Tenuto's schedules for `schedules`: many due at once, few due among many, a hundred a minute.

Schedulers and workers are real processes through the public API. One schedule is created through it, too; its copies
are created with one statement, because creating a million of them is not measured. The results are read from the
occurrence ledger and the activities, not from the processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import asyncpg

from benchmarks.contenders import contender_protocol, fire_times
from tenuto import Step, Tenuto, every
from tenuto.model.triggers import Trigger
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.store.definitions import schedules

WARM_UP = 5
CONCURRENT_DUE = 100
AHEAD = timedelta(seconds=10)
OVERDUE_SECONDS = 300.0

COPY = """
INSERT INTO tenuto.schedules (id, name, description, enabled, trigger, plan, overlap, misfire, version, origin,
                              created_at, updated_at, next_run_at, planned)
SELECT gen_random_uuid(), name || ' ' || n, '', true, trigger, plan, overlap, misfire, 1, origin,
       created_at, updated_at, next_run_at + n * $3::interval, true
FROM tenuto.schedules, generate_series(1, $2::integer) AS n
WHERE name = $1
"""
NONE_DUE = "UPDATE tenuto.schedules SET next_run_at = now() + interval '1 day' WHERE next_run_at <= now()"
SOME_DUE = """
UPDATE tenuto.schedules
SET next_run_at = now()
WHERE id IN (SELECT id FROM tenuto.schedules ORDER BY id LIMIT $1)
"""
FIRED = "SELECT count(*) FROM tenuto.occurrences WHERE decision = 'fired' AND due_at = $1"
# Ledger rows beyond one for each due instant, rows with another decision than fired, executions without a row.
WRONG = """
SELECT count(*) - count(DISTINCT (schedule_id, due_at)),
       count(*) FILTER (WHERE decision <> 'fired'),
       (SELECT count(*) FROM tenuto.executions) - count(DISTINCT execution_id)
FROM tenuto.occurrences
"""
LATENESS = """
SELECT extract(epoch FROM min(activity.started_at) - execution.due_at)::float8 * 1000
FROM tenuto.executions AS execution
JOIN tenuto.activities AS activity ON activity.execution_id = execution.id
WHERE execution.due_at >= $1 AND execution.due_at < $2
GROUP BY execution.id
"""


def build(url: str, home: str | None = None) -> Tenuto:
    app = Tenuto(database=url, home=home)
    app.job(noop)
    return app


async def noop() -> None:
    """The only step of every schedule."""


async def prepare(url: str) -> None:
    await build(url).migrate()


async def run_service(url: str, *, worker: bool) -> None:
    """Run a scheduler or a worker until the stop command."""
    gate = contender_protocol.StandardStreamGate()
    await gate.open()
    with TemporaryDirectory(prefix="tenuto-bench-home-") as home:
        app, name = build(url, home), f"bench-{os.getpid()}"
        async with app, app.worker(name=name) if worker else app.scheduler(name=name):
            await gate.ready()
            await gate.wait_for_stop()


# --- many due at one instant ------------------------------------------------------------------------------------------


async def burst(url: str, count: int) -> None:
    """Create schedules due at one instant; answer with the seconds from it until the last of them fired."""
    due_at = (datetime.now(UTC) + AHEAD).replace(microsecond=0)
    connection = await asyncpg.connect(url)
    await create_schedules(url, "burst", every("1d", anchor=due_at), copies=count - 1)
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("SELECT pg_notify('tenuto', 'schedules')")
    if datetime.now(UTC) > due_at - timedelta(seconds=1):
        raise SystemExit("creating the schedules took until they were due")
    await asyncio.sleep((due_at - datetime.now(UTC)).total_seconds())
    while (fired := await connection.fetchval(FIRED, due_at)) < count:
        if datetime.now(UTC) > due_at + timedelta(seconds=OVERDUE_SECONDS):
            raise SystemExit(f"{fired} of {count} schedules fired in time")
        await asyncio.sleep(0.02)
    seconds = (datetime.now(UTC) - due_at).total_seconds()
    (wrong,) = await connection.fetch(WRONG)
    if any(wrong):
        raise SystemExit(f"the ledger does not have each once: {tuple(wrong)}")
    by = Counter(row[0] for row in await connection.fetch("SELECT decided_by FROM tenuto.occurrences"))
    await connection.close()
    contender_protocol.print_answer(seconds=seconds, fired_by=list(by.values()))


async def create_schedules(
    url: str, name: str, trigger: Trigger, *, copies: int = 0, apart: timedelta = timedelta()
) -> None:
    app = build(url)
    async with app:
        await app.schedules.create(schedule_definition(name, trigger, [Step.job(app.jobs.get_job("noop"))]))
    connection = await asyncpg.connect(url)
    await connection.execute(COPY, name, copies, apart, timeout=600)
    await connection.close()


# --- few due among many -----------------------------------------------------------------------------------------------


async def fill(url: str, count: int) -> None:
    """Create schedules that are due one after the other from tomorrow on."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await create_schedules(url, "far", every("1d", anchor=tomorrow), copies=count - 1, apart=timedelta(seconds=1))
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM (ANALYZE)", timeout=600)
    await connection.close()
    contender_protocol.print_answer(filled=count)


async def measure_due_query(url: str, times: int, due: int) -> None:
    """Time the queries of a scheduler for due schedules and for the next due instant."""
    connection = await asyncpg.connect(url)
    await connection.execute(NONE_DUE)
    await connection.execute(SOME_DUE, due)
    await connection.execute("VACUUM (ANALYZE) tenuto.schedules", timeout=600)
    await connection.close()
    database = await Database.open(url, max_connections=1, generic_plans=True)
    found, next_one = [], []
    for _ in range(WARM_UP + times):
        found.append(await _query_due(database, due))
        began = time.monotonic_ns()
        await schedules.load_next_due_at(database)
        next_one.append((time.monotonic_ns() - began) / 1e6)
    await database.close()
    contender_protocol.print_answer(due=found[WARM_UP:], next_due=next_one[WARM_UP:])


async def _query_due(database: Database, due: int) -> float:
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        began = time.monotonic_ns()
        found = await schedules.lock_due_schedules(connection, database.clock.now(), CONCURRENT_DUE)
        taken = (time.monotonic_ns() - began) / 1e6
        await transaction.rollback()
    if len(found) != min(due, CONCURRENT_DUE):
        raise SystemExit(f"{due} are due, {len(found)} were found")
    return taken


# --- a hundred a minute -----------------------------------------------------------------------------------------------


async def minute(url: str, seconds: int) -> None:
    """Run a hundred schedules, each due once a minute; answer with the delay of their first step."""
    begins = fire_times.first_instant() + 2
    app = build(url)
    async with app:
        step = Step.job(app.jobs.get_job("noop"))
        for number in range(fire_times.SCHEDULE_COUNT):
            anchor = datetime.fromtimestamp(begins + fire_times.first_due_offset(number), UTC)
            app.schedule(f"number {number}", every("60s", anchor=anchor), [step])
        await app.schedules.deploy()
    if time.time() > begins:
        raise SystemExit("creating the schedules took until they were due")
    wanted, ends = fire_times.fires_within(seconds), begins + seconds
    span = [datetime.fromtimestamp(instant, UTC) for instant in (begins, ends)]
    await asyncio.sleep(ends - time.time())
    connection = await asyncpg.connect(url)
    while len(late := [row[0] for row in await connection.fetch(LATENESS, *span)]) < wanted:
        if time.time() > ends + OVERDUE_SECONDS:
            raise SystemExit(f"{len(late)} of {wanted} were started in time")
        await asyncio.sleep(0.1)
    await connection.close()
    if len(late) != wanted:
        raise SystemExit(f"{wanted} were due, {len(late)} were started")
    contender_protocol.print_answer(milliseconds=late)


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = ["versions", "prepare", "schedule", "work", "burst", "fill", "due-query", "minute"]
    parser.add_argument("verb", choices=commands)
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--due", type=int, default=0)
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("tenuto", "asyncpg"))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case "schedule" | "work":
            contender_protocol.run(run_service(asked.url, worker=asked.verb == "work"))
        case "burst":
            contender_protocol.run(burst(asked.url, asked.count))
        case "fill":
            contender_protocol.run(fill(asked.url, asked.count))
        case "due-query":
            contender_protocol.run(measure_due_query(asked.url, asked.count, asked.due))
        case _:
            contender_protocol.run(minute(asked.url, asked.count))


if __name__ == "__main__":
    main()
