"""``/api/v1/manifests``, ``/api/v1/manifest-groups`` and ``/api/v1/polls``: manifests, their runs, groups and polls."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.definition_bodies import (
    MANIFEST_READ_ONLY_FIELDS,
    IfMatch,
    drop_fields,
    locate_in_body,
    manifest_to_fields,
    parse_definition,
    parse_etag,
    pop_enabled,
    refuse_enabled_change,
    stored_fields,
)
from tenuto.api.bodies.definition_errors import ChangedField, FieldError, find_trigger
from tenuto.api.bodies.definition_errors import describe_error as describe_field_error
from tenuto.api.bodies.definition_models import DescribedBy, ManifestReplacement, ManifestResource, NewManifest
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.bodies.responses import Changed, StartedTask
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, cursor_instant, cursor_int, decode_cursor, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import ExternalId, Name, NameFilter, TextFilter, quote_path_part
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.definitions.definition_files import parse_manifests
from tenuto.diagnostics.reasons import Diagnosis
from tenuto.errors import Invalid
from tenuto.model.access.actors import Role
from tenuto.model.definitions.blocking_reasons import Obstacle
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.triggers import ManualTrigger
from tenuto.model.work.tasks import TaskState
from tenuto.operations.definitions.schedule_checks import TriggerExplanation
from tenuto.presentation.definition_views import GROUPS, MANIFESTS, POLLS
from tenuto.presentation.descriptions import describe_changes
from tenuto.store.definitions.definition_rows import Version
from tenuto.store.definitions.manifests import (
    ManifestGroupRecord,
    ManifestRecord,
    OpenRunRecord,
    PollRecord,
    RunAttemptRecord,
    StoredManifest,
)

router = APIRouter(prefix="/api/v1", tags=["manifests"], route_class=ApiRoute)

EXAMPLE: dict[str, Any] = {
    "external_id": "invoices",
    "job": "make_invoice",
    "properties": {"currency": "EUR"},
    "trigger": {"kind": "cron", "cron": "0 6 1 * *", "zone": "Europe/Paris"},
    "retry": {"max_attempts": 5, "base_seconds": 30},
    "group": "billing",
}
RESPONSE: dict[str, Any] = {**EXAMPLE, "enabled": True, "version": 3, "next_run_at": "2031-06-01T04:00:00Z"}
TASK_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
GROUP = {
    "name": "billing",
    "max_active": 10,
    "priority": 0,
    "enabled": True,
    "manifest_count": 4,
    "active_count": 2,
    "rate_limit": "100/m",
}
VERSION = {"version": 3, "change": "edited", "at": "2031-05-03T09:00:00Z", "reason": "five attempts"}
POLL = {"at": "2031-05-04T02:00:00Z", "by": "scheduler-1", "enqueued_count": 2, "dead_lettered_count": 0, "skipped": {}}

NOT_FOUND = "manifest.not_found"
INVALID_DEFINITION = (
    "definition.*",
    "manifest.*",
    "trigger.*",
    "retry.*",
    "task.*",
    "value.*",
    "job.unknown",
    "job.input.invalid",
)
"""Families of the codes of the parser; see the reference of error codes."""
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "manifest.read")]


@router.get("/manifests", operation_id="manifests_list", responses=describe_page(RESPONSE))
@listed_as(MANIFESTS)
async def list_manifests(
    call: Viewer,
    enabled: bool | None = None,
    group: TextFilter = None,
    search: NameFilter = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ManifestRecord]:
    """List manifests by external id, each with the number of its open tasks."""
    found = await call.app.manifests.list(
        after=decode_key(after, str), enabled=enabled, group=group, search=search, limit=limit
    )
    return make_page(found, limit, lambda each: (each.external_id,))


@router.post(
    "/manifests",
    operation_id="manifests_create",
    status_code=201,
    response_model_exclude_unset=True,
    responses=describe(RESPONSE, 201, conflict="manifest.already_exists", invalid=INVALID_DEFINITION),
)
async def create_manifest(
    call: Annotated[ApiCall, requires(Role.EDITOR, "manifest.create", handles_repeats=True)],
    definition: Annotated[dict[str, Any], DescribedBy(NewManifest)],
    response: Response,
) -> ManifestResource:
    """Create a manifest."""
    enabled = pop_enabled(definition)
    manifest = await call.app.manifests.create(
        _parse(call, definition), enabled=enabled, reason=call.reason, request_id=call.object_id
    )
    response.headers["Location"] = f"/api/v1/manifests/{quote_path_part(manifest.external_id)}"
    return _manifest_resource(manifest, response)


class ManifestCheckResult(BaseModel):
    """Changes that saving a manifest would make, or its first error."""

    is_valid: bool
    errors: list[FieldError]
    explanation: TriggerExplanation | None = Field(description="Null without a valid trigger.")
    changes: list[ChangedField] = Field(description="Differences from the stored definition.")


@router.post(
    "/manifests/check",
    operation_id="manifests_check",
    responses=describe(
        {
            "is_valid": True,
            "errors": [],
            "explanation": None,
            "changes": [{"title": "policy", "lines": ["- 15 attempts", "+ 5 attempts"]}],
        },
        not_found=NOT_FOUND,
    ),
)
async def check_manifest(
    call: Viewer,
    definition: Annotated[dict[str, Any], DescribedBy(ManifestReplacement)],
    replaces: Annotated[str | None, Query(max_length=200, description="External id of the manifest to change.")] = None,
    count: Annotated[int, Query(ge=1, le=100, description="Number of next runs.")] = 5,
) -> ManifestCheckResult:
    """Check a manifest without saving it. Returns its first error, or what saving it would change, with the next runs
    of its trigger."""
    stored = None if replaces is None else await call.app.manifests.get(replaces)
    fields = drop_fields(definition, MANIFEST_READ_ONLY_FIELDS)
    if stored is not None:
        fields = {"external_id": stored.external_id, **fields}
    explanation = None
    errors = []
    changes: list[tuple[str, list[str]]] = []
    try:
        is_unchanged = stored is not None and fields == manifest_to_fields(stored.manifest)
        new = stored.manifest if stored is not None and is_unchanged else _parse(call, fields)
        before = None if stored is None else stored.manifest.to_fields()
        changes = list(describe_changes(before, new.to_fields()))
        if not isinstance(new.trigger, ManualTrigger):
            explanation = await call.app.schedules.explain(new.trigger, count=count)
    except Invalid as error:
        errors = [describe_field_error(error)]
        trigger = find_trigger({name: fields[name] for name in ("trigger",) if name in fields})
        if trigger is not None and not isinstance(trigger, ManualTrigger):
            explanation = await call.app.schedules.explain(trigger, count=count)
    return ManifestCheckResult(
        is_valid=not errors,
        errors=errors,
        explanation=explanation,
        changes=[ChangedField(title=title, lines=lines) for title, lines in changes],
    )


@router.get(
    "/manifests/{external_id:name}",
    operation_id="manifests_get",
    response_model_exclude_unset=True,
    responses=describe(RESPONSE, not_found=NOT_FOUND),
)
async def get_manifest(call: Viewer, external_id: ExternalId, response: Response) -> ManifestResource:
    """Get a manifest. The response may be sent back with PUT."""
    return _manifest_resource(await call.app.manifests.get(external_id), response)


@router.put(
    "/manifests/{external_id:name}",
    operation_id="manifests_replace",
    response_model_exclude_unset=True,
    responses=describe(
        RESPONSE,
        not_found=NOT_FOUND,
        conflict="definition.version_conflict",
        invalid=(*INVALID_DEFINITION, "request.if_match.invalid"),
    ),
)
async def change_manifest(
    call: Annotated[ApiCall, requires(Role.EDITOR, "manifest.change")],
    external_id: ExternalId,
    definition: Annotated[dict[str, Any], DescribedBy(ManifestReplacement)],
    response: Response,
    if_match: IfMatch = None,
) -> ManifestResource:
    """Replace the definition of a manifest."""
    version = parse_etag(if_match)
    current = await call.app.manifests.get(external_id)
    refuse_enabled_change(definition, enabled=current.enabled)
    fields = {"external_id": external_id, **drop_fields(definition, MANIFEST_READ_ONLY_FIELDS)}
    is_unchanged = fields == manifest_to_fields(current.manifest)
    new = current.manifest if is_unchanged else _parse(call, fields)
    changed = await call.app.manifests.edit(external_id, new, reason=call.reason, version=version)
    return _manifest_resource(changed, response)


@router.delete(
    "/manifests/{external_id:name}",
    operation_id="manifests_delete",
    status_code=204,
    responses=describe(
        not_found=NOT_FOUND,
        conflict=("definition.version_conflict", "manifest.running", "manifest.in_use"),
        invalid="request.if_match.invalid",
    ),
)
async def delete_manifest(
    call: Annotated[ApiCall, requires(Role.EDITOR, "manifest.delete")],
    external_id: ExternalId,
    if_match: IfMatch = None,
) -> None:
    """Delete a manifest that has no open tasks. Its history stays."""
    await call.app.manifests.delete(external_id, reason=call.reason, version=parse_etag(if_match))


@router.post(
    "/manifests/{external_id:name}/enable",
    operation_id="manifests_enable",
    responses=describe({"changed": True}, not_found=NOT_FOUND),
)
async def enable_manifest(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "manifest.enable", handles_repeats=True)], external_id: ExternalId
) -> Changed:
    """Enable a manifest from now on."""
    # A request that changed nothing is not stored, so the first request of a repeated one made the change.
    return Changed(changed=call.is_repeat or await call.app.manifests.enable(external_id, reason=call.reason))


@router.post(
    "/manifests/{external_id:name}/disable",
    operation_id="manifests_disable",
    responses=describe({"changed": True}, not_found=NOT_FOUND),
)
async def disable_manifest(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "manifest.disable", handles_repeats=True)], external_id: ExternalId
) -> Changed:
    """Disable a manifest. Its trigger does not fire."""
    # A request that changed nothing is not stored, so the first request of a repeated one made the change.
    return Changed(changed=call.is_repeat or await call.app.manifests.disable(external_id, reason=call.reason))


class RunBody(Body):
    """Arguments or item of a run; by default it uses the properties of the manifest."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"arguments": {"customer": 17}}, {"item": {"customer": 17}, "key": "17"}]}
    )

    arguments: dict[str, Any] | None = Field(default=None, description="Arguments in addition to the properties.")
    item: Any = Field(
        default=None, description="Alternative to `arguments`: the input of one item. Items may run in parallel."
    )
    key: str | None = Field(
        default=None,
        max_length=200,
        description="Key of the item. The request is refused while an item with this key is open.",
    )


