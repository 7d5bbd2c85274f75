"""Why a task or execution does not run: one or more reasons, each with a code for programs and a message for people.

The first reason applies now, the others would apply next. A diagnosis costs a few bounded index lookups and changes
nothing. It takes no locks, so it may be outdated a moment later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from shlex import quote
from typing import Any
from uuid import UUID

from tenuto.diagnostics.reasons import (
    Diagnosis,
    LastError,
    Reason,
    ReasonCode,
    describe_error,
    describe_pause,
    error_fields,
    facts,
    format_instant,
)
from tenuto.errors import NotFound
from tenuto.model.definitions.policies import policy_from_json
from tenuto.model.definitions.schedules import plan_from_json
from tenuto.model.events.event_names import APPROVAL_EVENT, CHILD_EVENT, describe_event
from tenuto.model.work.rate_limits import parse_rate_limit
from tenuto.model.work.tasks import ActivityState
from tenuto.model.work.worker_states import WorkerState
from tenuto.postgres.database import Database
from tenuto.store.events import external_events
from tenuto.store.events.external_events import WaitRecord
from tenuto.store.reports import diagnosis as store
from tenuto.store.reports.diagnosis import (
    AwaitedExecution,
    DiagnosedTask,
    OpenStep,
    QueueWorker,
    RunningTask,
    Sample,
    StepPosition,
)
from tenuto.store.work import activities, executions
from tenuto.store.work.activities import ActivityDetails

MAX_COUNTED_TASKS = 10_000
"""Upper bound for counting the tasks ahead of a task."""
MAX_NAMED_IDS = 10
"""Maximum number of blocking tasks or workers that a reason lists."""
MAX_STEPS = 20
"""Maximum number of open steps of an execution that are diagnosed."""


async def diagnose_task(database: Database, task_id: UUID) -> Diagnosis:
    """Return why a task does not run, its progress if it runs, or how it ended."""
    found = await store.load_tasks(database, [task_id])
    if found:
        return Diagnosis(task_id, found[0].state, tuple(await TaskDiagnostician(database).diagnose(found[0])))
    attempts = await activities.list_attempts(database, task_id)
    if not attempts:
        raise NotFound(
            f"task {task_id} does not exist", code="task.not_found", remedy="list tasks with `tenuto task list`"
        )
    last = attempts[-1]
    return Diagnosis(task_id, last.state, (_ended(last),))


async def diagnose_execution(database: Database, id: UUID) -> Diagnosis:
    """Return why an execution does not continue: the reasons of its open steps in the current group."""
    found = await executions.load_execution(database, id)
    if found is None:
        raise NotFound(
            f"execution {id} does not exist",
            code="execution.not_found",
            remedy="list executions with `tenuto execution list`",
        )
    if found.ended_at is not None:
        how = found.state.replace("_", " ") + (f": {found.error}" if found.error else "")
        ended = Reason(
            ReasonCode.ENDED,
            f"it has ended: {how}",
            fields=facts(state=str(found.state), ended_at=found.ended_at, error=found.error),
            command=None if found.state == "completed" else f"tenuto execution retry {id}",
        )
        return Diagnosis(id, found.state, (ended,))
    reasons: list[Reason] = []
    if found.paused_at is not None:
        reasons.append(_execution_paused(found.paused_at, found.paused_by, id))
    if found.cancelled_at is not None:
        text = f"it was cancelled by {found.cancel_name}; its running steps are stopping"
        fields = facts(cancelled_by=found.cancel_name, cancelled_at=found.cancelled_at)
        reasons.append(Reason(ReasonCode.STOPPING, text, (id,), fields=fields))
    open_steps = await store.list_open_steps(database, id, found.current_group, MAX_STEPS)
    diagnostician = TaskDiagnostician(database)
    for task in await store.load_tasks(database, open_steps.ids):
        step_reasons = [
            each for each in await diagnostician.diagnose(task) if each.code is not ReasonCode.EXECUTION_PAUSED
        ]
        step_name = None if task.step is None else _step_name(task.step)
        reasons += [replace(each, task_id=task.id, step=step_name) for each in step_reasons]
    if not open_steps.total_count:
        reasons.append(
            Reason(ReasonCode.STUCK, "its current group has no open step, but it did not advance: " + _REPAIR_HINT)
        )
    return Diagnosis(id, found.state, tuple(reasons))


_REPAIR_HINT = "a running scheduler repairs this at its next poll; see `tenuto doctor`"


class TaskDiagnostician:
    """Diagnoses tasks; queries that several tasks need run once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now = database.clock.now()
        self._workers: dict[tuple[str, str, str], list[QueueWorker]] = {}
        self._running: dict[tuple[Any, ...], Sample[RunningTask]] = {}

    async def diagnose(self, task: DiagnosedTask) -> list[Reason]:
        """Return all reasons for one task, the one that applies now first."""
        if task.state == "running":
            reasons = [*_running_reasons(task), *(await self._limit_reasons(task) if task.standby else ())]
            return [*reasons, *(await self._worker_reasons(task) if task.lease_expired else ())]
        reasons = _batch_reasons(task)
        if task.state == "waiting":
            reasons += await self._waiting_reasons(task)
        due = task.run_at <= self._now
        if task.state != "queued" and task.waits_for is None and not due:
            wait = await self._find_wait(task)
            reasons.append(_not_due(task, await self._load_last_error(task)) if wait is None else wait)
        if task.queue_paused_at is not None:
            reasons.append(_queue_paused(task, task.queue_paused_at))
        reasons += _groups_disabled(task)
        reasons += await self._worker_reasons(task)
        if task.state == "queued" or (task.state == "scheduled" and due):
            reasons += _rate_reasons(task, self._now)
            reasons += await self._limit_reasons(task)
            if not reasons:
                workers = await self._load_workers(task)
                able = [each for each in workers if each.state is WorkerState.ALIVE and each.knows_job]
                reasons.append(await self._queue_position(task, able))
        return [*reasons, *_expiry_reasons(task, self._now)]

    async def _worker_reasons(self, task: DiagnosedTask) -> list[Reason]:
        workers = await self._load_workers(task)
        alive = [worker for worker in workers if worker.state is WorkerState.ALIVE]
        if not alive:
            return [_no_worker(task.queue, workers)]
        able = [worker for worker in alive if worker.knows_job]
        if not able:
            return [_unknown_job(task, alive)]
        version = None if task.kind != "job" else await store.load_version_of_run(self._database, task.id)
        if version is not None:
            able = [worker for worker in able if version in (worker.job_versions or "").split(", ")]
            if not able:
                return [_unknown_version(task, version, alive)]
        return [] if any(worker.slots for worker in able) else [_no_capacity(task.queue, able)]

    async def _find_wait(self, task: DiagnosedTask) -> Reason | None:
        """Return what a task that gave up its slot waits for. Its due time is the deadline of the wait."""
        waits = await external_events.list_waits_of_task(self._database, task.id)
        children = [wait for wait in waits if wait.outcome is None and wait.name.startswith(CHILD_EVENT)]
        if children:
            return _waits_for_children(children)
        for wait in waits:
            if wait.outcome is None and wait.expires_at == task.run_at:
                return _waits_for_approval(task, wait) if wait.name == APPROVAL_EVENT else _waits_for_event(wait)
        return None

    async def _waiting_reasons(self, task: DiagnosedTask) -> list[Reason]:
        reasons: list[Reason] = []
        step = task.step
        if step is not None and step.execution_paused_at is not None:
            reasons.append(_execution_paused(step.execution_paused_at, step.execution_paused_by, step.execution_id))
        if task.waits_for is not None:
            reasons.append(_waits_for_execution(task.waits_for, task.awaited))
        elif step is not None and step.group_index > step.current_group:
            if (waits_for_steps := await self._waits_for_steps(step)) is not None:
                return [*reasons, waits_for_steps]
            open_steps = await store.list_open_steps(
                self._database, step.execution_id, step.current_group, MAX_NAMED_IDS
            )
            reasons.append(_waits_for_group(step, open_steps))
        if not reasons and task.batch_id is None:
            return [Reason(ReasonCode.STUCK, f"it waits although nothing blocks it: {_REPAIR_HINT}")]
        return reasons

    async def _waits_for_steps(self, step: StepPosition) -> Reason | None:
        """Return the open steps that a step with edges needs; None if it waits for its group."""
        plan = plan_from_json(step.plan)
        waiting = plan.step_at(step.step_index)
        if not waiting.needs:
            return None
        needed = [position for _, position, each in plan.enumerate_steps() if each.name in waiting.predecessors]
        found = await store.list_open_steps_at(self._database, step.execution_id, needed, MAX_NAMED_IDS)
        return None if not found.total_count else _waits_for_steps(step, found)

    async def _limit_reasons(self, task: DiagnosedTask) -> list[Reason]:
        """Return the exhausted limits, in the order in which the statement `claim_limited_tasks` checks them."""
        queue, key, manifest, group = task.queue, task.limit_key, task.manifest_id, task.limit_group
        active = store.list_running_of_manifests
        found = [
            await self._exhausted_limit(
                ReasonCode.QUEUE_LIMIT,
                f"queue {queue}",
                task.max_running,
                f"tenuto queue limit {queue} N",
                store.list_running_in_queue,
                queue,
            ),
            await self._exhausted_limit(
                ReasonCode.KEY_LIMIT,
                "tasks that have lost two workers",
                1 if task.last_chance else None,
                None,
                store.list_running_on_last_chance,
            ),
            await self._exhausted_limit(
                ReasonCode.KEY_LIMIT,
                _name_limit_key(key),
                None if task.last_chance and task.limit_max == 1 else task.limit_max,
                None,
                store.list_running_with_limit_key,
                key,
                queue,
            ),
            await self._exhausted_limit(
                ReasonCode.MANIFEST_LIMIT,
                f"manifest {task.manifest}",
                task.manifest_max,
                f"tenuto manifest edit {quote(task.manifest or '')} --max-active N",
                active,
                manifest,
                None,
            ),
            await self._exhausted_limit(
                ReasonCode.GROUP_LIMIT,
                f"group {group}",
                task.group_max,
                f"tenuto manifest group {quote(group or '')} --max-active N",
                active,
                None,
                group,
            ),
            await self._exhausted_limit(
                ReasonCode.GROUP_LIMIT,
                "all manifests together",
                task.all_max,
                "tenuto manifest group '*' --max-active N",
                active,
                None,
                None,
            ),
        ]
        return [reason for reason in found if reason is not None]

    async def _exhausted_limit(
        self,
        code: ReasonCode,
        name: str,
        limit: int | None,
        command: str | None,
        load_running: Callable[..., Awaitable[Sample[RunningTask]]],
        *arguments: UUID | str | None,
    ) -> Reason | None:
        if limit is None:
            return None
        query = (load_running, *arguments)
        if query not in self._running:
            self._running[query] = await load_running(self._database, *arguments, MAX_NAMED_IDS)
        running = self._running[query]
        limit = running.limit_max or limit
        if running.total_count < limit:
            return None
        count = f"{running.total_count} {'is' if running.total_count == 1 else 'are'} running"
        text = f"{name} may run {limit} at a time, and {count}: {_describe_tasks(running)}; it starts when one ends"
        if not running.total_count:
            text = f"{name} may run {limit} at a time, so it does not start"
        return Reason(
            code,
            text,
            running.ids,
            fields=facts(limited=name, limit=limit, running_count=running.total_count),
            command=command,
        )

    async def _queue_position(self, task: DiagnosedTask, alive: Sequence[QueueWorker]) -> Reason:
        slots = sum(worker.slots for worker in alive)
        place = (task.rank, task.run_at, task.id)
        ahead_count = await store.count_tasks_ahead(
            self._database, task.queue, place, task.limit_key, MAX_COUNTED_TASKS + 1
        )
        ahead = _describe_tasks_ahead(ahead_count)
        workers_text = _count(len(alive), "worker")
        numbers = facts(queue=task.queue, tasks_ahead=ahead_count, slot_count=slots, worker_count=len(alive))
        if all(worker.running_count >= worker.slots for worker in alive):
            text = f"all {slots} slots of the {workers_text} for queue {task.queue} are busy; {ahead}"
            ids = tuple(worker.id for worker in alive[:MAX_NAMED_IDS])
            return Reason(ReasonCode.SLOTS_BUSY, text, ids, fields=numbers, command="tenuto worker list")
        if ahead_count:
            text = f"{ahead}; {workers_text} with free slots will claim it"
            return Reason(ReasonCode.OTHERS_FIRST, text, fields=numbers)
        text = f"nothing blocks it: {workers_text} with free slots may claim it at any moment"
        return Reason(ReasonCode.FREE, text, fields=numbers)

    async def _load_last_error(self, task: DiagnosedTask) -> LastError | None:
        if not task.failures and not task.losses:
            return None
        found = await store.load_last_failure(self._database, task.id)
        return None if found is None else _to_last_error(found.error, found.attempt, found.ended_at, found.id)

    async def _load_workers(self, task: DiagnosedTask) -> list[QueueWorker]:
        key = (task.queue, task.kind, task.name)
        if key not in self._workers:
            self._workers[key] = await store.list_workers_of_queue(self._database, *key)
        return self._workers[key]


