"""Parts of the output about one task: facts, attempts on a common time line, logs, and the reasons why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tenuto.cli.formatting import (
    format_duration,
    format_local_time,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.cli.output import Record, compact_json, fitted_table, state_colour, styled_state

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.diagnostics.task_diagnosis import Diagnosis, Reason

_BAR_WIDTH = 24
_LOG_TAIL_LINES = 8
_REASONS_SHOWN_ELSEWHERE = ("ended", "running")


def reason_documents(why: Diagnosis) -> list[Record]:
    """Return the reasons for JSON output, with the same fields as the HTTP API."""
    return [
        {
            "code": reason.code,
            "message": reason.message,
            "ids": reason.ids,
            "ends_at": reason.ends_at,
            "task_id": reason.task_id,
            "step": reason.step,
        }
        for reason in why.reasons
    ]


def reasons_section(why: Diagnosis, now: datetime) -> list[RenderableType]:
    """Return the reasons with a title; nothing if the state of the task already says it."""
    if all(reason.code in _REASONS_SHOWN_ELSEWHERE for reason in why.reasons):
        return []
    title = "why it does not continue" if any(reason.step for reason in why.reasons) else "why it is not running"
    return [Text(""), Text(title, style="bold"), *reason_lines(why, now)]


def reason_lines(why: Diagnosis, now: datetime) -> list[RenderableType]:
    """Return a line for each reason and below it the related ids."""
    lines: list[RenderableType] = []
    for reason in why.reasons:
        step = f"{safe_text(reason.step)}: " if reason.step else ""
        lines.append(Text(f"  • {step}{one_line(reason.message, 500)}{_local_end(reason, now)}"))
        lines += [Text(f"      {id}", style="dim") for id in reason.ids if str(id) not in reason.message]
    return lines


def _local_end(reason: Reason, now: datetime) -> str:
    if reason.ends_at is None:
        return ""
    return f" (local time {format_local_time(reason.ends_at)}, {format_relative(reason.ends_at, now)})"


def task_facts(record: Record, now: datetime) -> list[tuple[str, Any]]:
    """Return the facts that do not change between attempts."""
    priority = f", priority {record['priority']}" if record["priority"] else ""
    initiator = f"{safe_text(record['initiator_name'])} ({record['initiator_type'].replace('_', ' ')})"
    limit = record.get("limit_key")
    if limit is not None and record.get("limit_max"):
        limit = f"at most {record['limit_max']} of {limit}"
    return [
        ("queue", f"{record['queue']}{priority}"),
        ("created", format_with_age(record["created_at"], now, by=initiator)),
        ("tags", ", ".join(record.get("tags") or [])),
        ("key", record.get("unique_key")),
        ("limit", limit),
        ("correlation", record.get("correlation_id")),
        ("parent", record.get("parent_id")),
        ("input", compact_json(record.get("input"))),
        ("output", compact_json(record.get("output"))),
    ]


def open_task_facts(task: Record, now: datetime) -> list[tuple[str, Any]]:
    """Return the current facts of an open task."""
    cancelled = None
    if task["cancel_at"] is not None:
        cancelled = f"{format_relative(task['cancel_at'], now)} by {task['cancel_name']}; stopping"
    return [
        ("due", format_with_age(task["run_at"], now) if task["state"] == "scheduled" else None),
        ("worker", task["worker"] or task["worker_id"]),
        ("lease ends", format_relative(task["lease_until"], now)),
        ("cancelled", cancelled),
        ("progress", progress_text(task["progress"])),
    ]


def attempt_table(records: Sequence[Record], now: datetime) -> RenderableType:
    """Return a row for each attempt, with a bar that shows when it waited and when it ran."""
    rows = [
        (
            record["attempt"],
            styled_state(record["state"]),
            (record["reason"] or "").replace("_", " "),
            *_wait_and_duration(record, now),
            record["worker"] or record["worker_id"],
            bar,
            error_summary(record["error"]),
        )
        for record, bar in zip(records, _timeline_bars(records, now), strict=True)
    ]
    return fitted_table(
        ("attempt", "status", "reason", "waited", "ran", "worker", "timeline", "error"),
        rows,
        optional=("worker", "timeline") if len(records) > 1 else ("worker",),
        flexible=("error",),
    )


def chain_step_table(steps: Sequence[Record], now: datetime) -> list[RenderableType]:
    """Return the results of a chain's steps; nothing for other tasks."""
    if not steps:
        return []
    rows = [(step["name"], format_local_time(step["ended_at"]), _step_result(step, now)) for step in steps]
    return ["", fitted_table(("step", "ended", "result"), rows, optional=("ended",), flexible=("result",))]


