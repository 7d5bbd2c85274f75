"""``/api/v1/secrets``: texts that go in under a name and do not come out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field

from tenuto.api.auth import Needs, Visit
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.path_names import Name
from tenuto.api.response_docs import Body, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.model.actors import Role

router = APIRouter(prefix="/api/v1/secrets", tags=["secrets"], route_class=StrictRoute)

EXAMPLE = {"name": "hr/database", "version": 2, "updated_at": "2031-05-04T02:00:00Z", "updated_by": "admin"}


class Value(Body):
    """What to keep."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "…"}]}, hide_input_in_errors=True)

    value: str = Field(repr=False)


@router.get("", responses=a_page(EXAMPLE))
async def list_secrets(
    visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "secret.read"))], limit: Limit = 100, after: After = None
) -> Page:
    """What is known of secrets but for their values, by name."""
    at = place(after, str)
    found = await visit.app.secrets.list(after=at[0] if at else "", limit=limit)
    return page([dict(each) for each in found], limit, lambda each: (each["name"],))


@router.put("/{name:name}", responses=answers({"name": "hr/database", "version": 3}))
async def set_secret(
    visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "secret.set"))], name: Name, secret: Value
) -> dict[str, Any]:
    """Keep a value under a name, in place of the one before. Nobody can read it back here."""
    return {"name": name, "version": await visit.app.secrets.set(name, secret.value)}


@router.delete("/{name:name}", status_code=204)
async def delete_secret(visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "secret.delete"))], name: Name) -> None:
    """Let a secret go. What refers to it fails from now on."""
    await visit.app.secrets.delete(name)
