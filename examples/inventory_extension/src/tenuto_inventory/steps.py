"""The step kind ``inventory.order``: order a quantity of an item."""

from __future__ import annotations

from pydantic import BaseModel, Field

from tenuto.errors import Invalid
from tenuto.extension import ExtensionServices, StepCheck, StepDefaults, StepKind
from tenuto.jobs.context import Context
from tenuto_inventory import store
from tenuto_inventory.settings import InventorySettings


class OrderArguments(BaseModel):
    item: str
    quantity: int = Field(gt=0)


def order_kind(services: ExtensionServices) -> StepKind:
    async def order(arguments: OrderArguments, ctx: Context) -> dict[str, int]:
        """Order a quantity of an item, once."""
        await store.place_order(await services.open_database(), ctx.task_id, arguments.item, arguments.quantity)
        return {"ordered": arguments.quantity}

    async def check(step: StepCheck) -> None:
        """Refuse an item that neither exists nor is declared in the same files, and too large an order."""
        arguments: OrderArguments = step.arguments
        known = arguments.item in step.declared.get("items", ()) or await store.item_exists(
            step.connection, arguments.item
        )
        if not known:
            raise Invalid(
                f"there is no item {arguments.item!r}",
                code="inventory.item.not_found",
                field="arguments.item",
                remedy="add it with `tenuto inventory add`",
            )
        largest = services.section(InventorySettings).max_order
        if arguments.quantity > largest:
            raise Invalid(
                f"an order of {arguments.quantity} is larger than {largest}",
                code="inventory.order.too_large",
                field="arguments.quantity",
                remedy="order less, or change the setting max_order",
            )

    def derive(arguments: OrderArguments) -> StepDefaults:
        """Run one order of an item at a time."""
        return StepDefaults(limit_key=f"inventory:{arguments.item}", limit=1)

    return StepKind.of(
        "inventory.order", OrderArguments, order, help="Order a quantity of an item", check=check, derive=derive
    )
