"""Parts of the output about one task: facts, attempts on a common time line, logs, and the reasons why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tenuto.cli.tables import render_table, section_title
from tenuto.diagnostics.reasons import Diagnosis, Reason
from tenuto.model.definitions.policies import LAST_CHANCE_KEY
from tenuto.presentation.state_symbols import state_colour
from tenuto.presentation.text_formats import (
    compact_json,
    format_local_time,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.presentation.work_views import CHAIN_STEPS, TASK_ATTEMPTS, progress_text, show_steps
from tenuto.store.work.activities import ActivityDetails, TaskDetails
from tenuto.store.work.step_checkpoints import ChainStepRecord

_BAR_WIDTH = 24
_LOG_TAIL_LINES = 8
_REASONS_SHOWN_ELSEWHERE = ("ended", "running")


def reasons_section(why: Diagnosis, now: datetime) -> list[RenderableType]:
    """Return the reasons with a title; nothing if the state of the task already says it."""
    if all(reason.code in _REASONS_SHOWN_ELSEWHERE and reason.ends_at is None for reason in why.reasons):
        return []
    title = "why it does not continue" if any(reason.step for reason in why.reasons) else "why it is not running"
    return [*section_title(title), *reason_lines(why, now)]


def reason_lines(why: Diagnosis, now: datetime) -> list[RenderableType]:
    """Return a line for each reason, and below it the command that helps and the related ids."""
    lines: list[RenderableType] = []
    for reason in why.reasons:
        step = f"{safe_text(reason.step)}: " if reason.step else ""
        lines.append(Text(f"  • {step}{one_line(reason.message, 500)}{_local_end(reason, now)}"))
        if reason.command is not None:
            lines.append(Text(f"      try: {safe_text(reason.command)}", style="dim"))
        named = f"{reason.message} {reason.command}"
        lines += [Text(f"      {_describe_id(reason)} {id}", style="dim") for id in reason.ids if str(id) not in named]
    return lines


_ID_NOUNS = {
    "no_worker": "worker",
    "unknown_job": "worker",
    "no_capacity": "worker",
    "slots_busy": "worker",
    "no_scheduler": "scheduler",
    "waits_for_execution": "execution",
    "execution_paused": "execution",
    "overlap": "execution",
    "run_queued": "execution",
    "batch_paused": "batch",
    "dead_letter": "dead letter",
    "ended": "activity",
}


def _describe_id(reason: Reason) -> str:
    """Return what the ids of a reason identify."""
    return _ID_NOUNS.get(reason.code, "task")


def _local_end(reason: Reason, now: datetime) -> str:
    if reason.ends_at is None:
        return ""
    local = format_local_time(reason.ends_at)
    relative = format_relative(reason.ends_at, now)
    return f" ({relative})" if local.endswith(" UTC") else f" (local time {local}, {relative})"


def task_facts(record: TaskDetails | ActivityDetails, now: datetime) -> list[tuple[str, Any]]:
    """Return the facts that do not change between attempts."""
    priority = f", priority {record.priority}" if record.priority else ""
    initiator = f"{safe_text(record.initiator_name)} ({record.initiator_type.replace('_', ' ')})"
    limit = record.limit_key
    if limit == LAST_CHANCE_KEY:
        limit = "last attempt: it runs alone, because its worker died twice"
    elif limit is not None and isinstance(record, TaskDetails) and record.limit_max:
        limit = f"at most {record.limit_max} of {limit}"
    return [
        ("queue", f"{record.queue}{priority}"),
        ("created", format_with_age(record.created_at, now, by=initiator)),
        ("tags", ", ".join(record.tags or [])),
        ("key", record.unique_key),
        ("limit", limit),
        ("correlation", record.correlation_id),
        ("parent", record.parent_id),
        ("input", compact_json(record.input)),
        ("output", compact_json(record.output) if isinstance(record, ActivityDetails) else None),
    ]


def open_task_facts(task: TaskDetails, now: datetime) -> list[tuple[str, Any]]:
    """Return the current facts of an open task."""
    cancelled = None
    if task.cancel_at is not None:
        cancelled = f"{format_relative(task.cancel_at, now)} by {task.cancel_name}; stopping"
    return [
        ("due", format_with_age(task.run_at, now) if task.state == "scheduled" else None),
        ("worker", task.worker or task.worker_id),
        ("lease ends", format_relative(task.lease_until, now)),
        ("cancelled", cancelled),
        ("progress", progress_text(task.progress)),
    ]


def attempt_table(attempts: Sequence[ActivityDetails], now: datetime) -> RenderableType:
    """Return a row for each attempt, with a bar that shows when it waited and when it ran."""
    return render_table(TASK_ATTEMPTS, attempts, now, {"timeline": _timeline_bars(attempts, now)})


def chain_step_table(steps: Sequence[ChainStepRecord], now: datetime) -> list[RenderableType]:
    """Return the stored calls of a chain or workflow; nothing for other tasks."""
    return ["", render_table(CHAIN_STEPS, show_steps(steps), now)] if steps else []


def log_section(record: ActivityDetails, *, whole: bool) -> list[RenderableType]:
    """Return the log of an attempt, or its last lines."""
    if not record.log:
        return []
    lines = safe_text(record.log).rstrip("\n").split("\n")
    shown = lines if whole else lines[-_LOG_TAIL_LINES:]
    title = f"log of attempt {record.attempt}"
    if len(shown) < len(lines):
        title += f" (last {len(shown)} of {len(lines)} lines; --log shows all)"
    return [*section_title(title), Text("\n".join(f"  {line}" for line in shown))]


def stack_section(record: ActivityDetails) -> list[RenderableType]:
    stack = (record.error or {}).get("stack")
    if not stack:
        return []
    lines = safe_text(stack).rstrip("\n").split("\n")
    return [
        *section_title(f"error of attempt {record.attempt}"),
        Text("\n".join(f"  {line}" for line in lines), style="red"),
    ]


def _timeline_bars(records: Sequence[ActivityDetails], now: datetime) -> list[Text]:
    """Return a bar for each attempt on one scale, from the creation of the task to its end or the current time."""
    start = records[0].created_at
    end = max(max(record.ended_at or now, record.started_at or start) for record in records)
    total_seconds = max((end - start).total_seconds(), 1e-6)

    def position(instant: datetime) -> int:
        return min(max(int((instant - start).total_seconds() / total_seconds * _BAR_WIDTH), 0), _BAR_WIDTH - 1)

    bars = []
    for record in records:
        due = position(min(record.run_at, end))
        if record.started_at is None:
            bars.append(Text(" " * due + "·" * (_BAR_WIDTH - due), style="dim"))
            continue
        first, last = position(record.started_at), position(record.ended_at or now)
        bar = Text(" " * min(due, first))
        bar.append("·" * (first - due), style="dim")
        bar.append("━" * (last - first + 1), style=state_colour(record.state))
        bars.append(bar)
    return bars
