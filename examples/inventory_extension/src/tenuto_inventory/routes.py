"""Routes, under ``/api/v1/inventory``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from tenuto import Role
from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.list_pages import After, Limit, Page, decode_cursor, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Name
from tenuto.api.security.authentication import ApiCall, requires
from tenuto_inventory.store import Item

router = APIRouter(route_class=ApiRoute)


EXAMPLE = {"name": "bolt", "stock": 150, "level": 100}


class NewItem(Body):
    """An item to add."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "bolt", "level": 100}]})

    name: str
    level: int = Field(ge=0, le=1_000_000, description="Stock below which the item is low.")


@router.get("/items", operation_id="inventory_items_list", responses=describe_page(EXAMPLE))
async def list_items(
    call: Annotated[ApiCall, requires(Role.VIEWER, "inventory.item.read")], limit: Limit = 100, after: After = None
) -> Page[Item]:
    """List items by name."""
    cursor = decode_cursor(after, str)
    found = await call.app.extensions.inventory.items(after=cursor[0] if cursor else "", limit=limit)
    return make_page(found, limit, lambda item: (item.name,))


@router.delete(
    "/items/{name:name}",
    operation_id="inventory_items_remove",
    status_code=204,
    responses=describe(None, 204, not_found="inventory.item.not_found"),
)
async def remove_item(call: Annotated[ApiCall, requires(Role.EDITOR, "inventory.item.remove")], name: Name) -> None:
    """Remove an item and its orders."""
    await call.app.extensions.inventory.remove(name)


@router.post(
    "/items",
    operation_id="inventory_items_add",
    status_code=201,
    responses=describe(EXAMPLE, 201, conflict="inventory.item.exists", invalid="inventory.item.name_missing"),
)
async def add_item(
    call: Annotated[ApiCall, requires(Role.EDITOR, "inventory.item.add", handles_repeats=True)], new: NewItem
) -> Item:
    """Add an item."""
    # `call.object_id` is the same when the request is repeated with its Idempotency-Key: the item is added once.
    added: Item = await call.app.extensions.inventory.add(new.name, level=new.level, request_id=call.object_id)
    return added
