"""What needs the attention of an operator: one decision for the overview, ``tenuto status``, the dashboard, the doctor.

`find_attention` is a pure function of facts that `store.reports.overview` reads. The doctor has one check for each
code, so that no surface shows less than another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote

from tenuto.model.definitions.blocking_reasons import ObstacleKind, describe_obstacle, obstacle_remedy
from tenuto.model.doctor_findings import Severity
from tenuto.model.work.worker_states import WorkerState
from tenuto.store.reports.blocking_reasons import StoppedDefinition
from tenuto.store.reports.overview import MAX_ITEMS, AttentionFacts, LiveProcess, NextRun, PausedObject, QueueFigures

LATE_AFTER = timedelta(seconds=10)
"""A schedule fires within a second; after this time it is late."""
_MAX_NAMES = 3
"""Names that one text lists."""
_MAX_ERROR_CHARACTERS = 160


class AttentionCode(StrEnum):
    """Kinds of things that need attention; the doctor has a check of the same name for each."""

    DEAD_LETTERS_OPEN = "dead_letters_open"
    EXECUTION_FAILED = "execution_failed"
    OPERATION_FAILED = "operation_failed"
    APPROVAL_PENDING = "approval_pending"
    QUEUE_PAUSED = "queue_paused"
    EXECUTION_PAUSED = "execution_paused"
    BATCH_PAUSED = "batch_paused"
    MANIFEST_GROUP_DISABLED = "manifest_group_disabled"
    MANIFEST_BLOCKED = "manifest_blocked"
    MANIFEST_DEPENDENCY_DISABLED = "manifest_dependency_disabled"
    DEFINITION_NOT_DECLARED = "definition_not_declared"
    SCHEDULER_MISSING = "scheduler_missing"
    RUN_LATE = "run_late"
    QUEUE_WITHOUT_WORKER = "queue_without_worker"
    JOB_WITHOUT_WORKER = "job_without_worker"
    WORKER_WITHOUT_CLUSTER = "worker_without_cluster"
    PROCESS_DEAD = "process_dead"
    REPAIRS_MADE = "repairs_made"


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing that needs attention."""

    code: AttentionCode
    severity: Severity
    """``warning`` if work may be late or at risk, ``note`` if an operator decided it or it is a record of the past."""
    id: str
    """Identifies the object: its id or name, or the fingerprint of a failure."""
    name: str
    """Name of the object."""
    text: str
    """One sentence, without instants."""
    since: datetime | None = None
    """When it began or was last seen."""
    command: str | None = None
    """Command that shows it or helps."""


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Texts of the doctor about all findings of one code."""

    code: AttentionCode
    severity: Severity
    passed: str
    failed: str
    meaning: str
    remedy: str | None = None
    """Used if the command of the first finding does not help with the others."""


_NOTE, _WARNING = Severity.NOTE, Severity.WARNING
_Code = AttentionCode

ATTENTION_KINDS = (
    AttentionKind(
        _Code.DEAD_LETTERS_OPEN,
        _NOTE,
        "no dead letter is open",
        "dead letters await an operator",
        "Their tasks failed for good; they run again only if an operator retries them.",
    ),
    AttentionKind(
        _Code.EXECUTION_FAILED,
        _NOTE,
        "no schedule ended with a failed execution",
        "executions failed, and none of their schedule has completed since",
        "The remaining step groups did not run.",
    ),
    AttentionKind(
        _Code.OPERATION_FAILED,
        _NOTE,
        "no bulk operation of the last day has failed items",
        "bulk operations of the last day have failed items",
        "These items are as they were before the operation.",
    ),
    AttentionKind(
        _Code.APPROVAL_PENDING,
        _NOTE,
        "no step waits for an approval",
        "steps wait for approvals",
        "Their executions continue when persons approve, or at the deadline.",
    ),
    AttentionKind(
        _Code.QUEUE_PAUSED,
        _NOTE,
        "no queue is paused",
        "queues are paused",
        "Its tasks wait until it is resumed.",
    ),
    AttentionKind(
        _Code.EXECUTION_PAUSED,
        _NOTE,
        "no execution is paused",
        "executions are paused",
        "No further step starts until it is resumed.",
    ),
    AttentionKind(
        _Code.BATCH_PAUSED,
        _NOTE,
        "no batch is paused",
        "batches are paused",
        "Its items wait until it is resumed.",
    ),
    AttentionKind(
        _Code.MANIFEST_GROUP_DISABLED,
        _NOTE,
        "no group of manifests is disabled",
        "groups of manifests are disabled",
        "Their manifests do not run on their own until the group is enabled.",
    ),
    AttentionKind(
        _Code.MANIFEST_BLOCKED,
        _WARNING,
        "no manifest is blocked by a dead letter",
        "manifests are blocked by dead letters",
        "They do not run on their own until the dead letter is resolved.",
    ),
    AttentionKind(
        _Code.MANIFEST_DEPENDENCY_DISABLED,
        _WARNING,
        "no manifest waits for a disabled one",
        "manifests wait for disabled ones",
        "They run after each success of a manifest that does not run.",
    ),
    AttentionKind(
        _Code.DEFINITION_NOT_DECLARED,
        _WARNING,
        "every schedule and manifest from code is declared by a running app",
        "schedules or manifests from code are not declared by any running app",
        "They were renamed or removed in the code, or their app is not running; they keep firing.",
    ),
    AttentionKind(
        _Code.SCHEDULER_MISSING,
        _WARNING,
        "a scheduler runs for the enabled schedules and manifests",
        "schedules and manifests have no scheduler",
        "Schedules do not fire until a scheduler runs; then the misfire policy decides.",
    ),
    AttentionKind(
        _Code.RUN_LATE,
        _WARNING,
        "no schedule or manifest is late",
        "schedules or manifests are late",
        "They are due and have not been fired.",
        "check that a scheduler runs, and read its log: tenuto worker list",
    ),
    AttentionKind(
        _Code.QUEUE_WITHOUT_WORKER,
        _WARNING,
        "every queue with tasks has a worker",
        "queues with tasks have no worker",
        "These tasks wait until a worker serves their queue.",
        "start a worker: tenuto worker --app MODULE:OBJECT --queues QUEUE",
    ),
    AttentionKind(
        _Code.JOB_WITHOUT_WORKER,
        _WARNING,
        "live workers know the jobs of all due tasks",
        "no live worker knows the jobs of due tasks",
        "These tasks wait until a worker that knows their job serves the queue. No attempt is counted.",
        "start workers with the app that registers the job; if it was renamed, register it under the old name too",
    ),
    AttentionKind(
        _Code.WORKER_WITHOUT_CLUSTER,
        _WARNING,
        "the clusters of all workers run jobs",
        "workers have no cluster to run their jobs",
        "Their cluster does not answer or has no workers; tasks of their queues wait, and no attempt is counted.",
        "start or repair the cluster; the log of the worker says what fails",
    ),
    AttentionKind(
        _Code.PROCESS_DEAD,
        _WARNING,
        "every registered process sends heartbeats",
        "processes have stopped sending heartbeats",
        "They were killed, or cannot reach the database; their tasks are recovered when their leases end.",
        "restart them; a process that stays silent and holds no task is forgotten after two minutes",
    ),
    AttentionKind(
        _Code.REPAIRS_MADE,
        _NOTE,
        "nothing had to be repaired in the last day",
        "repairs were made in the last day",
        "Workers died or lost the database while they held tasks; what they left was repaired.",
        "if the numbers keep growing, find out why workers die (memory, restarts) or lose the database",
    ),
)
"""All codes, in the order in which they are shown."""

_SEVERITIES = {kind.code: kind.severity for kind in ATTENTION_KINDS}
_ORDER = {kind.code: place for place, kind in enumerate(ATTENTION_KINDS)}


def find_attention(facts: AttentionFacts) -> list[Attention]:
    """Return everything that needs attention: warnings first, then notes, both in the order of `ATTENTION_KINDS`."""
    found = [
        *_find_failures(facts),
        *_find_approvals(facts),
        *_find_pauses(facts),
        *_find_stopped_definitions(facts.stopped),
        *(_describe_late_run(run) for run in find_late_runs(facts)),
        *(_describe_unserved_queue(queue) for queue in find_unserved_queues(facts)),
        *_find_unknown_jobs(facts),
        *(_describe_missing_cluster(worker) for worker in find_workers_without_cluster(facts)),
        *(_describe_dead_process(process) for process in find_dead_processes(facts)),
        *_find_repairs(facts),
    ]
    return sorted(found, key=lambda each: (each.severity is not Severity.WARNING, _ORDER[each.code]))


def find_late_runs(facts: AttentionFacts) -> list[NextRun]:
    """Return the schedules and manifests that are due and have not been fired."""
    return [each for each in facts.next_runs if each.due_at < facts.read_at - LATE_AFTER][:MAX_ITEMS]


def find_unserved_queues(facts: AttentionFacts) -> list[QueueFigures]:
    """Return the queues with waiting tasks that no live worker claims; paused queues have another reason to wait."""
    served = {queue for process in facts.processes if claims_tasks(process) for queue in process.queues}
    waiting = [each for each in facts.queues if each.queued_count and each.paused_at is None]
    return [each for each in waiting if each.name not in served][:MAX_ITEMS]


def find_workers_without_cluster(facts: AttentionFacts) -> list[LiveProcess]:
    """Return the live workers without slots: only a cluster that does not answer, or is empty, leaves them none."""
    return [each for each in facts.processes if claims_tasks(each) and not each.slots][:MAX_ITEMS]


def find_dead_processes(facts: AttentionFacts) -> list[LiveProcess]:
    """Return the processes that have missed several heartbeats."""
    return [each for each in facts.processes if each.state is WorkerState.DEAD][:MAX_ITEMS]


def list_paused_objects(facts: AttentionFacts) -> list[PausedObject]:
    """Return paused queues, executions and batches and disabled groups of manifests, the latest first."""
    queues = [
        PausedObject("queue", each.name, each.name, each.paused_at, each.paused_by, each.reason)
        for each in facts.queues
        if each.paused_at is not None
    ]
    return sorted([*facts.paused_objects, *queues], key=lambda each: each.paused_at, reverse=True)[:MAX_ITEMS]


def claims_tasks(process: LiveProcess) -> bool:
    return process.service == "worker" and process.state is WorkerState.ALIVE


def _make(
    code: AttentionCode,
    id: object,
    name: str,
    text: str,
    *,
    since: datetime | None = None,
    command: str | None = None,
) -> Attention:
    return Attention(code, _SEVERITIES[code], str(id), name, text, since, command)


def _find_failures(facts: AttentionFacts) -> Iterator[Attention]:
    for failure in facts.failures:
        names, count = (
            (failure.external_ids, failure.manifest_count)
            if failure.manifest_count
            else (failure.names, failure.job_count)
        )
        concerned = ", ".join(names) + (" …" if count > len(names) else "")
        yield _make(
            AttentionCode.DEAD_LETTERS_OPEN,
            failure.fingerprint,
            concerned,
            f"{_count(failure.dead_letter_count, 'dead letter')} of {concerned}: {_shorten(failure.reason)}",
            since=failure.last_at,
            command=f"tenuto dead-letter list --fingerprint {failure.fingerprint}",
        )
    for run in facts.unresolved_executions:
        running = "" if run.running_id is None else "; another execution is in progress"
        yield _make(
            AttentionCode.EXECUTION_FAILED,
            run.id,
            run.schedule_name,
            f"{run.schedule_name} failed in group {run.current_group + 1} of {run.group_count}:"
            f" {_shorten(run.error or 'no reason recorded')}{running}",
            since=run.ended_at,
            command=f"tenuto execution show {run.id}",
        )
    for operation in facts.failed_operations:
        yield _make(
            AttentionCode.OPERATION_FAILED,
            operation.id,
            operation.kind,
            f"{operation.failed_count:,} of {operation.total_count:,} items of the bulk operation {operation.kind}"
            f" failed: {_shorten(operation.description)}",
            since=operation.ended_at,
            command=f"tenuto operation show {operation.id}",
        )


def _find_approvals(facts: AttentionFacts) -> Iterator[Attention]:
    for approval in facts.pending_approvals:
        name = f"{approval.step} of {approval.schedule_name}" if approval.schedule_name else approval.step
        count = f"{approval.approval_count} of {approval.required_count} persons have approved"
        yield _make(
            AttentionCode.APPROVAL_PENDING,
            approval.id,
            approval.step,
            f"{name} waits for approval ({count}): {_shorten(approval.message)}",
            since=approval.requested_at,
            command=f"tenuto approval show {approval.id}",
        )


_PAUSES = {
    "queue": (AttentionCode.QUEUE_PAUSED, "queue {} is paused", "tenuto queue resume {}"),
    "execution": (AttentionCode.EXECUTION_PAUSED, "an execution of {} is paused", "tenuto execution resume {}"),
    "batch": (AttentionCode.BATCH_PAUSED, "a batch of {} is paused", "tenuto batch resume {}"),
    "manifest_group": (
        AttentionCode.MANIFEST_GROUP_DISABLED,
        "manifest group {} is disabled",
        "tenuto manifest group {} --enable",
    ),
}


def _find_pauses(facts: AttentionFacts) -> Iterator[Attention]:
    waiting = {queue.name: queue.queued_count for queue in facts.queues}
    for paused in list_paused_objects(facts):
        code, text, command = _PAUSES[paused.kind]
        text = f"{text.format(paused.name)} by {paused.paused_by or 'an unknown operator'}"
        text += f": {_shorten(paused.reason)}" if paused.reason else ""
        if paused.kind == "queue" and waiting.get(paused.name):
            text += f"; {_count(waiting[paused.name], 'task')} waiting"
        yield _make(
            code, paused.id, paused.name, text, since=paused.paused_at, command=command.format(quote(paused.id))
        )


_OBSTACLES = {
    ObstacleKind.DEAD_LETTER: AttentionCode.MANIFEST_BLOCKED,
    ObstacleKind.DEPENDENCY_DISABLED: AttentionCode.MANIFEST_DEPENDENCY_DISABLED,
    ObstacleKind.NOT_DECLARED: AttentionCode.DEFINITION_NOT_DECLARED,
}


def _find_stopped_definitions(stopped: Sequence[StoppedDefinition]) -> Iterator[Attention]:
    for each in stopped:
        if each.kind in _OBSTACLES:  # a disabled group is listed once, as a group
            yield _make(
                _OBSTACLES[each.kind],
                f"{each.definition}:{each.key}",
                each.key,
                f"{each.definition} {each.key}: {describe_obstacle(each.obstacle)}",
                command=obstacle_remedy(each.obstacle, each.definition, each.key),
            )
    waiting = [each for each in stopped if each.kind is ObstacleKind.NO_SCHEDULER]
    if waiting:
        totals = {each.definition: each.total for each in waiting}
        names = [each.key for each in waiting[:_MAX_NAMES]] + (["…"] if len(waiting) > _MAX_NAMES else [])
        counts = " and ".join(_count(total, definition) for definition, total in sorted(totals.items(), reverse=True))
        yield _make(
            AttentionCode.SCHEDULER_MISSING,
            "scheduler",
            "scheduler",
            f"no scheduler is running: {counts} will not fire ({', '.join(names)})",
            command=obstacle_remedy(waiting[0].obstacle, waiting[0].definition, waiting[0].key),
        )


def _describe_late_run(run: NextRun) -> Attention:
    text = f"{run.kind} {run.name} is due and has not been fired"
    return _make(
        AttentionCode.RUN_LATE,
        run.id,
        run.name,
        text,
        since=run.due_at,
        command=f"tenuto {run.kind} why {quote(run.name)}",
    )


def _describe_unserved_queue(queue: QueueFigures) -> Attention:
    return _make(
        AttentionCode.QUEUE_WITHOUT_WORKER,
        queue.name,
        queue.name,
        f"no live worker serves queue {queue.name}: {_count(queue.queued_count, 'task')} waiting",
        since=queue.oldest_due_at,
        command=f"tenuto worker --app MODULE:OBJECT --queues {quote(queue.name)}",
    )


def _describe_missing_cluster(worker: LiveProcess) -> Attention:
    return _make(
        AttentionCode.WORKER_WITHOUT_CLUSTER,
        worker.name,
        worker.name,
        f"the cluster of worker {worker.name} does not answer or has no workers: it runs no jobs",
        command="tenuto worker list",
    )


def _find_unknown_jobs(facts: AttentionFacts) -> Iterator[Attention]:
    for job in facts.unknown_jobs:
        kind = "job" if job.kind == "job" else "step kind"
        yield _make(
            AttentionCode.JOB_WITHOUT_WORKER,
            f"{job.queue}:{job.name}",
            job.name,
            f"no live worker of queue {job.queue} knows {kind} {job.name}: {_count(job.task_count, 'task')} waiting",
            since=job.oldest_due_at,
            command=f"tenuto worker --app MODULE:OBJECT --queues {quote(job.queue)}",
        )


def _describe_dead_process(process: LiveProcess) -> Attention:
    held = ""
    if process.running_count:
        held = f"; its {_count(process.running_count, 'task')} will be recovered when the leases end"
    return _make(
        AttentionCode.PROCESS_DEAD,
        process.id,
        process.name,
        f"{process.service} {process.name} is dead: it sends no heartbeats{held}",
        since=process.seen_at,
        command="tenuto worker list",
    )


_REPAIRS = {
    "lease_expired": "{} recovered from workers that died or lost the database",
    "worker_restarted": "{} recovered when a killed worker was restarted",
    "not_settled": "{} recovered whose end could not be recorded at first",
    "time_limit_not_kept": "{} stopped that a worker did not stop at the time limit",
    "execution_stuck": "{} continued that had stopped between two step groups",
    "step_waiting_for_nothing": "{} released that waited for an ended execution",
    "execution_abandoned": "{} cancelled because the step that started it was gone",
    "steps_waiting_in_a_circle": "{} failed because schedules waited for each other in a circle",
    "dead_letter_missing": "{} written that were missing",
}
_REPAIRED = {"execution_stuck": "execution", "execution_abandoned": "execution", "dead_letter_missing": "dead letter"}


def _find_repairs(facts: AttentionFacts) -> Iterator[Attention]:
    for repair in facts.repairs:
        noun = _REPAIRED.get(repair.repair, "task")
        was = "was" if repair.total_count == 1 else "were"
        text = _REPAIRS.get(repair.repair, "{} repaired: " + repair.repair.replace("_", " "))
        yield _make(
            AttentionCode.REPAIRS_MADE,
            repair.repair,
            repair.repair,
            text.format(f"{_count(repair.total_count, noun)} {was}") + "; this is the total since the installation",
            since=repair.last_at,
            command="tenuto activity list --where 'reason:lost'",
        )


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_ERROR_CHARACTERS else line[: _MAX_ERROR_CHARACTERS - 1] + "…"
