"""``app.schedules``: definitions, their versions, their ledger, runs by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.definitions import schedule_definitions, schedule_plan
from tenuto.definitions.declarations import Effect
from tenuto.definitions.schedule_files import Declared
from tenuto.definitions.schedule_plan import Planned
from tenuto.definitions.versioned import Author
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.registry import Jobs
from tenuto.model.actors import Actor
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import (
    Definition,
    Misfire,
    Overlap,
    Plan,
    misfire_from_fields,
    those_needed_first,
    with_arguments,
)
from tenuto.model.steps import Step
from tenuto.model.triggers import Trigger
from tenuto.operations.listing import Open, Record, listed
from tenuto.postgres.database import Database
from tenuto.scheduling import firing
from tenuto.scheduling.firing import Started
from tenuto.simulation.inputs import Given, rehearse
from tenuto.simulation.simulator import Simulation
from tenuto.steps.step_resolution import resolve, resolve_plan
from tenuto.store import schedules
from tenuto.store import tasks as queue
from tenuto.store.access import audit_recorder
from tenuto.store.definition_rows import Version
from tenuto.store.schedules import Schedule

_REMEMBERED = 1000


def definition(
    name: str,
    trigger: Trigger,
    steps: Iterable[Step | Iterable[Step]],
    *,
    description: str = "",
    overlap: Overlap | str = Overlap.SKIP,
    misfire: Misfire | Mapping[str, Any] | str = "once",
) -> Definition:
    """A schedule as written in code; a list in the list of steps is a parallel group."""
    return Definition(name, trigger, Plan.of(steps), description, Overlap(overlap), misfire_from_fields(misfire))


class Schedules:
    """``app.schedules``: definitions, their versions, their ledger, runs by hand."""

    def __init__(self, open: Open, who: Callable[[], Actor], jobs: Jobs) -> None:
        self._open = open
        self._who = who
        self._jobs = jobs
        self.declared: dict[str, Definition] = {}
        """What this program declares, by name."""
        self._seen: dict[str, Schedule] = {}
        """Schedules as they were when last run from here."""

    # --- declared in code -------------------------------------------------------------------------------------------

    def declare(self, new: Definition) -> Definition:
        """Remember a schedule of this program; it comes into force when a service starts, or with `deploy`."""
        if new.name in self.declared:
            raise Invalid(f"{new.name!r} is declared already", field="name", remedy="give one another name")
        self.declared[new.name] = new
        return new

    async def deploy(self, database: Database | None = None) -> dict[str, Effect]:
        """Bring everything this program declares into force, as far as it says something new."""
        if not self.declared:
            return {}
        return await self.apply(self.declared.values(), origin="code", reason="declared in code", database=database)

    async def apply(
        self,
        wanted: Iterable[Definition],
        *,
        origin: str = "file",
        reason: str | None = None,
        database: Database | None = None,
    ) -> dict[str, Effect]:
        """Bring definitions into force, those that others run as a step first; what became of each."""
        database = database or await self._open()
        effects: dict[str, Effect] = {}
        for each in those_needed_first(wanted):
            author = self._author(database, reason, origin)
            effects[each.name] = await schedule_definitions.declare(database, self.resolved(each), author)
        if any(effect in ("created", "changed") for effect in effects.values()):
            await self._tell(database)
        return effects

    # --- declared in files ------------------------------------------------------------------------------------------

    async def plan(self, files: Sequence[Declared], *, prune: bool = False) -> Planned:
        """What bringing the schedules of files into force would change. Nothing is changed.

        With ``prune``, schedules that a file declared once and these do not are to be deleted.
        """
        for each in files:
            if each.name in self.declared:
                both = Invalid(f"{each.name!r} is declared in code too", field="name", remedy="keep it in one place")
                raise each.refused(both)
        database = await self._open()
        return await schedule_plan.plan(database, files, self.resolved, database.clock.now(), prune=prune)

    def resolved(self, definition: Definition) -> Definition:
        """A definition with every step checked and complete."""
        return resolve(definition, self._jobs)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create(
        self, new: Definition, *, enabled: bool = True, reason: str | None = None, request_id: UUID | None = None
    ) -> Schedule:
        """Make a schedule. Asking again with the same ``request_id`` makes one."""
        database = await self._open()
        made = await schedule_definitions.create(
            database, self.resolved(new), self._author(database, reason), enabled=enabled, id=request_id
        )
        await self._tell(database)
        return made

    async def edit(
        self, name: str, new: Definition, *, reason: str | None = None, version: int | None = None
    ) -> Schedule:
        """Change a schedule; with ``version``, only if nobody has changed it since that one."""
        database = await self._open()
        present = await schedule_definitions.get(database, name)
        if new.plan != present.plan:  # as it stands it was checked when it was saved: no need to have its jobs at hand
            new = self.resolved(new)
        changed = await schedule_definitions.edit(database, name, new, self._author(database, reason), version=version)
        await self._tell(database)
        return changed

    async def enable(self, name: str, *, reason: str | None = None) -> bool:
        """Switch a schedule on, from now on; False if it was on."""
        return await self._switch(name, reason, enabled=True)

    async def disable(self, name: str, *, reason: str | None = None) -> bool:
        """Switch a schedule off; it can still be run by hand. False if it was off."""
        return await self._switch(name, reason, enabled=False)

    async def _switch(self, name: str, reason: str | None, *, enabled: bool) -> bool:
        database = await self._open()
        switched = await schedule_definitions.switch(database, name, self._author(database, reason), enabled=enabled)
        await self._tell(database)
        return switched

    async def delete(self, name: str, *, reason: str | None = None, version: int | None = None) -> None:
        """Delete a schedule that is not running; what it did stays on record. With ``version``, only if nobody has
        changed it since that one."""
        database = await self._open()
        await schedule_definitions.delete(database, name, self._author(database, reason), version=version)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> Schedule:
        """The schedule of that name."""
        return await schedule_definitions.get(await self._open(), name)

    async def list(
        self, *, after: str | None = None, enabled: bool | None = None, search: str | None = None, limit: int = 100
    ) -> Sequence[Record]:
        """Schedules by name, each with its last run."""
        return await schedules.list_schedules(
            await self._open(), after=after, enabled=enabled, search=search, limit=listed(limit)
        )

    async def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """The next n runs, whether it is enabled or not."""
        database = await self._open()
        found = await schedule_definitions.get(database, name)
        return found.definition.trigger.preview(database.clock.now(), n, str(found.id))

    async def simulate(self, start: datetime, end: datetime, given: Given | None = None) -> Simulation:
        """What would fire between two instants, under the rules for runs that meet and for missed ones."""
        return await rehearse(await self._open(), start, end, given or Given())

    async def versions(
        self, name: str | UUID, *, before: tuple[datetime, int] | None = None, limit: int = 50
    ) -> Sequence[Version]:
        """The changes of every schedule that has had this name, or of the one with this id, the newest first; also of
        one that has been deleted. The next page is ``before`` the last (at, version)."""
        found = await schedules.versions(await self._open(), name, listed(limit), before)
        if not found and before is None:
            raise schedule_definitions.unknown(str(name))
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
        """What became of every due instant, the newest first. The next page begins ``before`` the last instant of this
        one and ``below`` its id: many schedules may be due at one instant."""
        database = await self._open()
        schedule_id = None if name is None else await id_of(database, name)
        if decision is not None and decision not in tuple(Decision):
            raise Invalid(f"{decision!r:.60} is none", field="decision", remedy=f"use one of {', '.join(Decision)}")
        return await schedules.ledger(
            database, schedule_id=schedule_id, before=before, decision=decision, limit=listed(limit), below=below
        )

    # --- running ----------------------------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        *,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        of_jobs_only: bool = False,
        request_id: UUID | None = None,
    ) -> Started:
        """Run a schedule now. The overlap rule decides if it is active; ``arguments`` are for steps by name, for this
        run only, and with ``of_jobs_only`` refused for steps that are no jobs. Asking again with the same
        ``request_id`` starts it once."""
        database = await self._open()
        request, who, now = request_id or new_id(), self._who(), database.clock.now()
        audit_recorder.tell(target=name, after={"request_id": str(request), "arguments": arguments})

        def change(plan: Plan) -> Plan:
            if not arguments:
                return plan
            return resolve_plan(with_arguments(plan, arguments, of_jobs_only=of_jobs_only), self._jobs)

        if not arguments and not audit_recorder.is_asked_for():
            started = await self._run_as_last_seen(database, name, now, who, request)
            if started is not None:
                return started
        started = await database.transaction(
            lambda connection: firing.run_now(connection, name, now, who, request_id=request, change=change)
        )
        if started.decision is Decision.QUEUED:
            await self._tell(database)
        return started

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _run_as_last_seen(
        self, database: Database, name: str, now: datetime, who: Actor, request: UUID
    ) -> Started | None:
        """Most runs find a schedule as it was, and nothing in the way; for those there is nothing to be asked first."""
        seen = self._seen.pop(name, None) or await schedules.named(database, name)
        started = None if seen is None else await firing.run_at_once(database, seen, now, who, request)
        if seen is not None and started is not None:
            self._seen[name] = seen
            while len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]  # the one not run for the longest time
        return started

    def _author(self, database: Database, reason: str | None, origin: str = "hand") -> Author:
        return Author(self._who(), database.clock.now(), reason, origin)

    async def _tell(self, database: Database) -> None:
        await queue.wake(database, ["schedules"])


async def id_of(database: Database, name: str) -> UUID:
    """The schedule that has this name, or had it last."""
    id = await schedules.last_named(database, name)
    if id is None:
        raise schedule_definitions.unknown(name)
    return id
