"""The end of a task and the step to the next group are one transaction (S7, S8, S9), judged by last attempts."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tenuto.lifecycle import completion, execution_control
from tenuto.postgres.database import Database, DatabaseError
from tests.support.schedules import (
    ANA,
    a_step,
    end,
    outcome,
    play,
    records,
    repairs,
    started,
    table,
    take,
    task_states,
    the_execution,
)
from tests.support.tasks import Register

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def test_the_groups_run_one_after_the_other_and_the_steps_of_one_side_by_side(db: Database, me: UUID) -> None:
    run = await started(db, "a", ["b", "c"], "d")
    assert await task_states(db) == {"a": "queued", "b": "waiting", "c": "waiting", "d": "waiting"}
    assert await play(db, me) == {"a"}
    assert await task_states(db) == {"b": "queued", "c": "queued", "d": "waiting"}
    assert (await the_execution(db, run))["current_group"] == 1
    assert await play(db, me) == {"b", "c"}
    assert await play(db, me) == {"d"}
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"], ended["error"]) == ("completed", 0, None)
    assert (ended["current_group"], ended["total_groups"], ended["total_steps"]) == (2, 3, 4)
    assert ended["ended_at"] is not None
    assert await task_states(db) == {}
    assert await repairs(db) == {}


async def test_a_group_waits_for_the_last_of_its_steps(db: Database, me: UUID) -> None:
    run = await started(db, ["a", "b"], "c")
    held = await take(db, me)
    await end(db, held["a"])
    assert await task_states(db) == {"b": "running", "c": "waiting"}
    assert (await the_execution(db, run))["current_group"] == 0
    await end(db, held["b"])
    assert await task_states(db) == {"c": "queued"}


async def test_both_last_steps_of_a_group_in_one_batch_move_it_on_once(db: Database, me: UUID) -> None:
    run = await started(db, ["a", "b"], ["c", "d"], "e")
    await play(db, me)
    assert (await the_execution(db, run))["current_group"] == 1
    assert await task_states(db) == {"c": "queued", "d": "queued", "e": "waiting"}


async def test_steps_that_end_at_the_same_moment_move_the_group_on_once(db: Database, me: UUID) -> None:
    run = await started(db, [f"s{n}" for n in range(8)], "last")
    held = await take(db, me)
    await asyncio.gather(*(end(db, task) for task in held.values()))
    assert await task_states(db) == {"last": "queued"}
    assert (await the_execution(db, run))["current_group"] == 1


async def test_a_failed_step_that_others_depend_on_ends_the_execution_and_what_was_cut_is_on_record(
    db: Database, me: UUID
) -> None:
    run = await started(db, "a", ["b", "c"], "d")
    assert await play(db, me, a="failed") == {"a"}
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"], ended["error"]) == ("failed", 1, "step 'a' failed: it broke")
    assert ended["ended_at"] is not None
    assert await task_states(db) == {}
    assert await records(db, run) == [
        ("a", "failed", "error"),
        ("b", "cancelled", "not_run"),
        ("c", "cancelled", "not_run"),
        ("d", "cancelled", "not_run"),
    ]
    (told,) = await db.all(
        "SELECT error ->> 'message' AS told, final, started_at FROM tenuto.activities WHERE name = 'd'"
    )
    assert (told["told"], told["final"], told["started_at"]) == ("not run: step 'a' failed: it broke", True, None)


async def test_the_other_steps_of_the_group_run_to_their_end_before_a_failure_stops_the_execution(
    db: Database, me: UUID
) -> None:
    run = await started(db, ["a", "b"], "c")
    held = await take(db, me)
    await end(db, held["a"], "failed")
    assert (await the_execution(db, run))["state"] == "in_progress"
    assert await task_states(db) == {"b": "running", "c": "waiting"}
    await end(db, held["b"])
    assert (await the_execution(db, run))["state"] == "failed"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("failed", "step 'a' failed: it broke"),
        ("timed_out", "step 'a' timed out: it broke"),
        ("completed_with_error", "step 'a' completed with an error: it broke"),
        ("cancelled", "step 'a' was cancelled: it broke"),
    ],
)
async def test_failed_with_an_error_or_cancelled_is_failed(db: Database, me: UUID, status: str, error: str) -> None:
    run = await started(db, "a", "b")
    await play(db, me, a=status)
    ended = await the_execution(db, run)
    assert (ended["state"], ended["error"]) == ("failed", error)


async def test_a_warning_is_success(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    assert await play(db, me, a="completed_with_warning") == {"a"}
    assert await play(db, me, b="completed_with_warning") == {"b"}
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"]) == ("completed", 0)


async def test_a_step_that_may_fail_is_counted_and_the_execution_goes_on_to_completed(db: Database, me: UUID) -> None:
    run = await started(db, a_step("a", continue_on_failure=True), "b")
    await play(db, me, a="failed")
    assert (await the_execution(db, run))["failed_steps"] == 1
    assert await play(db, me) == {"b"}
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"], ended["error"]) == ("completed", 1, None)


async def test_several_failed_steps_of_one_group_are_each_asked_whether_they_may_fail(db: Database, me: UUID) -> None:
    run = await started(db, [a_step("a", continue_on_failure=True), "b", a_step("c", continue_on_failure=True)], "d")
    await play(db, me, a="failed", b="timed_out", c="failed")
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"], ended["error"]) == ("failed", 3, "step 'b' timed out: it broke")


async def test_a_step_counts_by_its_last_attempt(db: Database, me: UUID) -> None:
    run = await started(db, a_step("a", max_retries=3), "b")
    for status in ("failed", "failed", "completed"):
        assert await task_states(db) in ({"a": "queued", "b": "waiting"}, {"a": "scheduled", "b": "waiting"})
        await db.all("UPDATE tenuto.tasks SET state = 'queued' WHERE name = 'a'")
        assert await play(db, me, a=status) == {"a"}
    assert (await the_execution(db, run))["failed_steps"] == 0
    assert await play(db, me) == {"b"}
    assert (await the_execution(db, run))["state"] == "completed"
    assert [status for name, status, _ in await records(db, run) if name == "a"] == ["failed", "failed", "completed"]


async def test_a_step_that_fails_as_often_as_it_may_fails_its_execution_once(db: Database, me: UUID) -> None:
    run = await started(db, a_step("a", max_retries=2), "b")
    for _ in range(2):
        assert (await the_execution(db, run))["state"] == "in_progress"
        await db.all("UPDATE tenuto.tasks SET state = 'queued' WHERE name = 'a'")
        await play(db, me, a="failed")
    ended = await the_execution(db, run)
    assert (ended["state"], ended["failed_steps"]) == ("failed", 1)


async def test_a_thousand_steps_side_by_side_are_one_group(db: Database, me: UUID) -> None:
    run = await started(db, "first", [f"s{n}" for n in range(1000)], "last")
    await play(db, me)
    held = list((await take(db, me)).values())
    assert len(held) == 1000
    now = db.clock.now()
    for some in range(0, 1000, 250):
        assert (await the_execution(db, run))["current_group"] == 1
        await completion.finish(db, [outcome(task, now) for task in held[some : some + 250]])
    assert await task_states(db) == {"last": "queued"}
    await play(db, me)
    assert (await the_execution(db, run))["state"] == "completed"


async def test_executions_side_by_side_do_not_move_each_other(db: Database, me: UUID) -> None:
    one = await started(db, "a", "b", name="one")
    other = await started(db, "x", "y", name="other")
    held = await take(db, me)
    await end(db, held["a"])
    assert await task_states(db, one) == {"b": "queued"}
    assert await task_states(db, other) == {"x": "running", "y": "waiting"}


async def test_outcomes_of_several_executions_and_of_none_fit_into_one_batch(db: Database, me: UUID) -> None:
    from tests.support.tasks import start

    first = await started(db, "a", "b", name="one")
    second = await started(db, "x", "y", name="other")
    await start(db, name="plain")
    assert await play(db, me, x="failed") == {"a", "x", "plain"}
    assert await task_states(db, first) == {"b": "queued"}
    assert (await the_execution(db, second))["state"] == "failed"


async def test_who_no_longer_holds_a_step_moves_nothing(db: Database, me: UUID) -> None:
    run = await started(db, "a", "b")
    held = await take(db, me)
    await db.all("UPDATE tenuto.tasks SET fence = fence + 1 WHERE name = 'a'")
    assert await completion.finish(db, [outcome(held["a"], db.clock.now())]) == set()
    assert await task_states(db) == {"a": "running", "b": "waiting"}
    assert (await the_execution(db, run))["current_group"] == 0


async def test_an_end_is_final(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    await play(db, me, a="failed")
    for change in ("state = 'completed'", "state = 'in_progress', ended_at = NULL", "failed_steps = 0"):
        with pytest.raises(DatabaseError, match="which is final"):
            await db.all(f"UPDATE tenuto.executions SET {change}")
    assert (await the_execution(db, run))["state"] == "failed"


async def test_what_is_cancelled_stays_so_when_its_last_step_ends_well(db: Database, me: UUID) -> None:
    run = await started(db, "a")
    held = await take(db, me)
    await execution_control.cancel(db, run, db.clock.now(), ANA)
    await end(db, held["a"])
    ended = await the_execution(db, run)
    assert (ended["state"], ended["current_group"], ended["ended_at"] is None) == ("cancelled", 0, False)


async def test_every_step_carries_who_started_the_execution_and_an_activity_from_the_start(db: Database) -> None:
    run = await started(db, "a", ["b", "c"])
    for task in await table(db, "tasks"):
        assert task["activity_id"] == task["id"]
        assert (task["initiator_type"], task["initiator_id"], task["initiator_name"]) == ("user", "u-17", "Ana")
        assert task["correlation_id"] == str(run)
    ids = await db.all("SELECT id FROM tenuto.all_activities WHERE execution_id = $1", run)
    assert len(ids) == 3, "the whole plan can be looked at from the start"