def _step_result(step: Record, now: datetime) -> str | None:
    if step["sleep_ends_at"] is not None:
        return f"until {format_with_age(step['sleep_ends_at'], now)}"
    return f"stopped with {compact_json(step['output'])}" if step["stopped"] else compact_json(step["output"])


def log_section(record: Record, *, whole: bool) -> list[RenderableType]:
    """Return the log of an attempt, or its last lines."""
    if not record.get("log"):
        return []
    lines = safe_text(record["log"]).rstrip("\n").split("\n")
    shown = lines if whole else lines[-_LOG_TAIL_LINES:]
    title = f"log of attempt {record['attempt']}"
    if len(shown) < len(lines):
        title += f" (last {len(shown)} of {len(lines)} lines; --log shows all)"
    return [Text(""), Text(title, style="bold"), Text("\n".join(f"  {line}" for line in shown))]


def stack_section(record: Record) -> list[RenderableType]:
    stack = (record.get("error") or {}).get("stack")
    if not stack:
        return []
    lines = safe_text(stack).rstrip("\n").split("\n")
    title = Text(f"error of attempt {record['attempt']}", style="bold")
    return [Text(""), title, Text("\n".join(f"  {line}" for line in lines), style="red")]


def error_summary(error: Record | None) -> str | None:
    """Return an error as one line."""
    return None if error is None else one_line(f"{error.get('type', 'error')}: {error.get('message', '')}")


def run_duration(attempt: Record) -> str:
    """Return how long an ended attempt ran."""
    started, ended = attempt["started_at"], attempt["ended_at"]
    return format_duration(ended - started) if started and ended else ""


def progress_text(value: Record | None) -> str | None:
    """Return the reported progress as one line."""
    if value is None:
        return None
    parts = []
    if value.get("done") is not None:
        parts.append(f"{value['done']}/{value['total']}" if value.get("total") else f"{value['done']}")
    if value.get("message"):
        parts.append(str(value["message"]))
    return one_line(" ".join(parts) or compact_json(value))


def _wait_and_duration(record: Record, now: datetime) -> tuple[str, str]:
    started, ended = record["started_at"], record["ended_at"]
    wait_end = started or ended or now
    waited = format_duration(wait_end - record["run_at"]) if record["run_at"] <= wait_end else ""
    if started is None:
        return waited, ""
    return waited, format_duration(ended - started) if ended else f"{format_duration(now - started)} so far"


def _timeline_bars(records: Sequence[Record], now: datetime) -> list[Text]:
    """Return a bar for each attempt on one scale, from the creation of the task to its end or the current time."""
    start = records[0]["created_at"]
    end = max(max(record["ended_at"] or now, record["started_at"] or start) for record in records)
    total_seconds = max((end - start).total_seconds(), 1e-6)

    def position(instant: datetime) -> int:
        return min(max(int((instant - start).total_seconds() / total_seconds * _BAR_WIDTH), 0), _BAR_WIDTH - 1)

    bars = []
    for record in records:
        due = position(min(record["run_at"], end))
        if record["started_at"] is None:
            bars.append(Text(" " * due + "·" * (_BAR_WIDTH - due), style="dim"))
            continue
        first, last = position(record["started_at"]), position(record["ended_at"] or now)
        bar = Text(" " * min(due, first))
        bar.append("·" * (first - due), style="dim")
        bar.append("━" * (last - first + 1), style=state_colour(record["state"]))
        bars.append(bar)
    return bars
