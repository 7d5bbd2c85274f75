"""Views of work: tasks, activities, executions and their steps, batches, dead letters, one-shots, queues, workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tenuto.model.work.step_positions import tree_of_steps
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.text_formats import (
    compact_json,
    error_summary,
    format_duration,
    format_local_time,
    format_relative,
    format_with_age,
    one_line,
)

_OUTCOME_NAMES = {"in_progress": "running", "failed": "failed at", "cancelled": "cancelled at"}


def run_duration(attempt: Any) -> timedelta | None:
    """Return how long an ended attempt ran."""
    started, ended = attempt.started_at, attempt.ended_at
    return ended - started if started and ended else None


def progress_text(progress: Mapping[str, Any] | None) -> str | None:
    """Return the reported progress as one line."""
    if progress is None:
        return None
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    count = [f"{done}/{total}"] if total else [f"{done}"] if done or (done is not None and not message) else []
    return one_line(" ".join([*count, *([str(message)] if message else [])]) or compact_json(progress))


def _attempt_number(attempt: Any, _: datetime) -> str:
    return f"{attempt.attempt}{'' if attempt.final else ' ↻'}"


# --- tasks and activities -------------------------------------------------------------------------------------------


def _task_time(task: Any, now: datetime) -> str:
    match task.state:
        case "running":
            stopping = ", stopping" if task.cancel_at else ""
            return f"running for {format_duration(now - task.claimed_at)}{stopping}"
        case "queued":
            return f"queued for {format_duration(now - task.run_at)}"
        case "scheduled":
            return f"due {format_relative(task.run_at, now)}"
        case _:
            return f"created {format_relative(task.created_at, now)}"


TASKS = ResourceView(
    "open tasks",
    (
        Column("id", "id", "id", under="name"),
        Column("state", "state", "state"),
        Column("name", "name", flexible=True),
        Column("queue", "queue", drop=2),
        Column("attempt", "attempt", "number", under="queue", label="attempt {}"),
        Column("when", "run_at", "instant", text=_task_time),
        Column("worker", "worker", under="when", label="by {}"),
    ),
    hint="list ended ones with: tenuto activity list",
)

ACTIVITIES = ResourceView(
    "activities",
    (
        Column("id", "id", "id", under="name"),
        Column("state", "state", "state"),
        Column("name", "name", flexible=True),
        Column("attempt", "attempt", "number", text=_attempt_number, under="state", label="attempt {}"),
        Column("ended", "ended_at", "age", drop=1),
        Column("ran", run_duration, "duration", under="ended", label="ran {}"),
        Column("worker", "worker", under="state", label="by {}"),
        Column("error", "error", "error", flexible=True, drop=2),
    ),
)

ATTEMPTS = ResourceView(
    "attempts",
    (
        Column("state", "state", "state"),
        Column("attempt", "attempt", "number", text=_attempt_number),
        Column("ended", "ended_at", "age"),
        Column("ran", run_duration, "duration", drop=1),
        Column("error", "error", "error", flexible=True),
    ),
)


def wait_text(attempt: Any, now: datetime) -> str:
    wait_end = attempt.started_at or attempt.ended_at or now
    return format_duration(wait_end - attempt.run_at) if attempt.run_at <= wait_end else ""


def _run_text(attempt: Any, now: datetime) -> str:
    if attempt.started_at is None:
        return ""
    duration = format_duration((attempt.ended_at or now) - attempt.started_at)
    return duration if attempt.ended_at else f"{duration} so far"


TASK_ATTEMPTS = (
    Column("attempt", "attempt", "number"),
    Column("state", "state", "state"),
    Column("reason", lambda attempt: (attempt.reason or "").replace("_", " ")),
    Column("waited", "run_at", "duration", text=wait_text),
    Column("ran", run_duration, "duration", text=_run_text),
    Column("worker", lambda attempt: attempt.worker or attempt.worker_id, drop=2),
    Column("timeline", "started_at", drop=1),
    Column("error", "error", "error", flexible=True),
)


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A stored call of a chain or workflow in the tree of all."""

    depth: int
    title: str
    step: Any

    @property
    def name(self) -> str:
        """The title, marked by the branches that the call is in."""
        return f"{'└' * self.depth} {self.title}" if self.depth else self.title


def show_steps(steps: Sequence[Any]) -> list[ShownStep]:
    """Return the stored calls of a task as a tree."""
    tree = tree_of_steps([step.name for step in steps])
    return [ShownStep(depth, title, step) for (depth, title), step in zip(tree, steps, strict=True)]


def _chain_step_result(shown: ShownStep, now: datetime) -> str | None:
    step = shown.step
    if step.sleep_ends_at is not None:
        return f"until {format_with_age(step.sleep_ends_at, now)}"
    if step.ended_at is None:
        return "waits" if step.child_id is None else f"waits for task {step.child_id}"
    if step.failed:
        return f"failed: {compact_json(step.output)}" if step.output is not None else "timed out"
    return f"stopped with {compact_json(step.output)}" if step.stopped else compact_json(step.output)


