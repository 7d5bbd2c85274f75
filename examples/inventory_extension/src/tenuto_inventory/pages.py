"""Pages and panels of the dashboard: each function returns the model of a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenuto.errors import Invalid
from tenuto.extension import FoundObject, PageRequest, StepSubject
from tenuto.presentation.columns import Column, ResourceView
from tenuto.web.components.extension_kit import Action, FilterField, Listing, Table, path_of
from tenuto_inventory.store import Item, Order

PAGE_SIZE = 50
STOCKS = {"low": True, "sufficient": False}
ITEMS = ResourceView(
    "items", (Column("name", "name"), Column("stock", "stock", "count"), Column("level", "level", "count"))
)
ORDERS = ResourceView(
    "orders", (Column("task", "task_id", "id"), Column("quantity", "quantity", "count"), Column("at", "at", "age"))
)


@dataclass(frozen=True, slots=True)
class ItemPage:
    item: Item
    orders: Table
    remove: Action


def remove_action(item: Item) -> Action:
    return Action(
        "inventory_items_remove",
        "Remove…",
        {"name": item.name},
        title=f"Remove the item {item.name}",
        text=f"The item and its orders are deleted. {item.stock} are in stock.",
        reason="required",
        submit="Remove the item",
        done="The item was removed.",
        style="small danger",
    )


async def load_items(request: PageRequest) -> Table:
    stock, after = request.query.get("stock", ""), request.query.get("after", "")
    if stock and stock not in STOCKS:
        raise Invalid(f"the stock {stock!r} is unknown", code="inventory.stock.unknown", field="stock")
    items = await request.operations.items(low=STOCKS.get(stock), after=after, limit=PAGE_SIZE)
    return Table(
        "Items",
        ITEMS,
        items,
        "/inventory/items",
        key=lambda item: item.name,
        link=lambda item: path_of("inventory", "items", item.name),
        filters=[FilterField("stock", "Stock", stock, tuple(STOCKS))],
        next=items[-1].name if len(items) == PAGE_SIZE else None,
        is_first=not after,
        actions=lambda item: [remove_action(item)],
        empty="There are no items.",
        hint="tenuto inventory add bolt --level 100",
    )


async def load_item(request: PageRequest) -> ItemPage:
    item: Item = await request.operations.get(request.parameters["name"])
    orders = await request.operations.orders(item=item.name)
    path = path_of("inventory", "items", item.name)
    table = Table(
        "Orders",
        ORDERS,
        orders,
        path,
        key=lambda order: str(order.task_id),
        link=lambda order: path_of("tasks", order.task_id),
        empty="No orders yet.",
    )
    return ItemPage(item, table, remove_action(item))


async def load_orders(request: PageRequest) -> Listing:
    """Load a list that the template draws itself."""
    item = request.query.get("item", "")
    orders = await request.operations.orders(item=item or None, limit=PAGE_SIZE)
    return Listing("Orders", orders, "/inventory/orders", filters=[FilterField("item", "Item", item)])


async def load_low_stock(request: PageRequest) -> Sequence[Item] | None:
    """Show the panel only while something is low."""
    return await request.operations.items(low=True, limit=20) or None


async def load_order(request: PageRequest) -> Order | None:
    step: StepSubject = request.subject
    orders = await request.operations.orders(task=step.task_id) if step.task_id else []
    return orders[0] if orders else None


async def search_items(request: PageRequest) -> Sequence[FoundObject]:
    items = await request.operations.search(request.query["q"])
    return [FoundObject("item", item.name, path_of("inventory", "items", item.name)) for item in items]
