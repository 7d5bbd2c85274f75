"""Definitions in the body of a request: read by the rules of definition files, and told in the same words.

What is told of a definition may be sent back as it is: what only the service can say (when it was made, which version
it is) is passed over, and a part that has not been changed stands as it was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Header

from tenuto.definitions.strict_yaml import Document
from tenuto.errors import Invalid
from tenuto.model.manifests import Manifest
from tenuto.model.policies import Policy
from tenuto.model.schedules import Definition
from tenuto.model.steps import JOB, SCHEDULE, Step
from tenuto.model.triggers import Manual

D = TypeVar("D")

IfMatch = Annotated[
    str | None, Header(description="The ETag it had when you looked: refused if it has been changed since.")
]
_OURS = ("id", "version", "origin", "created_at", "updated_at", "last_run_at", "next_run_at")
OF_SCHEDULES = (*_OURS, "enabled")
OF_MANIFESTS = (*_OURS, "enabled", "schedule_type", "property_type", "last_successful_run")


def written(section: str, definition: dict[str, Any], read: Callable[[list[Document]], Sequence[D]]) -> D:
    """One definition, as it would stand in this section of a file."""
    document = Document("body", {section: [definition]})
    try:
        return read([document])[0]
    except Invalid as error:
        raise within_body(section, error) from error


def within_body(section: str, error: Invalid) -> Invalid:
    """A refusal told by the path of its field within the body."""
    field = (error.field or "").rsplit(": ", 1)[-1].removeprefix(f"{section}[0]").lstrip(".")
    return Invalid(error.message, field=field or None, remedy=error.remedy)


def without(definition: Mapping[str, Any], ours: Sequence[str]) -> dict[str, Any]:
    """What is the caller's to say."""
    return {name: value for name, value in definition.items() if name not in ours}


def refuse_to_switch(definition: Mapping[str, Any], *, enabled: bool) -> None:
    """Whether it is enabled is not changed in passing."""
    if definition.get("enabled", enabled) is not enabled:
        raise Invalid("is not changed with the definition", field="enabled", remedy="POST to …/enable or …/disable")


def switched_on(definition: dict[str, Any]) -> bool:
    """Whether a new one is to be enabled, taken out of what is said of it."""
    enabled = definition.pop("enabled", True)
    if not isinstance(enabled, bool):
        raise Invalid("must be true or false", field="enabled")
    return enabled


def version_of(if_match: str | None) -> int | None:
    """The version an ETag speaks of."""
    if if_match is None:
        return None
    text = if_match.strip().removeprefix("W/").strip('"').removeprefix("v")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Invalid("is no ETag of a definition", field="If-Match", remedy="send the ETag as you got it")
    return int(text)


# --- in the words of definition files ---------------------------------------------------------------------------------


def schedule_as_written(definition: Definition) -> dict[str, Any]:
    """A schedule as a file would say it."""
    fields = definition.to_fields()
    steps = [[_step_as_written(step) for step in group] for group in definition.plan.groups]
    return {**fields, "steps": [group[0] if len(group) == 1 else group for group in steps]}


def _step_as_written(step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {"name": step.name}
    if step.kind in (JOB, SCHEDULE):
        told[step.kind] = step.target
        if step.arguments and step.kind == JOB:
            told["input"] = dict(step.arguments)
    else:
        told |= {"kind": step.kind, "arguments": dict(step.arguments)}
        if step.target != step.kind:
            told["target"] = step.target
    if step.continue_on_failure:
        told["continue_on_failure"] = True
    if step.policy is not None:
        told |= _rules(step.policy)
    return told | {name: value for name in ("queue", "priority") if (value := getattr(step, name)) is not None}


def manifest_as_written(manifest: Manifest) -> dict[str, Any]:
    """A manifest as a file would say it."""
    told: dict[str, Any] = {
        "external_id": manifest.external_id,
        "name": manifest.name,
        "description": manifest.description,
        "job": manifest.job,
        "properties": dict(manifest.properties),
    }
    if not isinstance(manifest.trigger, Manual):
        told["trigger"] = manifest.trigger.fields()
    if manifest.depends_on is not None:
        told["after"] = manifest.depends_on
    if manifest.on_demand:
        told["on_demand"] = True
    told |= _rules(manifest.policy)
    told |= {"queue": manifest.queue, "priority": manifest.priority}
    return told | {name: value for name in ("group", "max_active") if (value := getattr(manifest, name)) is not None}


def _rules(policy: Policy) -> dict[str, Any]:
    timeout = {} if policy.timeout_seconds is None else {"timeout": policy.timeout_seconds}
    return {**timeout, "retry": asdict(policy.retry), "on_lost": policy.on_lost}
