"""Routes, under ``/api/v1/inventory``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import ApiCall, requires
from tenuto.model.actors import Role
from tenuto_inventory.store import Item

router = APIRouter(route_class=ApiRoute)


class NewItem(BaseModel):
    name: str
    level: int = Field(ge=0)


@router.get("/items", operation_id="inventory_items_list")
async def list_items(
    call: Annotated[ApiCall, requires(Role.VIEWER, "inventory.item.read")], after: str = ""
) -> list[Item]:
    """List items by name."""
    return list(await call.app.extensions.inventory.items(after=after))


@router.post("/items", operation_id="inventory_items_add", status_code=201)
async def add_item(call: Annotated[ApiCall, requires(Role.EDITOR, "inventory.item.add")], new: NewItem) -> Item:
    """Add an item."""
    added: Item = await call.app.extensions.inventory.add(new.name, level=new.level)
    return added
