"""The verbs of schedules and executions: what a program or a person may ask for, beside plain jobs.

Each checks what it is given, does one transaction through the engine, and wakes whoever must know. Nothing here decides
when something runs or what a step's end means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from tenuto.clock import steady
from tenuto.engine import definitions, executing, firing, narrative, planning
from tenuto.engine.definitions import Author, Effect
from tenuto.engine.firing import Started
from tenuto.engine.planning import Planned
from tenuto.engine.rehearsal import Given, rehearse
from tenuto.engine.simulation import Simulation
from tenuto.engine.why import Why, why_execution
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.handlers.jobs import Jobs
from tenuto.handlers.steps import resolve, resolve_plan
from tenuto.ids import new_id
from tenuto.model.access import Actor
from tenuto.model.definitionfiles import Declared
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition, Misfire, Overlap, Plan, Step, misfire_from_fields, with_arguments
from tenuto.model.triggers import Trigger
from tenuto.store import activities, executions, schedules
from tenuto.store import tasks as queue
from tenuto.store.database import Database
from tenuto.store.schedules import Schedule, Version

Open = Callable[[], Awaitable[Database]]
Record = dict[str, Any]

_MAX_LISTED = 500


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
        for each in planning.those_needed_first(wanted):
            author = self._author(database, reason, origin)
            effects[each.name] = await definitions.declare(database, self.resolved(each), author)
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
        return await planning.plan(database, files, self.resolved, database.clock.now(), prune=prune)

    async def carry_out(self, planned: Planned, *, reason: str | None = None) -> None:
        """Do what was planned, all of it or nothing; refused if something has changed since."""
        database = await self._open()
        await planning.carry_out(database, planned, self._author(database, reason, "file"))
        if planned.changes_something:
            await self._tell(database)

    def resolved(self, definition: Definition) -> Definition:
        """A definition with every step checked and complete."""
        return resolve(definition, self._jobs)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create(self, new: Definition, *, enabled: bool = True, reason: str | None = None) -> Schedule:
        """Make a schedule."""
        database = await self._open()
        made = await definitions.create(database, self.resolved(new), self._author(database, reason), enabled=enabled)
        await self._tell(database)
        return made

    async def edit(
        self, name: str, new: Definition, *, reason: str | None = None, version: int | None = None
    ) -> Schedule:
        """Change a schedule; with ``version``, only if nobody has changed it since that one."""
        database = await self._open()
        present = await definitions.get(database, name)
        if new.plan != present.plan:  # as it stands it was checked when it was saved: no need to have its jobs at hand
            new = self.resolved(new)
        changed = await definitions.edit(database, name, new, self._author(database, reason), version=version)
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
        switched = await definitions.switch(database, name, self._author(database, reason), enabled=enabled)
        await self._tell(database)
        return switched

    async def delete(self, name: str, *, reason: str | None = None) -> None:
        """Delete a schedule that is not running; what it did stays on record."""
        database = await self._open()
        await definitions.delete(database, name, self._author(database, reason))

    # --- asking -----------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> Schedule:
        """The schedule of that name."""
        return await definitions.get(await self._open(), name)

    async def list(
        self, *, after: str | None = None, enabled: bool | None = None, search: str | None = None, limit: int = 100
    ) -> Sequence[Record]:
        """Schedules by name, each with its last run."""
        return await schedules.list_schedules(
            await self._open(), after=after, enabled=enabled, search=search, limit=_listed(limit)
        )

    async def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """The next n runs, whether it is enabled or not."""
        database = await self._open()
        found = await definitions.get(database, name)
        return found.definition.trigger.preview(database.clock.now(), n, str(found.id))

    async def simulate(self, start: datetime, end: datetime, given: Given | None = None) -> Simulation:
        """What would fire between two instants, under the rules for runs that meet and for missed ones."""
        return await rehearse(await self._open(), start, end, given or Given())

    async def versions(self, name: str, *, limit: int = 50) -> Sequence[Version]:
        """The changes of a schedule, the newest first; also of one that has been deleted."""
        found = await schedules.versions(await self._open(), name, _listed(limit))
        if not found:
            raise definitions.unknown(name)
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
        schedule_id = None if name is None else await _id_of(database, name)
        if decision is not None and decision not in tuple(Decision):
            raise Invalid(f"{decision!r:.60} is none", field="decision", remedy=f"use one of {', '.join(Decision)}")
        return await schedules.ledger(
            database, schedule_id=schedule_id, before=before, decision=decision, limit=_listed(limit), below=below
        )

    # --- running ----------------------------------------------------------------------------------------------------

    async def run(
        self, name: str, *, arguments: Mapping[str, Mapping[str, Any]] | None = None, request_id: UUID | None = None
    ) -> Started:
        """Run a schedule now. The overlap rule decides if it is active; ``arguments`` are for steps by name, for this
        run only. Asking again with the same ``request_id`` starts it once."""
        database = await self._open()
        request, who, now = request_id or new_id(), self._who(), database.clock.now()

        def change(plan: Plan) -> Plan:
            return resolve_plan(with_arguments(plan, arguments), self._jobs) if arguments else plan

        started = await database.transaction(
            lambda connection: firing.run_now(connection, name, now, who, request_id=request, change=change)
        )
        if started.decision is Decision.QUEUED:
            await self._tell(database)
        return started

    # --- inside -----------------------------------------------------------------------------------------------------

    def _author(self, database: Database, reason: str | None, origin: str = "hand") -> Author:
        return Author(self._who(), database.clock.now(), reason, origin)

    async def _tell(self, database: Database) -> None:
        await queue.wake(database, ["schedules"])


class Executions:
    """``app.executions``: what runs and ran, and what may be done to it."""

    def __init__(self, open: Open, who: Callable[[], Actor]) -> None:
        self._open = open
        self._who = who

    async def get(self, id: UUID) -> Record:
        """An execution with every step: its state, activity, wait, duration and error, running ones live."""
        database = await self._open()
        found = await executions.execution(database, id)
        if found is None:
            raise NotFound(f"there is no execution {id}", remedy="see `tenuto execution list`")
        return narrative.told(found, await executions.steps(database, id), database.clock.now())

    async def find(self, prefix: str) -> UUID:
        """The one execution whose id begins so."""
        found = await executions.find(await self._open(), *activities.ids_beginning(prefix))
        if not found:
            raise NotFound(f"no execution's id begins with {prefix}", remedy="copy one from `tenuto execution list`")
        if len(found) > 1:
            raise Conflict(f"several ids begin with {prefix}", field="id", remedy="type more of it")
        return found[0]

    async def why(self, id: UUID) -> Why:
        """Why an execution does not go on: the reasons of every open step of the group it has come to."""
        return await why_execution(await self._open(), id)

    async def list(
        self,
        *,
        below: UUID | None = None,
        state: str | None = None,
        schedule: str | None = None,
        limit: int = 50,
    ) -> Sequence[Record]:
        """Executions, the newest first."""
        database = await self._open()
        schedule_id = None if schedule is None else await _id_of(database, schedule)
        return await executions.list_executions(
            database, below=below, state=state, schedule_id=schedule_id, limit=_listed(limit)
        )

    async def cancel(self, id: UUID, *, reason: str | None = None) -> Literal["cancelled", "stopping"]:
        """Cancel: what has not begun is removed at once, what runs is told to stop."""
        database = await self._open()
        return await executing.cancel(database, id, database.clock.now(), self._who(), reason)

    async def pause(self, id: UUID) -> None:
        """Let nothing more of it begin; what runs goes on to its end."""
        database = await self._open()
        await executing.pause(database, id, database.clock.now(), self._who())

    async def resume(self, id: UUID) -> None:
        """Let a paused one go on."""
        database = await self._open()
        await executing.resume(database, id, database.clock.now())

    async def retry(self, id: UUID) -> UUID:
        """Run one that failed or was cancelled again from the group it came to; the id of the new one."""
        database = await self._open()
        return await executing.retry(database, id, database.clock.now(), self._who())

    async def wait(self, id: UUID, timeout: float | None = None) -> Record:
        """Wait until an execution has ended."""
        deadline, pause = None if timeout is None else steady() + timeout, 0.002
        database = await self._open()
        while True:
            found = await executions.execution(database, id)
            if found is None:
                raise NotFound(f"there is no execution {id}")
            if found["ended_at"] is not None:
                return await self.get(id)
            if deadline is not None and steady() > deadline:
                raise Conflict(f"execution {id} has not ended after {timeout:g} s", remedy="wait longer")
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, 0.5)  # never much longer than it has lasted so far


async def _id_of(database: Database, name: str) -> UUID:
    """The schedule that has this name, or had it last."""
    id = await schedules.last_named(database, name)
    if id is None:
        raise definitions.unknown(name)
    return id


def _listed(limit: int) -> int:
    if not 1 <= limit <= _MAX_LISTED:
        raise Invalid(f"must be from 1 to {_MAX_LISTED}", field="limit")
    return limit