# --- reasons --------------------------------------------------------------------------------------------------------


def _rate_reasons(task: DiagnosedTask, now: datetime) -> list[Reason]:
    """Return the rate limit that has no token for the task, if there is one."""
    rate = None if task.rate_limit is None else parse_rate_limit(task.rate_limit)
    if rate is None or task.rate_scope is None or task.next_token_at is None:
        return []
    if task.parked_for is None and task.next_token_at <= now:
        return []
    kind, _, name = task.rate_scope.partition(" ")
    limited = {"rate": f"tasks with the rate key {name}", "all": "all manifests together"}.get(kind, task.rate_scope)
    commands = {
        "queue": f"tenuto queue rate {quote(name)} RATE",
        "group": f"tenuto manifest group {quote(name)} --rate-limit RATE",
        "all": "tenuto manifest group '*' --rate-limit RATE",
    }
    text = f"{limited} may start {rate.description}; the next token comes at {format_instant(task.next_token_at)}"
    fields = facts(limited=limited, rate_limit=str(rate), next_token_at=task.next_token_at)
    return [Reason(ReasonCode.RATE_LIMIT, text, ends_at=task.next_token_at, fields=fields, command=commands.get(kind))]


def _expiry_reasons(task: DiagnosedTask, now: datetime) -> list[Reason]:
    if task.expires_at is None:
        return []
    when = format_instant(task.expires_at)
    text = f"it expires at {when} unless it has started by then"
    if task.expires_at <= now:
        text = f"it expired at {when}; a worker ends it at its next poll"
    return [Reason(ReasonCode.EXPIRES, text, fields=facts(expires_at=task.expires_at))]


