"""Routes ``/api/v1/identity/previews…``: what runs would do."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id
from tenuto.api.security.authentication import ApiCall, require_role, requires
from tenuto.definitions.document_parser import Document
from tenuto.model.access.actors import Role
from tenuto_identity.api.shared_parameters import NO_SYSTEM, RUN_ID, Reader, SystemFilter, after_id, operations, reveals
from tenuto_identity.list_views import PREVIEWS
from tenuto_identity.model.sync.pending_exports import ExportKind
from tenuto_identity.store.previews import PreviewItem, PreviewRecord, PreviewRequest, RequestCount

router = APIRouter(route_class=ApiRoute)

STEP = {
    "step": 1,
    "system": "HR",
    "profile": "Full Import",
    "status": "completed",
    "changes": {"Deleted": 1},
    "requests": 0,
}
PREVIEW = {"id": RUN_ID, "subject": "Nightly HR Sync", "state": "completed", "steps": [STEP]}
ITEM = {"number": "1", "step": 1, "type": "person", "anchor": "1004", "change": "Deleted"}
REQUEST = {
    "number": "1",
    "step": 3,
    "system": "AD",
    "kind": "delete",
    "type": "user",
    "anchor": "5f0c9a2e",
    "address": "cn=Edsger Dijkstra,ou=Engineering,dc=ad,dc=test",
    "changes": [],
}
NO_PREVIEW = "identity.preview.not_found"


class PreviewBody(Body):
    """What is previewed: a run profile of a system, or a schedule."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"schedule": "Nightly HR Sync"}]})

    system: str | None = Field(default=None, max_length=200, description="Name of the connected system.")
    profile: str | None = Field(default=None, max_length=200, description="Name of its run profile.")
    schedule: str | None = Field(
        default=None, max_length=200, description="Name of a schedule: its run profile steps are previewed in order."
    )
    definitions: dict[str, Any] | None = Field(
        default=None,
        description="Contents of a definition file that the preview uses as if it were applied; needs the role editor.",
    )


class StartedPreview(BaseModel):
    """A preview that waits for a worker."""

    preview_id: UUID = Field(description="Id of the preview and of its task.")


@router.post(
    "/previews",
    operation_id="identity_previews_create",
    responses=describe(
        {"preview_id": RUN_ID},
        not_found=(NO_SYSTEM, "schedule.not_found"),
        invalid=("identity.preview.subject_missing", "identity.preview.no_steps", "identity.profile.not_found"),
    ),
)
async def start_preview(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "identity.preview.start", handles_repeats=True)],
    body: PreviewBody,
) -> StartedPreview:
    """Start a preview, as a task. It runs on a copy of the data, changes nothing and sends nothing. With definitions
    it needs the role editor: they decide which systems are opened, with which settings and secrets."""
    if body.definitions is not None:  # guard: identity.preview_definitions_role
        require_role(call.caller, Role.EDITOR)
    documents = [] if body.definitions is None else [Document("definitions", body.definitions)]
    id = await operations(call).preview(
        system=body.system,
        profile=body.profile,
        schedule=body.schedule,
        documents=documents,
        request_id=call.object_id,
    )
    return StartedPreview(preview_id=id)


@router.get("/previews", operation_id="identity_previews_list", responses=describe_page(PREVIEW))
@listed_as(PREVIEWS)
async def list_previews(call: Reader, limit: Limit = 50, after: After = None) -> Page[PreviewRecord]:
    """List previews, the newest first. They are kept for a day."""
    found = await operations(call).previews(before=decode_key(after, UUID), limit=limit, reveals=reveals(call))
    return make_page(found, limit, lambda each: (each.id,))


@router.get("/previews/{id}", operation_id="identity_previews_get", responses=describe(PREVIEW, not_found=NO_PREVIEW))
async def get_preview(call: Reader, id: Id) -> PreviewRecord:
    """Get a preview with the counts of its runs and the guards that would hold."""
    return await operations(call).preview_record(id, reveals=reveals(call))


@router.get(
    "/previews/{id}/items",
    operation_id="identity_previews_items",
    responses=describe_page(ITEM, not_found=NO_PREVIEW),
)
async def list_preview_items(
    call: Reader,
    id: Id,
    errors: Annotated[bool, Query(description="List only objects in error.")] = False,
    limit: Limit = 100,
    after: After = None,
) -> Page[PreviewItem]:
    """List what the runs of a preview would do, object by object."""
    found = await operations(call).preview_items(
        id, errors_only=errors, after=after_id(after), limit=limit, reveals=reveals(call)
    )
    return make_page(found, limit, lambda each: (each.number,))


@router.get(
    "/previews/{id}/requests",
    operation_id="identity_previews_requests",
    responses=describe_page(REQUEST, not_found=NO_PREVIEW),
)
async def list_preview_requests(
    call: Reader,
    id: Id,
    system: SystemFilter = None,
    kind: Annotated[ExportKind | None, Query(description="Filter by kind.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[PreviewRequest]:
    """List the requests that would be sent to the targets."""
    found = await operations(call).preview_requests(
        id, system=system, kind=kind, after=after_id(after), limit=limit, reveals=reveals(call)
    )
    return make_page(found, limit, lambda each: (each.number,))


@router.get(
    "/previews/{id}/request-counts",
    operation_id="identity_previews_request_counts",
    responses=describe_page({"system": "AD", "kind": "create", "request_count": 12}, not_found=NO_PREVIEW),
)
async def count_preview_requests(call: Reader, id: Id) -> Page[RequestCount]:
    """Count the requests that would be sent, by system and kind."""
    found = await operations(call).preview_request_counts(id)
    return make_page(found, len(found) + 1, lambda each: (each.system, each.kind))