@router.post(
    "/manifests/{external_id:name}/enqueue",
    operation_id="manifests_enqueue",
    status_code=202,
    responses=describe(
        {"task_id": TASK_ID},
        202,
        not_found=NOT_FOUND,
        conflict="manifest.run.already_open",
        invalid=("manifest.*", "job.unknown", "job.input.invalid", "value.*"),
    ),
)
async def enqueue_manifest(
    call: Annotated[
        ApiCall,
        requires(Role.OPERATOR, "manifest.run", other_actions=("manifest.enqueue",), handles_repeats=True),
    ],
    external_id: ExternalId,
    response: Response,
    body: RunBody | None = None,
) -> StartedTask:
    """Run a manifest now, once, with arguments or for one item."""
    body = body or RunBody()
    if body.item is not None and body.arguments is not None:
        raise Invalid(
            "arguments and item exclude each other",
            code="manifest.run.conflict",
            field="arguments",
            remedy="send one of them",
        )
    if body.item is None and body.key is not None:
        raise Invalid(
            "key is given without item",
            code="manifest.run.item_missing",
            field="key",
            remedy="send the item of this key",
        )
    if body.item is None:
        task_id = await call.app.manifests.run(external_id, body.arguments, request_id=call.object_id)
    else:
        task_id = await call.app.manifests.enqueue(external_id, body.item, key=body.key, request_id=call.object_id)
    response.headers["Location"] = f"/api/v1/tasks/{task_id}"
    return StartedTask(task_id=task_id)


