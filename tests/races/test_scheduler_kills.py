"""Several scheduler processes, killed at random: every due instant is decided once, and every fired execution ran."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tenuto.definitions import schedule_definitions
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.model.definitions.schedules import Misfire, MisfirePolicy, OverlapPolicy, Plan, ScheduleDefinition
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import every
from tenuto.postgres.database import Database
from tenuto.steps.built_in_kinds import resolve_definition
from tests.races import jobs
from tests.races.execution_actions import violated_invariants
from tests.races.processes import Workers
from tests.races.table_queries import Observer
from tests.races.task_actions import ACTOR
from tests.support.repetition_counts import THOROUGH, seed, times

pytestmark = pytest.mark.slow
KILLS = times(8, in_a_proof=20)
SCHEDULES = 40


def expected_instants(first: datetime, seconds: int, until: datetime) -> Iterator[datetime]:
    """Return the due instants of an interval trigger, computed independently."""
    while first <= until:
        yield first
        first += timedelta(seconds=seconds)


def create_definition(number: int) -> ScheduleDefinition:
    """Combine each overlap and misfire policy with each interval; some executions last longer than the interval."""
    overlap, late = list(OverlapPolicy)[number % 4], (MisfirePolicy.ALL, MisfirePolicy.ONCE)[number // 4 % 2]
    step = Step.job(jobs.touch, number, input={"seconds": 2.5 if number % 5 < 2 else 0.0})
    pair = [Step.job(jobs.touch, number, name=name) for name in ("left", "right")]
    return ScheduleDefinition(
        f"schedule {number}",
        every(f"{1 + number % 3}s"),
        Plan.from_steps([step, pair]),
        overlap=overlap,
        misfire=Misfire(late),
    )


@pytest.mark.parametrize("count", [2, 3] if THOROUGH else [3])
async def test_schedulers_killed_at_random_decide_every_due_instant_once(
    db: Database, observer: Observer, workers: Workers, count: int
) -> None:
    chance = random.Random(seed())
    worker = await workers.start("worker", slots=50).wait_until_ready()
    seconds, firsts = {}, {}
    for number in range(SCHEDULES):
        new = resolve_definition(create_definition(number), jobs.app.jobs)
        made = await schedule_definitions.create(db, new, ChangeContext(ACTOR, db.clock.now()))
        assert made.next_run_at is not None
        seconds[made.id], firsts[made.id] = 1 + number % 3, made.next_run_at
    names = [f"scheduler-{number}" for number in range(count)]
    living = {name: workers.start(name, do="schedule") for name in names}

    for _ in range(KILLS):
        decided = await observer.count("occurrences")
        await observer.until("SELECT count(*) > $1 FROM tenuto.occurrences", decided, within=20)
        await asyncio.sleep(chance.uniform(0, 0.4))  # any moment: before, during or after its next firing
        victim = chance.choice(names)
        await workers.kill(living[victim])
        living[victim] = workers.start(victim, do="schedule")
    decided = await observer.value("SELECT max(due_at) FROM tenuto.occurrences")
    await observer.until("SELECT min(next_run_at) > $1 FROM tenuto.schedules", decided, within=20)
    # No more instants become due, and active executions end.
    await db.fetch_all("UPDATE tenuto.schedules SET enabled = false")
    await observer.until("SELECT NOT EXISTS (SELECT FROM tenuto.occurrences WHERE decision = 'queued')", within=40)
    await observer.until("SELECT NOT EXISTS (SELECT FROM tenuto.executions WHERE ended_at IS NULL)", within=40)

    rows = await observer.rows("SELECT schedule_id, due_at, until FROM tenuto.occurrences WHERE origin = 'trigger'")
    assert [row for row in rows if row[2] is not None] == []
    next_runs = dict(await observer.rows("SELECT id, next_run_at FROM tenuto.schedules"))
    for schedule_id, first in firsts.items():
        instants = sorted(due_at for each, due_at, _ in rows if each == schedule_id)
        last = next_runs[schedule_id] - timedelta(seconds=1)
        assert instants == list(expected_instants(first, seconds[schedule_id], last))
    assert await violated_invariants(db) == []
    decisions = dict(await observer.rows("SELECT decision, count(*) FROM tenuto.occurrences GROUP BY 1"))
    print(f"{KILLS} kills of {count} schedulers, {len(rows)} due instants: {decisions}")
    assert {"fired", "skipped", "coalesced"} <= decisions.keys(), "too few overlaps"
    assert await observer.count("executions", "state = 'cancelled'") > 0
    assert decisions["fired"] == await observer.count("executions")
    assert await observer.count("activities", "final") == 3 * decisions["fired"]
    assert await observer.count("repairs", "net = 'execution_stuck'") == 0
    await workers.stop(worker, *living.values())
