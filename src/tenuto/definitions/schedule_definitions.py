"""Changes of schedules: the rules that hold for schedules besides those of `versioned_definitions`.

Schedules may run each other as steps, but not in cycles. When a schedule is disabled, deleted or gets another trigger,
its due instants are recorded in the occurrence ledger.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from tenuto.definitions.versioned_definitions import ChangeContext, VersionedDefinitions
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model.definitions.blocking_reasons import DefinitionKind
from tenuto.model.definitions.schedules import ScheduleDefinition, check_schedule_names
from tenuto.model.definitions.steps import SCHEDULE
from tenuto.model.work.occurrences import Decision, first_undecided_instant
from tenuto.postgres.database import Connection
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerEntry, Schedule

_DECLARED_IN = {"code": "code", "file": "a file"}
"""The origins whose declarations would create a missing schedule again."""


class _ScheduleDefinitions(VersionedDefinitions[ScheduleDefinition, Schedule]):
    kind: DefinitionKind = "schedule"
    rows = schedules.TABLE

    def not_found(self, key: str) -> NotFound:
        return NotFound(
            f"there is no schedule named {key!r}",
            code="schedule.not_found",
            remedy="list them with `tenuto schedule list`",
        )

    def already_exists(self, key: str, remedy: str) -> Conflict:
        return Conflict(
            f"a schedule named {key!r} exists already", code="schedule.already_exists", field="name", remedy=remedy
        )

    def missing_reference(self, new: ScheduleDefinition, key: str, remedy: str) -> Invalid:
        step = next(step for _, _, step in new.plan.enumerate_steps() if (step.kind, step.target) == (SCHEDULE, key))
        return Invalid(
            f"there is no schedule named {key!r}, which is a step",
            code="schedule.step.schedule_not_found",
            field=f"steps.{step.name}",
            remedy=remedy,
        )

    async def lock_all_references(self, connection: Connection) -> None:
        await schedules.lock_cycle_check(connection)

    async def load_references(self, connection: Connection) -> dict[str, Collection[str]]:
        plans = await schedules.load_plans_with_schedule_steps(connection)
        return {name: plan.targets_of_kind(SCHEDULE) for name, plan in plans.items()}

    async def find_referenced(self, connection: Connection, keys: Collection[str]) -> set[str]:
        return await schedules.find_existing_names(connection, keys)

    def check_names(self, new: ScheduleDefinition, before: ScheduleDefinition | None = None) -> None:
        check_schedule_names(new, before)

    async def check_key_change(self, connection: Connection, current: Schedule, new: ScheduleDefinition) -> None:
        # The name connects the schedule with its declaration: after a renaming the declaration would create it again.
        if current.origin in _DECLARED_IN:
            raise Conflict(
                f"{current.name!r} is declared in {_DECLARED_IN[current.origin]} and cannot be renamed here",
                code="schedule.name.declared",
                field="name",
                remedy="rename it where it is declared; if it is no longer declared, delete it and create a new one",
            )
        await _check_not_used_as_step(connection, current.name, field="name")

    def timing_changed(self, current: Schedule, new: ScheduleDefinition) -> bool:
        return current.trigger.to_fields() != new.trigger.to_fields()

    async def resolve_pending_runs(
        self,
        connection: Connection,
        current: Schedule,
        context: ChangeContext,
        *,
        timing_changed: bool,
        enabled_after: bool,
    ) -> None:
        if not current.enabled:
            await _record_missed_while_disabled(connection, current, context)
            return
        await _record_overdue(
            connection, current, context, "the trigger was changed" if timing_changed else "it was disabled"
        )
        if not enabled_after:
            await schedules.drop_queued_runs(
                connection,
                current.id,
                "the schedule was disabled",
                context.now,
                context.actor.name,
                including_manual=False,
            )

    async def prepare_deletion(self, connection: Connection, current: Schedule, context: ChangeContext) -> None:
        if active := await schedules.list_active_executions(connection, current.id, with_backfills=True):
            raise Conflict(
                f"schedule {current.name!r} is running",
                code="schedule.running",
                remedy=f"wait for execution {active[0]}, or cancel it",
            )
        await _check_not_used_as_step(connection, current.name)
        reason = "the schedule was deleted"
        await _record_overdue(connection, current, context, reason)
        await schedules.drop_queued_runs(
            connection, current.id, reason, context.now, context.actor.name, including_manual=True
        )


SCHEDULES: VersionedDefinitions[ScheduleDefinition, Schedule] = _ScheduleDefinitions()
create = SCHEDULES.create
edit = SCHEDULES.edit
set_enabled = SCHEDULES.set_enabled
delete = SCHEDULES.delete
delete_in_tx = SCHEDULES.delete_in_tx
declare = SCHEDULES.declare
declare_in_tx = SCHEDULES.declare_in_tx
get = SCHEDULES.get
not_found = SCHEDULES.not_found
timing_changed = SCHEDULES.timing_changed


async def _check_not_used_as_step(connection: Connection, name: str, field: str | None = None) -> None:
    if users := await schedules.list_schedules_using(connection, name):
        raise Conflict(
            f"schedule {name!r} is a step of {users[0]!r}",
            code="schedule.in_use",
            field=field,
            remedy=f"change {users[0]!r} first",
        )


async def _record_overdue(connection: Connection, current: Schedule, context: ChangeContext, reason: str) -> None:
    """Record a due instant that has not fired yet as missed."""
    if current.next_run_at is None or current.next_run_at > context.now:
        return
    decided_until = (await schedules.load_run_blockers(connection, [current.id]))[current.id].decided_until
    due_at = first_undecided_instant(current.definition.trigger, current.next_run_at, decided_until, str(current.id))
    await _record_missed(connection, current, context, due_at, f"{reason} before it fired")


async def _record_missed_while_disabled(connection: Connection, current: Schedule, context: ChangeContext) -> None:
    """Record the instants that were due while the schedule was disabled as missed."""
    since, by = await schedules.load_disabled_since(connection, current.id)
    decided_until = (await schedules.load_run_blockers(connection, [current.id]))[current.id].decided_until
    begins = since or current.updated_at  # no version exists if an operator wrote the row by SQL
    due_at = current.next_after(begins if decided_until is None else max(begins, decided_until))
    await _record_missed(connection, current, context, due_at, f"it was disabled by {by}" if by else "it was disabled")


async def _record_missed(
    connection: Connection, current: Schedule, context: ChangeContext, due_at: datetime | None, reason: str
) -> None:
    """Write one ledger row for all instants from ``due_at`` up to now."""
    if due_at is None or due_at > context.now:
        return
    following = current.next_after(due_at)
    until = context.now if following is not None and following <= context.now else None  # the row stands for several
    entry = LedgerEntry(
        new_id(), current.id, current.name, due_at, until, "trigger", Decision.MISSED, None, reason, None
    )
    await schedules.write_ledger_entries(connection, [entry], context.now, context.actor.name)