class ManifestRuns(BaseModel):
    """Runs, limits, dependents and dead letters of a manifest."""

    open_counts: dict[TaskState, int] = Field(description="Number of open tasks by state.")
    open_runs: list[OpenRunRecord] = Field(description="First open runs: running ones first, then by due time.")
    last_attempts: list[RunAttemptRecord] = Field(description="Last attempts, newest first, without batch items.")
    group: ManifestGroupRecord | None
    all_manifests: ManifestGroupRecord | None = Field(description="The group of all manifests.")
    dependents: list[str] = Field(description="External ids of the manifests that depend on it.")
    open_dead_letter_count: int
    obstacles: list[Obstacle] = Field(description="Why it does not run on its own although it is enabled.")


@router.get(
    "/manifests/{external_id:name}/details",
    operation_id="manifests_details",
    responses=describe({"open_counts": {"queued": 2}, "dependents": ["reminders"]}, not_found=NOT_FOUND),
)
async def manifest_details(call: Viewer, external_id: ExternalId, limit: Limit = 5) -> ManifestRuns:
    """Get details of a manifest: open tasks, last runs, group, dependent manifests and dead letters."""
    found = await call.app.manifests.details(external_id, limit=limit)
    return ManifestRuns(
        open_counts={TaskState(state): count for state, count in found.open_counts.items()},
        open_runs=found.open_runs,
        last_attempts=found.last_attempts,
        group=found.group,
        all_manifests=found.all_manifests,
        dependents=found.dependents,
        open_dead_letter_count=found.open_dead_letter_count,
        obstacles=list(found.obstacles),
    )


