"""``/api/v1/plans``: plan and apply many definitions in one transaction."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.definition_bodies import locate_in_body
from tenuto.api.bodies.definition_errors import FieldError, describe_error
from tenuto.api.bodies.definition_models import DefinitionDocument, DescribedBy
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.openapi import describe
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.definitions.document_parser import MAX_DEPTH, Document, parse_document
from tenuto.definitions.document_writer import write_yaml
from tenuto.definitions.versioned_definitions import Effect
from tenuto.errors import Conflict, Invalid
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.plans import ApplyPlan, read_declarations

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
        "queue.*",
        "rate_limit.*",
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

MAX_CONVERTED_LENGTH = 100_000
"""Characters of one definition to convert. Reading takes about a second for 500,000."""

Definitions = Annotated[dict[str, Any], DescribedBy(DefinitionDocument)]
Prune = Annotated[bool, Query(description="Delete definitions that an earlier file declared and this body does not.")]


class FieldDifference(BaseModel):
    """Values of a field before and after a change."""

    before: Any
    after: Any


class PlannedDefinition(BaseModel):
    """The effect of one definition."""

    what: str
    """``schedule``, ``manifest``, ``group``, ``queue``, or the name of an extension's list."""
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


class DefinitionText(Body):
    """A definition, as YAML or as JSON."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "name: nightly\ncron: 0 2 * * *\n"}]})

    text: str | None = Field(default=None, max_length=MAX_CONVERTED_LENGTH, description="The definition as YAML.")
    definition: dict[str, Any] | None = Field(default=None, description="The definition as JSON.")


class ConvertedDefinition(BaseModel):
    """One definition in both forms."""

    text: str = Field(description="The definition as YAML.")
    definition: dict[str, Any] | None = Field(description="Null if the text cannot be read.")
    errors: list[FieldError]


@router.post(
    "/convert",
    operation_id="definitions_convert",
    responses=describe(
        {"text": "name: nightly\n", "definition": {"name": "nightly"}, "errors": []},
        invalid=("definition.text.conflict", "definition.text.too_long"),
    ),
)
async def convert_definition(
    call: Annotated[ApiCall, requires(Role.VIEWER, "plan.read")], body: DefinitionText
) -> ConvertedDefinition:
    """Convert one definition from YAML to JSON or from JSON to YAML. Returns the error if the text cannot be read; the
    definition is not checked and not saved."""
    if (body.text is None) == (body.definition is None):
        raise Invalid(
            "the request has neither or both of text and definition",
            code="definition.text.conflict",
            field="text",
            remedy="send exactly one of them",
        )
    if body.definition is not None:
        return await asyncio.to_thread(_write, body.definition)
    return await asyncio.to_thread(_read, body.text or "")


def _write(definition: dict[str, Any]) -> ConvertedDefinition:
    """Convert JSON to YAML. It runs in a thread: a large definition must not stop the web service."""
    if not _fits(definition, MAX_DEPTH, MAX_CONVERTED_LENGTH):
        raise Invalid(
            f"the definition has more than {MAX_CONVERTED_LENGTH:,} characters or {MAX_DEPTH} levels",
            code="definition.text.too_long",
            field="definition",
            remedy="convert it in parts",
        )
    return ConvertedDefinition(text=write_yaml(definition), definition=definition, errors=[])


def _fits(value: Any, depth: int, length: int) -> bool:
    """Return whether a value has at most this depth, and at most this length as JSON."""
    level = [value]
    while level and depth >= 0:
        level = [part for each in level for part in _parts(each)]
        depth -= 1
    return not level and len(json.dumps(value, ensure_ascii=False)) <= length


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _read(text: str) -> ConvertedDefinition:
    """Convert YAML to JSON. It runs in a thread, as `_write`."""
    try:
        value = parse_document("definition.yaml", text.encode()).value
        if not isinstance(value, dict):
            raise Invalid(
                "the definition is not a mapping of names to values",
                code="definition.text.not_a_mapping",
                field="text",
                remedy="write it like an entry of a definition file: `name: …`",
            )
    except Invalid as error:
        error.field = "text"
        error.message = error.message.removeprefix("definition.yaml, ")
        return ConvertedDefinition(text=text, definition=None, errors=[describe_error(error)])
    return ConvertedDefinition(text=text, definition=value, errors=[])


async def _make_plan(call: ApiCall, definitions: dict[str, Any], *, prune: bool) -> ApplyPlan:
    try:
        declarations = await asyncio.to_thread(read_declarations, [Document("body", definitions)])
        return await call.app.plans.plan(declarations, prune=prune)
    except Invalid as error:
        raise locate_in_body(error) from error


def _describe_plan(planned: ApplyPlan) -> PlannedChanges:
    changes = [
        *(_describe_change("schedule", each) for each in planned.schedules.changes),
        *(_describe_change("manifest", each) for each in planned.manifests.changes),
        *(_describe_change("group", each) for each in planned.groups),
        *(_describe_change("queue", each) for each in planned.queues.changes),
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
