"""Commands: ``tenuto inventory list`` and ``tenuto inventory add``."""

from __future__ import annotations

from typing import Annotated

from tenuto.cli.command import Session, command, group
from tenuto.cli.parameters import argument, option

inventory = group("inventory", "List and add items.", "list", "add bolt --level 100")


@command(inventory, "list", "", "-o json")
async def list_items(session: Session) -> None:
    """List items."""
    items = await session.app.extensions.inventory.items()
    session.report(
        [{"name": item.name, "stock": item.stock, "level": item.level} for item in items],
        f"{len(items)} items",
        result="\n".join(f"{item.name}  {item.stock} of {item.level}" for item in items),
    )


@command(inventory, "add", "bolt --level 100")
async def add_item(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the item.")],
    level: Annotated[int, option("N", "Stock below which the item is low.")] = 0,
) -> None:
    """Add an item."""
    with session.as_user() as app:
        item = await app.extensions.inventory.add(name, level=level)
    session.report({"name": item.name, "level": item.level}, f"added {item.name}")
