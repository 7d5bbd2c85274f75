"""Schedule operations (``app.schedules``): declare, change, list, simulate and run schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from tenuto.definitions.definition_files import DeclaredSchedule
from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.diagnostics.definition_diagnosis import diagnose_schedule
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.errors import Invalid, quoted
from tenuto.ids import new_id
from tenuto.jobs.registry import JobRegistry
from tenuto.model import validation
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.definitions.schedules import (
    Misfire,
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    misfire_from_fields,
    override_arguments,
    parse_overlap_policy,
)
from tenuto.model.definitions.steps import Step
from tenuto.model.filter_keys import LEDGER_KEYS
from tenuto.model.filters import Filter
from tenuto.model.triggers import Trigger
from tenuto.model.work.occurrences import Decision
from tenuto.operations.argument_checks import build_filter, check_limit
from tenuto.operations.bound_operation import OpenDatabase
from tenuto.operations.definitions import backfills
from tenuto.operations.definitions.backfills import BackfillPreview, DayOrInstant
from tenuto.operations.definitions.definition_operations import DefinitionOperations
from tenuto.operations.definitions.schedule_checks import (
    ScheduleCheck,
    TriggerExplanation,
    check_schedule,
    explain_trigger,
)
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.read_transactions import read_snapshot
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.simulation.input_loader import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Simulation
from tenuto.steps.built_in_kinds import check_steps, resolve_definition, resolve_plan
from tenuto.store.definitions import schedules
from tenuto.store.definitions.schedules import LedgerRecord, Schedule, ScheduleRecord
from tenuto.store.filter_sql import CappedCount
from tenuto.store.work import bulk_operations
from tenuto.store.work.bulk_operations import BulkOperationRecord

_MAX_CACHED_SCHEDULES = 1000
_MAX_REASON_LENGTH = 4000


def schedule_definition(
    name: str,
    trigger: Trigger,
    steps: Iterable[Step | Iterable[Step]],
    *,
    description: str = "",
    overlap: OverlapPolicy | str = OverlapPolicy.SKIP,
    misfire: Misfire | Mapping[str, Any] | str = "once",
) -> ScheduleDefinition:
    """Build a schedule definition; a list inside the list of steps is a step group that runs in parallel."""
    return ScheduleDefinition(
        name, trigger, Plan.from_steps(steps), description, parse_overlap_policy(overlap), misfire_from_fields(misfire)
    )


class Schedules(DefinitionOperations[DeclaredSchedule, ScheduleDefinition, Schedule]):
    """Operations on schedules."""

    _definitions = SCHEDULES
    _key_field = "name"
    _notified_services: ClassVar[Sequence[str]] = ("schedules",)

    def __init__(self, open: OpenDatabase, caller: OperationCaller, jobs: JobRegistry) -> None:
        super().__init__(open, caller, jobs)
        self._last_run_schedules: dict[str, Schedule] = {}
        """Schedules as of their last manual run from this app."""

    def _already_declared(self, key: str) -> Invalid:
        return Invalid(
            f"a schedule named {key!r} is already declared",
            code="schedule.already_declared",
            field="name",
            remedy="rename one of them",
        )

    def _read_declaration(self, entry: DeclaredSchedule) -> ScheduleDefinition:
        return self.resolve_steps(entry.definition)

    async def _check(self, database: Database, new: ScheduleDefinition) -> ScheduleDefinition:
        new = self.resolve_steps(new)
        await check_steps(self._open, new.plan, self._jobs)
        return new

    def _must_be_checked(self, new: ScheduleDefinition, present: ScheduleDefinition) -> bool:
        return new.plan != present.plan

    def resolve_steps(self, definition: ScheduleDefinition, *, each_alone: bool = False) -> ScheduleDefinition:
        """Return a definition with all steps checked and completed. ``each_alone`` leaves out what the steps take from
        each other."""
        return resolve_definition(definition, self._jobs, each_alone=each_alone)

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def list(
        self, *, after: str | None = None, enabled: bool | None = None, search: str | None = None, limit: int = 100
    ) -> Sequence[ScheduleRecord]:
        """List schedules by name, each with its last run."""
        return await schedules.list_schedules(
            await self._open(), after=after, enabled=enabled, search=search, limit=check_limit(limit)
        )

    async def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """Return the next n due instants, whether the schedule is enabled or not."""
        database = await self._open()
        found = await SCHEDULES.get(database, name)
        return found.definition.trigger.preview(database.clock.now(), n, str(found.id))

    async def simulate(self, start: datetime, end: datetime, inputs: SimulationOptions | None = None) -> Simulation:
        """Simulate all schedules between two instants with their overlap and misfire policies."""
        return await simulate_stored_schedules(await self._open(), start, end, inputs or SimulationOptions())

    async def why(self, name: str) -> Diagnosis:
        """Explain why a schedule does not run, or when it will."""
        return await diagnose_schedule(await self._open(), name)

    async def explain(self, trigger: Trigger, *, count: int = 5) -> TriggerExplanation:
        """Describe a trigger: plain English, the next runs, and the effects of clock changes within a year."""
        return explain_trigger(trigger, (await self._open()).clock.now(), check_limit(count, 1000))

    async def check(self, new: ScheduleDefinition, *, replaces: str | None = None, count: int = 5) -> ScheduleCheck:
        """Check a definition without saving it: its steps, next runs, clock changes and conflicts with other schedules.

        ``replaces`` is the name of the stored schedule that it would change.
        """
        database = await self._open()
        stored = None if replaces is None else await SCHEDULES.get(database, replaces)
        if stored is None or self._must_be_checked(new, stored.definition):
            new = await self._check(database, new)
        return await check_schedule(database, new, stored, check_limit(count, 1000))

    async def ledger(
        self,
        name: str | None = None,
        *,
        where: str | Filter | None = None,
        before: datetime | None = None,
        below: UUID | None = None,
        decision: str | None = None,
        limit: int = 100,
    ) -> Sequence[LedgerRecord]:
        """List the occurrence ledger: every due instant and its decision, newest first.

        ``where`` is a filter such as ``decision:skipped due:>1d``. The next page is ``before`` the last instant and
        ``below`` its id, as schedules may share an instant.
        """
        database = await self._open()
        schedule_id = None if name is None else await find_schedule_id(database, name)
        if decision is not None and decision not in tuple(Decision):
            raise Invalid(
                f"unknown decision {quoted(decision, 60)}",
                code="occurrence.decision.unknown",
                field="decision",
                remedy=f"use one of {', '.join(Decision)}",
            )
        return await schedules.list_ledger_entries(
            database,
            schedule_id=schedule_id,
            before=before,
            decision=decision,
            limit=check_limit(limit),
            below=below,
            filter=build_filter(LEDGER_KEYS, where, database.clock.now()),
        )

    async def count_ledger_of_each(self, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
        """Count the ledger entries that meet each of the filters, in one statement."""
        database = await self._open()
        now = database.clock.now()
        filters = [build_filter(LEDGER_KEYS, each, now) for each in wheres]
        return await schedules.count_ledger_entries_of_each(database, filters)

    # --- run --------------------------------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        *,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        jobs_only: bool = False,
        request_id: UUID | None = None,
    ) -> RunResult:
        """Run a schedule now; if it is active, its overlap policy decides.

        ``arguments`` override the arguments of steps by name for this run; ``jobs_only`` forbids them for steps that
        are not jobs. Calls with the same ``request_id`` start one run.
        """
        request = request_id or new_id()
        operation = await self._begin(
            "schedule.run", target=name, after={"request_id": str(request), "arguments": arguments}
        )
        database, actor, now = operation.database, operation.actor, operation.now

        def change(plan: Plan) -> Plan:
            if not arguments:
                return plan
            return resolve_plan(override_arguments(plan, arguments, jobs_only=jobs_only), self._jobs)

        if not arguments and not operation.is_audited:
            started = await self._run_cached(database, name, now, actor, request)
            if started is not None:
                return started
        started = await database.transaction(
            lambda connection: firing.run_schedule(
                connection,
                name,
                now,
                actor,
                request_id=request,
                change=change,
                on_repeat=operation.entry.mark_unchanged,
            )
        )
        if started.decision is Decision.QUEUED:
            await self._wake_services(database)
        return started

    async def preview_backfill(self, name: str, start: DayOrInstant, end: DayOrInstant) -> BackfillPreview:
        """Return the due instants of a past period that have no run, from ``start`` to ``end``, both included.

        A date is a whole day in the time zone of the schedule.
        """
        database = await self._open()
        found, now = await SCHEDULES.get(database, name), database.clock.now()
        return await read_snapshot(
            database, lambda connection: backfills.preview_backfill(connection, found, start, end, now)
        )

    async def backfill(
        self,
        name: str,
        start: DayOrInstant,
        end: DayOrInstant,
        *,
        parallel: int = 1,
        reason: str | None = None,
        request_id: UUID | None = None,
    ) -> BulkOperationRecord:
        """Run a schedule for the due instants of a past period that have no run, from ``start`` to ``end``.

        Return a bulk operation, which can be watched, paused, resumed and aborted. Schedulers start its executions,
        oldest first, and keep at most ``parallel`` of them open. The overlap policy does not apply to them. A date is
        a whole day in the time zone of the schedule. Calls with the same ``request_id`` create one backfill.
        """
        backfills.check_parallel(parallel)
        if reason is not None:
            validation.check_text(reason, field="reason", limit=_MAX_REASON_LENGTH)
        id = request_id or new_id()
        operation = await self._begin("schedule.backfill", target=name, reason=reason)

        async def create(connection: Connection) -> None:
            if await bulk_operations.exists(connection, id):  # a repeated request
                operation.entry.mark_unchanged()
                return
            created = await backfills.create_backfill(
                connection, name, start, end, parallel=parallel, id=id, actor=operation.actor, reason=reason,
                now=operation.now,
            )  # fmt: skip
            if created is not None:
                operation.entry.after = {
                    "operation_id": str(id), "from": created.start, "to": created.end, "parallel": parallel,
                    "runs": len(created.instants),
                }  # fmt: skip

        await operation.database.transaction(create)
        created = await bulk_operations.load_operation(operation.database, id)
        assert created is not None
        return created

    # --- internals --------------------------------------------------------------------------------------------------

    async def _run_cached(
        self, database: Database, name: str, now: datetime, actor: Actor, request: UUID
    ) -> RunResult | None:
        """Run an unchanged and inactive schedule with one statement; None if that is not possible.

        A measured optimisation: the schedule is cached, and the statement checks that it is current.
        """
        cached = self._last_run_schedules.pop(name, None) or await schedules.load_schedule(database, name)
        started = None if cached is None else await firing.try_run_immediately(database, cached, now, actor, request)
        if cached is not None and started is not None:
            self._last_run_schedules[name] = cached
            while len(self._last_run_schedules) > _MAX_CACHED_SCHEDULES:
                del self._last_run_schedules[next(iter(self._last_run_schedules))]  # least recently run
        return started


async def find_schedule_id(database: Database, name: str) -> UUID:
    """Return the id of the schedule with this name, or of the last one that had it."""
    id = await schedules.find_last_id_by_name(database, name)
    if id is None:
        raise SCHEDULES.not_found(name)
    return id
