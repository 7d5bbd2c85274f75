"""What operators and dashboards see: doctor check, event topic, metric, and the background service behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tenuto.extension import Examination, ExtensionServices, Finding, LabelledValue, LoggedChange, Service, Severity
from tenuto.logs import Log
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto_inventory import store
from tenuto_inventory.settings import InventorySettings

log = Log("tenuto.inventory")


async def check_stock(examination: Examination) -> Finding:
    low = await store.list_low_items(await examination.services.open_database())
    if not low:
        return Finding("inventory_stock", "the stock of all items is sufficient", Severity.OK)
    return Finding(
        "inventory_stock",
        "the stock of some items is low",
        Severity.WARNING,
        [f"{item.name}: {item.stock} of {item.level}" for item in low],
        "These items may run out.",
        "order them with a step of the kind inventory.order",
    )


async def load_orders_since(database: Database, since: datetime) -> Sequence[LoggedChange]:
    orders = await store.list_orders_since(database, since)
    return [LoggedChange(id, at, {"item": item, "quantity": quantity}) for id, at, item, quantity in orders]


async def load_metrics(connection: Connection) -> Mapping[str, Sequence[LabelledValue]]:
    low = await connection.fetchval("SELECT count(*) FROM tenuto_inventory.items WHERE stock < level")
    sufficient = await connection.fetchval("SELECT count(*) FROM tenuto_inventory.items WHERE stock >= level")
    return {"tenuto_inventory_items": [(("low",), low), (("sufficient",), sufficient)]}


def level_recorder(services: ExtensionServices) -> Service:
    """A service that records all stock levels at an interval."""

    async def record() -> float:
        await store.record_levels(await services.open_database())
        return services.section(InventorySettings).record_seconds

    return PollingLoop("inventory-levels", record, log)