CHAIN_STEPS = (
    Column("step", "name"),
    Column("ended", lambda shown: shown.step.ended_at, "instant", drop=1),
    Column("result", lambda shown: shown.step.output, text=_chain_step_result, flexible=True),
)

# --- executions -----------------------------------------------------------------------------------------------------


def execution_display_state(execution: Any) -> str:
    """Return the stored state, or ``paused`` or ``stopping``, which the stored state does not distinguish."""
    if execution.state == "cancelled" and execution.ended_at is None:
        return "stopping"
    if execution.state == "in_progress" and execution.paused_at is not None:
        return "paused"
    return str(execution.state)


def execution_outcome(execution: Any) -> str | None:
    """Return the error, the operator who cancelled or paused the execution, or the number of failed steps."""
    if execution.error:
        return str(execution.error)
    if execution.cancelled_at is not None:
        reason = getattr(execution, "cancel_reason", None)  # only in the details
        return f"cancelled by {execution.cancel_name}{f': {reason}' if reason else ''}"
    if execution.failed_step_count:
        return f"{execution.failed_step_count} of {execution.step_count} steps failed"
    if execution.paused_at is not None and execution.ended_at is None:
        return f"paused by {execution.paused_by}"
    return None


def _execution_duration(execution: Any, now: datetime) -> str:
    return format_duration((execution.ended_at or now) - execution.started_at)


EXECUTIONS = ResourceView(
    "executions",
    (
        Column("id", "id", "id", under="schedule"),
        Column("state", execution_display_state, "state", flexible=True),
        Column("schedule", "schedule_name", flexible=True),
        Column(
            "group",
            lambda execution: execution.current_group + 1,
            text=lambda execution, _: f"{execution.current_group + 1} of {execution.group_count}",
            under="state",
            label="group {}",
        ),
        Column("started", "started_at", "age", drop=1),
        Column("duration", run_duration, "duration", text=_execution_duration, under="started", label="for {}"),
        Column("by", "initiator_name", under="started", label="by {}"),
        Column("outcome", execution_outcome, under="state", flexible=True),
    ),
)


def step_error(step: Any) -> Any:
    """Return the last error of a step. A step that was not run repeats the error of the failed step, and one that was
    skipped has none."""
    return None if step.reason == "not_run" or step.state == "skipped" else step.last_error


def describe_dependencies(step: Any) -> str | None:
    """Describe what a step takes from earlier ones: the steps that it needs, its condition and its values."""
    parts = [f"needs {', '.join(step.needs)}"] if step.needs else []
    if step.when is not None:
        parts.append(f"if {step.when}")
    parts += [f"{each.argument} from {each.source}" for each in step.values]
    return "; ".join(parts) or None


STEPS = ResourceView(
    "steps",
    (
        Column("group", lambda step: step.group + 1, "number"),
        Column("step", "name", flexible=True),
        Column("state", "state", "state"),
        Column("attempt", lambda step: step.attempt or None, "number", under="state", label="attempt {}"),
        Column("waited", "wait_seconds", "duration", under="ran", label="waited {}"),
        Column("ran", "duration_seconds", "duration"),
        Column("worker", "worker", under="state", label="by {}"),
        Column("activity", "activity_id", "id", under="step"),
        Column("depends", describe_dependencies, under="step", flexible=True),
        Column("error", lambda step: step_error(step) and step_error(step).message, "error", flexible=True, drop=1),
    ),
    next_page={},
)

# --- batches and dead letters -----------------------------------------------------------------------------------------


def batch_display_state(batch: Any) -> str:
    if batch.cancelled_at is not None:
        return "cancelled"
    if batch.paused_at is not None:
        return "paused"
    if batch.complete_at is None:
        return "filling"
    if batch.open_count:
        return "in_progress"
    return "some_failed" if batch.failed_count else "completed"


def batch_key(batch: Any) -> str | None:
    """Return the key of a batch unless `tenuto batch submit` generated it."""
    return None if (batch.key or "").startswith("cli-") else batch.key


BATCHES = ResourceView(
    "batches",
    (
        Column("id", "id", "id", under="manifest"),
        Column("manifest", "external_id", flexible=True),
        Column("name", "name", under="manifest"),
        Column("key", batch_key, under="manifest"),
        Column("state", batch_display_state, "state"),
        Column("items", "item_count", "count"),
        Column("open", "open_count", "count", under="items", label="{} open"),
        Column("failed", "failed_count", "count", under="state", label="{} failed"),
        Column("created", "created_at", "age"),
        Column("by", "initiator_name", under="created", label="by {}"),
    ),
    hint="create one with: tenuto batch submit --help",
)

