"""Why is it not running? For every open task one or more plain reasons, each with a code for programs.

The first reason is what holds the task up now; the others would do so next. Asking costs a few bounded look-ups by
index, however many tasks there are, and changes nothing. Nothing is locked for it: a moment later it may be past.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tenuto.errors import NotFound
from tenuto.model.policies import policy_from_json
from tenuto.model.schedules import plan_from_json
from tenuto.postgres.database import Database
from tenuto.service import health_file
from tenuto.store import activities, executions
from tenuto.store.reports import diagnosis as store
from tenuto.store.reports.diagnosis import Some

COUNTED = 10_000
"""No more than these are counted of what goes before a task."""
NAMED = 10
"""So many of those in the way are named by their ids."""
STEPS = 20
"""So many open steps of an execution are looked at."""

Record = dict[str, Any]


class Code(StrEnum):
    NOT_DUE = "not_due"
    BACKING_OFF = "backing_off"
    WAITS_FOR_GROUP = "waits_for_group"
    WAITS_FOR_EXECUTION = "waits_for_execution"
    EXECUTION_PAUSED = "execution_paused"
    QUEUE_PAUSED = "queue_paused"
    BATCH_PAUSED = "batch_paused"
    GROUP_DISABLED = "group_disabled"
    QUEUE_LIMIT = "queue_limit"
    KEY_LIMIT = "key_limit"
    MANIFEST_LIMIT = "manifest_limit"
    GROUP_LIMIT = "group_limit"
    NO_WORKER = "no_worker"
    SLOTS_BUSY = "slots_busy"
    OTHERS_FIRST = "others_first"
    FREE = "free"
    STANDING_BY = "standing_by"
    RUNNING = "running"
    STOPPING = "stopping"
    LEASE_EXPIRED = "lease_expired"
    STUCK = "stuck"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a code, a sentence, the ids behind it, and when it passes by itself if that is known."""

    code: Code
    words: str
    ids: tuple[UUID, ...] = ()
    until: datetime | None = None
    task_id: UUID | None = None
    """Of which task it is told."""
    step: str | None = None
    """The name of that task's step, in an execution."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer for a task or an execution."""

    id: UUID
    state: str
    reasons: tuple[Reason, ...]


async def why_task(database: Database, task_id: UUID) -> Why:
    """Why a task is not running, or what it is doing, or how it ended."""
    found = await store.tasks(database, [task_id])
    if found:
        return Why(task_id, found[0]["state"], tuple(await _Look(database).at(found[0])))
    attempts = await activities.attempts(database, task_id)
    if not attempts:
        raise NotFound(f"there is no task {task_id}", remedy="see `tenuto task list`")
    last = attempts[-1]
    return Why(task_id, last["status"], (_ended(last),))


async def why_execution(database: Database, id: UUID) -> Why:
    """Why an execution does not go on: the reasons of every open step it has come to, the first few of them."""
    found = await executions.execution(database, id)
    if found is None:
        raise NotFound(f"there is no execution {id}", remedy="see `tenuto execution list`")
    if found["ended_at"] is not None:
        how = found["state"] + (f": {found['error']}" if found["error"] else "")
        return Why(id, found["state"], (Reason(Code.ENDED, f"it has ended: {how}"),))
    reasons: list[Reason] = []
    if found["paused_at"] is not None:
        reasons.append(_paused(found["paused_at"], found["paused_by"], id))
    if found["cancelled_at"] is not None:
        words = f"it was cancelled by {found['cancel_name']}; what runs of it is stopping"
        reasons.append(Reason(Code.STOPPING, words, (id,)))
    left = await store.open_steps(database, id, found["current_group"], STEPS)
    look = _Look(database)
    for task in await store.tasks(database, left.ids):
        told = [each for each in await look.at(task) if each.code is not Code.EXECUTION_PAUSED]
        reasons += [replace(each, task_id=task["id"], step=_step_name(task)) for each in told]
    if not left.in_all:
        reasons.append(Reason(Code.STUCK, "nothing of its current group is left, and yet it has not gone on: " + _NET))
    return Why(id, found["state"], tuple(reasons))