def _running_reasons(task: DiagnosedTask) -> list[Reason]:
    worker = task.worker or "a worker that no longer exists"
    progress = _describe_progress(task.progress)
    since = "" if task.claimed_at is None else f" since {format_instant(task.claimed_at)}"
    numbers = facts(worker=task.worker, claimed_at=task.claimed_at)
    text, ends_at = f"it is running on {worker}{since}{progress}", None
    code = ReasonCode.RUNNING
    if task.standby:
        text = f"it is on standby at {worker}: it starts when a task under the same limits ends"
        code = ReasonCode.STANDBY
    if task.worker_state is WorkerState.DEAD and task.lease_until is not None:
        silence = _describe_silence(task.worker_silent_seconds)
        text += f", but {worker} is {silence}: the task is recovered when its lease ends"
        text += f" at {format_instant(task.lease_until)}, if a service runs"
        ends_at = task.lease_until
    reasons = [Reason(code, text, ends_at=ends_at, fields=numbers)]
    if task.cancel_at is not None:
        text = f"its cancellation was requested by {task.cancel_name} at {format_instant(task.cancel_at)}"
        stop = facts(cancelled_by=task.cancel_name, cancelled_at=task.cancel_at)
        reasons.insert(0, Reason(ReasonCode.STOPPING, text, fields=stop))
    if task.lease_expired:
        text = (
            f"it ran on {worker}{since}, whose lease has expired: the worker was killed or cannot reach the database;"
            " the next recovery sweep of a running service re-queues the task"
        )
        expired = Reason(ReasonCode.LEASE_EXPIRED, text, fields=numbers, command="tenuto worker list")
        reasons = [expired, *(each for each in reasons if each.code is ReasonCode.STOPPING)]
    return reasons


