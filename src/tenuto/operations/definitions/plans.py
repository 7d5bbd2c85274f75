"""Plan operations (``app.plans``): plan and apply the schedules, manifests, groups and queues that files declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenuto.definitions import definition_plan, queue_definitions
from tenuto.definitions.definition_files import (
    DeclaredGroup,
    DeclaredListEntry,
    DeclaredManifest,
    DeclaredQueue,
    DeclaredSchedule,
    check_list_names,
    find_further_entries,
    parse_groups,
    parse_manifests,
    parse_queues,
    parse_schedules,
)
from tenuto.definitions.definition_plan import DefinitionPlan, GroupChange, ManifestPlan, SchedulePlan
from tenuto.definitions.document_parser import Document
from tenuto.definitions.manifest_definitions import MANIFESTS
from tenuto.definitions.queue_definitions import QueuePlan
from tenuto.definitions.schedule_definitions import SCHEDULES
from tenuto.definitions.versioned_definitions import CHANGING_EFFECTS
from tenuto.errors import Invalid
from tenuto.extension import ChangeAuthor, Contribution, DefinitionList, ListEntry, ListPlan
from tenuto.extension.registry import ExtensionRegistry
from tenuto.ids import new_id
from tenuto.jobs.registry import JobRegistry
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup, change_context
from tenuto.operations.definitions.manifests import Manifests
from tenuto.operations.definitions.schedules import Schedules
from tenuto.postgres import read_transactions
from tenuto.postgres.database import Connection, Database
from tenuto.steps.built_in_kinds import check_steps, check_steps_in_tx
from tenuto.store.service_notifications import notify_services


@dataclass(frozen=True, slots=True)
class Declarations:
    """The contents of definition files."""

    schedules: Sequence[DeclaredSchedule] = ()
    manifests: Sequence[DeclaredManifest] = ()
    groups: Sequence[DeclaredGroup] = ()
    further: Sequence[DeclaredListEntry] = ()
    """Entries of the lists of extensions."""
    queues: Sequence[DeclaredQueue] = ()


def read_declarations(documents: Iterable[Document]) -> Declarations:
    """Parse definition files; a duplicate declaration is an error."""
    parsed = list(documents)
    return Declarations(
        parse_schedules(parsed),
        parse_manifests(parsed),
        parse_groups(parsed),
        find_further_entries(parsed),
        parse_queues(parsed),
    )


@dataclass(frozen=True, slots=True)
class PlannedList:
    """The changes in the list of an extension."""

    extension: str
    definition_list: DefinitionList[Any]
    plan: ListPlan
    declared: Mapping[str, Any]
    """The parsed entries by key."""


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The changes that applying definition files would make."""

    schedules: SchedulePlan
    manifests: ManifestPlan = field(default_factory=DefinitionPlan)
    groups: Sequence[GroupChange] = ()
    lists: Sequence[PlannedList] = ()
    """Lists of extensions."""
    queues: QueuePlan = field(default_factory=QueuePlan)

    @property
    def has_changes(self) -> bool:
        changes_groups = any(each.effect in CHANGING_EFFECTS for each in self.groups)
        changes_lists = any(each.plan.has_changes for each in self.lists)
        core = (self.schedules, self.manifests, self.queues)
        return changes_groups or changes_lists or any(part.has_changes for part in core)

    @property
    def deleted(self) -> Sequence[str]:
        """Names of the definitions to delete."""
        core = [each.key for part in (self.schedules, self.manifests) for each in part.deleted]
        core += [f"queue {each.name}" for each in self.queues.deleted]
        return core + [change.key for each in self.lists for change in each.plan.changes if change.effect == "deleted"]


