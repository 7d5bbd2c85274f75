"""Reasons why something does not run: a code and data for programs, a message and a command for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID


class ReasonCode(StrEnum):
    NOT_DUE = "not_due"
    BACKING_OFF = "backing_off"
    WAITS_FOR_GROUP = "waits_for_group"
    WAITS_FOR_STEPS = "waits_for_steps"
    WAITS_FOR_EXECUTION = "waits_for_execution"
    WAITS_FOR_EVENT = "waits_for_event"
    WAITS_FOR_CHILD = "waits_for_child"
    WAITS_FOR_APPROVAL = "waits_for_approval"
    EXECUTION_PAUSED = "execution_paused"
    QUEUE_PAUSED = "queue_paused"
    BATCH_PAUSED = "batch_paused"
    GROUP_DISABLED = "group_disabled"
    QUEUE_LIMIT = "queue_limit"
    KEY_LIMIT = "key_limit"
    MANIFEST_LIMIT = "manifest_limit"
    GROUP_LIMIT = "group_limit"
    RATE_LIMIT = "rate_limit"
    EXPIRES = "expires"
    NO_WORKER = "no_worker"
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_VERSION = "unknown_version"
    NO_CAPACITY = "no_capacity"
    SLOTS_BUSY = "slots_busy"
    OTHERS_FIRST = "others_first"
    FREE = "free"
    STANDBY = "standing_by"
    RUNNING = "running"
    STOPPING = "stopping"
    LEASE_EXPIRED = "lease_expired"
    STUCK = "stuck"
    ENDED = "ended"
    # --- schedules and manifests; where `model.definitions.obstacles` names the same, with its word
    DISABLED = "disabled"
    MANUAL_ONLY = "manual_only"
    NEVER_AGAIN = "never_again"
    NO_SCHEDULER = "no_scheduler"
    OVERLAP = "overlap"
    RUN_QUEUED = "run_queued"
    RUN_OPEN = "run_open"
    DUE = "due"
    DEAD_LETTER = "dead_letter"
    WAITS_FOR_MANIFEST = "waits_for_manifest"
    DEPENDENCY_DISABLED = "dependency_disabled"
    DEPENDENCY_MISSING = "dependency_missing"
    NOT_DECLARED = "not_declared"


ReasonValue: TypeAlias = datetime | int | float | str


@dataclass(frozen=True, slots=True)
class LastError:
    """The error of the last attempt that failed."""

    message: str
    type: str | None
    attempt: int
    at: datetime
    activity_id: UUID


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: code, message, related ids, and when it ends by itself, if known."""

    code: ReasonCode
    message: str
    ids: tuple[UUID, ...] = ()
    ends_at: datetime | None = None
    task_id: UUID | None = None
    """The task that the reason is about."""
    step: str | None = None
    """Step name of that task, in an execution."""
    fields: Mapping[str, ReasonValue] = field(default_factory=dict)
    """The instants, names and numbers of the message."""
    last_error: LastError | None = None
    command: str | None = None
    """The command that helps, if there is one."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """State of a task, execution, schedule or manifest, with reasons."""

    id: UUID
    state: str
    reasons: tuple[Reason, ...]
    name: str | None = None
    """Of a schedule its name, of a manifest its external id."""


def facts(**values: ReasonValue | None) -> dict[str, ReasonValue]:
    """Return the data of a reason, without unknown values."""
    return {name: value for name, value in values.items() if value is not None}


def describe_error(error: LastError | None) -> str:
    """Return an error as an insertion: `` (last: ConnectionError: no answer)``; nothing without one."""
    if error is None:
        return ""
    kind = "" if error.type is None else f"{error.type.removeprefix('tenuto.')}: "
    return f" (last: {kind}{error.message.splitlines()[0] if error.message else 'no message'})"


def format_instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def describe_pause(by: str | None, at: datetime) -> str:
    return f"paused by {by or 'an operator'} since {format_instant(at)}"


def error_fields(error: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Return message and type of a stored error."""
    return str((error or {}).get("message") or ""), (error or {}).get("type")
