"""``/manifests/new`` and ``/manifests/{external_id}/edit``: a manifest as a form, saved by the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.bodies.definition_bodies import manifest_to_fields
from tenuto.api.parameters import Name
from tenuto.app import Tenuto
from tenuto.definitions.document_writer import write_yaml
from tenuto.model.definitions.steps import JOB
from tenuto.operations.definitions.schedule_checks import TriggerExplanation
from tenuto.store.definitions.manifests import StoredManifest
from tenuto.web.components.definition_forms import (
    MAX_NAMES,
    Choices,
    PolicyForm,
    TriggerForm,
    find_schema,
    load_choices,
    make_policy_form,
    make_trigger_form,
)
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class ManifestEditor:
    """A manifest as a form."""

    stored: StoredManifest | None
    """The manifest to change; None for a new one."""
    external_id: str
    name: str
    description: str
    job: str
    help: str
    properties: ArgumentsForm
    trigger: TriggerForm
    """Its kind is also ``after``, ``on_demand`` or ``manual``."""
    after: str
    policy: PolicyForm
    group: str
    max_active: str
    on_dead_letter: str
    explanation: TriggerExplanation | None
    choices: Choices
    manifests: Sequence[str]
    text: str
    """The definition as YAML."""


@router.get("/manifests/new")
async def show_new_manifest(
    request: Request,
    call: Reader,
    job: Annotated[str, Query(max_length=200)] = "",
    copy: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show the form of a new manifest: of this job, or a copy of another manifest."""
    view = PageView(request, call)
    fields: dict[str, Any] = {"external_id": "", "job": job}
    if copy:
        fields = {**manifest_to_fields((await view.app.manifests.get(copy)).manifest), "external_id": f"{copy}-copy"}
    model = await load_editor(view.app, None, fields, view.viewer.zone_name)
    return await view.render(
        "pages/manifest_editor.html", model, title="New manifest", current="/manifests", modules=("forms", "editor")
    )


@router.get("/manifests/{external_id:name}/edit")
async def show_manifest_editor(request: Request, call: Reader, external_id: Name) -> Response:
    """Show the form of a manifest."""
    view = PageView(request, call)
    stored = await view.app.manifests.get(external_id)
    model = await load_editor(view.app, stored, manifest_to_fields(stored.manifest), view.viewer.zone_name)
    return await view.render(
        "pages/manifest_editor.html",
        model,
        title=f"Edit {external_id}",
        current="/manifests",
        modules=("forms", "editor"),
    )


async def load_editor(
    app: Tenuto, stored: StoredManifest | None, fields: Mapping[str, Any], zone: str
) -> ManifestEditor:
    """Return the form of a definition."""
    trigger: Mapping[str, Any] = fields.get("trigger") or {
        "kind": "after" if fields.get("after") else "on_demand" if fields.get("on_demand") else "manual"
    }
    explanation = None
    if stored is not None and "trigger" in fields:
        explanation = await app.schedules.explain(stored.manifest.trigger)
    job = str(fields["job"])
    schema, help = find_schema(app, JOB, job)
    return ManifestEditor(
        stored=stored,
        external_id=str(fields["external_id"]),
        name=str(fields.get("name") or ""),
        description=str(fields.get("description") or ""),
        job=job,
        help=help,
        properties=make_arguments_form("properties", _without_required(schema), fields.get("properties")),
        trigger=make_trigger_form(trigger, zone),
        after=str(fields.get("after") or ""),
        policy=make_policy_form(fields),
        group=str(fields.get("group") or ""),
        max_active=str(fields.get("max_active") or ""),
        on_dead_letter=str(fields.get("on_dead_letter") or "block"),
        explanation=explanation,
        choices=await load_choices(app),
        manifests=[each.external_id for each in await app.manifests.list(limit=MAX_NAMES)],
        text=write_yaml(dict(fields)),
    )


def _without_required(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a schema without required fields: a run may give what the properties leave out."""
    return None if schema is None else {**schema, "required": ()}
