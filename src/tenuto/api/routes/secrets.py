"""``/api/v1/secrets``: set and delete secrets. Their values cannot be read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from tenuto.api.auth import ApiCall, requires
from tenuto.api.paging import After, Limit, Page, decode_cursor, make_page
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import Body, Name, example, example_page
from tenuto.model.actors import Role

router = APIRouter(prefix="/api/v1/secrets", tags=["secrets"], route_class=StrictRoute)

EXAMPLE = {"name": "hr/database", "version": 2, "updated_at": "2031-05-04T02:00:00Z", "updated_by": "admin"}


class SecretValue(Body):
    """Value of a secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "…"}]}, hide_input_in_errors=True)

    value: str = Field(repr=False)


@router.get("", responses=example_page(EXAMPLE))
async def list_secrets(
    call: Annotated[ApiCall, requires(Role.ADMIN, "secret.read")], limit: Limit = 100, after: After = None
) -> Page:
    """List secrets by name, without their values."""
    cursor = decode_cursor(after, str)
    found = await call.app.secrets.list(after=cursor[0] if cursor else "", limit=limit)
    return make_page([dict(each) for each in found], limit, lambda each: (each["name"],))


@router.put("/{name:name}", responses=example({"name": "hr/database", "version": 3}))
async def set_secret(
    call: Annotated[ApiCall, requires(Role.ADMIN, "secret.set")], name: Name, secret: SecretValue
) -> dict[str, Any]:
    """Set a secret. The new value replaces the previous one and cannot be read."""
    return {"name": name, "version": await call.app.secrets.set(name, secret.value)}


@router.delete("/{name:name}", status_code=204)
async def delete_secret(call: Annotated[ApiCall, requires(Role.ADMIN, "secret.delete")], name: Name) -> None:
    """Delete a secret. Steps that refer to it fail from now on."""
    await call.app.secrets.delete(name)
