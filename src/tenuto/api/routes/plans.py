"""``/api/v1/plans``: plan and apply many definitions in one transaction."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.api.definition_bodies import locate_in_body
from tenuto.api.definition_models import DefinitionDocument, DescribedBy
from tenuto.api.openapi import describe
from tenuto.definitions.document_parser import Document
from tenuto.definitions.versioned_definitions import Effect
from tenuto.errors import Conflict, Invalid
from tenuto.model.actors import Role
from tenuto.operations.plans import ApplyPlan, read_declarations

router = APIRouter(prefix="/api/v1/plans", tags=["plans"], route_class=ApiRoute)

CHANGE = {
    "what": "schedule",
    "name": "nightly",
    "effect": "changed",
    "changes": {"trigger": {"before": {}, "after": {}}},
}
PLANNED = {"changes": [CHANGE], "deleted": [], "changes_something": True, "plan": "9b1d…"}
PROBLEMS: dict[str, Any] = {
    "conflict": ("plan.changed", "definition.changed_since_plan", "schedule.*", "manifest.*"),
    "invalid": (
        "definition.*",
        "schedule.*",
        "manifest.*",
        "manifest_group.*",
        "step.*",
        "trigger.*",
        "retry.*",
        "task.*",
        "value.*",
        "plan.declared_in_code",
        "job.unknown",
        "job.input.invalid",
    ),
}

Definitions = Annotated[dict[str, Any], DescribedBy(DefinitionDocument)]
Prune = Annotated[bool, Query(description="Delete definitions that an earlier file declared and this body does not.")]


class FieldDifference(BaseModel):
    """Values of a field before and after a change."""

    before: Any
    after: Any


class PlannedDefinition(BaseModel):
    """The effect of one definition."""

    what: str
    """``schedule``, ``manifest``, ``group``, or the name of an extension's list."""
    name: str
    effect: Effect | Literal["deleted"]
    changes: dict[str, FieldDifference]


class PlannedChanges(BaseModel):
    """The changes that applying definitions makes."""

    changes: list[PlannedDefinition]
    deleted: list[str]
    changes_something: bool
    plan: str = Field(description="Fingerprint of the changes, for `plan` of `POST /api/v1/plans/apply`.")


@router.post("", operation_id="plans_create", responses=describe(PLANNED, **PROBLEMS))
async def plan_definitions(
    call: Annotated[ApiCall, requires(Role.VIEWER, "plan.read")], definitions: Definitions, prune: Prune = False
) -> PlannedChanges:
    """Plan definitions. Returns the changes that applying them would make, and changes nothing."""
    return _describe_plan(await _make_plan(call, definitions, prune=prune))


@router.post("/apply", operation_id="plans_apply", responses=describe(PLANNED, **PROBLEMS))
async def apply_definitions(
    call: Annotated[ApiCall, requires(Role.EDITOR, "plan.apply")],
    definitions: Definitions,
    prune: Prune = False,
    plan: Annotated[
        str | None,
        Query(max_length=100, description="`plan` of the reviewed plan. The request is refused if the changes differ."),
    ] = None,
) -> PlannedChanges:
    """Apply definitions in one transaction. Refused if the changes differ from the given plan."""
    planned = await _make_plan(call, definitions, prune=prune)
    response = _describe_plan(planned)
    if plan is not None and response.plan != plan:
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


def _describe_plan(planned: ApplyPlan) -> PlannedChanges:
    changes = [
        *(_describe_change("schedule", each) for each in planned.schedules.changes),
        *(_describe_change("manifest", each) for each in planned.manifests.changes),
        *(_describe_change("group", each) for each in planned.groups),
        *(
            _describe_change(each.definition_list.name, change)
            for each in planned.lists
            for change in each.plan.changes
        ),
    ]
    found = PlannedChanges(
        changes=changes, deleted=list(planned.deleted), changes_something=planned.has_changes, plan=""
    )
    content = json.dumps(found.model_dump(mode="json"), sort_keys=True)
    return found.model_copy(update={"plan": hashlib.sha256(content.encode()).hexdigest()})


def _describe_change(resource: str, change: Any) -> PlannedDefinition:
    differences = {
        name: FieldDifference(before=before, after=after) for name, (before, after) in change.differences.items()
    }
    return PlannedDefinition(what=resource, name=change.key, effect=change.effect, changes=differences)
