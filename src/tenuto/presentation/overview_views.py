"""Views of the overview: queues with their load, next runs, and sentences for what needs attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenuto.operations.overview import Overview
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.formatting import count_noun, format_duration, format_relative, one_line


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing that needs attention."""

    state: str
    """State whose symbol and colour fit."""
    text: str
    command: str | None = None
    """Command that shows it or acts on it."""


def _empty_in(queue: Any, _: datetime) -> str | None:
    if queue.paused_at is not None:
        return "paused"
    return None if queue.empty_in_seconds is None else format_duration(queue.empty_in_seconds)


QUEUE_LOAD = ResourceView(
    "queues with tasks or settings",
    (
        Column("queue", "name", flexible=True),
        Column("waiting", "waiting_count", "count"),
        Column(
            "running",
            "running_count",
            "count",
            text=lambda queue, _: f"{queue.running_count:,}" + (f"/{queue.max_running:,}" if queue.max_running else ""),
        ),
        Column("oldest", "oldest_due_at", "age", drop=3),
        Column("in/min", "in_per_minute", "number", text=lambda queue, _: f"{queue.in_per_minute:,.0f}", drop=2),
        Column("out/min", "out_per_minute", "number", text=lambda queue, _: f"{queue.out_per_minute:,.0f}", drop=2),
        Column("empty in", "empty_in_seconds", "duration", text=_empty_in),
        Column("workers", "worker_count", "count", drop=1),
    ),
    next_page={},
)

NEXT_RUNS = ResourceView(
    "runs",
    (
        Column("due", "due_at", "instant"),
        Column("in", "due_at", "age", drop=1),
        Column("kind", "kind", drop=2),
        Column("name", "name", flexible=True),
    ),
    next_page={},
)


def describe_attention(overview: Overview) -> list[Attention]:
    """Return what needs attention, in sentences."""
    return [
        *_describe_failures(overview),
        *_describe_operations(overview),
        *_describe_pauses(overview),
        *_describe_missing_services(overview),
    ]


def _describe_failures(overview: Overview) -> Iterator[Attention]:
    now = overview.read_at
    for failure in overview.failures:
        names, count = (
            (failure.external_ids, failure.manifest_count)
            if failure.manifest_count
            else (failure.names, failure.job_count)
        )
        concerned = ", ".join(names) + (" …" if count > len(names) else "")
        yield Attention(
            "awaiting_intervention",
            f"{count_noun(failure.dead_letter_count, 'dead letter')}: {one_line(failure.reason, 120)} · {concerned},"
            f" last {format_relative(failure.last_at, now)}",
            f"tenuto dead-letter list --fingerprint {failure.fingerprint}",
        )
    for run in overview.unresolved_executions:
        running = "" if run.running_id is None else "; another execution is in progress"
        yield Attention(
            "failed",
            f"{run.schedule_name} failed in group {run.current_group + 1} of {run.group_count}"
            f" {format_relative(run.ended_at, now)}: {one_line(run.error or 'no reason recorded', 160)}{running}",
            f"tenuto execution show {run.id}",
        )


def _describe_operations(overview: Overview) -> Iterator[Attention]:
    for operation in overview.failed_operations:
        yield Attention(
            "some_failed",
            f"{operation.failed_count:,} of {operation.total_count:,} items of the bulk operation {operation.kind}"
            f" failed {format_relative(operation.ended_at, overview.read_at)}: {one_line(operation.description, 120)}",
            f"tenuto operation show {operation.id}",
        )


_RESUME_COMMANDS = {
    "queue": "tenuto queue resume {}",
    "execution": "tenuto execution resume {}",
    "batch": "tenuto batch resume {}",
    "manifest_group": "tenuto manifest group {} --enable",
}


def _describe_pauses(overview: Overview) -> Iterator[Attention]:
    waiting = {queue.name: queue.waiting_count for queue in overview.queues}
    for paused in overview.paused:
        kind = paused.kind.replace("_", " ")
        verb = "disabled" if paused.kind == "manifest_group" else "paused"
        text = f"{kind} {paused.name} was {verb} by {paused.paused_by or 'unknown'}"
        text += f" {format_relative(paused.paused_at, overview.read_at)}" + (
            f": {paused.reason}" if paused.reason else ""
        )
        if paused.kind == "queue" and waiting.get(paused.name):
            text += f" · {waiting[paused.name]:,} waiting"
        yield Attention("paused", one_line(text, 240), _RESUME_COMMANDS[paused.kind].format(paused.id))


def _describe_missing_services(overview: Overview) -> Iterator[Attention]:
    now = overview.read_at
    for process in overview.silent_processes:
        text = f"{process.service} {process.name}: dead, last seen {format_duration(process.silent_seconds)} ago"
        if process.running_count and process.recovered_at is not None:
            when = format_relative(process.recovered_at, now) if process.recovered_at > now else "now"
            text += f"; its {count_noun(process.running_count, 'task')} will be recovered {when}"
        yield Attention("dead", text, "tenuto worker list")
    for run in overview.late_runs:
        text = f"{run.kind} {run.name} was due {format_relative(run.due_at, now)} and has not been fired"
        yield Attention("missed", text, "tenuto scheduler")
    for queue in overview.unserved_queues:
        text = f"no live worker serves queue {queue.name}: {count_noun(queue.waiting_count, 'task')} waiting"
        yield Attention("stale", text, f"tenuto worker --queues {queue.name}")
    for job in overview.unknown_jobs:
        kind = "job" if job.kind == "job" else "step kind"
        text = (
            f"no live worker of queue {job.queue} knows {kind} {job.name}: {count_noun(job.task_count, 'task')} waiting"
        )
        yield Attention("stale", text, f"tenuto worker --app MODULE:OBJECT --queues {job.queue}")
    for repair in overview.repairs:
        text = f"repaired {format_relative(repair.last_at, now)}: {repair.repair} ({repair.total_count:,} in total)"
        yield Attention("warning", text, "tenuto doctor")
