"""``/api/v1/secrets``: set and delete secrets. Their values cannot be read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Name
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.presentation.admin_views import SECRETS
from tenuto.store.access.secrets import SecretRecord

router = APIRouter(prefix="/api/v1/secrets", tags=["secrets"], route_class=ApiRoute)

EXAMPLE = {"name": "hr/database", "version": 2, "updated_at": "2031-05-04T02:00:00Z", "updated_by": "admin"}


class SecretValue(Body):
    """Value of a secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "…"}]}, hide_input_in_errors=True)

    value: str = Field(repr=False)


class StoredSecret(BaseModel):
    """Name and version of a secret that was set."""

    name: str
    version: int


@router.get("", operation_id="secrets_list", responses=describe_page(EXAMPLE))
@listed_as(SECRETS)
async def list_secrets(
    call: Annotated[ApiCall, requires(Role.ADMIN, "secret.read")], limit: Limit = 100, after: After = None
) -> Page[SecretRecord]:
    """List secrets by name, without their values."""
    found = await call.app.secrets.list(after=decode_key(after, str) or "", limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.put(
    "/{name:name}",
    operation_id="secrets_set",
    responses=describe(
        {"name": "hr/database", "version": 3}, conflict="secret.master_key.unknown", invalid=("secret.*", "value.*")
    ),
)
async def set_secret(
    call: Annotated[ApiCall, requires(Role.ADMIN, "secret.set")], name: Name, secret: SecretValue
) -> StoredSecret:
    """Set a secret. The new value replaces the previous one and cannot be read."""
    return StoredSecret(name=name, version=await call.app.secrets.set(name, secret.value))


@router.delete(
    "/{name:name}", operation_id="secrets_delete", status_code=204, responses=describe(not_found="secret.not_found")
)
async def delete_secret(call: Annotated[ApiCall, requires(Role.ADMIN, "secret.delete")], name: Name) -> None:
    """Delete a secret. Steps that refer to it fail from now on."""
    await call.app.secrets.delete(name)
