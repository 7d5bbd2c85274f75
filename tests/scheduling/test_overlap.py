"""Overlap policies (S4): skip, queue one, allow, cancel previous; also for manual runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.definitions.schedule_definitions import delete, edit, set_enabled
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.definitions.schedules import override_arguments
from tenuto.model.triggers import manual
from tenuto.model.work.occurrences import Decision
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerEntry
from tests.support.errors import raises_code
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    claim_steps,
    create_schedule,
    finish_task,
    fire_due_schedules,
    list_attempts,
    load_execution,
    make_change_context,
    make_definition,
    make_step,
    open_task_states,
    read_ledger,
    read_table,
    run_claimable_steps,
    run_schedule_now,
)
from tests.support.tasks import Register

FIRST, SECOND, THIRD = (NOON + n * MINUTE for n in (1, 2, 3))


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def start_queued_runs(db: Database, now: Any = THIRD) -> int:
    return await firing.start_queued_runs(db, now, "test")


async def read_decisions(db: Database) -> list[tuple[str, str | None]]:
    rows = await db.fetch_all("SELECT decision, reason FROM tenuto.occurrences ORDER BY due_at, id")
    return [tuple(row) for row in rows]


async def read_executions(db: Database) -> list[tuple[str, Any]]:
    return [(row["state"], row["due_at"]) for row in await read_table(db, "executions")]


# --- skip -----------------------------------------------------------------------------------------------------------


async def test_overlap_skip_records_the_skipped_run(db: Database) -> None:
    await create_schedule(db, make_definition("a", "b"))
    await fire_due_schedules(db, FIRST)
    assert await fire_due_schedules(db, SECOND) == 1
    assert await read_executions(db) == [("in_progress", FIRST)]
    assert await read_decisions(db) == [("fired", None), ("skipped", "the previous run is still active")]
    (row,) = await read_table(db, "schedules")
    assert (row["last_run_at"], row["next_run_at"]) == (FIRST, THIRD), "skipping is not running"


async def test_overlap_skip_applies_to_manual_runs_with_a_reason(db: Database) -> None:
    await create_schedule(db, make_definition())
    await fire_due_schedules(db, FIRST)
    answer = await run_schedule_now(db, now=SECOND)
    assert (answer.decision, answer.execution_id) == ("skipped", None)
    assert answer.reason == "the previous run is still active"
    assert await read_ledger(db) == [(60, "fired"), (120, "skipped")]
    (row,) = await read_table(db, "occurrences", "origin = 'manual'")
    assert row["decided_by"] == "Ana"


async def test_overlap_skip_fires_again_after_the_active_execution(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition())
    await fire_due_schedules(db, FIRST)
    await run_claimable_steps(db, worker_id)
    await fire_due_schedules(db, SECOND)
    assert await read_ledger(db) == [(60, "fired"), (120, "fired")]


async def test_concurrent_manual_runs_start_one_execution(db: Database) -> None:
    await create_schedule(db, make_definition())
    answers = await asyncio.gather(*(run_schedule_now(db) for _ in range(6)))
    assert sorted(answer.decision for answer in answers) == ["fired", *["skipped"] * 5]
    assert len(await read_table(db, "executions")) == 1


# --- queue_one ------------------------------------------------------------------------------------------------------


async def test_overlap_queue_one_starts_the_queued_run_after_the_active_execution(
    db: Database, worker_id: UUID
) -> None:
    await create_schedule(db, make_definition(overlap="queue_one"))
    for due in (FIRST, SECOND, THIRD):
        await fire_due_schedules(db, due)
    assert await read_decisions(db) == [
        ("fired", None),
        ("queued", "waits until the previous run has ended"),
        ("coalesced", "a run is waiting already"),
    ]
    assert await start_queued_runs(db) == 0, "not before that"
    await run_claimable_steps(db, worker_id)
    assert await start_queued_runs(db) == 1
    assert await start_queued_runs(db) == 0
    assert await read_executions(db) == [("completed", FIRST), ("in_progress", SECOND)]
    assert await read_ledger(db) == [(60, "fired"), (120, "fired"), (180, "coalesced")]
    second = (await read_table(db, "executions"))[1]
    (row,) = await read_table(db, "occurrences", "due_at = $1", SECOND)
    assert (row["execution_id"], row["decided_at"]) == (second["id"], THIRD)
    (schedule,) = await read_table(db, "schedules")
    assert schedule["last_run_at"] == THIRD


async def test_queued_manual_run_keeps_its_initiator(db: Database, worker_id: UUID) -> None:
    await create_schedule(
        db, make_definition(make_step("a", arguments={"x": 1}), overlap="queue_one", trigger=manual())
    )
    await run_schedule_now(db)
    ben = Actor.api_key("k-1", "Ben")
    answer = await run_schedule_now(
        db, now=FIRST, by=ben, change=lambda plan: override_arguments(plan, {"a": {"x": 2}})
    )
    assert (answer.decision, answer.execution_id) == ("queued", None)
    await run_claimable_steps(db, worker_id)
    assert await start_queued_runs(db) == 1
    run = (await read_table(db, "executions"))[1]
    assert (run["origin"], run["due_at"]) == ("manual", FIRST)
    assert (run["initiator_type"], run["initiator_id"], run["initiator_name"]) == ("api_key", "k-1", "Ben")
    (task,) = await read_table(db, "tasks")
    assert (task["input"], task["initiator_name"]) == ('{"x": 2}', "Ben")


async def test_concurrent_schedulers_start_a_queued_run_once(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(overlap="queue_one"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    await run_claimable_steps(db, worker_id)
    assert sum(await asyncio.gather(*(start_queued_runs(db) for _ in range(4)))) == 1
    assert len(await read_table(db, "executions")) == 2


async def test_queued_run_uses_the_plan_at_its_start(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(overlap="queue_one"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    await edit(db, NAME, make_definition("new", overlap="queue_one"), make_change_context(SECOND))
    await run_claimable_steps(db, worker_id)
    await start_queued_runs(db)
    assert await open_task_states(db) == {"new": "queued"}


async def test_disabling_a_schedule_drops_its_queued_triggered_runs_only(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("x", name="trigger", overlap="queue_one"))
    await create_schedule(db, make_definition(name="hand", overlap="queue_one", trigger=manual()))
    await run_schedule_now(db, "hand")
    await run_schedule_now(db, "hand")
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    for name in ("trigger", "hand"):
        await set_enabled(db, name, make_change_context(SECOND), enabled=False)
    (given_up,) = await read_table(db, "occurrences", "decision = 'missed'")
    assert (given_up["schedule_name"], given_up["reason"]) == ("trigger", "the schedule was disabled")
    await run_claimable_steps(db, worker_id)
    assert await start_queued_runs(db) == 1
    assert [run["schedule_name"] for run in await read_table(db, "executions", "ended_at IS NULL")] == ["hand"]


async def test_deleting_a_schedule_drops_all_its_queued_runs(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(overlap="queue_one"))
    await run_schedule_now(db)
    await run_schedule_now(db, now=FIRST)
    await run_claimable_steps(db, worker_id)
    await delete(db, NAME, make_change_context(FIRST))
    assert (await read_decisions(db))[1] == ("missed", "the schedule was deleted")
    assert await start_queued_runs(db) == 0


async def test_queued_run_of_an_unreadable_schedule_waits_and_others_start(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("x", name="bad", overlap="queue_one"))
    await create_schedule(db, make_definition("y", name="good", overlap="queue_one"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    await run_claimable_steps(db, worker_id)
    (plan,) = await db.fetch_all("SELECT plan FROM tenuto.schedules WHERE name = 'bad'")
    await db.fetch_all("UPDATE tenuto.schedules SET plan = '{}' WHERE name = 'bad'")
    assert await start_queued_runs(db) == 1
    assert [run["schedule_name"] for run in await read_table(db, "executions", "ended_at IS NULL")] == ["good"]
    await db.fetch_all("UPDATE tenuto.schedules SET plan = $1 WHERE name = 'bad'", plan["plan"])
    assert await start_queued_runs(db) == 1, "it was not given up"


async def test_failing_queued_run_does_not_block_others(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("poison", name="bad", overlap="queue_one"))
    await create_schedule(db, make_definition("y", name="good", overlap="queue_one"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    await run_claimable_steps(db, worker_id)
    await db.fetch_all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        assert await start_queued_runs(db) == 1
    finally:
        await db.fetch_all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert await start_queued_runs(db) == 1


# --- a request that cannot be read ----------------------------------------------------------------------------------

UNREADABLE_REQUESTS = [
    "request = '{}'",
    "request = '5'",
    """request = jsonb_set(request, '{plan}', '[["no step"]]')""",
    """request = jsonb_set(request, '{by}', '["user", 5, "Ana"]')""",
]


async def create_unreadable_request(db: Database, worker_id: UUID, damage: str = UNREADABLE_REQUESTS[0]) -> None:
    """Queue an unreadable request at the second instant, behind an execution that ends at the third."""
    await create_schedule(db, make_definition(overlap="queue_one"))
    await fire_due_schedules(db, FIRST)
    assert (await run_schedule_now(db, now=SECOND - timedelta(seconds=1))).decision == "queued"
    await db.fetch_all(f"UPDATE tenuto.occurrences SET {damage} WHERE decision = 'queued'")
    await run_claimable_steps(db, worker_id, THIRD)


@pytest.mark.parametrize("damage", UNREADABLE_REQUESTS)
async def test_unreadable_queued_request_is_dropped_after_some_minutes(
    db: Database, worker_id: UUID, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await create_unreadable_request(db, worker_id, damage)
    over = THIRD + firing.UNREADABLE_REQUEST_KEPT_FOR
    for now in (THIRD, over - timedelta(microseconds=1)):
        assert await start_queued_runs(db, now) == 0
        (row,) = await read_table(db, "occurrences", "origin = 'manual'")
        assert row["decision"] == "queued", "a scheduler of another version may start it"
    assert await start_queued_runs(db, over) == 0
    (row,) = await read_table(db, "occurrences", "origin = 'manual'")
    assert (row["decision"], row["decided_at"], row["decided_by"]) == ("missed", over, "test")
    assert row["reason"].startswith("the request cannot be read: ")
    assert "queued run dropped" in caplog.text
    await fire_due_schedules(db, over)
    assert [state for state, _ in await read_executions(db)] == ["completed", "in_progress"]


async def test_queued_run_behind_a_dropped_request_starts_at_once(db: Database, worker_id: UUID) -> None:
    await create_unreadable_request(db, worker_id)
    (schedule,) = await read_table(db, "schedules")
    behind = LedgerEntry(
        new_id(), schedule["id"], NAME, SECOND, None, "trigger", Decision.QUEUED, "catch_up", "it was missed", None
    )
    await db.transaction(lambda connection: schedules.write_ledger_entries(connection, [behind], THIRD, "test"))
    assert await start_queued_runs(db, THIRD + firing.UNREADABLE_REQUEST_KEPT_FOR) == 1
    assert await read_executions(db) == [("completed", FIRST), ("in_progress", SECOND)]


async def test_quarantined_queued_run_starts_after_a_change(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition(overlap="queue_one", trigger=manual()))
    for now in (FIRST, SECOND):
        await run_schedule_now(db, now=now)
    await run_claimable_steps(db, worker_id, SECOND)
    (before,) = await read_table(db, "schedules")
    await db.fetch_all("UPDATE tenuto.schedules SET plan = '{}'")
    older, late = firing.new_quarantine(), THIRD + 2 * firing.UNREADABLE_REQUEST_KEPT_FOR
    assert await firing.start_queued_runs(db, late, "an older one", older) == 0
    assert await read_table(db, "occurrences", "decision = 'missed'") == []
    await db.fetch_all("UPDATE tenuto.schedules SET plan = $1", before["plan"])
    assert await firing.start_queued_runs(db, late, "an older one", older) == 0, "until the quarantine is released"
    await db.fetch_all("UPDATE tenuto.schedules SET version = version + 1")
    assert await firing.start_queued_runs(db, late, "an older one", older) == 1, "or after a change"


# --- allow ----------------------------------------------------------------------------------------------------------


async def test_overlap_allow_runs_side_by_side(db: Database) -> None:
    await create_schedule(db, make_definition(overlap="allow"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    assert (await run_schedule_now(db, now=THIRD)).decision == "fired"
    assert await read_ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    assert [state for state, _ in await read_executions(db)] == ["in_progress"] * 3


# --- cancel_previous ------------------------------------------------------------------------------------------------


async def test_overlap_cancel_previous_starts_at_once_when_no_step_runs(db: Database) -> None:
    await create_schedule(db, make_definition("a", "b", overlap="cancel_previous"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, SECOND)
    old, new = await read_table(db, "executions")
    assert (old["state"], old["error"]) == ("cancelled", "cancelled by scheduler: the next run is due")
    assert (old["cancel_type"], old["cancel_name"], old["cancelled_at"]) == ("system", "scheduler", SECOND)
    assert (new["state"], new["due_at"]) == ("in_progress", SECOND)
    assert await read_ledger(db) == [(60, "fired"), (120, "fired")]
    assert await list_attempts(db, old["id"]) == [("a", "cancelled", "requested"), ("b", "cancelled", "requested")]


async def test_overlap_cancel_previous_waits_until_running_steps_have_stopped(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("a", "b", overlap="cancel_previous"))
    await fire_due_schedules(db, FIRST)
    held = await claim_steps(db, worker_id)
    await fire_due_schedules(db, SECOND)
    (old,) = await read_table(db, "executions")
    assert (old["state"], old["ended_at"]) == ("cancelled", None)
    assert (await read_decisions(db))[1] == (
        "queued",
        "waits until the previous run, which is being cancelled, has stopped",
    )
    assert await start_queued_runs(db) == 0
    assert await open_task_states(db) == {"a": "running"}, "it has been asked to stop"
    await fire_due_schedules(db, THIRD)
    assert (await read_decisions(db))[2] == ("coalesced", "a run is waiting already")
    await finish_task(db, held["a"], "cancelled")
    assert await start_queued_runs(db) == 1
    assert await read_executions(db) == [("cancelled", FIRST), ("in_progress", SECOND)]


async def test_overlap_cancel_previous_applies_to_manual_runs(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("a", overlap="cancel_previous", trigger=manual()))
    first = (await run_schedule_now(db)).execution_id
    second = (await run_schedule_now(db, now=FIRST)).execution_id
    assert first is not None
    assert second is not None
    assert (await load_execution(db, first)).state == "cancelled"
    await claim_steps(db, worker_id)
    third = await run_schedule_now(db, now=SECOND)
    assert (third.decision, third.execution_id) == ("queued", None)


async def test_execution_cancelled_by_a_manual_run_names_its_initiator(db: Database) -> None:
    await create_schedule(db, make_definition("a", overlap="cancel_previous"))
    await fire_due_schedules(db, FIRST)
    await run_schedule_now(db, now=SECOND, by=ANA)
    old, _ = await read_table(db, "executions")
    assert (old["state"], old["error"]) == ("cancelled", "cancelled by Ana: it was run again by hand")
    assert (old["cancel_type"], old["cancel_name"]) == ("user", "Ana")


async def test_overlap_cancel_previous_with_missed_runs_cancels_once(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition("a", overlap="cancel_previous", misfire="all"))
    await fire_due_schedules(db, FIRST)
    await fire_due_schedules(db, NOON + timedelta(minutes=4))
    assert await read_ledger(db) == [(60, "fired"), (120, "fired"), (180, "queued"), (240, "queued")]
    assert [state for state, _ in await read_executions(db)] == ["cancelled", "in_progress"]
    for minute in (3, 4):
        await run_claimable_steps(db, worker_id)
        assert await start_queued_runs(db, NOON + timedelta(minutes=4, seconds=minute)) == 1
    await run_claimable_steps(db, worker_id)
    assert [state for state, _ in await read_executions(db)] == ["cancelled", *["completed"] * 3]


# --- manual runs ----------------------------------------------------------------------------------------------------


async def test_manual_run_is_recorded_with_its_initiator(db: Database) -> None:
    await create_schedule(db, make_definition())
    answer = await run_schedule_now(db, now=FIRST, by=ANA)
    assert (answer.decision, answer.reason) == ("fired", None)
    assert answer.execution_id is not None
    run = await load_execution(db, answer.execution_id)
    assert (run.origin, run.due_at, run.started_at) == ("manual", FIRST, FIRST)
    assert (run.initiator_type, run.initiator_id, run.initiator_name) == ("user", "u-17", "Ana")
    (row,) = await read_table(db, "occurrences")
    assert (row["origin"], row["decision"], row["decided_by"]) == ("manual", "fired", "Ana")
    (schedule,) = await read_table(db, "schedules")
    assert (schedule["last_run_at"], schedule["next_run_at"]) == (FIRST, FIRST), "the trigger's own instant stays due"


async def test_disabled_schedule_can_be_run_manually(db: Database) -> None:
    await create_schedule(db, make_definition(), enabled=False)
    assert (await run_schedule_now(db)).decision == "fired"


async def test_repeated_manual_run_starts_once_and_returns_the_same_result(db: Database, worker_id: UUID) -> None:
    await create_schedule(db, make_definition())
    request = new_id()
    first = await run_schedule_now(db, request_id=request)
    await run_claimable_steps(db, worker_id)
    assert await run_schedule_now(db, request_id=request, now=SECOND) == first
    assert len(await read_table(db, "executions")) == 1
    assert len(await read_table(db, "occurrences")) == 1


async def test_repeated_skipped_manual_run_is_recorded_once(db: Database) -> None:
    await create_schedule(db, make_definition())
    await run_schedule_now(db)
    request = new_id()
    first = await run_schedule_now(db, request_id=request)
    assert await run_schedule_now(db, request_id=request) == first
    assert len(await read_table(db, "occurrences")) == 2


async def test_request_id_of_another_schedule_is_rejected(db: Database) -> None:
    for name in ("one", "two"):
        await create_schedule(db, make_definition(name=name))
    request = new_id()
    await run_schedule_now(db, "one", request_id=request)
    with raises_code("schedule.request_id.reused"):
        await run_schedule_now(db, "two", request_id=request)


async def test_manual_run_of_an_unknown_schedule_is_rejected(db: Database) -> None:
    with raises_code("schedule.not_found"):
        await run_schedule_now(db, "nothing")


async def test_rejected_plan_change_leaves_no_rows(db: Database) -> None:
    await create_schedule(db, make_definition())
    with pytest.raises(Invalid):
        await run_schedule_now(db, change=lambda plan: override_arguments(plan, {"z": {}}))
    assert await read_table(db, "executions") == []
    assert await read_table(db, "occurrences") == []
