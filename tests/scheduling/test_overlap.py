"""When a run is due while another is active (S4): skip, queue one, allow, cancel the previous; for runs by hand too."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto.definitions.schedule_definitions import delete, edit, switch
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import with_arguments
from tenuto.model.triggers import manual
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.store import schedules
from tenuto.store.schedules import Entry
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    a_definition,
    a_step,
    author,
    end,
    fire,
    ledger,
    play,
    records,
    run_now,
    saved,
    table,
    take,
    task_states,
    the_execution,
)
from tests.support.tasks import Register

FIRST, SECOND, THIRD = (NOON + n * MINUTE for n in (1, 2, 3))


@pytest.fixture
async def me(register_worker: Register) -> UUID:
    return await register_worker()


async def turns(db: Database, now: Any = THIRD) -> int:
    return await firing.take_turns(db, now, "test")


async def reasons(db: Database) -> list[tuple[str, str | None]]:
    rows = await db.all("SELECT decision, reason FROM tenuto.occurrences ORDER BY due_at, id")
    return [tuple(row) for row in rows]


async def the_runs(db: Database) -> list[tuple[str, Any]]:
    return [(row["state"], row["due_at"]) for row in await table(db, "executions")]


# --- skip -----------------------------------------------------------------------------------------------------------


async def test_skip_lets_the_active_run_be_and_says_so_in_the_ledger(db: Database) -> None:
    await saved(db, a_definition("a", "b"))
    await fire(db, FIRST)
    assert await fire(db, SECOND) == 1
    assert await the_runs(db) == [("in_progress", FIRST)]
    assert await reasons(db) == [("fired", None), ("skipped", "the previous run is still active")]
    (row,) = await table(db, "schedules")
    assert (row["last_run_at"], row["next_run_at"]) == (FIRST, THIRD), "skipping is not running"


async def test_skip_applies_to_runs_by_hand_which_are_told_why(db: Database) -> None:
    await saved(db, a_definition())
    await fire(db, FIRST)
    answer = await run_now(db, now=SECOND)
    assert (answer.decision, answer.execution_id) == ("skipped", None)
    assert answer.reason == "the previous run is still active"
    assert await ledger(db) == [(60, "fired"), (120, "skipped")]
    (row,) = await table(db, "occurrences", "origin = 'manual'")
    assert row["decided_by"] == "Ana"


async def test_once_the_active_run_has_ended_the_next_one_fires(db: Database, me: UUID) -> None:
    await saved(db, a_definition())
    await fire(db, FIRST)
    await play(db, me)
    await fire(db, SECOND)
    assert await ledger(db) == [(60, "fired"), (120, "fired")]


async def test_runs_by_hand_at_the_same_moment_start_one(db: Database) -> None:
    await saved(db, a_definition())
    answers = await asyncio.gather(*(run_now(db) for _ in range(6)))
    assert sorted(answer.decision for answer in answers) == ["fired", *["skipped"] * 5]
    assert len(await table(db, "executions")) == 1


# --- queue_one ------------------------------------------------------------------------------------------------------


async def test_queue_one_lets_one_wait_and_it_starts_when_the_active_one_has_ended(db: Database, me: UUID) -> None:
    await saved(db, a_definition(overlap="queue_one"))
    for due in (FIRST, SECOND, THIRD):
        await fire(db, due)
    assert await reasons(db) == [
        ("fired", None),
        ("queued", "waits until the previous run has ended"),
        ("coalesced", "a run is waiting already"),
    ]
    assert await turns(db) == 0, "not before that"
    await play(db, me)
    assert await turns(db) == 1
    assert await turns(db) == 0
    assert await the_runs(db) == [("completed", FIRST), ("in_progress", SECOND)]
    assert await ledger(db) == [(60, "fired"), (120, "fired"), (180, "coalesced")]
    second = (await table(db, "executions"))[1]
    (row,) = await table(db, "occurrences", "due_at = $1", SECOND)
    assert (row["execution_id"], row["decided_at"]) == (second["id"], THIRD)
    (schedule,) = await table(db, "schedules")
    assert schedule["last_run_at"] == THIRD


async def test_a_queued_run_by_hand_starts_in_its_turn_on_the_account_of_who_asked(db: Database, me: UUID) -> None:
    await saved(db, a_definition(a_step("a", arguments={"x": 1}), overlap="queue_one", trigger=manual()))
    await run_now(db)
    ben = Actor.api_key("k-1", "Ben")
    answer = await run_now(db, now=FIRST, by=ben, change=lambda plan: with_arguments(plan, {"a": {"x": 2}}))
    assert (answer.decision, answer.execution_id) == ("queued", None)
    await play(db, me)
    assert await turns(db) == 1
    run = (await table(db, "executions"))[1]
    assert (run["origin"], run["due_at"]) == ("manual", FIRST)
    assert (run["initiator_type"], run["initiator_id"], run["initiator_name"]) == ("api_key", "k-1", "Ben")
    (task,) = await table(db, "tasks")
    assert (task["input"], task["initiator_name"]) == ('{"x": 2}', "Ben")


async def test_several_schedulers_give_a_turn_once(db: Database, me: UUID) -> None:
    await saved(db, a_definition(overlap="queue_one"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    await play(db, me)
    assert sum(await asyncio.gather(*(turns(db) for _ in range(4)))) == 1
    assert len(await table(db, "executions")) == 2


async def test_what_waits_follows_the_plan_as_it_is_when_its_turn_comes(db: Database, me: UUID) -> None:
    await saved(db, a_definition(overlap="queue_one"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    await edit(db, NAME, a_definition("new", overlap="queue_one"), author(SECOND))
    await play(db, me)
    await turns(db)
    assert await task_states(db) == {"new": "queued"}


async def test_switching_a_schedule_off_gives_up_what_waits_by_its_trigger_but_not_by_hand(
    db: Database, me: UUID
) -> None:
    await saved(db, a_definition("x", name="trigger", overlap="queue_one"))
    await saved(db, a_definition(name="hand", overlap="queue_one", trigger=manual()))
    await run_now(db, "hand")
    await run_now(db, "hand")
    await fire(db, FIRST)
    await fire(db, SECOND)
    for name in ("trigger", "hand"):
        await switch(db, name, author(SECOND), enabled=False)
    (given_up,) = await table(db, "occurrences", "decision = 'missed'")
    assert (given_up["schedule_name"], given_up["reason"]) == ("trigger", "the schedule was disabled")
    await play(db, me)
    assert await turns(db) == 1
    assert [run["schedule_name"] for run in await table(db, "executions", "ended_at IS NULL")] == ["hand"]


async def test_deleting_a_schedule_gives_up_whatever_waits(db: Database, me: UUID) -> None:
    await saved(db, a_definition(overlap="queue_one"))
    await run_now(db)
    await run_now(db, now=FIRST)
    await play(db, me)
    await delete(db, NAME, author(FIRST))
    assert (await reasons(db))[1] == ("missed", "the schedule was deleted")
    assert await turns(db) == 0


async def test_what_waits_for_a_schedule_this_version_cannot_read_goes_on_waiting_and_the_others_have_their_turn(
    db: Database, me: UUID
) -> None:
    await saved(db, a_definition("x", name="bad", overlap="queue_one"))
    await saved(db, a_definition("y", name="good", overlap="queue_one"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    await play(db, me)
    (plan,) = await db.all("SELECT plan FROM tenuto.schedules WHERE name = 'bad'")
    await db.all("UPDATE tenuto.schedules SET plan = '{}' WHERE name = 'bad'")
    assert await turns(db) == 1
    assert [run["schedule_name"] for run in await table(db, "executions", "ended_at IS NULL")] == ["good"]
    await db.all("UPDATE tenuto.schedules SET plan = $1 WHERE name = 'bad'", plan["plan"])
    assert await turns(db) == 1, "it was not given up"


async def test_a_turn_that_cannot_be_taken_does_not_keep_the_others_from_theirs(db: Database, me: UUID) -> None:
    await saved(db, a_definition("poison", name="bad", overlap="queue_one"))
    await saved(db, a_definition("y", name="good", overlap="queue_one"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    await play(db, me)
    await db.all("ALTER TABLE tenuto.tasks ADD CONSTRAINT test_refuse CHECK (name <> 'poison')")
    try:
        assert await turns(db) == 1
    finally:
        await db.all("ALTER TABLE tenuto.tasks DROP CONSTRAINT test_refuse")
    assert await turns(db) == 1


# --- a request that cannot be read ----------------------------------------------------------------------------------

UNREAD = [
    "request = '{}'",
    "request = '5'",
    """request = jsonb_set(request, '{plan}', '[["no step"]]')""",
    """request = jsonb_set(request, '{by}', '["user", 5, "Ana"]')""",
]


async def an_unread_request(db: Database, me: UUID, damage: str = UNREAD[0]) -> None:
    """It was queued at the second instant, behind a run that ended at the third."""
    await saved(db, a_definition(overlap="queue_one"))
    await fire(db, FIRST)
    assert (await run_now(db, now=SECOND - timedelta(seconds=1))).decision == "queued"
    await db.all(f"UPDATE tenuto.occurrences SET {damage} WHERE decision = 'queued'")
    await play(db, me, THIRD)


@pytest.mark.parametrize("damage", UNREAD)
async def test_a_request_that_nobody_can_read_is_given_up_after_some_minutes_and_its_schedule_runs_again(
    db: Database, me: UUID, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await an_unread_request(db, me, damage)
    over = THIRD + firing.UNREAD_FOR
    for now in (THIRD, over - timedelta(microseconds=1)):
        assert await turns(db, now) == 0
        (row,) = await table(db, "occurrences", "origin = 'manual'")
        assert row["decision"] == "queued", "somebody of another version may start it"
    assert await turns(db, over) == 0
    (row,) = await table(db, "occurrences", "origin = 'manual'")
    assert (row["decision"], row["decided_at"], row["decided_by"]) == ("missed", over, "test")
    assert row["reason"].startswith("the request cannot be read: ")
    assert "a queued run was given up" in caplog.text
    await fire(db, over)
    assert [state for state, _ in await the_runs(db)] == ["completed", "in_progress"]


async def test_what_waits_behind_a_request_that_is_given_up_has_its_turn_at_once(db: Database, me: UUID) -> None:
    await an_unread_request(db, me)
    (schedule,) = await table(db, "schedules")
    behind = Entry(
        new_id(), schedule["id"], NAME, SECOND, None, "trigger", Decision.QUEUED, "catch_up", "it was missed", None
    )
    await db.transaction(lambda connection: schedules.write_ledger(connection, [behind], THIRD, "test"))
    assert await turns(db, THIRD + firing.UNREAD_FOR) == 1
    assert await the_runs(db) == [("completed", FIRST), ("in_progress", SECOND)]


async def test_a_queued_run_of_a_schedule_that_cannot_be_read_waits_until_it_can(db: Database, me: UUID) -> None:
    await saved(db, a_definition(overlap="queue_one", trigger=manual()))
    for now in (FIRST, SECOND):
        await run_now(db, now=now)
    await play(db, me, SECOND)
    (before,) = await table(db, "schedules")
    await db.all("UPDATE tenuto.schedules SET plan = '{}'")
    older, late = firing.none_left_out(), THIRD + 2 * firing.UNREAD_FOR
    assert await firing.take_turns(db, late, "an older one", older) == 0
    assert await table(db, "occurrences", "decision = 'missed'") == []
    await db.all("UPDATE tenuto.schedules SET plan = $1", before["plan"])
    assert await firing.take_turns(db, late, "an older one", older) == 0, "till it is time to try it again"
    await db.all("UPDATE tenuto.schedules SET version = version + 1")
    assert await firing.take_turns(db, late, "an older one", older) == 1, "or somebody has changed it"


# --- allow ----------------------------------------------------------------------------------------------------------


async def test_allow_lets_runs_be_side_by_side(db: Database) -> None:
    await saved(db, a_definition(overlap="allow"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    assert (await run_now(db, now=THIRD)).decision == "fired"
    assert await ledger(db) == [(60, "fired"), (120, "fired"), (180, "fired")]
    assert [state for state, _ in await the_runs(db)] == ["in_progress"] * 3


# --- cancel_previous ------------------------------------------------------------------------------------------------


async def test_cancel_previous_cancels_what_has_not_begun_and_starts_at_once(db: Database) -> None:
    await saved(db, a_definition("a", "b", overlap="cancel_previous"))
    await fire(db, FIRST)
    await fire(db, SECOND)
    old, new = await table(db, "executions")
    assert (old["state"], old["error"]) == ("cancelled", "cancelled by scheduler: the next run is due")
    assert (old["cancel_type"], old["cancel_name"], old["cancelled_at"]) == ("system", "scheduler", SECOND)
    assert (new["state"], new["due_at"]) == ("in_progress", SECOND)
    assert await ledger(db) == [(60, "fired"), (120, "fired")]
    assert await records(db, old["id"]) == [("a", "cancelled", "requested"), ("b", "cancelled", "requested")]


async def test_cancel_previous_waits_until_what_runs_has_really_stopped(db: Database, me: UUID) -> None:
    await saved(db, a_definition("a", "b", overlap="cancel_previous"))
    await fire(db, FIRST)
    held = await take(db, me)
    await fire(db, SECOND)
    (old,) = await table(db, "executions")
    assert (old["state"], old["ended_at"]) == ("cancelled", None)
    assert (await reasons(db))[1] == ("queued", "waits until the previous run, which is being cancelled, has stopped")
    assert await turns(db) == 0
    assert await task_states(db) == {"a": "running"}, "it has been asked to stop"
    await fire(db, THIRD)
    assert (await reasons(db))[2] == ("coalesced", "a run is waiting already")
    await end(db, held["a"], "cancelled")
    assert await turns(db) == 1
    assert await the_runs(db) == [("cancelled", FIRST), ("in_progress", SECOND)]


async def test_cancel_previous_applies_to_runs_by_hand(db: Database, me: UUID) -> None:
    await saved(db, a_definition("a", overlap="cancel_previous", trigger=manual()))
    first = (await run_now(db)).execution_id
    second = (await run_now(db, now=FIRST)).execution_id
    assert first is not None
    assert second is not None
    assert (await the_execution(db, first))["state"] == "cancelled"
    await take(db, me)
    third = await run_now(db, now=SECOND)
    assert (third.decision, third.execution_id) == ("queued", None)


async def test_a_run_that_is_cancelled_for_one_by_hand_says_who_did_it(db: Database) -> None:
    await saved(db, a_definition("a", overlap="cancel_previous"))
    await fire(db, FIRST)
    await run_now(db, now=SECOND, by=ANA)
    old, _ = await table(db, "executions")
    assert (old["state"], old["error"]) == ("cancelled", "cancelled by Ana: it was run again by hand")
    assert (old["cancel_type"], old["cancel_name"]) == ("user", "Ana")


async def test_cancel_previous_with_missed_runs_cancels_once_and_makes_up_one_after_the_other(
    db: Database, me: UUID
) -> None:
    await saved(db, a_definition("a", overlap="cancel_previous", misfire="all"))
    await fire(db, FIRST)
    await fire(db, NOON + timedelta(minutes=4))
    assert await ledger(db) == [(60, "fired"), (120, "fired"), (180, "queued"), (240, "queued")]
    assert [state for state, _ in await the_runs(db)] == ["cancelled", "in_progress"]
    for minute in (3, 4):
        await play(db, me)
        assert await turns(db, NOON + timedelta(minutes=4, seconds=minute)) == 1
    await play(db, me)
    assert [state for state, _ in await the_runs(db)] == ["cancelled", *["completed"] * 3]


# --- by hand --------------------------------------------------------------------------------------------------------


async def test_a_run_by_hand_is_on_record_with_who_asked(db: Database) -> None:
    await saved(db, a_definition())
    answer = await run_now(db, now=FIRST, by=ANA)
    assert (answer.decision, answer.reason) == ("fired", None)
    assert answer.execution_id is not None
    run = await the_execution(db, answer.execution_id)
    assert (run["origin"], run["due_at"], run["started_at"]) == ("manual", FIRST, FIRST)
    assert (run["initiator_type"], run["initiator_id"], run["initiator_name"]) == ("user", "u-17", "Ana")
    (row,) = await table(db, "occurrences")
    assert (row["origin"], row["decision"], row["decided_by"]) == ("manual", "fired", "Ana")
    (schedule,) = await table(db, "schedules")
    assert (schedule["last_run_at"], schedule["next_run_at"]) == (FIRST, FIRST), "the trigger's own instant stays due"


async def test_a_schedule_that_is_switched_off_can_be_run_by_hand(db: Database) -> None:
    await saved(db, a_definition(), enabled=False)
    assert (await run_now(db)).decision == "fired"


async def test_a_request_made_twice_runs_once_and_has_the_same_answer(db: Database, me: UUID) -> None:
    await saved(db, a_definition())
    request = new_id()
    first = await run_now(db, request_id=request)
    await play(db, me)
    assert await run_now(db, request_id=request, now=SECOND) == first
    assert len(await table(db, "executions")) == 1
    assert len(await table(db, "occurrences")) == 1


async def test_a_refused_request_made_twice_is_refused_twice_and_told_once(db: Database) -> None:
    await saved(db, a_definition())
    await run_now(db)
    request = new_id()
    first = await run_now(db, request_id=request)
    assert await run_now(db, request_id=request) == first
    assert len(await table(db, "occurrences")) == 2


async def test_a_request_stands_for_one_schedule(db: Database) -> None:
    for name in ("one", "two"):
        await saved(db, a_definition(name=name))
    request = new_id()
    await run_now(db, "one", request_id=request)
    with pytest.raises(Conflict, match="to run 'one'"):
        await run_now(db, "two", request_id=request)


async def test_a_schedule_there_is_not_cannot_be_run(db: Database) -> None:
    with pytest.raises(NotFound):
        await run_now(db, "nothing")


async def test_a_refused_change_of_the_plan_leaves_nothing(db: Database) -> None:
    await saved(db, a_definition())
    with pytest.raises(Invalid):
        await run_now(db, change=lambda plan: with_arguments(plan, {"z": {}}))
    assert await table(db, "executions") == []
    assert await table(db, "occurrences") == []
