"""Operations, as ``app.extensions.inventory``. Every change is recorded in the audit log for its caller."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.operations.bound_operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto_inventory import store
from tenuto_inventory.store import Item, Order


class InventoryOperations(OperationGroup):
    async def items(self, *, low: bool | None = None, after: str = "", limit: int = 100) -> Sequence[Item]:
        """List items by name; page with ``after``."""
        return await store.list_items(await self._open(), after, limit, low)

    async def get(self, name: str) -> Item:
        """Return one item."""
        found = await store.load_item(await self._open(), name)
        if found is None:
            raise NotFound(
                f"there is no item {name!r}", code="inventory.item.not_found", remedy="see the list of items"
            )
        return found

    async def orders(self, *, item: str | None = None, task: UUID | None = None, limit: int = 20) -> Sequence[Order]:
        """List orders of an item or of a task, newest first."""
        return await store.list_orders(await self._open(), item, task, limit)

    async def search(self, text: str, *, limit: int = 10) -> Sequence[Item]:
        """Return items whose names contain a text."""
        return await store.find_items(await self._open(), text, limit)

    async def remove(self, name: str) -> None:
        """Remove an item and its orders."""
        operation = await self._begin("inventory.item.remove", target=name)

        async def delete(connection: Connection) -> None:
            if not await store.delete_item(connection, name):
                raise NotFound(f"there is no item {name!r}", code="inventory.item.not_found")

        await operation.database.transaction(delete)

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
