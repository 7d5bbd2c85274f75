"""``app.plans``: what files declare: schedules, manifests and groups together, shown first and done as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tenuto.definitions import manifest_plan, schedule_plan
from tenuto.definitions.manifest_files import DeclaredGroup, DeclaredManifest, groups_of, manifests_of
from tenuto.definitions.manifest_plan import PlannedManifests
from tenuto.definitions.schedule_files import Declared, schedules_of
from tenuto.definitions.schedule_plan import Planned
from tenuto.definitions.strict_yaml import Document
from tenuto.definitions.versioned import Author
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.jobs.registry import Jobs
from tenuto.model.actors import Actor
from tenuto.operations.listing import Open
from tenuto.operations.manifests import Manifests
from tenuto.postgres.database import Connection
from tenuto.store import tasks as queue
from tenuto.store.access import audit_recorder

PlanSchedules = Callable[[Sequence[Declared], bool], Awaitable[Planned]]


@dataclass(frozen=True, slots=True)
class Declarations:
    """Everything some files declare."""

    schedules: Sequence[Declared] = ()
    manifests: Sequence[DeclaredManifest] = ()
    groups: Sequence[DeclaredGroup] = ()


def declarations_of(documents: Iterable[Document]) -> Declarations:
    """Read what files declare; nothing is declared twice."""
    held = list(documents)
    return Declarations(schedules_of(held), manifests_of(held), groups_of(held))


@dataclass(frozen=True, slots=True)
class WholePlan:
    """What bringing some files into force would do."""

    schedules: Planned
    manifests: PlannedManifests = field(default_factory=PlannedManifests)

    @property
    def changes_something(self) -> bool:
        return self.schedules.changes_something or self.manifests.changes_something

    @property
    def deleted(self) -> Sequence[str]:
        """The names of what is to go."""
        gone = [each.name for each in self.schedules.deleted]
        return [*gone, *(each.external_id for each in self.manifests.deleted)]


class Plans:
    """``app.plans``: what files would change, and doing it."""

    def __init__(
        self, open: Open, who: Callable[[], Actor], jobs: Jobs, kept: Manifests, plan_schedules: PlanSchedules
    ) -> None:
        self._open = open
        self._who = who
        self._jobs = jobs
        self._manifests = kept
        self._plan_schedules = plan_schedules

    async def plan(self, wanted: Declarations, *, prune: bool = False) -> WholePlan:
        """What bringing files into force would change. Nothing is changed.

        With ``prune``, schedules and manifests that a file declared once and these do not are to be deleted.
        """
        for each in wanted.manifests:
            if each.external_id in self._manifests.declared:
                why = f"{each.external_id!r} is declared in code too"
                raise each.refused(Invalid(why, field="external_id", remedy="keep it in one place"))
        database = await self._open()
        schedules = await self._plan_schedules(wanted.schedules, prune)
        manifests = await manifest_plan.plan(
            database, wanted.manifests, wanted.groups, self._manifests.whole, database.clock.now(), prune=prune
        )
        return WholePlan(schedules, manifests)

    async def carry_out(self, planned: WholePlan, *, reason: str | None = None) -> None:
        """Do what was planned, all of it or nothing; refused if something has changed since."""
        database = await self._open()
        author = Author(self._who(), database.clock.now(), reason, "file")
        of_schedules = {change.key: new_id() for change in planned.schedules.changes}
        of_manifests = {change.key: new_id() for change in planned.manifests.changes}

        async def act(connection: Connection) -> None:
            await schedule_plan.carry_out_within(connection, planned.schedules, author, of_schedules)
            await manifest_plan.carry_out_within(connection, planned.manifests, author, of_manifests)
            if not planned.changes_something:  # at most it is noted where things are declared
                audit_recorder.changed_nothing()

        await database.transaction(act)
        if planned.changes_something:
            await queue.wake(database, ["schedules", "manifests", "limits"])
