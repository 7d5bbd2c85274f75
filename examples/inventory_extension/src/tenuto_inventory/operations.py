"""Operations, as ``app.extensions.inventory``. Every change is recorded in the audit log for its caller."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenuto.errors import Conflict, Invalid
from tenuto.ids import new_id
from tenuto.operations.operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto_inventory import store
from tenuto_inventory.store import Item


class InventoryOperations(OperationGroup):
    async def items(self, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """List items by name; page with ``after``."""
        return await store.list_items(await self._open(), after, limit)

    async def add(self, name: str, *, level: int, stock: int = 0, request_id: UUID | None = None) -> Item:
        """Add an item. Calls with the same ``request_id`` add one."""
        if not name.strip():
            raise Invalid("the item has no name", code="inventory.item.name_missing", field="name")
        item, request = Item(name, stock, level), request_id or new_id()
        operation = await self._begin("inventory.item.add", target=name, after={"level": level, "stock": stock})

        async def insert(connection: Connection) -> None:
            if not await store.insert_item(connection, item, request):
                raise Conflict(
                    f"there is an item {name!r}",
                    code="inventory.item.exists",
                    field="name",
                    remedy="choose another name",
                )

        await operation.database.transaction(insert)
        return item