def _waits_for_event(wait: WaitRecord) -> Reason:
    command = f"tenuto event send {quote(wait.name)}" + (f" --key {quote(wait.key)}" if wait.key else "")
    return Reason(
        ReasonCode.WAITS_FOR_EVENT,
        f"it waits for {describe_event(wait.name, wait.key)} until {format_instant(wait.expires_at)}",
        ends_at=wait.expires_at,
        fields=facts(event=wait.name, key=wait.key or None, waits_since=wait.registered_at, run_at=wait.expires_at),
        command=command,
    )


def _waits_for_approval(task: DiagnosedTask, wait: WaitRecord) -> Reason:
    return Reason(
        ReasonCode.WAITS_FOR_APPROVAL,
        f"it waits for an approval until {format_instant(wait.expires_at)}",
        (task.id,),
        ends_at=wait.expires_at,
        fields=facts(waits_since=wait.registered_at, run_at=wait.expires_at),
        command=f"tenuto approval approve {task.id}",
    )


def _not_due(task: DiagnosedTask, error: LastError | None) -> Reason:
    when, numbers = format_instant(task.run_at), facts(run_at=task.run_at)
    if not task.failures and not task.losses:
        message = (task.progress or {}).get("message")  # of an attempt that gave up its slot
        text = f"it is not due until {when}" + (f"; it last reported: {message}" if message else "")
        return Reason(ReasonCode.NOT_DUE, text, ends_at=task.run_at, fields=numbers)
    command = f"tenuto task show {task.id}"
    if task.failures:
        limit = max(policy_from_json(task.policy).retry.max_attempts, 1)
        text = f"it has failed {_times(task.failures)}{describe_error(error)}; try {task.failures + 1} of {limit}"
        text += f" at {when}"
        numbers |= facts(failure_count=task.failures, max_attempts=limit)
    else:
        text = f"it has lost its worker {_times(task.losses)}; next try at {when}"
        numbers |= facts(loss_count=task.losses)
    return Reason(ReasonCode.BACKING_OFF, text, ends_at=task.run_at, fields=numbers, last_error=error, command=command)


