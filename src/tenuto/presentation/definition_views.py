"""Views of definitions: schedules, their ledger, manifests, groups, polls, plans of definition files, simulations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tenuto.model.definitions.blocking_reasons import Obstacle, describe_obstacle
from tenuto.model.definitions.manifests import Manifest, manifest_from_fields
from tenuto.model.definitions.policies import RetryPolicy
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.text_formats import count_noun, format_duration, format_relative, one_line

ALL_MANIFESTS = "*"
_OPEN_COUNT_LIMIT = 10_001
"""The list counts open tasks up to this number."""

# --- schedules --------------------------------------------------------------------------------------------------------


def _next_schedule_run(row: Any, now: datetime) -> str:
    if not row.enabled:
        return "none"
    if row.trigger.get("kind") == "manual":
        return "manual"
    if row.next_run_at is None:
        return "no further run" if row.planned else "being planned"
    return "due" if row.next_run_at <= now else format_relative(row.next_run_at, now)


def describe_obstacles(obstacles: Sequence[Obstacle]) -> str | None:
    """Describe why a definition does not run on its own; None if it does."""
    return "; ".join(map(describe_obstacle, obstacles)) or None


def _describe_obstacles(row: Any, _: datetime) -> str | None:
    return describe_obstacles(row.obstacles)


def _next_run_time(row: Any, _: datetime) -> str | None:
    if row.next_run_at is None or not row.enabled:
        return None
    return str(row.next_run_at.astimezone().strftime("%a %d %b %H:%M %Z"))


def _last_run(row: Any, _: datetime) -> str:
    place = f"{(row.last_group or 0) + 1} of {row.last_group_count}"
    match row.last_state:
        case None:
            return "never ran"
        case "in_progress":
            return f"running {place}"
        case "completed":
            failed = row.last_failed_step_count
            return f"completed, {count_noun(failed, 'step')} failed" if failed else "completed"
        case state:
            return f"{state} at {place}"


SCHEDULES = ResourceView(
    "schedules",
    (
        Column("name", "name", flexible=True),
        Column("state", "enabled", "switch"),
        Column("when", "when", under="name", flexible=True),
        Column("next run", "next_run_at", text=_next_schedule_run),
        Column("at", "next_run_at", text=_next_run_time, under="next run"),
        Column("stopped", "obstacles", "json", text=_describe_obstacles, under="name", label="▲ {}", flexible=True),
        Column("last run", "last_state", "state", text=_last_run),
        Column("ended", lambda row: row.last_ended_at or row.last_started_at, "age", under="last run"),
    ),
    next_page={"after": "name"},
)


def _decision_reason(row: Any) -> str | None:
    if row.origin == "manual":
        return f"manual run: {row.reason}" if row.reason else "manual run"
    if row.origin == "backfill":
        return "backfill"
    return row.reason or None


LEDGER = ResourceView(
    "occurrences",
    (
        Column("due", "due_at", "instant"),
        Column("until", "last_due_at", "instant", under="due", label="up to {}"),
        Column("schedule", "schedule_name", under="execution"),
        Column("decision", "decision", "state", flexible=True),
        Column("reason", _decision_reason, under="decision", flexible=True),
        Column("decided", "decided_at", "instant", drop=1),
        Column("by", "decided_by", under="execution", label="by {}"),
        Column("execution", "execution_id", "id"),
    ),
    next_page={"before": "due_at", "below": "id"},
)

# --- manifests --------------------------------------------------------------------------------------------------------


def _manifest_of(row: Any) -> Manifest:
    return manifest_from_fields(row.definition)


def _next_manifest_run(row: Any, now: datetime) -> str:
    manifest = _manifest_of(row)
    if manifest.on_demand:
        return "on demand"
    if not row.enabled:
        return "none"
    if row.next_run_at is not None:
        return "due" if row.next_run_at <= now else format_relative(row.next_run_at, now)
    if manifest.depends_on is not None:
        return f"after {one_line(manifest.depends_on, 24)}"
    return "manual" if manifest.trigger.kind == "manual" else "no further run"


def _open_count(row: Any, _: datetime) -> str:
    return "over 10,000" if row.open_task_count >= _OPEN_COUNT_LIMIT else f"{row.open_task_count:,}"


MANIFESTS = ResourceView(
    "manifests",
    (
        Column("external id", "external_id", flexible=True),
        Column("when", "when", under="external id", flexible=True),
        Column("job", "job", drop=1),
        Column("state", "enabled", "switch"),
        Column("open", "open_task_count", "count", text=_open_count, under="state", label="{} open"),
        Column("next run", "next_run_at", text=_next_manifest_run),
        Column(
            "last success",
            "last_successful_run_at",
            text=lambda row, now: format_relative(row.last_successful_run_at, now) or "never",
        ),
        Column(
            "stopped", "obstacles", "json", text=_describe_obstacles, under="external id", label="▲ {}", flexible=True
        ),
        Column("group", "group", under="next run", label="in {}"),
        Column("dead letters", "has_dead_letters", "flag", under="last success", label="✉ dead letters"),
    ),
    next_page={"after": "external_id"},
)

GROUPS = ResourceView(
    "groups",
    (
        Column(
            "group",
            "name",
            text=lambda row, _: "* (all manifests)" if row.name == ALL_MANIFESTS else row.name,
            flexible=True,
        ),
        Column("state", "enabled", "switch"),
        Column("active", "active_count", "count"),
        Column("limit", "max_active", text=lambda row, _: "none" if row.max_active is None else row.max_active),
        Column("priority", "priority", "number"),
        Column("manifests", "manifest_count", "count", drop=1),
        Column("changed", "changed_at", "age", drop=2),
        Column("by", "changed_by", drop=2),
    ),
    hint="add a manifest to one: tenuto manifest edit EXTERNAL_ID --group NAME",
    next_page={},
)


def _describe_skipped(poll: Any, _: datetime) -> str:
    return poll.error or "; ".join(
        f"{', '.join(summary.external_ids)}{' …' if summary.count > len(summary.external_ids) else ''}: {reason}"
        for reason, summary in poll.skipped.items()
    )


POLLS = ResourceView(
    "polls",
    (
        Column("when", "at", "age"),
        Column("enqueued", "enqueued_count", "count"),
        Column("dead-lettered", "dead_lettered_count", "count"),
        Column("timed out", "timed_out_count", "count", drop=1),
        Column("took", "duration_seconds", "duration", drop=3),
        Column("by", "by", drop=2),
        Column("skipped", "skipped", "json", text=_describe_skipped, flexible=True),
    ),
    hint="a scheduler makes them, for example: tenuto up; --all lists those without work",
)


def describe_attempt_progress(run: Any, now: datetime) -> str:
    """Describe an open run: ``attempt 3 of 5, next in 40 s``."""
    attempt = f"attempt {run.failures + 1} of {run.policy.get('max_attempts', RetryPolicy().max_attempts)}"
    match run.state:
        case "running":
            return f"{attempt}, running for {format_duration(now - run.claimed_at)}"
        case "scheduled":
            label = "next" if run.failures or run.losses else "due"
            return f"{attempt}, {label} {format_relative(run.run_at, now)}"
        case "waiting":
            return f"{attempt}, held back"
        case _:
            return f"{attempt}, waiting for {format_duration(now - run.run_at)}"


OPEN_RUNS = ResourceView(
    "open runs",
    (
        Column("progress", "state", "state", text=describe_attempt_progress),
        Column("item", "item_key", drop=1, flexible=True),
        Column("task", "id", "id"),
    ),
)

# --- plans and simulations --------------------------------------------------------------------------------------------

PLAN_CHANGES = ResourceView(
    "changes",
    (
        Column("list", "list"),
        Column("name", "name"),
        Column("effect", "effect", "state"),
        Column("file", "file"),
        Column("path", "path"),
        Column("changes", "changes", "json", flexible=True),
    ),
)

_DURATION_NOTES = {"history": "", "given": "(given)", "assumed": "(assumed)"}


def _nonzero(name: str) -> Any:
    return lambda total, _: f"{getattr(total, name):,}" if getattr(total, name) else ""


SIMULATED_SCHEDULES = ResourceView(
    "schedules",
    (
        Column("schedule", "schedule", flexible=True),
        Column("due", "due", "count"),
        Column("fired", "fired", "count", text=_nonzero("fired")),
        Column("waited", "waited", "count", text=_nonzero("waited")),
        Column("skipped", "skipped", "count", text=_nonzero("skipped")),
        Column("coalesced", "coalesced", "count", text=_nonzero("coalesced"), drop=2),
        Column("missed", "missed", "count", text=_nonzero("missed"), drop=3),
        Column("cut", "cut", "count", text=_nonzero("cut"), drop=4),
        Column(
            "takes",
            "seconds",
            "duration",
            text=lambda total, _: f"{format_duration(total.seconds)} {_DURATION_NOTES[total.duration_is]}".strip(),
        ),
        Column("busy", lambda total: total.busy_seconds or None, "duration", drop=1),
    ),
)
