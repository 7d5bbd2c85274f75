"""Operations, as ``app.extensions.inventory``. Every change is recorded in the audit log for its caller."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.errors import Conflict, Invalid
from tenuto.operations.operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto_inventory import store
from tenuto_inventory.store import Item


class InventoryOperations(OperationGroup):
    async def items(self, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """List items by name; page with ``after``."""
        return await store.list_items(await self._open(), after, limit)

    async def add(self, name: str, *, level: int, stock: int = 0) -> Item:
        """Add an item."""
        if not name.strip():
            raise Invalid("the item has no name", code="inventory.item.name_missing", field="name")
        item = Item(name, stock, level)
        operation = await self._begin("inventory.item.add", target=name, after={"level": level, "stock": stock})

        async def insert(connection: Connection) -> None:
            if not await store.insert_item(connection, item):
                raise Conflict(
                    f"there is an item {name!r}",
                    code="inventory.item.exists",
                    field="name",
                    remedy="choose another name",
                )

        await operation.database.transaction(insert)
        return item