def _execution_paused(at: datetime, by: str | None, execution_id: UUID) -> Reason:
    return Reason(
        ReasonCode.EXECUTION_PAUSED,
        f"the execution is {describe_pause(by, at)}",
        (execution_id,),
        fields=facts(paused_at=at, paused_by=by),
        command=f"tenuto execution resume {execution_id}",
    )


def _waits_for_group(step: StepPosition, open_steps: Sample[OpenStep]) -> Reason:
    plan = plan_from_json(step.plan)
    named = [f"'{plan.step_at(each.step_index).name}' ({each.state})" for each in open_steps.rows[:3]]
    more = open_steps.total_count - len(named)
    steps = ", ".join(named) + (f" and {more:,} more" if more else "")
    group = f"group {step.group_index + 1} of {step.group_count}"
    text = f"it belongs to {group}, and group {step.current_group + 1} is not finished: {steps or 'no step'} open"
    numbers = facts(
        group=step.group_index + 1,
        current_group=step.current_group + 1,
        group_count=step.group_count,
        open_step_count=open_steps.total_count,
    )
    command = f"tenuto execution show {step.execution_id}"
    return Reason(ReasonCode.WAITS_FOR_GROUP, text, open_steps.ids, fields=numbers, command=command)


def _waits_for_steps(step: StepPosition, open_steps: Sample[OpenStep]) -> Reason:
    plan = plan_from_json(step.plan)
    named = [f"'{plan.step_at(each.step_index).name}' ({each.state})" for each in open_steps.rows[:3]]
    more = open_steps.total_count - len(named)
    steps = ", ".join(named) + (f" and {more:,} more" if more else "")
    return Reason(
        ReasonCode.WAITS_FOR_STEPS,
        f"it needs steps that have not ended: {steps}",
        open_steps.ids,
        fields=facts(open_step_count=open_steps.total_count),
        command=f"tenuto execution show {step.execution_id}",
    )


