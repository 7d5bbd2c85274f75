"""Errors of a definition by field: every part is checked on its own, so that an editor can show all errors at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from tenuto.api.bodies.definition_bodies import locating_steps, parse_definition
from tenuto.app import Tenuto
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger
from tenuto.steps.built_in_kinds import check_dependencies

_PLACEHOLDER = {"name": "check", "steps": [{"name": "check", "schedule": "check"}]}
"""The smallest definition that can be parsed."""
_OTHER_PARTS = ("name", "description", "overlap", "misfire", "steps", "enabled")
MAX_ERRORS = 100


class FieldError(BaseModel):
    """An error in one field of a definition."""

    field: str | None = Field(description="Path of the field, such as `steps[2].timeout`; null for the whole.")
    code: str
    message: str
    remedy: str | None


class ChangedField(BaseModel):
    """A field that differs from the stored definition."""

    title: str
    lines: list[str] = Field(description="Lines that begin with `-`, `+` or a blank.")


def parse_schedule(definition: dict[str, Any]) -> DeclaredSchedule:
    """Parse a schedule in a request body."""
    return parse_definition("schedules", definition, parse_schedules)


def parse_trigger(fields: Mapping[str, Any]) -> Trigger:
    """Parse a trigger in a request body; errors name its own fields."""
    try:
        return parse_schedule({**_PLACEHOLDER, "trigger": dict(fields)}).definition.trigger
    except Invalid as error:
        if error.field is not None:
            error.field = error.field.removeprefix("trigger").lstrip(".") or None
        raise


def find_trigger(definition: Mapping[str, Any]) -> Trigger | None:
    """Return the trigger of a definition whose other parts may be wrong; None if it is wrong itself."""
    try:
        return parse_schedule({**_PLACEHOLDER, **_trigger_part(definition)}).definition.trigger
    except Invalid:
        return None


def collect_errors(app: Tenuto, definition: Mapping[str, Any], stored_steps: Sequence[Any] = ()) -> list[FieldError]:
    """Return the errors of all parts of a schedule; empty if there is none. The jobs of stored steps may be unknown
    here, so unchanged steps are not checked."""
    found: dict[tuple[str | None, str], FieldError] = {}
    known = [step for entry in stored_steps for step in (entry if isinstance(entry, list) else [entry])]
    for prefix, part in _parts(definition):
        if prefix and part["steps"][0] in known:
            continue
        try:
            _check_part(app, part)
        except Invalid as error:
            described = describe_error(error, prefix)
            found.setdefault((described.field, described.code), described)
    if not found:
        try:
            declared = parse_schedule(dict(definition))
            with locating_steps(declared):
                check_dependencies(declared.definition.plan, app.jobs)
        except Invalid as error:
            described = describe_error(error)
            found[described.field, described.code] = described
    return list(found.values())[:MAX_ERRORS]


def describe_error(error: Invalid, prefix: str = "") -> FieldError:
    """Return an error for a response; ``prefix`` replaces the path of the only step of a part."""
    field, message = error.field, error.message
    if prefix and field is not None and field.startswith("steps"):
        field = prefix + field.removeprefix("steps[0]").removeprefix("steps")
        message = message.replace("steps[0]", prefix, 1)
    return FieldError(field=field, code=error.code, message=message, remedy=error.remedy)


def _check_part(app: Tenuto, part: dict[str, Any]) -> None:
    declared = parse_schedule(part)
    with locating_steps(declared):
        if part["steps"] != _PLACEHOLDER["steps"]:
            app.schedules.resolve_steps(declared.definition, each_alone=True)


def _parts(definition: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each part as a separate small definition, and the path of its step."""
    yield "", {**_PLACEHOLDER, **_trigger_part(definition)}
    for name in ("name", "description", "overlap", "misfire"):
        if name in definition:
            yield "", {**_PLACEHOLDER, name: definition[name]}
    if "name" not in definition:
        yield "", {"steps": _PLACEHOLDER["steps"]}
    steps = definition.get("steps")
    if not isinstance(steps, list) or not steps:
        yield "", {**_PLACEHOLDER, "steps": steps}
        return
    for index, entry in enumerate(steps):
        if isinstance(entry, list) and entry:
            for place, step in enumerate(entry):
                yield f"steps[{index}][{place}]", {**_PLACEHOLDER, "steps": [step]}
        else:
            yield f"steps[{index}]", {**_PLACEHOLDER, "steps": [entry]}


def _trigger_part(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trigger and unknown fields."""
    return {name: value for name, value in definition.items() if name not in _OTHER_PARTS}
