"""Firing: from due instants to executions, and runs by hand, under the schedule's lock.

One transaction holds the schedules that are due, decides on every due instant (`model.occurrences`), writes the ledger,
creates the executions with all their tasks and moves the next run on: all of it or nothing. Any number of schedulers
may do so at once; a due instant is decided once because the ledger's key is unique.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, NotFound, StoreError
from tenuto.ids import new_id
from tenuto.lifecycle.execution_control import cancel_within
from tenuto.logs import Log
from tenuto.model.actors import Actor
from tenuto.model.occurrences import Decided, Decision, Meeting, due, first_undecided, when_meeting
from tenuto.model.schedules import Late, Overlap, Plan, misfire_from_json, plan_from_fields
from tenuto.model.triggers import trigger_from_json
from tenuto.postgres.database import Connection, Database
from tenuto.service.quarantine import BATCH, UNREADABLE, Counted, Held, LeftOut, alone, in_batches
from tenuto.store import executions, schedules
from tenuto.store.access import audit_recorder
from tenuto.store.executions import NewExecution
from tenuto.store.schedules import DueSchedule, Entry, Queued, Schedule, Standing

SCHEDULER = Actor.system("scheduler")
UNREAD_FOR = timedelta(minutes=5)
"""How long a request whose turn has come is left to a scheduler that can read it."""

log = Log("tenuto.scheduler")


def none_left_out() -> LeftOut:
    """For schedules that this process cannot read, or not write: what a scheduler begins with."""
    return LeftOut("schedule", log)


@dataclass(slots=True)
class Firing:
    """What one transaction has decided, before it is written."""

    now: datetime
    by: str
    left_out: LeftOut
    found: int = 0
    entries: list[Entry] = field(default_factory=list)
    begun: list[NewExecution] = field(default_factory=list)
    moved: list[tuple[UUID, datetime | None, datetime | None]] = field(default_factory=list)


async def fire_due(database: Database, now: datetime, by: str, left_out: LeftOut | None = None) -> int:
    """Fire every schedule that is due; how many. One that cannot be fired is told of and left out from then on: it
    stays due, for whoever can."""
    without = none_left_out() if left_out is None else left_out

    async def some(connection: Connection, limit: int, held: Held) -> Firing:
        return await _fire_some(connection, Firing(now, by, without), limit, held)

    return sum([len(firing.moved) async for firing in in_batches(database, some, without, "fired")])


async def _fire_some(connection: Connection, firing: Firing, limit: int, held: Held) -> Firing:
    found = await schedules.due(connection, firing.now, limit, firing.left_out.ids)
    if not found:
        return firing
    firing.found = len(found)
    held.update({(schedule.id, schedule.version): schedule.name for schedule in found})
    # Asked after the schedules are held: an execution somebody else has just committed must be seen.
    standing = await schedules.standing(connection, [schedule.id for schedule in found])
    if concerned := [active for schedule in found if (active := _to_hold(schedule, standing)) is not None]:
        # All of them at once, in the order in which everybody locks executions.
        await executions.lock_family(connection, concerned)
    for schedule in found:
        await _decide(connection, schedule, standing[schedule.id], firing)
    await schedules.write_ledger(connection, firing.entries, firing.now, firing.by)
    await executions.begin(connection, firing.begun)
    await schedules.fired(connection, firing.moved)
    return firing


def _to_hold(schedule: DueSchedule, standing: Mapping[UUID, Standing]) -> UUID | None:
    """What is active, if it may be cancelled, or learn that a run waits behind it."""
    may_change = schedule.overlap in (Overlap.CANCEL_PREVIOUS, Overlap.QUEUE_ONE) or _makes_up(schedule)
    return standing[schedule.id].active if may_change else None


def _makes_up(schedule: DueSchedule) -> bool:
    """Whether runs that were missed queue one behind the other."""
    try:
        return schedule.overlap != Overlap.ALLOW and misfire_from_json(schedule.misfire_json).policy is Late.ALL
    except UNREADABLE:
        return False  # said, and dealt with, where it is decided on


async def _decide(connection: Connection, schedule: DueSchedule, standing: Standing, firing: Firing) -> None:
    """Every due instant of one schedule."""
    try:
        misfire, plan, trigger = misfire_from_json(schedule.misfire_json), schedule.plan(), schedule.trigger()
        overlap = Overlap(schedule.overlap)
        first = first_undecided(trigger, schedule.next_run_at, standing.decided_until, str(schedule.id))
        if first is None or first > firing.now:
            firing.moved.append((schedule.id, None, first))
            return
        decided = due(trigger, first, firing.now, misfire, str(schedule.id))
    except UNREADABLE as error:
        # Written by hand, or by a version that knows more. It stays due: whoever can read it fires it, and what is too
        # late by then is decided by the misfire rule.
        firing.left_out.add((schedule.id, schedule.version), schedule.name, "read", error)
        return
    last_run: datetime | None = None
    catching_up = misfire.policy is Late.ALL and sum(each.decision is Decision.FIRED for each in decided.decided) > 1
    for each in decided.decided:
        if each.decision is not Decision.FIRED:
            firing.entries.append(_entry(schedule, each.due_at, each.decision, each.reason, until=each.until))
            continue
        if last_run is None:  # what has begun in this very round is not "the previous run"
            standing = await _make_room(connection, schedule, standing, firing.now)
        decision, reason, turn = _meet(overlap, standing, catching_up=catching_up)
        run = new_id() if decision is Decision.FIRED else None
        firing.entries.append(_entry(schedule, each.due_at, decision, reason, run=run, turn=turn))
        if run is not None:
            firing.begun.append(_execution(run, schedule, plan, each, firing.now))
            last_run = firing.now
        if run is not None or decision is Decision.QUEUED:
            standing = Standing(run or standing.active, standing.queued or decision is Decision.QUEUED)
    firing.moved.append((schedule.id, last_run, decided.next_run))


async def _make_room(connection: Connection, schedule: DueSchedule, standing: Standing, now: datetime) -> Standing:
    """What stands in the way after the overlap rule has had its say about what is active."""
    if schedule.overlap != Overlap.CANCEL_PREVIOUS or standing.active is None:
        return standing
    left = await cancel_previous(connection, schedule.id, now, SCHEDULER, "the next run is due")
    return Standing(left, standing.queued)


def _meet(overlap: Overlap, standing: Standing, *, catching_up: bool) -> tuple[Decision, str | None, str | None]:
    """What the overlap rule makes of one due instant: the decision, the reason, and why a queued one waits."""
    if catching_up and overlap is not Overlap.ALLOW and (standing.active is not None or standing.queued):
        return Decision.QUEUED, "missed runs are made up for one after the other", "catch_up"
    decision, reason = when_meeting(overlap, Meeting(standing.active is not None, standing.queued))
    return decision, reason, "overlap" if decision is Decision.QUEUED else None


async def cancel_previous(connection: Connection, schedule_id: UUID, now: datetime, by: Actor, why: str) -> UUID | None:
    """Cancel what is active of a schedule; one of them, if some of it is still stopping."""
    await cancel_within(connection, await schedules.active(connection, schedule_id), now, by, why)
    left = await schedules.active(connection, schedule_id)
    return left[0] if left else None


def _entry(
    schedule: DueSchedule,
    due_at: datetime,
    decision: Decision,
    reason: str | None,
    *,
    until: datetime | None = None,
    run: UUID | None = None,
    turn: str | None = None,
) -> Entry:
    return Entry(new_id(), schedule.id, schedule.name, due_at, until, "trigger", decision, turn, reason, run)


def _execution(id: UUID, schedule: DueSchedule, plan: Plan, decided: Decided, now: datetime) -> NewExecution:
    alone = schedule.overlap != Overlap.ALLOW
    return NewExecution(
        id, schedule.id, schedule.name, schedule.version, "trigger", alone, plan, decided.due_at, now, SCHEDULER
    )


# --- by hand --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """What became of a request to run a schedule now."""

    decision: Decision
    reason: str | None
    execution_id: UUID | None


async def run_at_once(
    database: Database, schedule: Schedule, now: datetime, by: Actor, request_id: UUID
) -> Started | None:
    """Run a schedule by hand as it was last seen; None if there is more to it, and `run_now` has to decide."""
    try:
        begun = await executions.begin_at_once(database, _by_hand(request_id, schedule, schedule.plan, now, now, by))
    except StoreError:  # another began at this moment; or no reply came, and this one may have begun
        return None
    return Started(Decision.FIRED, None, request_id) if begun else None


async def run_now(
    connection: Connection,
    name: str,
    now: datetime,
    by: Actor,
    *,
    request_id: UUID,
    change: Callable[[Plan], Plan] | None = None,
) -> Started:
    """Run a schedule by hand: the overlap rule applies as to any other run, and the ledger tells of it.

    ``change`` makes the plan of this run from that of the schedule. The execution gets the id of the request, so that
    asking twice starts it once.
    """
    schedule = await schedules.locked(connection, name)
    standing, before = await schedules.before_a_run(connection, None if schedule is None else schedule.id, request_id)
    if before is not None:
        if schedule is not None and before["schedule_id"] != schedule.id:
            raise Conflict(f"that was a request to run {before['schedule_name']!r}", field="request_id")
        audit_recorder.changed_nothing()
        return Started(Decision(before["decision"]), before["reason"], before["execution_id"])
    if schedule is None:
        raise NotFound(f"there is no schedule named {name!r}", remedy="see `tenuto schedule list`")
    plan = schedule.plan if change is None else change(schedule.plan)
    overlap = schedule.definition.overlap
    if overlap is Overlap.CANCEL_PREVIOUS and standing.active is not None:
        left = await cancel_previous(connection, schedule.id, now, by, "it was run again by hand")
        standing = Standing(left, standing.queued)
    decision, reason = when_meeting(overlap, Meeting(standing.active is not None, standing.queued))
    run = request_id if decision is Decision.FIRED else None
    queued = decision is Decision.QUEUED
    request = _request(plan, by) if queued else None
    entry = Entry(
        request_id,
        schedule.id,
        name,
        now,
        None,
        "manual",
        decision,
        "overlap" if queued else None,
        reason,
        run,
        request,
    )
    await schedules.write_ledger(connection, [entry], now, by.name, ran=None if run is None else schedule.id)
    if run is not None:
        await executions.begin(connection, [_by_hand(run, schedule, plan, now, now, by)])
    return Started(decision, reason, run)


def _by_hand(id: UUID, schedule: Schedule, plan: Plan, due_at: datetime, now: datetime, by: Actor) -> NewExecution:
    alone = schedule.definition.overlap is not Overlap.ALLOW
    return NewExecution(id, schedule.id, schedule.name, schedule.version, "manual", alone, plan, due_at, now, by)


def _request(plan: Plan, by: Actor) -> str:
    return json.dumps({"plan": plan.to_fields(), "by": [by.type, by.id, by.name]}, ensure_ascii=False)


# --- in turn --------------------------------------------------------------------------------------------------------


async def take_turns(database: Database, now: datetime, by: str, left_out: LeftOut | None = None) -> int:
    """Start what has waited for an earlier run to end; how many. What cannot be started goes on waiting.

    A request that nobody can read is given up in the end: while it waits, nothing else of its schedule begins."""
    without = none_left_out() if left_out is None else left_out
    started = 0
    for id, version, name in await schedules.whose_turn_it_is(database, BATCH, without.ids):
        with alone(partial(without.add, (id, version), name, "run in turn")):
            started += await database.transaction(partial(_take_turn, schedule_id=id, now=now, by=by))
    return started


async def _take_turn(connection: Connection, schedule_id: UUID, now: datetime, by: str) -> int:
    schedule = await schedules.locked_by_id(connection, schedule_id)
    if schedule is None:
        await schedules.give_up_queued(connection, schedule_id, "the schedule is gone", now, by, manual_too=True)
        return 0
    standing = (await schedules.standing(connection, [schedule_id]))[schedule_id]
    queued = await schedules.first_queued(connection, schedule_id)
    if queued is None or standing.active is not None:
        return 0
    run = new_id()
    if queued.request is None:
        new = NewExecution(
            run, schedule.id, schedule.name, schedule.version, "trigger",
            schedule.definition.overlap is not Overlap.ALLOW, schedule.plan, queued.due_at, now, SCHEDULER,
        )  # fmt: skip
    else:
        try:
            plan, asked_by = requested(queued.request)
        except UNREADABLE as error:
            await _give_up_or_raise(connection, schedule, queued, error, now, by)
            return await _take_turn(connection, schedule_id, now, by)  # the next one, if more wait
        new = _by_hand(run, schedule, plan, queued.due_at, now, asked_by)
    await schedules.take_turn(connection, queued.id, run, now, by)
    await executions.begin(connection, [new])
    await schedules.ran(connection, schedule.id, now)
    return 1


def requested(request: Any) -> tuple[Plan, Actor]:
    """What a queued request asks for, and who asks."""
    by = type, id, name = request["by"]
    if not (isinstance(type, str) and isinstance(id, str | None) and isinstance(name, str)):
        raise TypeError("it does not say who asks")
    return plan_from_fields(request["plan"]), Actor(*by)


async def _give_up_or_raise(
    connection: Connection, schedule: Schedule, queued: Queued, error: Exception, now: datetime, by: str
) -> None:
    """Give up a request that cannot be read, unless somebody of another version may yet read it."""
    reason = f"the request cannot be read: {error}"
    if not await schedules.give_up_unread(connection, queued.id, reason, now, by, since=now - UNREAD_FOR):
        raise error
    log.warning("a queued run was given up", schedule=schedule.name, due_at=queued.due_at.isoformat(), reason=reason)


# --- planning -------------------------------------------------------------------------------------------------------


async def plan_missing(database: Database, now: datetime, left_out: LeftOut | None = None) -> int:
    """Work out the next run of every enabled schedule that has none worked out; how many."""
    without = none_left_out() if left_out is None else left_out

    async def some(connection: Connection, limit: int, held: Held) -> Counted:
        found = await schedules.to_plan(connection, limit, without.ids)
        rows: list[tuple[UUID, datetime | None, datetime | None]] = []
        for id, version, name, trigger in found:
            held[id, version] = name
            try:
                rows.append((id, None, trigger_from_json(trigger).next_after(now, str(id))))
            except UNREADABLE as error:
                without.add((id, version), name, "read", error)
        await schedules.fired(connection, rows)
        return Counted(len(found), len(rows))

    return sum([planned.done async for planned in in_batches(database, some, without, "planned")])