BATCH_ITEMS = ResourceView(
    "items",
    (
        Column("key", "item_key", flexible=True),
        Column("state", "state", "state"),
        Column("reason", "reason", drop=4),
        Column("attempt", "attempt", "number", drop=1),
        Column("started at", "started_at", "instant", drop=6),
        Column("ended at", "ended_at", "instant", drop=5),
        Column("input", "input", "json", flexible=True),
        Column("output", "output", "json", flexible=True),
        Column("error", lambda item: error_summary(item.error), "error", flexible=True),
        Column("task id", "task_id", "id", drop=3),
    ),
    next_page={},
)

BULK_OPERATIONS = ResourceView(
    "bulk operations",
    (
        Column("id", "id", "id", under="kind"),
        Column("kind", "kind", flexible=True),
        Column("selection", "description", under="kind"),
        Column("state", lambda row: "paused" if row.paused_at else row.state, "state"),
        Column("items", "item_count", "count"),
        Column("done", "succeeded_count", "count", under="items", label="{} done"),
        Column("failed", "failed_count", "count", under="state", label="{} failed"),
        Column("skipped", "skipped_count", "count", under="state", label="{} skipped"),
        Column("created", "created_at", "age"),
        Column("by", "actor_name", under="created", label="by {}"),
        Column("reason", "reason", under="created"),
    ),
    hint="start one with: tenuto operation start --help",
)

BULK_ITEMS = ResourceView(
    "items that failed or were skipped",
    (
        Column("id", "item_id", "id"),
        Column("outcome", "outcome", "state"),
        Column("code", "code", drop=1),
        Column("message", "message", "error", flexible=True),
    ),
    next_page={"above": "item_id"},
)

DEAD_LETTERS = ResourceView(
    "dead letters",
    (
        Column("id", "id", "id", under="manifest"),
        Column("state", "state", "state", drop=2),
        Column("manifest", lambda found: found.external_id or None, flexible=True),
        Column("job", "name", under="manifest"),
        Column("item", lambda found: dead_letter_item(found) or None, under="manifest"),
        Column("attempts", "attempt_count", "count", under="when", label="attempts: {}"),
        Column("when", "dead_lettered_at", "age", drop=1),
        Column("fingerprint", "fingerprint", under="reason"),
        Column("batch", "batch_id", "id", drop=3),
        Column("reason", "reason", "error", flexible=True),
    ),
)


def dead_letter_item(found: Any) -> str:
    """Return the key of the item unless it is only the id of its task."""
    return "" if found.item == str(found.task_id) else str(found.item)


def _manifest_names(kind: Any, _: datetime) -> str:
    more = f" and {kind.manifest_count - 1} more" if kind.manifest_count > 1 else ""
    return f"{kind.external_id}{more}"


def _describe_resolution(group: Any) -> str | None:
    last = group.last_resolution
    if last is None:
        return None
    return f"{last.state} by {last.resolved_by}{f': {last.note}' if last.note else ''}"


SEARCH_HITS = ResourceView(
    "objects",
    (
        Column("kind", lambda hit: hit.kind.replace("_", " ")),
        Column("name", "name", flexible=True),
        Column("id", "id", "id"),
        Column("state", "state", "state", drop=1),
    ),
    next_page={},
)

HISTORY = ResourceView(
    "changes",
    (
        Column("time", "at", "instant"),
        Column("actor", "actor_name"),
        Column("action", "action"),
        Column("reason", "reason", flexible=True),
        Column("id", "id", "id", drop=1),
    ),
)


def _job_names(kind: Any, _: datetime) -> str:
    more = f" and {kind.job_count - 1} more" if kind.job_count > 1 else ""
    return f"{kind.name}{more}"


FAILURE_GROUPS = ResourceView(
    "dead letters",
    (
        Column("fingerprint", "fingerprint", under="newest reason"),
        Column("count", "dead_letter_count", "count"),
        Column("jobs", "name", text=_job_names, under="newest reason"),
        Column("manifests", "external_id", text=_manifest_names, under="newest reason"),
        Column("first", "first_at", "age", under="newest", label="first {}"),
        Column("newest", "last_at", "age"),
        Column("newest reason", "reason", "error", flexible=True),
        Column("last resolved", _describe_resolution, under="newest reason", label="before: {}"),
    ),
    next_page={},
)
SELECTED_FAILURES = (
    Column("count", "dead_letter_count", "count"),
    Column("job", "name"),
    Column("manifest", "external_id"),
    Column("fingerprint", "fingerprint", drop=2),
    Column("newest", "last_at", "age", drop=1),
    Column("newest reason", "reason", "error", flexible=True),
)

# --- one-shots, queues, workers, jobs ---------------------------------------------------------------------------------

