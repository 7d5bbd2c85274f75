"""``/api/v1/plans``: plan and apply many definitions in one transaction."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Body as InBody

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.definition_bodies import locate_in_body
from tenuto.api.openapi import describe
from tenuto.definitions.document_parser import Document
from tenuto.errors import Conflict, Invalid
from tenuto.model.actors import Role
from tenuto.operations.plans import ApplyPlan, read_declarations

router = APIRouter(prefix="/api/v1/plans", tags=["plans"], route_class=ApiRoute)

EXAMPLE: dict[str, Any] = {
    "schedules": [{"name": "nightly", "cron": "0 2 * * *", "steps": [{"job": "hr_import"}]}],
    "groups": [{"name": "billing", "max_active": 10}],
}
CHANGE = {
    "what": "schedule",
    "name": "nightly",
    "effect": "changed",
    "changes": {"trigger": {"before": {}, "after": {}}},
}
PLANNED = {"changes": [CHANGE], "deleted": [], "changes_something": True, "plan": "9b1d…"}

Definitions = Annotated[
    dict[str, Any],
    InBody(examples=[EXAMPLE], description="Content of a definition file: `schedules`, `manifests`, `groups`."),
]
Prune = Annotated[bool, Query(description="Delete definitions that an earlier file declared and this body does not.")]


@router.post("", operation_id="plans_create", responses=describe(PLANNED))
async def plan_definitions(
    call: Annotated[ApiCall, requires(Role.VIEWER, "plan.read")], definitions: Definitions, prune: Prune = False
) -> dict[str, Any]:
    """Plan definitions. Returns the changes that applying them would make, and changes nothing."""
    return _plan_to_wire(await _make_plan(call, definitions, prune=prune))


@router.post("/apply", operation_id="plans_apply", responses=describe(PLANNED))
async def apply_definitions(
    call: Annotated[ApiCall, requires(Role.EDITOR, "plan.apply")],
    definitions: Definitions,
    prune: Prune = False,
    plan: Annotated[
        str | None,
        Query(max_length=100, description="`plan` of the reviewed plan. The request is refused if the changes differ."),
    ] = None,
) -> dict[str, Any]:
    """Apply definitions in one transaction. Refused if the changes differ from the given plan."""
    planned = await _make_plan(call, definitions, prune=prune)
    response = _plan_to_wire(planned)
    if plan is not None and response["plan"] != plan:
        raise Conflict(
            "the changes differ from the reviewed plan", code="plan.changed", field="plan", remedy="review the new plan"
        )
    await call.app.plans.apply(planned, reason=call.reason)
    return response


async def _make_plan(call: ApiCall, definitions: dict[str, Any], *, prune: bool) -> ApplyPlan:
    try:
        return await call.app.plans.plan(read_declarations([Document("body", definitions)]), prune=prune)
    except Invalid as error:
        raise locate_in_body(error) from error


def _plan_to_wire(planned: ApplyPlan) -> dict[str, Any]:
    changes = [
        *(_change_to_wire("schedule", each) for each in planned.schedules.changes),
        *(_change_to_wire("manifest", each) for each in planned.manifests.changes),
        *(_change_to_wire("group", each) for each in planned.groups),
    ]
    response = {"changes": changes, "deleted": list(planned.deleted), "changes_something": planned.has_changes}
    fingerprint = hashlib.sha256(json.dumps(response, sort_keys=True, default=str).encode()).hexdigest()
    return {**response, "plan": fingerprint}


def _change_to_wire(resource: str, change: Any) -> dict[str, Any]:
    differences = {name: {"before": before, "after": after} for name, (before, after) in change.differences.items()}
    return {"what": resource, "name": change.key, "effect": change.effect, "changes": differences}