def _waits_for_execution(id: UUID, awaited: AwaitedExecution | None) -> Reason:
    if awaited is None:
        return Reason(ReasonCode.STUCK, f"it waits for an execution that no longer exists: {_REPAIR_HINT}", (id,))
    since = format_instant(awaited.awaited_started_at)
    how = f"in group {awaited.awaited_group + 1} of {awaited.awaited_group_count} since {since}"
    if awaited.awaited_paused_at is not None:
        how += f", {describe_pause(awaited.awaited_paused_by, awaited.awaited_paused_at)}"
    text = f"it waits for execution {id} of {awaited.awaited_name!r}, {how}"
    numbers = facts(
        schedule=awaited.awaited_name,
        started_at=awaited.awaited_started_at,
        current_group=awaited.awaited_group + 1,
        group_count=awaited.awaited_group_count,
        paused_at=awaited.awaited_paused_at,
        paused_by=awaited.awaited_paused_by,
    )
    return Reason(ReasonCode.WAITS_FOR_EXECUTION, text, (id,), fields=numbers, command=f"tenuto execution why {id}")


def _batch_reasons(task: DiagnosedTask) -> list[Reason]:
    """Return reasons in the batch of an item. A resumed or cancelled batch with waiting items was interrupted."""
    id, repeat = task.batch_id, "if that was interrupted, repeat it"
    if id is None:
        return []
    if task.batch_cancelled_at is not None:
        text = f"its batch was cancelled by {task.batch_cancelled_by}, and it is being removed; {repeat}"
        fields = facts(cancelled_by=task.batch_cancelled_by, cancelled_at=task.batch_cancelled_at)
        return [Reason(ReasonCode.STOPPING, text, (id,), fields=fields, command=f"tenuto batch cancel {id}")]
    if task.batch_paused_at is not None:
        text = f"its batch is {describe_pause(task.batch_paused_by, task.batch_paused_at)}"
        fields = facts(paused_by=task.batch_paused_by, paused_at=task.batch_paused_at)
        return [Reason(ReasonCode.BATCH_PAUSED, text, (id,), fields=fields, command=f"tenuto batch resume {id}")]
    if task.state == "waiting":
        text = f"it waits although its batch was resumed; {repeat}"
        return [Reason(ReasonCode.STUCK, text, (id,), command=f"tenuto batch resume {id}")]
    return []