_SHOWN_DELAY_SECONDS = 1.0
"""A one-shot that started within this time was punctual."""


def _start_delay(found: Any) -> float | None:
    return None if found.started_at is None else found.late_seconds(found.started_at)


def _late_since(found: Any) -> datetime | None:
    return None if found.started_at or hasattr(found, "ended_at") else found.run_at


def _late_text(found: Any, now: datetime) -> str:
    seconds = found.late_seconds(getattr(found, "ended_at", now))  # one that was cancelled before it started
    return format_duration(seconds) if seconds >= _SHOWN_DELAY_SECONDS else ""


ONE_SHOTS = ResourceView(
    "one-shots",
    (
        Column("id", "id", "id", under="type"),
        Column("state", lambda found: found.runtime_status.lower(), "state"),
        Column("type", "prompt_type", flexible=True),
        Column("due", "exec_at", "instant", under="when"),
        Column("when", lambda found: getattr(found, "ended_at", found.run_at), "age"),
        Column(
            "late by", _start_delay, "duration", text=_late_text, since=_late_since, under="when", label="late by {}"
        ),
        Column("tags", "tags", "list", under="state"),
        Column("by", "created_by", drop=1),
    ),
    next_page={"after": "id"},
)


def _event_detail(event: Any) -> str | None:
    if event.error is not None:
        return error_summary(event.error)
    if event.exec_at is not None:
        return f"for {format_local_time(event.exec_at)}"
    actor = event.by or event.worker
    return f"by {actor}" if actor else None


ONE_SHOT_EVENTS = (
    Column("when", "at", "instant"),
    Column("event", "event"),
    Column("attempt", "attempt", "number"),
    Column("detail", _event_detail, flexible=True),
)


def _worker_count(queue: Any, _: datetime) -> str:
    has_work = queue.queued_count or queue.scheduled_count
    return "▲ none" if has_work and not queue.worker_count else f"{queue.worker_count:,}"


QUEUES = ResourceView(
    "queues with tasks or settings",
    (
        Column("name", "name", flexible=True),
        Column("state", lambda queue: "paused" if queue.paused_at else "open", "state"),
        Column("limit", "max_running", "count"),
        Column("rate", "rate_limit"),
        Column("queued", "queued_count", "count"),
        Column("scheduled", "scheduled_count", "count", drop=1),
        Column("running", "running_count", "count"),
        Column("workers", "worker_count", "count", text=_worker_count, drop=1),
        Column("oldest", "oldest_due_at", "age", drop=2),
        Column("paused", "paused_by", text=lambda queue, _: _pause_text(queue), flexible=True),
        Column("unknown jobs", "unknown_jobs", "list", flexible=True, drop=3),
    ),
    next_page={},
)


def _pause_text(queue: Any) -> str | None:
    if not queue.paused_at:
        return None
    return f"by {queue.paused_by or 'unknown'}" + (f": {queue.reason}" if queue.reason else "")


WORKERS = ResourceView(
    "workers",
    (
        Column("name", "name"),
        Column("service", "service"),
        Column("state", "state", "state"),
        Column(
            "busy",
            "running_count",
            text=lambda worker, _: f"{worker.running_count}/{worker.slots}" if worker.slots else "",
        ),
        Column("queues", "queues", "list", under="name", flexible=True),
        Column("last seen", "silent_seconds", "duration", text=lambda worker, _: _last_seen(worker)),
        Column("started", "started_at", "age", under="last seen", label="started {}"),
        Column("host", "host", text=lambda worker, _: worker.host.partition("#")[0], under="service"),
        Column("pid", "pid", "number", under="state", label="pid {}"),
        Column("version", "version", drop=1),
    ),
    hint="start one with: tenuto worker --app MODULE:OBJECT",
)


def _last_seen(worker: Any) -> str:
    return f"{format_duration(worker.silent_seconds)} ago"


def job_parameters(schema: Mapping[str, Any]) -> list[str]:
    """Return the input of a job like a signature; optional parameters have a question mark."""
    required = schema.get("required", [])
    return [
        f"{name}{'' if name in required else '?'}: {_type_name(parameter)}"
        for name, parameter in schema.get("properties", {}).items()
    ]


def _type_name(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(_type_name(option) for option in schema["anyOf"])
    return str(schema.get("$ref", "")).rpartition("/")[2] or str(schema.get("format") or schema.get("type") or "any")


JOBS = ResourceView(
    "jobs",
    (
        Column("name", "name"),
        Column("input", lambda job: job_parameters(job.input_schema) or ["none"], "list", flexible=True),
        Column("queue", "queue", drop=2),
        Column("attempts", lambda job: job.max_attempts, "number", drop=3),
        Column("timeout", "timeout_seconds", "duration", drop=4),
        Column("description", lambda job: (job.doc or "").partition("\n")[0], flexible=True, drop=1),
    ),
)
