"""The entry point: what the extension contributes. Everything else is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenuto.extension import (
    AuditAction,
    ChangeLog,
    CommandEntry,
    DefinitionList,
    DoctorCheck,
    EventTopics,
    Extension,
    ExtensionServices,
    Metric,
    MetricSource,
    Page,
    PageAssets,
    Panel,
    PartitionedTable,
    ProcessRole,
    Retention,
    RouterEntry,
    SearchSource,
    Service,
    StepKind,
)

if TYPE_CHECKING:
    from tenuto_inventory.operations import InventoryOperations
    from tenuto_inventory.settings import InventorySettings


class Inventory(Extension):
    name = "inventory"
    requires_tenuto = ">=0.1,<0.2"

    def settings(self) -> type[InventorySettings]:
        from tenuto_inventory.settings import InventorySettings

        return InventorySettings

    def migrations(self) -> Path:
        return Path(__file__).parent / "migrations"

    def partitioned_tables(self) -> Sequence[PartitionedTable]:
        return [PartitionedTable("levels")]

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        from tenuto_inventory.steps import order_kind

        return [order_kind(services)]

    def operations(self, services: ExtensionServices) -> InventoryOperations:
        from tenuto_inventory.operations import InventoryOperations

        return InventoryOperations(services.open_database, services.caller)

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry("tenuto_inventory.routes:router")]

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("inventory", "Extensions", "List and add items", "tenuto_inventory.commands:inventory")]

    def pages(self) -> Sequence[Page]:
        load = "tenuto_inventory.pages:load_items"
        topics = ["inventory.orders"]
        return [
            Page("items", "Items", load, "items.html", navigation="Inventory", topics=topics, query=["stock", "after"]),
            Page(
                "orders",
                "Orders",
                "tenuto_inventory.pages:load_orders",
                "orders.html",
                navigation="Inventory",
                topics=topics,
                query=["item"],
            ),
            Page("items/{name}", "Item {name}", "tenuto_inventory.pages:load_item", "item.html", parent="items"),
        ]

    def panels(self) -> Sequence[Panel]:
        return [
            Panel("overview", "Low stock", "tenuto_inventory.pages:load_low_stock", "low_stock.html"),
            Panel("step:inventory.order", "Order", "tenuto_inventory.pages:load_order", "order.html"),
        ]

    def searches(self) -> Sequence[SearchSource]:
        return [SearchSource("tenuto_inventory.pages:search_items")]

    def page_assets(self) -> PageAssets:
        return PageAssets(Path(__file__).parent / "templates")

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        from tenuto_inventory.monitoring import level_recorder

        return [level_recorder(services)] if role is ProcessRole.SCHEDULER else []

    def retention(self) -> Sequence[Retention]:
        from tenuto_inventory.store import delete_old_orders

        return [Retention("orders", delete_old_orders)]

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        from tenuto_inventory.monitoring import check_stock

        return [DoctorCheck("inventory_stock", check_stock)]

    def event_topics(self) -> Sequence[EventTopics]:
        from tenuto_inventory.monitoring import load_orders_since

        return [
            EventTopics(("inventory.orders",), lambda options: ChangeLog("inventory.orders", load_orders_since)),
        ]

    def metrics(self) -> Sequence[MetricSource]:
        from tenuto_inventory.monitoring import load_metrics

        items = Metric("tenuto_inventory_items", "gauge", "Items by whether their stock is low.", ("stock",))
        return [MetricSource((items,), load_metrics)]

    def audit_actions(self) -> Sequence[AuditAction]:
        return [
            AuditAction("inventory.item.add", "An item was added."),
            AuditAction("inventory.item.remove", "An item was removed."),
        ]

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        from tenuto_inventory.definitions import ITEMS

        return [ITEMS]