def _groups_disabled(task: DiagnosedTask) -> list[Reason]:
    reasons = []
    for enabled, by, at, subject, name in (
        (
            task.group_enabled,
            task.group_changed_by,
            task.group_changed_at,
            f"group {task.limit_group} is",
            task.limit_group,
        ),
        (task.all_enabled, task.all_changed_by, task.all_changed_at, "all manifests together are", "*"),
    ):
        if enabled is False and at is not None:
            changed = f"last changed by {by} at {format_instant(at)}"
            reasons.append(
                Reason(
                    ReasonCode.GROUP_DISABLED,
                    f"{subject} disabled ({changed}): no run starts",
                    fields=facts(group=name, changed_by=by, changed_at=at),
                    command=f"tenuto manifest group {quote(name or '*')} --enable",
                )
            )
    return reasons


def _queue_paused(task: DiagnosedTask, paused_at: datetime) -> Reason:
    reason = f": {task.queue_reason}" if task.queue_reason else ""
    by = task.queue_paused_by or "an operator"
    text = f"queue {task.queue} is paused by {by} since {format_instant(paused_at)}{reason}"
    fields = facts(
        queue=task.queue, paused_by=task.queue_paused_by, paused_at=paused_at, pause_reason=task.queue_reason
    )
    return Reason(ReasonCode.QUEUE_PAUSED, text, fields=fields, command=f"tenuto queue resume {task.queue}")


def _no_worker(queue: str, workers: Sequence[QueueWorker]) -> Reason:
    others = [f"{worker.name} is {_describe_state(worker)}" for worker in workers[:3]]
    details = f" ({', '.join(others)})" if others else ""
    text = f"no live worker serves queue {queue}{details}"
    return Reason(
        ReasonCode.NO_WORKER,
        text,
        tuple(worker.id for worker in workers[:MAX_NAMED_IDS]),
        fields=facts(queue=queue, worker_count=len(workers)),
        command=f"tenuto worker --app MODULE:OBJECT --queues {queue}",
    )


def _no_capacity(queue: str, workers: Sequence[QueueWorker]) -> Reason:
    """The reason for workers without slots: only a worker whose cluster has none, or does not answer, has no slots."""
    named = ", ".join(worker.name for worker in workers[:3]) + (" …" if len(workers) > 3 else "")
    text = f"the cluster that runs the jobs of queue {queue} for {named} does not answer or has no workers"
    return Reason(
        ReasonCode.NO_CAPACITY,
        f"{text}; it starts when the cluster is back",
        tuple(worker.id for worker in workers[:MAX_NAMED_IDS]),
        fields=facts(queue=queue, worker_count=len(workers)),
        command="tenuto worker list",
    )


def _unknown_job(task: DiagnosedTask, alive: Sequence[QueueWorker]) -> Reason:
    what = f"job {task.name}" if task.kind == "job" else f"step kind {task.kind}"
    named = ", ".join(worker.name for worker in alive[:3]) + (" …" if len(alive) > 3 else "")
    text = f"no live worker of queue {task.queue} knows {what} ({named}); it waits, and no attempt is counted;"
    text += " start a worker with the app that registers it, under this name if it was renamed"
    return Reason(
        ReasonCode.UNKNOWN_JOB,
        text,
        tuple(worker.id for worker in alive[:MAX_NAMED_IDS]),
        fields=facts(queue=task.queue, kind=task.kind, job=task.name, worker_count=len(alive)),
        command=f"tenuto worker --app MODULE:OBJECT --queues {task.queue}",
    )


def _waits_for_children(waits: Sequence[WaitRecord]) -> Reason:
    named = ", ".join(f"{each.key} ({each.name.removeprefix(CHILD_EVENT)})" for each in waits[:3])
    more = f" and {len(waits) - 3:,} more" if len(waits) > 3 else ""
    noun = "its child task" if len(waits) == 1 else "its child tasks"
    return Reason(
        ReasonCode.WAITS_FOR_CHILD,
        f"it waits for {noun} {named}{more}",
        tuple(UUID(each.key) for each in waits[:MAX_NAMED_IDS]),
        fields=facts(child_count=len(waits)),
        command=f"tenuto task why {waits[0].key}",
    )


