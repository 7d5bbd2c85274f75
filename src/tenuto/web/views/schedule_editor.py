"""``/schedules/new`` and ``/schedules/{name}/edit``: a schedule as a form with a preview, saved by the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.bodies.definition_bodies import schedule_to_fields
from tenuto.api.parameters import Name
from tenuto.app import Tenuto
from tenuto.definitions.document_writer import write_yaml
from tenuto.model.definitions.schedules import MisfirePolicy, OverlapPolicy
from tenuto.operations.definitions.schedule_checks import TriggerExplanation
from tenuto.presentation.descriptions import describe_misfire, describe_overlap
from tenuto.store.definitions.schedules import Schedule
from tenuto.web.components.definition_forms import (
    Choices,
    StepForm,
    TriggerForm,
    load_choices,
    make_step_form,
    make_step_groups,
    make_trigger_form,
)
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_DAILY = {"kind": "cron", "cron": "0 2 * * *"}


@dataclass(frozen=True, slots=True)
class Option:
    """A choice with its meaning."""

    value: str
    label: str


OVERLAPS = tuple(Option(str(each), describe_overlap(str(each))) for each in OverlapPolicy)
MISFIRES = tuple(Option(str(each), describe_misfire({"policy": str(each)})) for each in MisfirePolicy)


@dataclass(frozen=True, slots=True)
class ScheduleEditor:
    """A schedule as a form."""

    stored: Schedule | None
    """The schedule to change; None for a new one."""
    name: str
    description: str
    trigger: TriggerForm
    explanation: TriggerExplanation | None
    groups: Sequence[Sequence[StepForm]]
    overlap: str
    misfire: Mapping[str, Any]
    choices: Choices
    new_step: StepForm
    """The step that the browser adds."""
    text: str
    """The definition as YAML."""
    overlaps: Sequence[Option] = OVERLAPS
    misfires: Sequence[Option] = MISFIRES


@router.get("/schedules/new")
async def show_new_schedule(
    request: Request,
    call: Reader,
    type: Annotated[str, Query(max_length=200)] = "job",
    target: Annotated[str, Query(max_length=200)] = "",
    copy: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show the form of a new schedule: with one step of this type, or a copy of another schedule."""
    view = PageView(request, call)
    step = {"job": target} if type == "job" else {"schedule": target} if type == "schedule" else {"kind": type}
    fields: dict[str, Any] = {"name": "", "trigger": {**_DAILY, "zone": view.viewer.zone_name}, "steps": [step]}
    if copy:
        fields = {**schedule_to_fields((await view.app.schedules.get(copy)).definition), "name": f"Copy of {copy}"}
    model = await load_editor(view.app, None, fields, step)
    return await view.render(
        "pages/schedule_editor.html", model, title="New schedule", current="/schedules", modules=("forms", "editor")
    )


@router.get("/schedules/{name:name}/edit")
async def show_schedule_editor(request: Request, call: Reader, name: Name) -> Response:
    """Show the form of a schedule."""
    view = PageView(request, call)
    stored = await view.app.schedules.get(name)
    model = await load_editor(view.app, stored, schedule_to_fields(stored.definition), {"job": ""})
    return await view.render(
        "pages/schedule_editor.html", model, title=f"Edit {name}", current="/schedules", modules=("forms", "editor")
    )


async def load_editor(
    app: Tenuto, stored: Schedule | None, fields: Mapping[str, Any], step: Mapping[str, Any]
) -> ScheduleEditor:
    """Return the form of a definition."""
    explanation = None
    if stored is not None:
        explanation = await app.schedules.explain(stored.definition.trigger)
    return ScheduleEditor(
        stored=stored,
        name=str(fields["name"]),
        description=str(fields.get("description", "")),
        trigger=make_trigger_form(fields["trigger"]),
        explanation=explanation,
        groups=make_step_groups(app, fields["steps"]),
        overlap=str(fields.get("overlap", OverlapPolicy.SKIP)),
        misfire=fields.get("misfire") or {"policy": "once"},
        choices=await load_choices(app),
        new_step=make_step_form(app, step),
        text=write_yaml(dict(fields)),
    )
