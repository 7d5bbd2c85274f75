"""Plan operations (``app.plans``): plan and apply the schedules, manifests and groups that files declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tenuto.definitions import definition_plan
from tenuto.definitions.definition_files import (
    DeclaredGroup,
    DeclaredManifest,
    DeclaredSchedule,
    parse_groups,
    parse_manifests,
    parse_schedules,
)
from tenuto.definitions.definition_plan import DefinitionPlan, GroupChange, ManifestPlan, SchedulePlan
from tenuto.definitions.document_parser import Document
from tenuto.definitions.manifest_definitions import MANIFESTS
from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.definitions.versioned_definitions import CHANGING_EFFECTS
from tenuto.ids import new_id
from tenuto.model.operation_context import OperationCaller
from tenuto.operations.manifests import Manifests
from tenuto.operations.operation import OpenDatabase, OperationGroup, change_context
from tenuto.operations.schedules import Schedules
from tenuto.postgres.database import Connection
from tenuto.store import tasks


@dataclass(frozen=True, slots=True)
class Declarations:
    """The contents of definition files."""

    schedules: Sequence[DeclaredSchedule] = ()
    manifests: Sequence[DeclaredManifest] = ()
    groups: Sequence[DeclaredGroup] = ()


def read_declarations(documents: Iterable[Document]) -> Declarations:
    """Parse definition files; a duplicate declaration is an error."""
    parsed = list(documents)
    return Declarations(parse_schedules(parsed), parse_manifests(parsed), parse_groups(parsed))


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The changes that applying definition files would make."""

    schedules: SchedulePlan
    manifests: ManifestPlan = field(default_factory=DefinitionPlan)
    groups: Sequence[GroupChange] = ()

    @property
    def has_changes(self) -> bool:
        changes_groups = any(each.effect in CHANGING_EFFECTS for each in self.groups)
        return self.schedules.has_changes or self.manifests.has_changes or changes_groups

    @property
    def deleted(self) -> Sequence[str]:
        """Names of the schedules and manifests to delete."""
        return [each.key for part in (self.schedules, self.manifests) for each in part.deleted]


class Plans(OperationGroup):
    """Operations on plans."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, schedules: Schedules, manifests: Manifests) -> None:
        super().__init__(open, caller)
        self._schedules = schedules
        self._manifests = manifests

    async def plan(self, declarations: Declarations, *, prune: bool = False) -> ApplyPlan:
        """Return the changes that applying files would make, without making them.

        With ``prune``, schedules and manifests that were declared in a file and are no longer declared are deleted.
        """
        schedules = await self._schedules.plan(declarations.schedules, prune=prune)
        manifests = await self._manifests.plan(declarations.manifests, prune=prune)
        groups = await definition_plan.plan_groups(await self._open(), declarations.groups)
        return ApplyPlan(schedules, manifests, groups)

    async def apply(self, planned: ApplyPlan, *, reason: str | None = None) -> None:
        """Make all planned changes in one transaction; an error if a definition has changed since the plan."""
        operation = await self._begin("plan.apply", reason=reason)
        database, context = operation.database, change_context(operation, "file")
        schedule_ids = {change.key: new_id() for change in planned.schedules.changes}
        manifest_ids = {change.key: new_id() for change in planned.manifests.changes}

        async def act(connection: Connection) -> None:
            await definition_plan.apply_plan_in_tx(SCHEDULES, connection, planned.schedules, context, schedule_ids)
            await definition_plan.apply_plan_in_tx(MANIFESTS, connection, planned.manifests, context, manifest_ids)
            await definition_plan.apply_groups_in_tx(connection, planned.groups, context)
            if not planned.has_changes:  # at most the recorded origin of definitions changes
                context.mark_unchanged()

        await database.transaction(act)
        if planned.has_changes:
            await tasks.notify_services(database, ["schedules", "manifests", "limits"])
