"""Previews: what the runs of a profile or a schedule would do, also with changed definitions. A preview is a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from tenuto.definitions.document_parser import Document
from tenuto.errors import Invalid, NotFound
from tenuto.extension import ChangeAuthor, ExtensionServices, StepDefaults, StepKind
from tenuto.ids import new_id
from tenuto.jobs.context import Context
from tenuto.model.definitions.schedules import Plan
from tenuto.operations.bound_operation import Operation
from tenuto.operations.definitions.plans import read_declarations
from tenuto.postgres.database import Connection
from tenuto.store.definitions import schedules
from tenuto.store.work import task_creation
from tenuto_identity.definitions.definition_lists import LIST_NAMES, apply_declared, plan_declared
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.sync.explanation import HIDDEN
from tenuto_identity.model.sync.preview_mask import REVEALED, PreviewMask, preview_mask
from tenuto_identity.operations.operation_group import IdentityGroup, hidden_attributes, hide_change, no_system
from tenuto_identity.settings import IdentitySettings
from tenuto_identity.store import definitions, previews, transaction_settings
from tenuto_identity.store.definitions import DefinitionKind
from tenuto_identity.store.previews import PreviewItem, PreviewRecord, PreviewRequest, RequestCount
from tenuto_identity.tasks.preview_run import PreviewStep, run_preview
from tenuto_identity.tasks.step_kinds import POLICY
from tenuto_identity.tasks.task_creation import build_task

PREVIEW_RETENTION = timedelta(days=1)
PLAN_SUBJECT = "plan"
"""Subject of a preview of what follows from definition files."""
RUN_PROFILE = "run_profile"


class PreviewStepArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    system: str
    profile: str
    group: int = 0
    continue_on_failure: bool = False


class PreviewArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: list[PreviewStepArguments] = Field(default_factory=list)
    """The run profiles, in order. None: the delta syncs and exports that follow from the definitions."""
    definitions: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    """Entries of the lists systems, metaverse, sync_rules and templates, which the preview uses instead of the stored
    ones."""
    prune: bool = False
    """Whether definitions of files that are not among these are deleted."""


def preview_kind(services: ExtensionServices) -> StepKind:
    """The step kind ``identity.preview``."""

    async def preview(arguments: PreviewArguments, ctx: Context) -> dict[str, Any]:
        """Preview run profiles on a scratch copy."""
        database = await services.open_database()

        async def change(connection: Connection) -> None:
            author = ChangeAuthor(ctx.initiator, database.clock.now(), "preview")
            await apply_declared(connection, arguments.definitions, author, prune=arguments.prune)

        has_change = bool(arguments.definitions) or arguments.prune
        steps = [PreviewStep(**each.model_dump()) for each in arguments.steps]
        return await run_preview(services, ctx, database, steps, change if has_change else None)

    def derive(arguments: PreviewArguments) -> StepDefaults:
        return StepDefaults(queue=services.section(IdentitySettings).queue)

    return StepKind.of(
        "identity.preview",
        PreviewArguments,
        preview,
        help="Show what run profiles would do, without doing it",
        policy=POLICY,
        derive=derive,
    )


class PreviewOperations(IdentityGroup):
    """Operations on previews."""

    async def preview(
        self,
        *,
        system: str | None = None,
        profile: str | None = None,
        schedule: str | None = None,
        documents: Iterable[Document] = (),
        request_id: UUID | None = None,
    ) -> UUID:
        """Start a preview of a run profile, or of all run profile steps of a schedule; return its id, which is also
        that of its task. ``documents`` are definition files that the preview uses as if they were applied. Without a
        profile and a schedule, it shows what follows from these files: see `preview_plan`."""
        declared = read_declarations(documents)
        given: dict[str, list[Any]] = {}
        for entry in declared.further:
            if entry.list_name in LIST_NAMES:
                given.setdefault(entry.list_name, []).append(entry.value)
        if given and system is None and profile is None and schedule is None:
            return await self.preview_plan(given, request_id=request_id)
        operation = await self._begin("identity.preview.start", target=schedule or f"{system}/{profile}")
        if schedule is not None:
            plans = {each.definition.name: each.definition.plan for each in declared.schedules}
            steps = _steps_of(plans.get(schedule) or await self._load_plan(schedule), schedule)
        elif system is not None and profile is not None:
            steps = [PreviewStep(system, profile)]
        else:
            raise Invalid(
                "a preview needs a system with a run profile, a schedule, or definitions",
                code="identity.preview.subject_missing",
                field="system",
                remedy="name a system and one of its run profiles, a schedule, or files with definitions",
            )
        await self._check(steps, given)
        arguments = {
            "steps": [
                {
                    "system": each.system,
                    "profile": each.profile,
                    "group": each.group,
                    "continue_on_failure": each.continue_on_failure,
                }
                for each in steps
            ],
            "definitions": given,
        }
        return await self._start(operation, schedule or f"{system}/{profile}", arguments, request_id)

    async def preview_plan(
        self, declared: Mapping[str, Sequence[Any]], *, prune: bool = False, request_id: UUID | None = None
    ) -> UUID:
        """Start a preview of what follows when definitions are applied: the delta syncs of all systems with marked
        objects, and the exports to all targets. Objects and exports that wait already are part of it.

        ``declared`` are the entries of the lists of definition files, as plain data. Returns the id of the preview."""
        operation = await self._begin("identity.preview.start", target=PLAN_SUBJECT)
        given = {name: list(declared[name]) for name in LIST_NAMES if declared.get(name)}
        await self._check((), given, prune=prune)
        arguments = {"steps": [], "definitions": given, "prune": prune}
        return await self._start(operation, PLAN_SUBJECT, arguments, request_id)

    async def _start(
        self, operation: Operation, subject: str, arguments: dict[str, Any], request_id: UUID | None
    ) -> UUID:
        given = arguments["definitions"]
        has_definitions = bool(given) or bool(arguments.get("prune"))
        id, now = request_id or new_id(), operation.now
        operation.entry.after = {"preview": str(id), "steps": arguments["steps"], "definitions": sorted(given)}
        task = build_task(self._services, operation.database, "identity.preview", arguments, operation.actor, id=id)
        author, expires_at = operation.actor.name, now + PREVIEW_RETENTION

        async def start(connection: Connection) -> None:
            async with transaction_settings.schema_of_identity(connection):
                is_new = await previews.insert_preview(
                    connection, id, subject, author, now, expires_at, has_definitions=has_definitions
                )
            if is_new:
                await task_creation.enqueue_tasks_within(connection, [task])
            else:
                operation.entry.mark_unchanged()

        await operation.database.transaction(start)
        return id

    async def _load_plan(self, name: str) -> Plan:
        database = await self._open()
        found = await schedules.load_schedule(database, name)
        if found is None:
            listed = await schedules.list_schedules(database, after=None, enabled=None, search=None, limit=500)
            raise NotFound(
                f"there is no schedule {name!r}",
                code="schedule.not_found",
                field="schedule",
                remedy=suggestion(name, [each.name for each in listed]) or "list them with `tenuto schedule list`",
            )
        return found.definition.plan

    async def _check(
        self, steps: Sequence[PreviewStep], given: Mapping[str, Sequence[Any]], *, prune: bool = False
    ) -> None:
        """Refuse unknown systems and profiles, and definitions that could not be applied."""

        async def read(connection: Connection) -> None:
            rows = (await definitions.load_definitions(connection)).of_kind(DefinitionKind.SYSTEM)
            known = {row.name: row.definition for row in rows}
            for kind, planned in await plan_declared(connection, given, prune=prune):
                if kind is DefinitionKind.SYSTEM:
                    known |= {change.key: change.after for change in planned.changes if change.after is not None}
            for step in steps:
                if step.system not in known:
                    raise no_system(step.system, list(known))
                profiles = [each["name"] for each in known[step.system].get("run_profiles", ())]
                if step.profile not in profiles:
                    raise Invalid(
                        f"the system {step.system!r} has no run profile {step.profile!r}",
                        code="identity.profile.not_found",
                        field="profile",
                        remedy=suggestion(step.profile, profiles)
                        or f"its run profiles are: {', '.join(profiles) or 'none'}",
                    )

        await transaction_settings.read_with(await self._open(), read)

    async def previews(
        self, *, before: UUID | None = None, limit: int = 100, reveals: bool = False
    ) -> Sequence[PreviewRecord]:
        """List previews, the newest first; page with ``before``."""
        found = await previews.list_previews(await self._open(), before, limit)
        return [_hide_record(each, await self._mask(each, reveals)) for each in found]

    async def preview_record(self, id: UUID, *, reveals: bool = False) -> PreviewRecord:
        """Return one preview with the results of its steps."""
        found = await self._load(id)
        return _hide_record(found, await self._mask(found, reveals))

    async def _load(self, id: UUID) -> PreviewRecord:
        found = await previews.load_preview(await self._open(), id)
        if found is None:
            raise NotFound(
                f"there is no preview {id}",
                code="identity.preview.not_found",
                remedy="previews are kept for a day; list them with `tenuto identity previews`",
            )
        return found

    async def _mask(self, record: PreviewRecord, reveals: bool) -> PreviewMask:
        """Return what of a preview the caller may not see."""
        if reveals:
            return REVEALED
        live = await transaction_settings.read_with(await self._open(), hidden_attributes, reveals)
        return preview_mask(record.sensitive_attributes, live, has_definitions=record.has_definitions)

    async def preview_items(
        self, id: UUID, *, errors_only: bool = False, after: int = 0, limit: int = 100, reveals: bool = False
    ) -> Sequence[PreviewItem]:
        """List what the runs of a preview would do to each object; page with ``after``.

        Messages and details can quote values. They are hidden if any attribute is sensitive, unless ``reveals``. A
        preview of given definitions then also hides which objects they are."""
        mask = await self._mask(await self._load(id), reveals)
        found = await previews.list_items(await self._open(), id, after, limit, errors_only=errors_only)
        return [_hide_item(each, mask) for each in found]

    async def preview_requests(
        self,
        id: UUID,
        *,
        system: str | None = None,
        kind: str | None = None,
        after: int = 0,
        limit: int = 100,
        reveals: bool = False,
    ) -> Sequence[PreviewRequest]:
        """List the requests that would be sent; page with ``after``. Values of sensitive attributes are hidden, unless
        ``reveals``; a preview of given definitions then hides all values."""
        mask = await self._mask(await self._load(id), reveals)
        found = await previews.list_requests(await self._open(), id, system, kind, after, limit)
        return [_hide_request(each, mask) for each in found]

    async def preview_request_counts(self, id: UUID) -> Sequence[RequestCount]:
        """Count the requests that would be sent, by system and kind."""
        await self._load(id)
        return await previews.count_requests(await self._open(), id)


def _hide_record(record: PreviewRecord, mask: PreviewMask) -> PreviewRecord:
    if not mask.hides_all:
        return record
    return replace(record, steps=[_hide_step(each) for each in record.steps])


def _hide_step(step: Mapping[str, Any]) -> dict[str, Any]:
    hidden = {"problem": step["problem"] and HIDDEN, "warnings": [HIDDEN for _ in step["warnings"]]}
    return {**step, **hidden}


def _hide_item(item: PreviewItem, mask: PreviewMask) -> PreviewItem:
    if mask.attributes or mask.hides_all:
        item = replace(item, message=item.message and HIDDEN, detail=None)
    if mask.hides_all:
        anchor, display = item.anchor and HIDDEN, item.display and HIDDEN
        item = replace(item, object_id=None, metaverse_id=None, anchor=anchor, display=display)
    return item


def _hide_request(request: PreviewRequest, mask: PreviewMask) -> PreviewRequest:
    hidden = mask.attributes
    if mask.hides_all:  # guard: identity.preview_definitions_hidden
        hidden = frozenset(change["attribute"] for change in request.changes)
        request = replace(request, anchor=request.anchor and HIDDEN, address=request.address and HIDDEN)
    return replace(request, changes=[hide_change(change, hidden) for change in request.changes])


def _steps_of(plan: Plan, schedule: str) -> list[PreviewStep]:
    """Return the run profile steps of a schedule; other kinds of steps are left out."""
    found = [
        PreviewStep(
            str(step.arguments.get("system")), str(step.arguments.get("profile")), number, step.continue_on_failure
        )
        for number, group in enumerate(plan.groups)
        for step in group
        if step.kind == RUN_PROFILE
    ]
    if not found:
        raise Invalid(
            f"the schedule {schedule!r} has no step of the kind {RUN_PROFILE}",
            code="identity.preview.no_steps",
            field="schedule",
            remedy="only run profiles can be previewed",
        )
    return found
