"""The overview: what is running and waiting, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenuto.diagnostics.attention import (
    Attention,
    claims_tasks,
    find_attention,
    find_dead_processes,
    find_late_runs,
    find_unserved_queues,
    list_paused_objects,
)
from tenuto.store.reports.metrics import UnknownJobTasks
from tenuto.store.reports.overview import (
    MAX_NEXT_RUNS,
    FailedOperation,
    FirstSteps,
    LiveProcess,
    NextRun,
    OpenFailure,
    OverviewFacts,
    PausedObject,
    QueueFigures,
    RecentRepair,
    UnresolvedExecution,
)


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue with its load."""

    name: str
    max_running: int | None
    """Limit on the running tasks over all workers."""
    waiting_count: int
    """Due tasks that no worker has claimed."""
    running_count: int
    oldest_due_at: datetime | None
    """When the oldest waiting task became due."""
    in_per_minute: float
    """New tasks per minute."""
    out_per_minute: float
    """Ended attempts per minute."""
    empty_in_seconds: float | None
    """Time until no task waits, at the present rate of ended attempts; None if it is paused or nothing ends."""
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    worker_count: int
    """Live workers that claim tasks of the queue."""
    rate_limit: str | None = None
    """Maximum number of starts, such as ``100/m``."""


@dataclass(frozen=True, slots=True)
class SilentProcess:
    """A dead process: it missed several heartbeats."""

    name: str
    service: str
    silent_seconds: float
    running_count: int
    """Tasks that it holds."""
    recovered_at: datetime | None
    """When its tasks are recovered, unless it sends a heartbeat; None if it holds none."""


@dataclass(frozen=True, slots=True)
class UnservedQueue:
    """A queue with waiting tasks that no live worker claims."""

    name: str
    waiting_count: int
    oldest_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Running and waiting work, and everything that needs attention."""

    read_at: datetime
    running_count: int
    waiting_count: int
    """Due tasks that no worker has claimed."""
    oldest_due_at: datetime | None
    """When the oldest waiting task became due."""
    finished_per_minute: float
    """Ended attempts per minute."""
    failed_last_hour_count: int
    """Attempts that failed or completed with an error."""
    open_dead_letter_count: int
    attention: Sequence[Attention]
    """Everything that needs attention, in sentences; warnings first. The doctor shows the same. The lists below have
    the details."""
    failures: Sequence[OpenFailure]
    """Open dead letters by kind of failure, most frequent first."""
    unresolved_executions: Sequence[UnresolvedExecution]
    """Failed executions after which no execution of their schedule has completed."""
    paused: Sequence[PausedObject]
    """Paused queues, executions and batches, and disabled groups of manifests."""
    silent_processes: Sequence[SilentProcess]
    late_runs: Sequence[NextRun]
    """Schedules and manifests that are due and have not been fired."""
    unserved_queues: Sequence[UnservedQueue]
    """Queues with waiting tasks that no live worker claims."""
    unknown_jobs: Sequence[UnknownJobTasks]
    """Jobs and step kinds with waiting tasks that no live worker of their queue knows."""
    repairs: Sequence[RecentRepair]
    """Repairs of the last day; in normal operation there are none."""
    failed_operations: Sequence[FailedOperation]
    """Bulk operations of the last day that ended with failed items."""
    queues: Sequence[QueueOverview]
    next_runs: Sequence[NextRun]
    first_steps: FirstSteps


def make_overview(facts: OverviewFacts) -> Overview:
    """Return the overview from the facts."""
    known = facts.attention
    claiming = [each for each in known.processes if claims_tasks(each)]
    queues = [_describe_queue(each, facts, claiming) for each in known.queues]
    return Overview(
        read_at=known.read_at,
        running_count=sum(each.running_count for each in queues),
        waiting_count=sum(each.waiting_count for each in queues),
        oldest_due_at=min((each.oldest_due_at for each in queues if each.oldest_due_at is not None), default=None),
        finished_per_minute=sum(each.counts().total for each in facts.last_minute),
        failed_last_hour_count=sum(each.failed + each.errors for each in facts.last_hour),
        open_dead_letter_count=known.failures[0].total_count if known.failures else 0,
        attention=find_attention(known),
        failures=known.failures,
        unresolved_executions=known.unresolved_executions,
        paused=list_paused_objects(known),
        silent_processes=[
            SilentProcess(each.name, each.service, each.silent_seconds, each.running_count, each.recovered_at)
            for each in find_dead_processes(known)
        ],
        late_runs=find_late_runs(known),
        unserved_queues=[
            UnservedQueue(each.name, each.queued_count, each.oldest_due_at) for each in find_unserved_queues(known)
        ],
        unknown_jobs=known.unknown_jobs,
        repairs=known.repairs,
        failed_operations=known.failed_operations,
        queues=queues,
        next_runs=known.next_runs[:MAX_NEXT_RUNS],
        first_steps=facts.first_steps,
    )


def _describe_queue(queue: QueueFigures, facts: OverviewFacts, claiming: Sequence[LiveProcess]) -> QueueOverview:
    ended = sum(each.counts().total for each in facts.last_minute if each.label == queue.name)
    empty_in_seconds = None
    if queue.paused_at is None and queue.queued_count and ended:
        empty_in_seconds = queue.queued_count / ended * 60
    return QueueOverview(
        name=queue.name,
        max_running=queue.max_running,
        waiting_count=queue.queued_count,
        running_count=queue.running_count,
        oldest_due_at=queue.oldest_due_at,
        in_per_minute=_new_tasks_per_minute(queue.name, facts),
        out_per_minute=ended,
        empty_in_seconds=empty_in_seconds,
        paused_at=queue.paused_at,
        paused_by=queue.paused_by,
        pause_reason=queue.reason,
        worker_count=sum(queue.name in each.queues for each in claiming),
        rate_limit=queue.rate_limit,
    )


def _new_tasks_per_minute(queue: str, facts: OverviewFacts) -> float:
    for each in facts.new_tasks:
        if each.queue == queue:
            return each.count / max((facts.attention.read_at - each.since).total_seconds(), 1.0) * 60
    return 0.0
