"""Advancement of executions (S7, S8, S9): finishing a task and starting the next group are one transaction.

Equivalence test of the SQL fast path ``finish_group``: every test runs with and without it, by the fixture
``both_completion_paths``.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tenuto.lifecycle import completion, execution_control
from tenuto.postgres.database import Database, DatabaseError
from tests.support.schedules import (
    ANA,
    claim_steps,
    finish_task,
    list_attempts,
    load_execution,
    make_settlement,
    make_step,
    open_task_states,
    read_repairs,
    read_table,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register

pytestmark = pytest.mark.usefixtures("both_completion_paths")


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


async def test_step_groups_run_in_order_and_their_steps_in_parallel(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", ["b", "c"], "d")
    assert await open_task_states(db) == {"a": "queued", "b": "waiting", "c": "waiting", "d": "waiting"}
    assert await run_claimable_steps(db, worker_id) == {"a"}
    assert await open_task_states(db) == {"b": "queued", "c": "queued", "d": "waiting"}
    assert (await load_execution(db, run)).current_group == 1
    assert await run_claimable_steps(db, worker_id) == {"b", "c"}
    assert await run_claimable_steps(db, worker_id) == {"d"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("completed", 0, None)
    assert (ended.current_group, ended.group_count, ended.step_count) == (2, 3, 4)
    assert ended.ended_at is not None
    assert await open_task_states(db) == {}
    assert await read_repairs(db) == {}


async def test_next_group_waits_for_the_last_step_of_the_current_one(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"], "c")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["a"])
    assert await open_task_states(db) == {"b": "running", "c": "waiting"}
    assert (await load_execution(db, run)).current_group == 0
    await finish_task(db, held["b"])
    assert await open_task_states(db) == {"c": "queued"}


async def test_last_steps_finished_in_one_batch_advance_the_execution_once(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"], ["c", "d"], "e")
    await run_claimable_steps(db, worker_id)
    assert (await load_execution(db, run)).current_group == 1
    assert await open_task_states(db) == {"c": "queued", "d": "queued", "e": "waiting"}


async def test_concurrently_finished_steps_advance_the_execution_once(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, [f"s{n}" for n in range(8)], "last")
    held = await claim_steps(db, worker_id)
    await asyncio.gather(*(finish_task(db, task) for task in held.values()))
    assert await open_task_states(db) == {"last": "queued"}
    assert (await load_execution(db, run)).current_group == 1


async def test_failed_step_ends_the_execution_and_records_steps_not_run(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", ["b", "c"], "d")
    assert await run_claimable_steps(db, worker_id, a="failed") == {"a"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("failed", 1, "step 'a' failed: it broke")
    assert ended.ended_at is not None
    assert await open_task_states(db) == {}
    assert await list_attempts(db, run) == [
        ("a", "failed", "error"),
        ("b", "cancelled", "not_run"),
        ("c", "cancelled", "not_run"),
        ("d", "cancelled", "not_run"),
    ]
    (activity,) = await db.fetch_all(
        "SELECT error ->> 'message' AS message, final, started_at FROM tenuto.activities WHERE name = 'd'"
    )
    assert (activity["message"], activity["final"], activity["started_at"]) == (
        "not run: step 'a' failed: it broke",
        True,
        None,
    )


async def test_execution_fails_after_the_other_steps_of_the_group_have_ended(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, ["a", "b"], "c")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["a"], "failed")
    assert (await load_execution(db, run)).state == "in_progress"
    assert await open_task_states(db) == {"b": "running", "c": "waiting"}
    await finish_task(db, held["b"])
    assert (await load_execution(db, run)).state == "failed"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("failed", "step 'a' failed: it broke"),
        ("timed_out", "step 'a' timed out: it broke"),
        ("completed_with_error", "step 'a' completed with an error: it broke"),
        ("cancelled", "step 'a' was cancelled: it broke"),
    ],
)
async def test_unsuccessful_step_fails_its_execution(db: Database, worker_id: UUID, status: str, error: str) -> None:
    run = await start_execution(db, "a", "b")
    await run_claimable_steps(db, worker_id, a=status)
    ended = await load_execution(db, run)
    assert (ended.state, ended.error) == ("failed", error)


async def test_step_with_a_warning_counts_as_success(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    assert await run_claimable_steps(db, worker_id, a="completed_with_warning") == {"a"}
    assert await run_claimable_steps(db, worker_id, b="completed_with_warning") == {"b"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("completed", 0)


async def test_step_with_continue_on_failure_does_not_fail_its_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", continue_on_failure=True), "b")
    await run_claimable_steps(db, worker_id, a="failed")
    assert (await load_execution(db, run)).failed_step_count == 1
    assert await run_claimable_steps(db, worker_id) == {"b"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("completed", 1, None)


async def test_continue_on_failure_applies_to_each_failed_step_of_a_group(db: Database, worker_id: UUID) -> None:
    run = await start_execution(
        db, [make_step("a", continue_on_failure=True), "b", make_step("c", continue_on_failure=True)], "d"
    )
    await run_claimable_steps(db, worker_id, a="failed", b="timed_out", c="failed")
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("failed", 3, "step 'b' timed out: it broke")


async def test_step_counts_by_its_last_attempt(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", max_attempts=3), "b")
    for status in ("failed", "failed", "completed"):
        assert await open_task_states(db) in ({"a": "queued", "b": "waiting"}, {"a": "scheduled", "b": "waiting"})
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued' WHERE name = 'a'")
        assert await run_claimable_steps(db, worker_id, a=status) == {"a"}
    assert (await load_execution(db, run)).failed_step_count == 0
    assert await run_claimable_steps(db, worker_id) == {"b"}
    assert (await load_execution(db, run)).state == "completed"
    assert [status for name, status, _ in await list_attempts(db, run) if name == "a"] == [
        "failed",
        "failed",
        "completed",
    ]


async def test_step_without_retries_left_fails_its_execution(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("a", max_attempts=2), "b")
    for _ in range(2):
        assert (await load_execution(db, run)).state == "in_progress"
        await db.fetch_all("UPDATE tenuto.tasks SET state = 'queued' WHERE name = 'a'")
        await run_claimable_steps(db, worker_id, a="failed")
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("failed", 1)


async def test_group_of_a_thousand_steps_advances_once(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "first", [f"s{n}" for n in range(1000)], "last")
    await run_claimable_steps(db, worker_id)
    held = list((await claim_steps(db, worker_id)).values())
    assert len(held) == 1000
    now = db.clock.now()
    for start in range(0, 1000, 250):
        assert (await load_execution(db, run)).current_group == 1
        await completion.finish(db, [make_settlement(task, now) for task in held[start : start + 250]])
    assert await open_task_states(db) == {"last": "queued"}
    await run_claimable_steps(db, worker_id)
    assert (await load_execution(db, run)).state == "completed"


async def test_finished_step_does_not_advance_another_execution(db: Database, worker_id: UUID) -> None:
    one = await start_execution(db, "a", "b", name="one")
    other = await start_execution(db, "x", "y", name="other")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["a"])
    assert await open_task_states(db, one) == {"b": "queued"}
    assert await open_task_states(db, other) == {"x": "running", "y": "waiting"}


async def test_one_batch_finishes_steps_of_several_executions_and_plain_tasks(db: Database, worker_id: UUID) -> None:
    from tests.support.tasks import create_task

    first = await start_execution(db, "a", "b", name="one")
    second = await start_execution(db, "x", "y", name="other")
    await create_task(db, name="plain")
    assert await run_claimable_steps(db, worker_id, x="failed") == {"a", "x", "plain"}
    assert await open_task_states(db, first) == {"b": "queued"}
    assert (await load_execution(db, second)).state == "failed"


async def test_worker_with_a_stale_fence_advances_nothing(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a", "b")
    held = await claim_steps(db, worker_id)
    await db.fetch_all("UPDATE tenuto.tasks SET fence = fence + 1 WHERE name = 'a'")
    assert await completion.finish(db, [make_settlement(held["a"], db.clock.now())]) == set()
    assert await open_task_states(db) == {"a": "running", "b": "waiting"}
    assert (await load_execution(db, run)).current_group == 0


async def test_ended_execution_cannot_change(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    await run_claimable_steps(db, worker_id, a="failed")
    for change in ("state = 'completed'", "state = 'in_progress', ended_at = NULL", "failed_steps = 0"):
        with pytest.raises(DatabaseError, match="which is final"):
            await db.fetch_all(f"UPDATE tenuto.executions SET {change}")
    assert (await load_execution(db, run)).state == "failed"


async def test_cancelled_execution_stays_cancelled_when_its_last_step_completes(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, "a")
    held = await claim_steps(db, worker_id)
    await execution_control.cancel_execution(db, run, db.clock.now(), ANA)
    await finish_task(db, held["a"])
    ended = await load_execution(db, run)
    assert (ended.state, ended.current_group, ended.ended_at is None) == ("cancelled", 0, False)


async def test_steps_carry_the_initiator_and_an_activity_from_the_start(db: Database) -> None:
    run = await start_execution(db, "a", ["b", "c"])
    for task in await read_table(db, "tasks"):
        assert task["activity_id"] == task["id"]
        assert (task["initiator_type"], task["initiator_id"], task["initiator_name"]) == ("user", "u-17", "Ana")
        assert task["correlation_id"] == str(run)
    ids = await db.fetch_all("SELECT id FROM tenuto.all_activities WHERE execution_id = $1", run)
    assert len(ids) == 3, "the whole plan is visible from the start"
