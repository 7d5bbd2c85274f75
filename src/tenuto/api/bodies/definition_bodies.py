"""Definitions in request and response bodies, in the format of definition files.

A response may be sent back unchanged: read-only fields (version, timestamps) are ignored, and an unchanged part keeps
its stored form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Header, Response

from tenuto.definitions.definition_files import DeclaredSchedule, LocatedError
from tenuto.definitions.document_parser import Document
from tenuto.errors import Invalid, quoted
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.definitions.steps import JOB, SCHEDULE, Step
from tenuto.model.triggers import ManualTrigger
from tenuto.store.definitions.definition_rows import StoredDefinition

D = TypeVar("D")

IfMatch = Annotated[
    str | None, Header(description="ETag of a response. The change is refused if the definition has changed since.")
]
_STORED_FIELDS = ("id", "enabled", "version", "origin", "created_at", "updated_at", "last_run_at", "next_run_at")
SCHEDULE_READ_ONLY_FIELDS = _STORED_FIELDS
MANIFEST_READ_ONLY_FIELDS = (*_STORED_FIELDS, "schedule_type", "property_type", "last_successful_run_at")


def stored_fields(stored: StoredDefinition[Any], response: Response) -> dict[str, Any]:
    """Return the fields that a stored definition has besides its definition; set the version as ETag."""
    response.headers["ETag"] = f'"v{stored.version}"'
    return {name: getattr(stored, name) for name in _STORED_FIELDS}


def parse_definition(section: str, definition: dict[str, Any], read: Callable[[list[Document]], Sequence[D]]) -> D:
    """Parse a definition like an entry in this section of a definition file."""
    document = Document("body", {section: [definition]})
    try:
        return read([document])[0]
    except Invalid as error:
        raise locate_in_body(error, f"{section}[0]") from error


def locate_in_body(error: Invalid, prefix: str = "") -> Invalid:
    """Return an error in a definition file as an error in the body: ``prefix`` is the path of the body in the file."""
    if not isinstance(error, LocatedError):
        return error
    field = error.path.removeprefix(prefix).lstrip(".")
    message = f"{field}: {error.problem}" if field else error.problem
    return Invalid(message, code=error.code, field=field or None, remedy=error.remedy)


@contextmanager
def locating_steps(declared: DeclaredSchedule) -> Iterator[None]:
    """Name the place in the body, such as ``steps[2].arguments.manifest``, in errors of steps."""
    try:
        yield
    except Invalid as error:
        if error.field is None or not error.field.startswith("steps."):
            raise
        raise locate_in_body(declared.locate_error(error), declared.path) from error


def drop_fields(definition: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the definition without these fields."""
    return {name: value for name, value in definition.items() if name not in names}


def refuse_enabled_change(definition: Mapping[str, Any], *, enabled: bool) -> None:
    """Refuse a definition that would enable or disable the object."""
    if definition.get("enabled", enabled) is not enabled:
        raise Invalid(
            "enabled cannot be changed together with the definition",
            code="definition.enabled.read_only",
            field="enabled",
            remedy="POST to …/enable or …/disable",
        )


def pop_enabled(definition: dict[str, Any]) -> bool:
    """Remove ``enabled`` from a new definition and return it."""
    enabled = definition.pop("enabled", True)
    if not isinstance(enabled, bool):
        raise Invalid("enabled must be true or false", code="definition.enabled.invalid", field="enabled")
    return enabled


def parse_etag(if_match: str | None) -> int | None:
    """Return the version that an ETag names."""
    if if_match is None:
        return None
    text = if_match.strip().removeprefix("W/").strip('"').removeprefix("v")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Invalid(
            f"If-Match {quoted(if_match, 60)} is not an ETag of a definition",
            code="request.if_match.invalid",
            field="If-Match",
            remedy="send the ETag of the response unchanged",
        )
    return int(text)


# --- definitions as in definition files -------------------------------------------------------------------------------


def schedule_to_fields(definition: ScheduleDefinition) -> dict[str, Any]:
    """Return a schedule as in a definition file."""
    fields = definition.to_fields()
    steps = [[_step_to_fields(step) for step in group] for group in definition.plan.groups]
    return {**fields, "steps": [group[0] if len(group) == 1 else group for group in steps]}


def _step_to_fields(step: Step) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": step.name}
    if step.kind in (JOB, SCHEDULE):
        fields[step.kind] = step.target
        if step.arguments and step.kind == JOB:
            fields["input"] = dict(step.arguments)
    else:
        fields |= {"kind": step.kind, "arguments": dict(step.arguments)}
        if step.target != step.kind:
            fields["target"] = step.target
    if step.continue_on_failure:
        fields["continue_on_failure"] = True
    if step.needs:
        fields["needs"] = list(step.needs)
    if step.when is not None:
        fields["when"] = step.when
    if step.policy is not None:
        fields |= _policy_to_fields(step.policy)
    return fields | {name: value for name in ("queue", "priority") if (value := getattr(step, name)) is not None}


def manifest_to_fields(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as in a definition file."""
    fields: dict[str, Any] = {
        "external_id": manifest.external_id,
        "name": manifest.name,
        "description": manifest.description,
        "job": manifest.job,
        "properties": dict(manifest.properties),
    }
    if not isinstance(manifest.trigger, ManualTrigger):
        fields["trigger"] = manifest.trigger.to_fields()
    if manifest.depends_on is not None:
        fields["after"] = manifest.depends_on
    if manifest.on_demand:
        fields["on_demand"] = True
    fields |= _policy_to_fields(manifest.policy)
    fields |= {"queue": manifest.queue, "priority": manifest.priority}
    fields |= {name: value for name in ("group", "max_active") if (value := getattr(manifest, name)) is not None}
    if manifest.expires_seconds is not None:
        fields["expires_in"] = manifest.expires_seconds
    return {**fields, "on_dead_letter": str(manifest.on_dead_letter)}


def _policy_to_fields(policy: TaskPolicy) -> dict[str, Any]:
    timeout = {} if policy.timeout_seconds is None else {"timeout": policy.timeout_seconds}
    return {**timeout, "retry": asdict(policy.retry), "on_lost": policy.on_lost}
