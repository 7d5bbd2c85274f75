"""``/api/v1/plans``: many definitions at once: what bringing them into force would change, and doing exactly that."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi import Body as InBody

from tenuto.api.auth import Needs, Visit
from tenuto.api.response_docs import answers
from tenuto.api.strict_route import StrictRoute
from tenuto.definitions.strict_yaml import Document
from tenuto.errors import Conflict, Invalid
from tenuto.model.actors import Role
from tenuto.operations.plans import WholePlan, declarations_of

router = APIRouter(prefix="/api/v1/plans", tags=["plans"], route_class=StrictRoute)

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

Written = Annotated[
    dict[str, Any],
    InBody(examples=[EXAMPLE], description="What a definition file holds: `schedules`, `manifests`, `groups`."),
]
Prune = Annotated[bool, Query(description="Delete what a file declared once and this does not.")]


@router.post("", responses=answers(PLANNED))
async def plan_definitions(
    visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "plan.read"))], definitions: Written, prune: Prune = False
) -> dict[str, Any]:
    """What bringing these definitions into force would change. Nothing is changed."""
    return _shown(await _planned(visit, definitions, prune=prune))


@router.post("/apply", responses=answers(PLANNED))
async def apply_definitions(
    visit: Annotated[Visit, Depends(Needs(Role.EDITOR, "plan.apply"))],
    definitions: Written,
    prune: Prune = False,
    plan: Annotated[
        str | None, Query(max_length=100, description="`plan` of the answer that was looked at: just that is done.")
    ] = None,
) -> dict[str, Any]:
    """Bring these definitions into force, all of it or nothing; refused if something has changed since the look."""
    planned = await _planned(visit, definitions, prune=prune)
    shown = _shown(planned)
    if plan is not None and shown["plan"] != plan:
        raise Conflict("it would not change what was planned any more", field="plan", remedy="look at the plan again")
    await visit.app.plans.carry_out(planned, reason=visit.reason)
    return shown


async def _planned(visit: Visit, definitions: dict[str, Any], *, prune: bool) -> WholePlan:
    try:
        return await visit.app.plans.plan(declarations_of([Document("body", definitions)]), prune=prune)
    except Invalid as error:
        field = (error.field or "").removeprefix("body: ").removeprefix("body")
        raise Invalid(error.message, field=field or None, remedy=error.remedy) from error


def _shown(planned: WholePlan) -> dict[str, Any]:
    found = [
        *(_change("schedule", each) for each in planned.schedules.changes),
        *(_change("manifest", each) for each in planned.manifests.changes),
        *(_change("group", each) for each in planned.manifests.groups),
    ]
    told = {"changes": found, "deleted": list(planned.deleted), "changes_something": planned.changes_something}
    fingerprint = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
    return {**told, "plan": fingerprint}


def _change(what: str, change: Any) -> dict[str, Any]:
    differences = {name: {"before": before, "after": after} for name, (before, after) in change.differences.items()}
    return {"what": what, "name": change.key, "effect": change.effect, "changes": differences}
