"""Each guard of schedules and executions alone: a test that fails when it is taken away (see `tests.mutants`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

from tenuto.engine import definitions, executing, firing
from tenuto.engine.definitions import Author
from tenuto.engine.firing import Started
from tenuto.engine.sweeper import recover, sweep
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition, Overlap
from tenuto.model.tasks import Aside, Outcome, Status, Task, settle
from tenuto.model.triggers import every
from tenuto.store import executions, finishing, schedules
from tenuto.store import workers as register_of_workers
from tenuto.store.database import Connection, Database
from tenuto.store.finishing import finish
from tenuto.store.schedules import Entry, Schedule
from tests.races import test_execution_races as happens
from tests.races import test_firing_races as falls_due
from tests.races.given import SOMEBODY, claim, completed, failed
from tests.races.interleaving import Stepwise, meetings
from tests.races.runs import begin, broken_rules, plan_of, run_to_the_end
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_ways")

RegisterWorker = Callable[..., Awaitable[UUID]]
NAME = falls_due.NAME


@pytest.fixture
async def worker_id(register_worker: RegisterWorker) -> UUID:
    return await register_worker()


@pytest.fixture
async def first(url: str) -> AsyncIterator[Stepwise]:
    database = await Stepwise.at(url)
    yield database
    await database.close()


@pytest.fixture
async def second(url: str) -> AsyncIterator[Stepwise]:
    database = await Stepwise.at(url)
    yield database
    await database.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with a transaction that stays open as long as the test wants."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def a_schedule(db: Database, overlap: Overlap = Overlap.SKIP) -> Schedule:
    return await definitions.create(
        db, Definition(NAME, every("1m"), plan_of(1), overlap=overlap), Author(SOMEBODY, falls_due.CREATED)
    )


async def ending(db: Database, task: Task) -> None:
    await finish(db, [completed(db, task)])


async def all_ending(db: Database, tasks: list[Task]) -> None:
    await finish(db, [completed(db, task) for task in tasks])


async def run_now(db: Database, request: UUID | None = None) -> Started:
    request = request or new_id()
    return await db.transaction(
        lambda connection: firing.run_now(connection, NAME, falls_due.NOW, SOMEBODY, request_id=request)
    )


# --- steps that end together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "another", "held", "paused"),
    [
        (happens.a_ends, happens.b_ends, 2, False),
        (happens.both_end, happens.pause, 2, False),
        (happens.both_end, happens.resume, 2, True),
        (happens.a_is_to_be_repeated, happens.resume, 2, True),
        (happens.pause, happens.a_is_put_back, 2, False),
        (happens.cancel, happens.claiming, 1, False),
        (happens.cancel, happens.a_is_to_be_repeated, 2, False),
        (happens.the_last_is_cancelled, happens.both_end, 2, False),
        (happens.pause, happens.both_end, 2, False),
        (happens.cancel, happens.both_end, 2, False),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
async def test_two_things_at_once_leave_an_execution_sound(
    first: Stepwise,
    second: Stepwise,
    worker_id: UUID,
    register_worker: RegisterWorker,
    one: happens.Act,
    another: happens.Act,
    held: int,
    paused: bool,
) -> None:
    other = await register_worker()
    async for meeting in meetings(first, second):
        scene = await happens.a_scene(second, worker_id, other, held=held, paused=paused)
        await meeting.of(partial(one, scene=scene), partial(another, scene=scene))
        assert await broken_rules(second) == [], meeting
        await happens.resume(second, scene)
        await run_to_the_end(second, other)
        assert await broken_rules(second) == [], meeting


@pytest.mark.parametrize("taking_back", ["the sweep", "its own next life"])
async def test_a_step_given_up_as_lost_and_one_that_ends_begin_the_next_group_once(
    first: Stepwise, second: Stepwise, worker_id: UUID, register_worker: RegisterWorker, taking_back: str
) -> None:
    dead = await register_worker()

    async def take_back(db: Database) -> None:
        await (sweep(db, db.clock.now()) if taking_back == "the sweep" else recover(db, dead, db.clock.now()))

    async for meeting in meetings(first, second):
        (run,) = await begin(second, plan_of(2, 1))
        (lost,) = await claim(second, dead)
        (ends,) = await claim(second, worker_id)
        await second.all(
            "UPDATE tenuto.tasks SET losses = 2, lease_until = now() - interval '1 s' WHERE id = $1", lost.id
        )
        await meeting.of(take_back, partial(ending, task=ends))

        assert await broken_rules(second) == [], meeting
        assert await second.value("SELECT state FROM tenuto.executions WHERE id = $1", run) == "failed"


async def test_a_group_whose_steps_were_all_cancelled_beforehand_is_passed_over(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    await happens.the_last_is_cancelled(db, scene)

    await happens.both_end(db, scene)

    assert await db.value("SELECT state FROM tenuto.executions") == "failed"
    assert await broken_rules(db) == []


async def test_a_decision_that_comes_after_the_cancellation_begins_nothing(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scene)

    await db.all(executions.SQL.go_on, [scene.run], [1], [0], None, None, None, [], 0)

    assert await db.value("SELECT current_group FROM tenuto.executions") == 0


async def test_what_comes_next_in_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=True)

    await happens.both_end(db, scene)

    assert await db.value("SELECT state FROM tenuto.tasks") == "waiting"
    await happens.resume(db, scene)
    assert await db.value("SELECT state FROM tenuto.tasks") == "queued"


async def put_aside(db: Database, task: Task, **aside: object) -> set[UUID]:
    now = db.clock.now()
    outcome = Outcome(Status.COMPLETED, started_at=now, ended_at=now, aside=Aside(**aside))  # type: ignore[arg-type]
    return await finish(db, [settle(task, outcome, now, new_id)])


async def test_what_is_to_be_tried_again_in_a_paused_execution_waits(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=True)

    await finish(db, [failed(db, scene.a)])
    await put_aside(db, scene.b, until=db.clock.now() + timedelta(hours=1))

    states = await db.all("SELECT DISTINCT state FROM tenuto.tasks")
    assert [row["state"] for row in states] == ["waiting"]


async def test_a_stale_fence_or_another_worker_puts_nothing_aside(
    db: Database, worker_id: UUID, register_worker: RegisterWorker
) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    later = db.clock.now() + timedelta(hours=1)
    stranger = await register_worker()

    scene.a.fence -= 1
    assert await put_aside(db, scene.a, until=later) == set()
    scene.b.worker_id = stranger
    assert await put_aside(db, scene.b, until=later) == set()

    assert await db.value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2


async def test_what_would_wait_for_an_execution_that_has_just_ended_goes_on(
    first: Stepwise, second: Stepwise, worker_id: UUID
) -> None:
    async for meeting in meetings(first, second):
        await begin(second, plan_of(1))
        (step,) = await claim(second, worker_id)
        (child,) = await begin(second, plan_of(1), parent_task_id=step.id, origin="step")
        (last,) = await claim(second, worker_id)

        await meeting.of(partial(put_aside, task=step, execution=child), partial(ending, task=last))

        assert await second.value("SELECT state FROM tenuto.tasks") == "queued", meeting
        await run_to_the_end(second, worker_id)


async def test_the_end_of_a_run_is_told_to_what_has_just_been_queued_behind_it(
    db: Database, worker_id: UUID, other: asyncpg.Connection, url: str
) -> None:
    scene = await falls_due.a_scene(db, worker_id, Overlap.QUEUE_ONE)
    heard: list[str] = []
    listening = await asyncpg.connect(url)
    await listening.add_listener("tenuto", lambda *told: heard.append(told[-1]))
    queueing = other.transaction()
    await queueing.start()
    started = await firing.run_now(other, NAME, falls_due.NOW, SOMEBODY, request_id=new_id())
    assert started.decision is Decision.QUEUED

    ends = asyncio.create_task(ending(db, scene.held))

    async def it_waits_or_is_done() -> bool:
        return ends.done() or await db.value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await eventually(it_waits_or_is_done, timeout=5, what="the end waits, or is written")
    await queueing.commit()
    await ends
    await eventually(lambda: "schedules" in heard, timeout=5, what="schedulers hear of it")
    await listening.close()


async def test_a_step_whose_schedule_has_run_waits_if_its_execution_is_paused(db: Database, worker_id: UUID) -> None:
    (outer,) = await begin(db, plan_of(1))
    (step,) = await claim(db, worker_id)
    (child,) = await begin(db, plan_of(1), parent_task_id=step.id, origin="step")
    (last,) = await claim(db, worker_id)
    await put_aside(db, step, execution=child)
    await executing.pause(db, outer, db.clock.now(), SOMEBODY)

    await ending(db, last)

    assert await db.value("SELECT state FROM tenuto.tasks") == "waiting"
    await executing.resume(db, outer, db.clock.now())
    assert await db.value("SELECT state FROM tenuto.tasks") == "queued"


async def test_repair_does_not_wait_for_what_somebody_else_works_on(
    db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    (run,) = await begin(db, plan_of(1, 1))
    await db.all("DELETE FROM tenuto.tasks WHERE group_index = 0")
    async with other.transaction():
        await executions.lock(other, [run])

        assert await asyncio.wait_for(executing.repair(db, db.clock.now()), timeout=5) == 0

    assert await executing.repair(db, db.clock.now()) == 1


# --- what is final ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "in_progress"])
async def test_a_cancelled_execution_never_becomes_anything_else(db: Database, worker_id: UUID, state: str) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    await happens.cancel(db, scene)
    with pytest.raises(Exception, match="which is final"):
        await db.all("UPDATE tenuto.executions SET state = $1", state)

    await happens.both_end(db, scene)
    await executing.repair(db, db.clock.now())

    (row,) = await db.all("SELECT state, ended_at FROM tenuto.executions")
    assert (row["state"], row["ended_at"] is not None) == ("cancelled", True)
    with pytest.raises(Exception, match="which is final"):
        await db.all("UPDATE tenuto.executions SET state = $1", state)


@pytest.mark.parametrize("change", ["error = 'none'", "ended_at = now()", "ended_at = NULL", "failed_steps = 0"])
async def test_an_execution_that_has_ended_cannot_be_changed(db: Database, worker_id: UUID, change: str) -> None:
    await begin(db, plan_of(1))
    await run_to_the_end(db, worker_id)
    with pytest.raises(Exception, match="which is final"):
        await db.all(f"UPDATE tenuto.executions SET {change}")


@pytest.mark.parametrize("change", ["reason = 'none'", "decision = 'skipped', execution_id = NULL", "due_at = now()"])
async def test_what_the_ledger_has_decided_cannot_be_changed(db: Database, change: str) -> None:
    await a_schedule(db)
    assert (await run_now(db)).decision is Decision.FIRED
    with pytest.raises(Exception, match="is decided"):
        await db.all(f"UPDATE tenuto.occurrences SET {change}")


async def test_who_follows_a_cancelled_execution_starts_nothing(
    first: Stepwise, second: Stepwise, worker_id: UUID
) -> None:
    for one, another in (
        (falls_due.the_step_begins, falls_due.the_step_is_cancelled),
        (falls_due.the_step_is_cancelled, falls_due.the_step_begins),
    ):
        async for meeting in meetings(first, second):
            scene = await falls_due.a_scene(second, worker_id, Overlap.ALLOW)
            await meeting.of(partial(one, scene=scene), partial(another, scene=scene))
            assert await broken_rules(second) == [], (one, meeting)
            await falls_due.clear(second)


# --- firing ----------------------------------------------------------------------------------------------------------


async def test_of_a_schedule_that_must_run_alone_there_is_one_active_execution(db: Database) -> None:
    schedule_id = new_id()
    await begin(db, plan_of(1), schedule_id=schedule_id)
    with pytest.raises(Exception, match="executions_one_active"):
        await begin(db, plan_of(1), schedule_id=schedule_id)
    await begin(db, plan_of(1), schedule_id=schedule_id, alone=False)


def entry(schedule_id: UUID, decision: Decision, turn: str | None = None, minutes: int = 0) -> Entry:
    due_at = falls_due.DUE + timedelta(minutes=minutes)
    return Entry(new_id(), schedule_id, NAME, due_at, None, "trigger", decision, turn, None, None)


async def write(db: Database, *entries: Entry) -> None:
    async def act(connection: Connection) -> None:
        await schedules.write_ledger(connection, entries, falls_due.NOW, "a scheduler")

    await db.transaction(act)


async def test_a_due_instant_has_one_row_in_the_ledger(db: Database) -> None:
    schedule_id = new_id()
    await write(db, entry(schedule_id, Decision.SKIPPED))
    with pytest.raises(Exception, match="occurrences_once"):
        await write(db, entry(schedule_id, Decision.MISSED))
    await write(db, entry(new_id(), Decision.SKIPPED))


async def test_one_run_of_a_schedule_waits_for_the_end_of_another(db: Database) -> None:
    schedule_id = new_id()
    await write(db, entry(schedule_id, Decision.QUEUED, "overlap"))
    with pytest.raises(Exception, match="occurrences_one_queued"):
        await write(db, entry(schedule_id, Decision.QUEUED, "overlap", minutes=1))
    await write(db, *(entry(schedule_id, Decision.QUEUED, "catch_up", minutes=n) for n in (1, 2)))


async def test_a_schedule_one_scheduler_is_firing_no_other_waits_for(db: Database, other: asyncpg.Connection) -> None:
    await a_schedule(db)
    async with other.transaction():
        assert len(await schedules.due(other, falls_due.NOW, 10)) == 1

        fired = await asyncio.wait_for(firing.fire_due(db, falls_due.NOW, "another", set()), timeout=5)

        assert fired == 0
    assert await firing.fire_due(db, falls_due.NOW, "another", set()) == 1


async def test_of_two_runs_by_hand_at_once_one_is_skipped(first: Stepwise, second: Stepwise) -> None:
    await a_schedule(second)
    async for meeting in meetings(first, second):
        one, another = await meeting.of(run_now, run_now)
        assert {one.decision, another.decision} == {Decision.FIRED, Decision.SKIPPED}, meeting
        for table in ("occurrences", "executions", "tasks"):
            await second.all(f"DELETE FROM tenuto.{table}")


async def test_what_is_due_while_another_run_is_active_is_not_fired(db: Database) -> None:
    await a_schedule(db)
    await run_now(db)

    excluded: set[UUID] = set()
    assert await firing.fire_due(db, falls_due.NOW, "a scheduler", excluded) == 1

    assert excluded == set()
    assert await db.value("SELECT decision FROM tenuto.occurrences WHERE origin = 'trigger'") == "skipped"


async def test_previous_runs_are_cancelled_in_the_order_in_which_everybody_locks_them(
    first: Stepwise, second: Stepwise, worker_id: UUID
) -> None:
    async for meeting in meetings(first, second):
        made = [
            await definitions.create(
                second,
                Definition(name, every("1m"), plan_of(1), overlap=Overlap.CANCEL_PREVIOUS),
                Author(SOMEBODY, falls_due.CREATED),
            )
            for name in ("one", "two")
        ]
        for schedule in reversed(made):  # who is fired first began last
            await begin(second, plan_of(1), schedule_id=schedule.id, schedule_name=schedule.name)
        tasks = await claim(second, worker_id, 2)

        await meeting.of(
            lambda db: firing.fire_due(db, falls_due.NOW, "a scheduler", set()), partial(all_ending, tasks=tasks)
        )

        assert await broken_rules(second) == [], meeting
        await falls_due.clear(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_a_request_made_twice_is_decided_once(db: Database) -> None:
    await a_schedule(db, Overlap.ALLOW)
    request = new_id()

    answers = [await run_now(db, request) for _ in range(2)]

    assert answers[0] == answers[1]
    assert answers[0].execution_id == request
    assert await db.value("SELECT count(*) FROM tenuto.executions") == 1


async def test_an_instant_that_is_decided_is_passed_over_however_it_came_to_be_planned_again(db: Database) -> None:
    schedule = await a_schedule(db)
    excluded: set[UUID] = set()
    await firing.fire_due(db, falls_due.NOW, "a scheduler", excluded)
    # Somebody whose clock is a little behind has worked out the next run.
    await db.all("UPDATE tenuto.schedules SET next_run_at = $1", falls_due.DUE)

    await firing.fire_due(db, falls_due.NOW, "a scheduler", excluded)

    assert excluded == set()
    assert await db.value("SELECT count(*) FROM tenuto.occurrences") == 1
    assert (await definitions.get(db, schedule.name)).next_run_at == falls_due.DUE + timedelta(minutes=1)


async def test_a_turn_is_taken_once(first: Stepwise, second: Stepwise, worker_id: UUID) -> None:
    async for meeting in meetings(first, second):
        await a_schedule(second, Overlap.QUEUE_ONE)
        await run_now(second)
        assert (await run_now(second)).decision is Decision.QUEUED
        await run_to_the_end(second, worker_id)

        started = await meeting.of(
            lambda db: firing.take_turns(db, falls_due.NOW, "one"),
            lambda db: firing.take_turns(db, falls_due.NOW, "two"),
        )

        assert sum(started) == 1, meeting
        assert await broken_rules(second) == [], meeting
        await falls_due.clear(second)


async def test_a_schedule_whose_turn_is_being_taken_is_not_deleted_from_under_it(
    first: Stepwise, second: Stepwise, worker_id: UUID
) -> None:
    async for meeting in meetings(first, second):
        await a_schedule(second, Overlap.QUEUE_ONE)
        for _ in range(2):
            await run_now(second)
        await run_to_the_end(second, worker_id)

        async def delete(db: Database) -> None:
            with suppress(Conflict):
                await definitions.delete(db, NAME, Author(SOMEBODY, falls_due.NOW))

        await meeting.of(lambda db: firing.take_turns(db, falls_due.NOW, "a scheduler"), delete)

        active = await second.value("SELECT count(*) FROM tenuto.executions WHERE ended_at IS NULL")
        assert active == await second.value("SELECT count(*) FROM tenuto.schedules"), meeting
        await falls_due.clear(second)
    assert first.deadlocks + second.deadlocks == 0


async def test_a_worker_declared_dead_does_not_go_on_with_the_next_group(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    await register_of_workers.leave(db, worker_id)

    await happens.both_end_and_the_worker_goes_on(db, scene)

    assert await db.value("SELECT state FROM tenuto.tasks") == "queued"


async def test_the_end_of_a_step_and_the_step_to_the_next_group_are_one(db: Database, worker_id: UUID) -> None:
    scene = await happens.a_scene(db, worker_id, worker_id, held=2, paused=False)
    settlements = [completed(db, scene.a), completed(db, scene.b)]

    async def end_and_think_better_of_it(connection: Connection) -> None:
        await executions.lock(connection, [scene.run])
        await finishing.finish_within(connection, settlements)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await db.transaction(end_and_think_better_of_it)

    assert await db.value("SELECT count(*) FROM tenuto.tasks WHERE state = 'running'") == 2
    assert await broken_rules(db) == []
