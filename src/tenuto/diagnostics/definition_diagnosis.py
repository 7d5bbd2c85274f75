"""Why a schedule or manifest does not run: disabled, blocked, waiting, not due, or without a scheduler.

The first reason applies now, the others would apply next.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from shlex import quote
from uuid import UUID

from tenuto.definitions.manifest_definitions import MANIFESTS
from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.diagnostics.reasons import Diagnosis, LastError, Reason, ReasonCode, facts, format_instant
from tenuto.diagnostics.task_diagnosis import TaskDiagnostician
from tenuto.errors import Invalid
from tenuto.model.definitions.blocking_reasons import DefinitionKind, ObstacleKind
from tenuto.model.definitions.manifests import OnDeadLetter, ScheduleType
from tenuto.model.definitions.schedules import OverlapPolicy
from tenuto.model.triggers.zones import load_zone
from tenuto.model.work.worker_states import WorkerState
from tenuto.postgres.database import Database
from tenuto.store.reports import diagnosis as store
from tenuto.store.reports.blocking_reasons import find_obstacles
from tenuto.store.reports.diagnosis import DiagnosedManifest, DiagnosedSchedule, LiveScheduler

_OVERLAP_EFFECTS = {
    OverlapPolicy.SKIP: "a run that is due meanwhile is skipped",
    OverlapPolicy.QUEUE_ONE: "a run that is due meanwhile is queued",
}


async def diagnose_schedule(database: Database, name: str) -> Diagnosis:
    """Return why a schedule does not run, or when it will."""
    found = await store.load_schedule(database, name)
    if found is None:
        raise SCHEDULES.not_found(name)
    reasons: list[Reason] = []
    if not found.enabled:
        command = f"tenuto schedule enable {quote(name)}"
        reasons.append(_disabled(found.disabled_at, found.disabled_by, found.disabled_reason, command))
    reasons += _overlap_reasons(found)
    if found.trigger_kind == "manual":
        reasons.append(_manual_only("it has no trigger", f"tenuto schedule run {quote(name)}"))
    elif found.enabled:
        schedulers = await store.list_schedulers(database)
        reasons += _clock_reasons(database.clock.now(), found, schedulers)
        if found.last_decision in ("skipped", "missed") and found.last_due_at is not None:
            reasons[-1] = _with_last_decision(reasons[-1], found)
    reasons += await _not_declared(database, "schedule", name)
    return Diagnosis(found.id, _state(found.enabled), tuple(reasons), name)


async def diagnose_manifest(database: Database, external_id: str) -> Diagnosis:
    """Return why a manifest does not run, or when it will; of an open run the reasons of its task."""
    found = await store.load_manifest(database, external_id)
    if found is None:
        raise MANIFESTS.not_found(external_id)
    reasons: list[Reason] = []
    if not found.enabled:
        command = f"tenuto manifest enable {quote(external_id)}"
        reasons.append(_disabled(found.disabled_at, found.disabled_by, found.disabled_reason, command))
    if found.dead_letter_id is not None and found.on_dead_letter == OnDeadLetter.BLOCK:
        reasons.append(_dead_letter(found, found.dead_letter_id))
    reasons += _disabled_groups(found)
    if found.open_task_id is not None:
        reasons += await _open_run_reasons(database, found.open_task_id)
    if found.schedule_type in (ScheduleType.NONE, ScheduleType.ON_DEMAND):
        how = "it runs for enqueued items" if found.schedule_type is ScheduleType.ON_DEMAND else "it has no trigger"
        reasons.append(_manual_only(how, f"tenuto manifest run {quote(external_id)} --app MODULE:OBJECT"))
    elif found.enabled:
        schedulers = await store.list_schedulers(database)
        if found.schedule_type is ScheduleType.DEPENDENT and found.next_run_at is None:
            reasons += [_waits_for_manifest(found), *_missing_scheduler(schedulers)]
        else:
            reasons += _clock_reasons(database.clock.now(), found, schedulers)
    reasons += await _not_declared(database, "manifest", external_id)
    return Diagnosis(found.id, _state(found.enabled), tuple(reasons), external_id)


def _state(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


# --- reasons --------------------------------------------------------------------------------------------------------


def _disabled(at: datetime | None, by: str | None, reason: str | None, command: str) -> Reason:
    text = "it is disabled"
    if at is not None:
        text += f" by {by} since {format_instant(at)}"
    if reason:
        text += f": {reason}"
    return Reason(
        ReasonCode.DISABLED,
        text,
        fields=facts(disabled_at=at, disabled_by=by, disable_reason=reason),
        command=command,
    )


def _manual_only(how: str, command: str) -> Reason:
    return Reason(ReasonCode.MANUAL_ONLY, f"{how}: it runs when a caller asks for it", command=command)


def _overlap_reasons(found: DiagnosedSchedule) -> list[Reason]:
    reasons: list[Reason] = []
    active = () if found.active_id is None else (found.active_id,)
    command = None if found.active_id is None else f"tenuto execution why {found.active_id}"
    if found.queued_due_at is not None:
        text = f"the run due at {format_instant(found.queued_due_at)} is queued until the active execution has ended"
        reasons.append(
            Reason(ReasonCode.RUN_QUEUED, text, active, fields=facts(due_at=found.queued_due_at), command=command)
        )
    effect = _OVERLAP_EFFECTS.get(OverlapPolicy(found.overlap))
    if found.active_id is not None and found.active_started_at is not None and effect is not None:
        group = (found.active_group or 0) + 1
        since = format_instant(found.active_started_at)
        text = f"execution {found.active_id} is in group {group} of {found.active_group_count} since {since}; {effect}"
        numbers = facts(
            overlap=found.overlap,
            started_at=found.active_started_at,
            current_group=group,
            group_count=found.active_group_count,
        )
        reasons.append(Reason(ReasonCode.OVERLAP, text, active, fields=numbers, command=command))
    return reasons


def _clock_reasons(
    now: datetime, found: DiagnosedSchedule | DiagnosedManifest, schedulers: list[LiveScheduler]
) -> list[Reason]:
    """Return when a definition with a trigger is due, and whether a scheduler lives that will run it."""
    next_run_at = found.next_run_at
    missing = _missing_scheduler(schedulers)
    cause = ": no scheduler is running" if missing else ""
    if not found.planned:
        return [Reason(ReasonCode.DUE, f"its next run is not computed yet{cause}"), *missing]
    if next_run_at is None:
        return [Reason(ReasonCode.NEVER_AGAIN, "its trigger has no further run")]
    numbers = facts(next_run_at=next_run_at, zone=found.zone)
    if next_run_at <= now:
        text = f"it is due since {format_instant(next_run_at)} and not decided yet{cause}"
        return [Reason(ReasonCode.DUE, text, fields=numbers), *missing]
    text = f"its next run is due at {_format_in_both_zones(next_run_at, found.zone)}"
    return [*missing, Reason(ReasonCode.NOT_DUE, text, ends_at=next_run_at, fields=numbers)]


def _format_in_both_zones(instant: datetime, zone: str | None) -> str:
    """Return an instant in the time zone of the trigger, in which its times are written, and in UTC."""
    if zone is None or zone == "UTC":
        return format_instant(instant)
    try:
        local = instant.astimezone(load_zone(zone))
    except Invalid:  # this machine does not know it; the doctor reports the definition
        return format_instant(instant)
    return f"{local:%Y-%m-%d %H:%M:%S} in {zone}, {format_instant(instant)}"


def _missing_scheduler(schedulers: list[LiveScheduler]) -> list[Reason]:
    if any(each.state is WorkerState.ALIVE for each in schedulers):
        return []
    others = [_describe_scheduler(each) for each in schedulers[:3]]
    details = f" ({', '.join(others)})" if others else ""
    return [
        Reason(
            ReasonCode.NO_SCHEDULER,
            f"no live scheduler is running{details}: nothing starts on its own",
            tuple(each.id for each in schedulers[:3]),
            fields=facts(scheduler_count=len(schedulers)),
            command="tenuto scheduler --app MODULE:OBJECT",
        )
    ]


def _describe_scheduler(scheduler: LiveScheduler) -> str:
    if scheduler.state is WorkerState.DEAD:
        return f"{scheduler.name} is dead (last seen {round(scheduler.silent_seconds)} s ago)"
    return f"{scheduler.name} is {scheduler.state}"


async def _not_declared(database: Database, kind: DefinitionKind, key: str) -> list[Reason]:
    found = (await find_obstacles(database, kind, [key])).get(key, ())
    if not any(each.kind is ObstacleKind.NOT_DECLARED for each in found):
        return []
    text = f"no running app declares this {kind} any more; it stays until it is deleted"
    return [Reason(ReasonCode.NOT_DECLARED, text, command=f"tenuto {kind} delete {quote(key)}")]


def _with_last_decision(reason: Reason, found: DiagnosedSchedule) -> Reason:
    assert found.last_due_at is not None
    why = f" ({found.last_reason})" if found.last_reason else ""
    text = f"{reason.message}; the run due at {format_instant(found.last_due_at)} was {found.last_decision}{why}"
    numbers = facts(
        last_due_at=found.last_due_at, last_decision=found.last_decision, last_decision_reason=found.last_reason
    )
    return replace(reason, message=text, fields={**reason.fields, **numbers})


def _dead_letter(found: DiagnosedManifest, id: UUID) -> Reason:
    at, attempts = found.dead_lettered_at, found.dead_letter_attempts
    assert at is not None
    cause = found.dead_letter_reason or "no message"
    error = None
    if found.dead_letter_activity_id is not None:
        error = LastError(cause, None, attempts or 1, at, found.dead_letter_activity_id)
    text = f"its last run failed for good at {format_instant(at)} ({cause.splitlines()[0]}) and left a dead letter;"
    text += " until it is resolved, only manual runs start"
    return Reason(
        ReasonCode.DEAD_LETTER,
        text,
        (id,),
        fields=facts(dead_lettered_at=at, attempt_count=attempts, error=cause),
        last_error=error,
        command=f"tenuto dead-letter retry {id}",
    )


def _disabled_groups(found: DiagnosedManifest) -> list[Reason]:
    reasons = []
    for enabled, by, at, subject, name in (
        (found.group_enabled, found.group_changed_by, found.group_changed_at, f"group {found.group} is", found.group),
        (found.all_enabled, found.all_changed_by, found.all_changed_at, "all manifests together are", "*"),
    ):
        if enabled is False and at is not None:
            reasons.append(
                Reason(
                    ReasonCode.GROUP_DISABLED,
                    f"{subject} disabled (last changed by {by} at {format_instant(at)}): no run starts",
                    fields=facts(group=name, changed_by=by, changed_at=at),
                    command=f"tenuto manifest group {quote(name or '*')} --enable",
                )
            )
    return reasons


async def _open_run_reasons(database: Database, task_id: UUID) -> list[Reason]:
    """Return that a run is open, and the reasons of its task."""
    text = f"its run {task_id} has not ended, and no second one starts"
    opened = Reason(ReasonCode.RUN_OPEN, text, (task_id,), command=f"tenuto task why {task_id}", task_id=task_id)
    tasks = await store.load_tasks(database, [task_id])
    of_task = [each for task in tasks for each in await TaskDiagnostician(database).diagnose(task)]
    return [opened, *(replace(each, task_id=task_id) for each in of_task)]


def _waits_for_manifest(found: DiagnosedManifest) -> Reason:
    awaited = found.depends_on or ""
    if found.awaited_enabled is None:
        text = f"it runs after manifest {awaited}, which does not exist"
        return Reason(ReasonCode.DEPENDENCY_MISSING, text, fields=facts(manifest=awaited))
    if not found.awaited_enabled:
        return Reason(
            ReasonCode.DEPENDENCY_DISABLED,
            f"it runs after manifest {awaited} has succeeded, and {awaited} is disabled",
            fields=facts(manifest=awaited, last_success_at=found.awaited_last_success_at),
            command=f"tenuto manifest enable {quote(awaited)}",
        )
    last = found.awaited_last_success_at
    since = "never" if last is None else f"last at {format_instant(last)}"
    return Reason(
        ReasonCode.WAITS_FOR_MANIFEST,
        f"it runs after manifest {awaited} has succeeded ({since})",
        fields=facts(manifest=awaited, last_success_at=last),
        command=f"tenuto manifest why {quote(awaited)}",
    )