def _unknown_version(task: DiagnosedTask, version: str, alive: Sequence[QueueWorker]) -> Reason:
    known = ", ".join(sorted({worker.job_versions or "none" for worker in alive}))
    text = (
        f"it has begun with version {version} of workflow {task.name}, which no live worker of queue {task.queue} has"
    )
    text += f" (they have: {known}); it waits, and no attempt is counted; start a worker with a program that registers"
    text += " the function of that version beside the new one"
    return Reason(
        ReasonCode.UNKNOWN_VERSION,
        text,
        tuple(worker.id for worker in alive[:MAX_NAMED_IDS]),
        fields=facts(queue=task.queue, job=task.name, version=version, worker_count=len(alive)),
        command=f"tenuto worker --app MODULE:OBJECT --queues {task.queue}",
    )


def _describe_state(worker: QueueWorker) -> str:
    return _describe_silence(worker.silent_seconds) if worker.state is WorkerState.DEAD else worker.state


def _describe_silence(silent_seconds: float | None) -> str:
    return "dead" if silent_seconds is None else f"dead (last seen {round(silent_seconds)} s ago)"


def _ended(last: ActivityDetails) -> Reason:
    how = last.state.replace("_", " ")
    if last.reason:
        how += f" ({last.reason.replace('_', ' ')})"
    message = (last.error or {}).get("message")
    text = f"it has ended: {how} at {format_instant(last.ended_at)}" if last.ended_at else f"it has ended: {how}"
    error = _to_last_error(last.error, last.attempt, last.ended_at, last.id)
    return Reason(
        ReasonCode.ENDED,
        f"{text}: {message}" if message else text,
        (last.id,),
        fields=facts(state=str(last.state), reason=last.reason, ended_at=last.ended_at, attempt=last.attempt),
        last_error=error,
        command=_command_after_end(last),
    )


def _command_after_end(last: ActivityDetails) -> str | None:
    """Return how to run a failed task again: a step with its execution, a run of a manifest by its dead letter."""
    if last.state is not ActivityState.FAILED:
        return None
    if last.execution_id is not None:
        return f"tenuto execution retry {last.execution_id}"
    return f"tenuto task show {last.task_id}" if last.manifest_id is not None else f"tenuto task retry {last.task_id}"


def _to_last_error(
    error: Mapping[str, Any] | None, attempt: int, at: datetime | None, activity_id: UUID
) -> LastError | None:
    message, kind = error_fields(error)
    return None if not error or at is None else LastError(message, kind, attempt, at, activity_id)


def _describe_progress(progress: Mapping[str, Any] | None) -> str:
    if not progress:
        return ""
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    text = "" if done is None else f", {done} of {total} done" if total else f", {done} done"
    return text + (f", {message}" if message else "")


def _step_name(step: StepPosition) -> str:
    return plan_from_json(step.plan).step_at(step.step_index).name


def _describe_tasks(tasks: Sample[RunningTask]) -> str:
    more = tasks.total_count - 3
    first = ", ".join(f"{each.name} {each.id}" for each in tasks.rows[:3])
    return first + (f" and {more:,} more" if more > 0 else "")


def _describe_tasks_ahead(ahead_count: int) -> str:
    if ahead_count > MAX_COUNTED_TASKS:
        return f"more than {MAX_COUNTED_TASKS:,} tasks are ahead of it"
    return f"{ahead_count:,} tasks are ahead of it" if ahead_count != 1 else "1 task is ahead of it"


def _name_limit_key(key: str | None) -> str:
    """Return the subject of a limit: a job by its name, other keys as they are."""
    return f"job {key.removeprefix('job:')}" if key is not None and key.startswith("job:") else f"limit key {key}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