@router.get(
    "/manifests/{external_id:name}/why",
    operation_id="manifests_why",
    responses=describe(
        {
            "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
            "name": "import-ad",
            "state": "enabled",
            "reasons": [
                {
                    "code": "dependency_disabled",
                    "message": "it runs after manifest import-hr has succeeded, and import-hr is disabled",
                    "fields": {"manifest": "import-hr"},
                    "command": "tenuto manifest enable import-hr",
                }
            ],
        },
        not_found="manifest.not_found",
    ),
)
async def why_manifest(call: Viewer, external_id: ExternalId) -> Diagnosis:
    """Explain why a manifest does not run, or when it will. Of an open run, the reasons of its task follow."""
    return await call.app.manifests.why(external_id)


@router.get(
    "/manifests/{external_id:name}/versions",
    operation_id="manifests_versions",
    responses=describe_page(VERSION, not_found=NOT_FOUND),
)
async def manifest_versions(
    call: Viewer, external_id: ExternalId, limit: Limit = 50, after: After = None
) -> Page[Version]:
    """List the versions of a manifest, newest first: actor, time, reason, definition before and after."""
    found = await call.app.manifests.versions(
        external_id, before=decode_cursor(after, cursor_instant, cursor_int), limit=limit
    )
    return make_page(found, limit, lambda each: (each.at.isoformat(), each.version))


# --- groups and polls -------------------------------------------------------------------------------------------------


class GroupBody(Body):
    """Settings of a manifest group; omitted fields keep their values."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_active": 10, "priority": 5}]})

    max_active: int | None = Field(
        default=None, ge=1, le=100_000, description="Maximum number of active runs; null removes the limit."
    )
    priority: int | None = Field(default=None, ge=-100, le=100)
    enabled: bool | None = None
    rate_limit: str | None = Field(
        default=None,
        description="Maximum number of starts per second, minute or hour, such as `100/m`; null removes it.",
    )


@router.get(
    "/manifest-groups", operation_id="manifest_groups_list", responses=describe_page(GROUP), tags=["manifest groups"]
)
@listed_as(GROUPS)
async def list_manifest_groups(call: Viewer, limit: Limit = 100, after: After = None) -> Page[ManifestGroupRecord]:
    """List manifest groups by name with the number of active runs. The group `*` contains all manifests."""
    found = await call.app.manifests.groups(after=decode_key(after, str), limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.get(
    "/manifest-groups/{name:name}",
    operation_id="manifest_groups_get",
    responses=describe(GROUP, not_found="manifest_group.not_found"),
    tags=["manifest groups"],
)
async def get_manifest_group(call: Viewer, name: Name) -> ManifestGroupRecord:
    """Get a manifest group with the number of its active runs."""
    return await call.app.manifests.group(name)


@router.put(
    "/manifest-groups/{name:name}",
    operation_id="manifest_groups_change",
    responses=describe(GROUP, invalid=("manifest.*", "manifest_group.*", "rate_limit.*", "value.*")),
    tags=["manifest groups"],
)
async def change_manifest_group(
    call: Annotated[ApiCall, requires(Role.EDITOR, "manifest_group.change")], name: Name, group: GroupBody
) -> ManifestGroupRecord:
    """Change a manifest group: limit of active runs, priority, and whether its manifests run."""
    await call.app.manifests.change_group(
        name,
        max_active=group.max_active if "max_active" in group.model_fields_set else "keep",
        priority=group.priority,
        enabled=group.enabled,
        rate_limit=group.rate_limit if "rate_limit" in group.model_fields_set else "keep",
    )
    return await call.app.manifests.group(name)


@router.get("/polls", operation_id="polls_list", responses=describe_page(POLL), tags=["polls"])
@listed_as(POLLS)
async def list_polls(
    call: Annotated[ApiCall, requires(Role.VIEWER, "poll.read")],
    busy: bool = False,
    limit: Limit = 50,
    after: After = None,
) -> Page[PollRecord]:
    """List the polls of the manifest manager, newest first. With `busy`, only polls that did something."""
    found = await call.app.manifests.polls(below=decode_key(after, UUID), only_busy=busy, limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


# --- conversion -------------------------------------------------------------------------------------------------------


def _parse(call: ApiCall, definition: dict[str, Any]) -> Manifest:
    declared = parse_definition("manifests", definition, parse_manifests)
    try:
        return call.app.manifests.from_declaration(declared)
    except Invalid as error:
        raise locate_in_body(declared.locate_error(error), "manifests[0]") from error


def _manifest_resource(stored: StoredManifest, response: Response) -> ManifestResource:
    return ManifestResource(
        **manifest_to_fields(stored.manifest),
        **stored_fields(stored, response),
        schedule_type=stored.manifest.schedule_type,
        property_type=stored.manifest.property_type,
        last_successful_run_at=stored.last_successful_run_at,
    )