_NET = "a scheduler mends this within its poll, if one runs; see `tenuto doctor`"


class _Look:
    """One look at the database; what several tasks ask alike is asked once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now = database.clock.now()
        self._workers: dict[str, list[Record]] = {}
        self._held: dict[tuple[Any, ...], Some] = {}

    async def at(self, task: Record) -> list[Reason]:
        """Every reason for one task, what holds it up now first."""
        if task["state"] == "running":
            return [*_running(task), *(await self._limits(task) if task["standby"] else ())]
        reasons = _batch(task)
        if task["state"] == "waiting":
            reasons += await self._waiting(task)
        due = task["run_at"] <= self._now
        if task["state"] != "queued" and task["waits_for"] is None and not due:
            reasons.append(_not_due(task))
        if task["queue_paused_at"] is not None:
            reasons.append(_queue_paused(task))
        reasons += _groups_disabled(task)
        workers = await self._workers_of(task["queue"])
        if not any(health_file.condition(worker) == "alive" for worker in workers):
            reasons.append(_no_worker(task["queue"], workers))
        if task["state"] == "queued" or (task["state"] == "scheduled" and due):
            reasons += await self._limits(task)
            if not reasons:
                reasons.append(await self._in_line(task, workers))
        return reasons

    async def _waiting(self, task: Record) -> list[Reason]:
        reasons: list[Reason] = []
        if task["execution_paused_at"] is not None:
            reasons.append(_paused(task["execution_paused_at"], task["execution_paused_by"], task["execution_id"]))
        if task["waits_for"] is not None:
            reasons.append(_waits_for(task))
        elif task["execution_id"] is not None and task["group_index"] > task["current_group"]:
            left = await store.open_steps(self._database, task["execution_id"], task["current_group"], NAMED)
            reasons.append(_waits_for_group(task, left))
        if not reasons and task["batch_id"] is None:
            return [Reason(Code.STUCK, f"it waits, though nothing holds it back: {_NET}")]
        return reasons

    async def _limits(self, task: Record) -> list[Reason]:
        """The limits that are full, in the order in which a claim looks at them: see `claim_under_limits`."""
        queue, key, manifest, group = task["queue"], task["limit_key"], task["manifest_id"], task["limit_group"]
        active = store.held_of_manifests
        found = [
            await self._full(Code.QUEUE_LIMIT, f"queue {queue}", task["max_running"], store.held_in_queue, queue),
            await self._full(
                Code.KEY_LIMIT, "tasks on their last chance", 1 if task["last_chance"] else None, store.held_alone
            ),
            await self._full(
                Code.KEY_LIMIT,
                f"key {key}",
                None if task["last_chance"] and task["limit_max"] == 1 else task["limit_max"],
                store.held_by_key,
                key,
                queue,
            ),
            await self._full(
                Code.MANIFEST_LIMIT, f"manifest {task['manifest']}", task["manifest_max"], active, manifest, None
            ),
            await self._full(Code.GROUP_LIMIT, f"group {group}", task["group_max"], active, None, group),
            await self._full(Code.GROUP_LIMIT, "all manifests together", task["all_max"], active, None, None),
        ]
        return [reason for reason in found if reason is not None]

    async def _full(
        self, code: Code, what: str, most: int | None, ask: Callable[..., Awaitable[Some]], *of: UUID | str | None
    ) -> Reason | None:
        if most is None:
            return None
        if (ask, *of) not in self._held:
            self._held[ask, *of] = await ask(self._database, *of, NAMED)
        held = self._held[ask, *of]
        most = (held.first[0].get("limit_max") if held.first else None) or most
        if held.in_all < most:
            return None
        words = f"the limit of {what} is full: {held.in_all} of at most {most} run ({_names(held)})"
        return Reason(code, words, held.ids)

    async def _in_line(self, task: Record, workers: Sequence[Record]) -> Reason:
        alive = [worker for worker in workers if health_file.condition(worker) == "alive"]
        slots = sum(worker["slots"] for worker in alive)
        place = (task["rank"], task["run_at"], task["id"])
        before = await store.before(self._database, task["queue"], place, task["limit_key"], COUNTED + 1)
        line = _line(before)
        who = _count(len(alive), "worker")
        if all(worker["running"] >= worker["slots"] for worker in alive):
            words = f"all {slots} slots of the {who} that serve queue {task['queue']} are busy; {line}"
            return Reason(Code.SLOTS_BUSY, words, tuple(worker["id"] for worker in alive[:NAMED]))
        if before:
            return Reason(Code.OTHERS_FIRST, f"{line}; {who} with free slots will come to it")
        return Reason(Code.FREE, f"nothing holds it up: {who} with free slots may take it at any moment")

    async def _workers_of(self, queue: str) -> list[Record]:
        if queue not in self._workers:
            self._workers[queue] = await store.workers_of(self._database, queue)
        return self._workers[queue]


# --- in words -------------------------------------------------------------------------------------------------------


def _running(task: Record) -> list[Reason]:
    who = task["worker"] or "a worker that is gone"
    far = _progress(task["progress"])
    reasons = [Reason(Code.RUNNING, f"it is running: by {who} since {_when(task['claimed_at'])}{far}")]
    if task["standby"]:
        words = f"{who} holds it ready: it begins there when another under the same limits has ended"
        reasons = [Reason(Code.STANDING_BY, words)]
    if task["cancel_at"] is not None:
        words = f"it has been asked to stop by {task['cancel_name']} at {_when(task['cancel_at'])}"
        reasons.insert(0, Reason(Code.STOPPING, words))
    if task["slipped"]:
        words = f"{who} has not prolonged its hold in time: the task is taken back by the next sweep, if a service runs"
        reasons.insert(0, Reason(Code.LEASE_EXPIRED, words))
    return reasons


def _not_due(task: Record) -> Reason:
    when = _when(task["run_at"])
    if task["failures"]:
        most = max(policy_from_json(task["policy"]).retry.max_retries, 1)
        words = f"it is backing off until {when}, after failure {task['failures']} of {most}"
        return Reason(Code.BACKING_OFF, words, until=task["run_at"])
    if task["losses"]:
        words = f"it is backing off until {when}, after its worker was lost ({_count(task['losses'], 'time')})"
        return Reason(Code.BACKING_OFF, words, until=task["run_at"])
    return Reason(Code.NOT_DUE, f"it is not due until {when}", until=task["run_at"])


def _paused(at: datetime, by: str | None, execution_id: UUID) -> Reason:
    words = f"the execution is paused by {by or 'somebody'} since {_when(at)}"
    return Reason(Code.EXECUTION_PAUSED, words, (execution_id,))


def _waits_for_group(task: Record, left: Some) -> Reason:
    plan = plan_from_json(task["plan"])
    named = [f"'{plan.step(step['step_index']).name}' ({step['state']})" for step in left.first[:3]]
    more = left.in_all - len(named)
    open_ones = ", ".join(named) + (f" and {more:,} more" if more else "")
    whose = f"group {task['group_index'] + 1} of {task['total_groups']}"
    words = f"it belongs to {whose}, and group {task['current_group'] + 1} is not done: {open_ones or 'nothing'} open"
    return Reason(Code.WAITS_FOR_GROUP, words, left.ids)


def _waits_for(task: Record) -> Reason:
    if task["awaited_name"] is None:
        return Reason(Code.STUCK, f"it waits for an execution that is no more: {_NET}", (task["waits_for"],))
    how = f"in group {task['awaited_group'] + 1} of {task['awaited_groups']} since {_when(task['awaited_since'])}"
    if task["awaited_paused_at"] is not None:
        how += f", paused by {task['awaited_paused_by'] or 'somebody'} since {_when(task['awaited_paused_at'])}"
    words = f"it waits for execution {task['waits_for']} of {task['awaited_name']!r}, {how}"
    return Reason(Code.WAITS_FOR_EXECUTION, words, (task["waits_for"],))


def _batch(task: Record) -> list[Reason]:
    """What its batch says; an item that waits for nothing, or is left of what was cancelled, was forgotten there."""
    id, again = task["batch_id"], "if that was interrupted, ask once more: `tenuto batch"
    if task["batch_cancelled_at"] is not None:
        words = (
            f"its batch was cancelled by {task['batch_cancelled_by']}, and it is being removed; {again} cancel {id}`"
        )
        return [Reason(Code.STOPPING, words, (id,))]
    if task["batch_paused_at"] is not None:
        words = f"its batch is paused by {task['batch_paused_by'] or 'somebody'} since {_when(task['batch_paused_at'])}"
        return [Reason(Code.BATCH_PAUSED, words, (id,))]
    if id is not None and task["state"] == "waiting":
        words = f"it waits, though its batch has been resumed; {again} resume {id}`"
        return [Reason(Code.STUCK, words, (id,))]
    return []


def _groups_disabled(task: Record) -> list[Reason]:
    reasons = []
    for which, what in (("group", f"group {task['limit_group']} is"), ("all", "all manifests together are")):
        if task[f"{which}_enabled"] is False:
            changed = f"last changed by {task[f'{which}_changed_by']} at {_when(task[f'{which}_changed_at'])}"
            reasons.append(Reason(Code.GROUP_DISABLED, f"{what} disabled ({changed}): nothing begins"))
    return reasons


def _queue_paused(task: Record) -> Reason:
    why = f": {task['queue_reason']}" if task["queue_reason"] else ""
    by = task["queue_paused_by"] or "somebody"
    words = f"queue {task['queue']} is paused by {by} since {_when(task['queue_paused_at'])}{why}"
    return Reason(Code.QUEUE_PAUSED, words)


def _no_worker(queue: str, workers: Sequence[Record]) -> Reason:
    others = [f"{worker['name']} is {_condition(worker)}" for worker in workers[:3]]
    told = f" ({', '.join(others)})" if others else ""
    words = f"no live worker serves queue {queue}{told}"
    return Reason(Code.NO_WORKER, words, tuple(worker["id"] for worker in workers[:NAMED]))


def _condition(worker: Record) -> str:
    condition = health_file.condition(worker)
    return f"silent for {round(worker['silent_for'].total_seconds())} s" if condition == "stale" else condition


def _ended(last: Record) -> Reason:
    how = last["status"].replace("_", " ")
    if last["reason"]:
        how += f" ({last['reason'].replace('_', ' ')})"
    message = (last["error"] or {}).get("message")
    words = f"it has ended: {how} at {_when(last['ended_at'])}" if last["ended_at"] else f"it has ended: {how}"
    return Reason(Code.ENDED, f"{words}: {message}" if message else words, (last["id"],))


def _progress(progress: Record | None) -> str:
    if not progress:
        return ""
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    far = "" if done is None else f", {done} of {total} done" if total else f", {done} done"
    return far + (f", {message}" if message else "")


def _step_name(task: Record) -> str:
    return plan_from_json(task["plan"]).step(task["step_index"]).name


def _names(held: Some) -> str:
    more = held.in_all - 3
    first = ", ".join(f"{each['name']} {each['id']}" for each in held.first[:3])
    return first + (f" and {more:,} more" if more > 0 else "")


def _line(before: int) -> str:
    if before > COUNTED:
        return f"more than {COUNTED:,} tasks go before it"
    return f"{before:,} tasks go before it" if before != 1 else "1 task goes before it"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _when(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
