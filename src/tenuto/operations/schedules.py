"""Schedule operations (``app.schedules``): declare, change, list, simulate and run schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.definitions import definition_plan, schedule_definitions
from tenuto.definitions.definition_files import DeclaredSchedule
from tenuto.definitions.definition_plan import SchedulePlan
from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.definitions.versioned_definitions import Effect
from tenuto.errors import Invalid, quoted
from tenuto.ids import new_id
from tenuto.jobs.registry import JobRegistry
from tenuto.model.actors import Actor
from tenuto.model.dependency_order import sort_definitions
from tenuto.model.occurrences import Decision
from tenuto.model.operation_context import OperationCaller
from tenuto.model.schedules import (
    Misfire,
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    misfire_from_fields,
    override_arguments,
)
from tenuto.model.steps import Step
from tenuto.model.triggers import Trigger
from tenuto.operations.listing import Record, check_limit
from tenuto.operations.operation import OpenDatabase, OperationGroup, change_context
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import RunResult
from tenuto.simulation.input_loader import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Simulation
from tenuto.steps.step_kinds import check_steps, resolve_definition, resolve_plan
from tenuto.store import schedules, tasks
from tenuto.store.definition_rows import Version
from tenuto.store.schedules import Schedule

_MAX_CACHED_SCHEDULES = 1000


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
        name, trigger, Plan.from_steps(steps), description, OverlapPolicy(overlap), misfire_from_fields(misfire)
    )


class Schedules(OperationGroup):
    """Operations on schedules."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, jobs: JobRegistry) -> None:
        super().__init__(open, caller)
        self._jobs = jobs
        self.declared: dict[str, ScheduleDefinition] = {}
        """Schedules declared by this program, by name."""
        self._last_run_schedules: dict[str, Schedule] = {}
        """Schedules as of their last manual run from this app."""

    # --- declare ----------------------------------------------------------------------------------------------------

    def declare(self, new: ScheduleDefinition) -> ScheduleDefinition:
        """Declare a schedule in code; it is deployed when a service starts, or with `deploy`."""
        if new.name in self.declared:
            raise Invalid(
                f"a schedule named {new.name!r} is already declared",
                code="schedule.already_declared",
                field="name",
                remedy="rename one of them",
            )
        self.declared[new.name] = new
        return new

    async def deploy(self, database: Database | None = None) -> dict[str, Effect]:
        """Apply the schedules declared by this program; unchanged ones stay as they are."""
        if not self.declared:
            return {}
        return await self.apply(self.declared.values(), origin="code", reason="declared in code", database=database)

    async def apply(
        self,
        definitions: Iterable[ScheduleDefinition],
        *,
        origin: str = "file",
        reason: str | None = None,
        database: Database | None = None,
    ) -> dict[str, Effect]:
        """Create or change schedules, prerequisites first, and return the effect on each."""
        effects: dict[str, Effect] = {}
        for definition in sort_definitions(definitions):
            operation = await self._begin("schedule.apply", target=definition.name, reason=reason, database=database)
            new = self.resolve_steps(definition)
            await check_steps(operation.database, new.plan, self._jobs)
            effects[definition.name] = await schedule_definitions.declare(
                operation.database, new, change_context(operation, origin)
            )
        if any(effect in ("created", "changed") for effect in effects.values()):
            await self._wake_schedulers(database or await self._open())
        return effects

    # --- plan -------------------------------------------------------------------------------------------------------

    async def plan(self, files: Sequence[DeclaredSchedule], *, prune: bool = False) -> SchedulePlan:
        """Return the changes that applying the schedules of files would make, without making them.

        With ``prune``, schedules that were declared in a file and are no longer declared are deleted.
        """
        for each in files:
            if each.name in self.declared:
                raise each.locate_error(
                    Invalid(
                        f"the schedule {each.name!r} is also declared in code",
                        code="plan.declared_in_code",
                        field="name",
                        remedy="declare it in one place only",
                    )
                )
        database = await self._open()
        return await definition_plan.plan_definitions(
            SCHEDULES,
            database,
            files,
            lambda each: self.resolve_steps(each.definition),
            database.clock.now(),
            prune=prune,
        )

    def resolve_steps(self, definition: ScheduleDefinition) -> ScheduleDefinition:
        """Return a definition with all steps checked and completed."""
        return resolve_definition(definition, self._jobs)

    # --- change -----------------------------------------------------------------------------------------------------

    async def create(
        self,
        new: ScheduleDefinition,
        *,
        enabled: bool = True,
        reason: str | None = None,
        request_id: UUID | None = None,
    ) -> Schedule:
        """Create a schedule. Calls with the same ``request_id`` create one schedule."""
        operation = await self._begin("schedule.create", target=new.name, reason=reason)
        new = self.resolve_steps(new)
        await check_steps(operation.database, new.plan, self._jobs)
        created = await schedule_definitions.create(
            operation.database, new, change_context(operation), enabled=enabled, id=request_id
        )
        await self._wake_schedulers(operation.database)
        return created

    async def edit(
        self, name: str, new: ScheduleDefinition, *, reason: str | None = None, version: int | None = None
    ) -> Schedule:
        """Change a schedule; with ``version``, only if that is its current version."""
        operation = await self._begin("schedule.change", target=name, reason=reason)
        database = operation.database
        present = await schedule_definitions.get(database, name)
        if new.plan != present.plan:  # an unchanged plan needs no check, so its jobs may be unknown here
            new = self.resolve_steps(new)
            await check_steps(database, new.plan, self._jobs)
        changed = await schedule_definitions.edit(database, name, new, change_context(operation), version=version)
        await self._wake_schedulers(database)
        return changed

    async def enable(self, name: str, *, reason: str | None = None) -> bool:
        """Enable a schedule from now on; return False if it was enabled."""
        return await self._set_enabled(name, reason, enabled=True)

    async def disable(self, name: str, *, reason: str | None = None) -> bool:
        """Disable a schedule, which can still be run manually; return False if it was disabled."""
        return await self._set_enabled(name, reason, enabled=False)

    async def _set_enabled(self, name: str, reason: str | None, *, enabled: bool) -> bool:
        action = "schedule.enable" if enabled else "schedule.disable"
        operation = await self._begin(action, target=name, reason=reason)
        switched = await schedule_definitions.set_enabled(
            operation.database, name, change_context(operation), enabled=enabled
        )
        await self._wake_schedulers(operation.database)
        return switched

    async def delete(self, name: str, *, reason: str | None = None, version: int | None = None) -> None:
        """Delete a schedule that is not running; its records remain. With ``version``, only if that is current."""
        operation = await self._begin("schedule.delete", target=name, reason=reason)
        await schedule_definitions.delete(operation.database, name, change_context(operation), version=version)

    # --- inspect ----------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> Schedule:
        """Return the schedule with this name."""
        return await schedule_definitions.get(await self._open(), name)

    async def list(
        self, *, after: str | None = None, enabled: bool | None = None, search: str | None = None, limit: int = 100
    ) -> Sequence[Record]:
        """List schedules by name, each with its last run."""
        return await schedules.list_schedules(
            await self._open(), after=after, enabled=enabled, search=search, limit=check_limit(limit)
        )

    async def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """Return the next n due instants, whether the schedule is enabled or not."""
        database = await self._open()
        found = await schedule_definitions.get(database, name)
        return found.definition.trigger.preview(database.clock.now(), n, str(found.id))

    async def simulate(self, start: datetime, end: datetime, inputs: SimulationOptions | None = None) -> Simulation:
        """Simulate all schedules between two instants with their overlap and misfire policies."""
        return await simulate_stored_schedules(await self._open(), start, end, inputs or SimulationOptions())

    async def versions(
        self, name: str | UUID, *, before: tuple[datetime, int] | None = None, limit: int = 50
    ) -> Sequence[Version]:
        """List the versions of all schedules that have had this name, or of the one with this id, newest first.

        Deleted schedules are included. The next page is ``before`` the last (at, version).
        """
        found = await schedules.list_versions(await self._open(), name, check_limit(limit), before)
        if not found and before is None:
            raise schedule_definitions.not_found(str(name))
        return found

    async def ledger(
        self,
        name: str | None = None,
        *,
        before: datetime | None = None,
        below: UUID | None = None,
        decision: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """List the occurrence ledger: every due instant and its decision, newest first.

        The next page is ``before`` the last instant and ``below`` its id, as schedules may share an instant.
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
            database, schedule_id=schedule_id, before=before, decision=decision, limit=check_limit(limit), below=below
        )

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
            await self._wake_schedulers(database)
        return started

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

    async def _wake_schedulers(self, database: Database) -> None:
        await tasks.notify_services(database, ["schedules"])


async def find_schedule_id(database: Database, name: str) -> UUID:
    """Return the id of the schedule with this name, or of the last one that had it."""
    id = await schedules.find_last_id_by_name(database, name)
    if id is None:
        raise schedule_definitions.not_found(name)
    return id