class Plans(OperationGroup):
    """Operations on plans."""

    def __init__(
        self,
        open: OpenDatabase,
        caller: OperationCaller,
        schedules: Schedules,
        manifests: Manifests,
        jobs: JobRegistry,
        extensions: ExtensionRegistry,
    ) -> None:
        super().__init__(open, caller)
        self._jobs = jobs
        self._extensions = extensions
        self._schedules = schedules
        self._manifests = manifests

    async def plan(self, declarations: Declarations, *, prune: bool = False) -> ApplyPlan:
        """Return the changes that applying files would make, without making them.

        With ``prune``, schedules and manifests that were declared in a file and are no longer declared are deleted,
        and the settings of such queues are removed.
        """
        database = await self._open()
        lists = await self._plan_lists(database, declarations.further, prune=prune)
        declared: dict[str, Mapping[str, Any]] = {each.definition_list.name: each.declared for each in lists}
        declared["manifests"] = {each.external_id: each for each in declarations.manifests}
        schedules = await self._schedules.plan(declarations.schedules, prune=prune)
        for change in schedules.changes:
            with definition_plan.locating_errors(change.entry):
                await check_steps(self._open, change.definition.plan, self._jobs, declared)
        manifests = await self._manifests.plan(declarations.manifests, prune=prune)
        groups = await definition_plan.plan_groups(database, declarations.groups)
        queues = await queue_definitions.plan_queues(database, declarations.queues, prune=prune)
        return ApplyPlan(schedules, manifests, groups, lists, queues)

    async def _plan_lists(
        self, database: Database, entries: Sequence[DeclaredListEntry], *, prune: bool
    ) -> list[PlannedList]:
        if not entries and not prune:  # extensions are not needed, so they are not imported
            return []
        check_lists(self._extensions, entries)
        contributions = self._extensions.definition_lists()
        parsed = {each.value.name: _parse_entries(each.value, entries) for each in contributions}
        declared = {name: [value for _, value in found.values()] for name, found in parsed.items()}
        planned = []
        for contribution in contributions:
            own = parsed[contribution.value.name]
            if own:
                planned.append(await self._plan_list(database, contribution, own, declared, prune=prune))
            elif prune:
                with self._extensions.isolate(contribution.extension, "definition lists"):
                    planned.append(await self._plan_list(database, contribution, {}, declared, prune=True))
        return planned

    async def _plan_list(
        self,
        database: Database,
        contribution: Contribution[DefinitionList[Any]],
        own: Mapping[str, tuple[DeclaredListEntry, Any]],
        declared: Mapping[str, Sequence[Any]],
        *,
        prune: bool,
    ) -> PlannedList:
        definition_list = contribution.value
        await self._extensions.create_services(contribution.extension).open_database()  # checks its schema

        async def plan(connection: Connection) -> ListPlan:
            if definition_list.check is not None:
                for entry, value in own.values():
                    with definition_plan.locating_errors(entry):
                        await definition_list.check(connection, value, declared)
            return await definition_list.plan(connection, [value for _, value in own.values()], prune)

        found = await read_transactions.read(database, plan)
        return PlannedList(
            contribution.extension.name, definition_list, found, {key: value for key, (_, value) in own.items()}
        )

    async def apply(self, planned: ApplyPlan, *, reason: str | None = None) -> None:
        """Make all planned changes in one transaction; an error if a definition has changed since the plan."""
        operation = await self._begin("plan.apply", reason=reason)
        database, context = operation.database, change_context(operation, "file")
        schedule_ids = {change.key: new_id() for change in planned.schedules.changes}
        manifest_ids = {change.key: new_id() for change in planned.manifests.changes}

        async def apply_plan(connection: Connection) -> None:
            for each in planned.lists:  # before the schedules, whose steps may refer to their objects
                if not each.plan.has_changes:
                    continue
                await each.definition_list.apply(
                    connection, each.plan, ChangeAuthor(operation.actor, operation.now, operation.context.reason)
                )
                for change in each.plan.changes:
                    if change.effect != "unchanged":
                        context.add_change(f"{each.extension}:{change.key}", change.before, change.after)
            await definition_plan.apply_plan_in_tx(SCHEDULES, connection, planned.schedules, context, schedule_ids)
            await definition_plan.apply_plan_in_tx(MANIFESTS, connection, planned.manifests, context, manifest_ids)
            await definition_plan.apply_groups_in_tx(connection, planned.groups, context)
            await queue_definitions.apply_queues_in_tx(connection, planned.queues, context)
            # After the manifests, which the steps may run; an error rolls everything back.
            for planned_schedule in planned.schedules.changes:
                if planned_schedule.effect in CHANGING_EFFECTS:
                    with definition_plan.locating_errors(planned_schedule.entry):
                        await check_steps_in_tx(connection, planned_schedule.definition.plan, self._jobs)
            context.mark_unchanged_if_nothing_changed()

        await database.transaction(apply_plan)
        if planned.has_changes:
            queued = [f"queued {name}" for name in planned.queues.changed_names]
            await notify_services(database, ["schedules", "manifests", "limits", *queued])


def check_lists(extensions: ExtensionRegistry, entries: Sequence[DeclaredListEntry]) -> None:
    """Raise an error if files have a list that no extension reads."""
    if entries:
        check_list_names(entries, [each.value.name for each in extensions.definition_lists()])


def _parse_entries(
    definition_list: DefinitionList[Any], entries: Iterable[DeclaredListEntry]
) -> dict[str, tuple[DeclaredListEntry, Any]]:
    """Return the entries of one list with their parsed values, by key."""
    found: dict[str, tuple[DeclaredListEntry, Any]] = {}
    for each in entries:
        if each.list_name != definition_list.name:
            continue
        with definition_plan.locating_errors(each):
            declared = definition_list.parse(ListEntry(each.value, each.document.location(each.path)))
            key = definition_list.key(declared)
            if key in found:
                other = found[key][0]
                raise Invalid(
                    f"{key!r} is declared already, at {other.document.location(other.path)}",
                    code="definition.duplicate",
                    remedy="rename or remove one of them",
                )
        found[key] = each, declared
    return found
