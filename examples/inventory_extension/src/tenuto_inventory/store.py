"""The SQL of the extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenuto.postgres.database import Connection, Database


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    stock: int
    level: int


@dataclass(frozen=True, slots=True)
class Order:
    task_id: UUID
    item: str
    quantity: int
    at: datetime


async def list_items(database: Database, after: str, limit: int, low: bool | None = None) -> list[Item]:
    rows = await database.fetch_all(
        "SELECT name, stock, level FROM tenuto_inventory.items"
        " WHERE name > $1 AND ($3::boolean IS NULL OR (stock < level) = $3) ORDER BY name LIMIT $2",
        after,
        limit,
        low,
    )
    return [Item(**row) for row in rows]


async def load_item(database: Database, name: str) -> Item | None:
    row = await database.fetch_one("SELECT name, stock, level FROM tenuto_inventory.items WHERE name = $1", name)
    return None if row is None else Item(**row)


async def find_items(database: Database, text: str, limit: int) -> list[Item]:
    rows = await database.fetch_all(
        "SELECT name, stock, level FROM tenuto_inventory.items WHERE strpos(lower(name), lower($1)) > 0"
        " ORDER BY name LIMIT $2",
        text,
        limit,
    )
    return [Item(**row) for row in rows]


async def list_orders(database: Database, item: str | None, task: UUID | None, limit: int) -> list[Order]:
    rows = await database.fetch_all(
        "SELECT task_id, item, quantity, at FROM tenuto_inventory.orders"
        " WHERE ($1::text IS NULL OR item = $1) AND ($2::uuid IS NULL OR task_id = $2) ORDER BY at DESC LIMIT $3",
        item,
        task,
        limit,
    )
    return [Order(**row) for row in rows]


async def delete_item(connection: Connection, name: str) -> bool:
    """Delete an item and its orders; return False if there is none."""
    await connection.execute("DELETE FROM tenuto_inventory.orders WHERE item = $1", name)
    found = await connection.fetchval("DELETE FROM tenuto_inventory.items WHERE name = $1 RETURNING name", name)
    return found is not None


async def insert_item(connection: Connection, item: Item, request_id: UUID) -> bool:
    """Insert an item; return False if another request has added one with this name."""
    await connection.execute(
        "INSERT INTO tenuto_inventory.items (name, stock, level, request_id) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT DO NOTHING",
        item.name,
        item.stock,
        item.level,
        request_id,
    )
    found = await connection.fetchval("SELECT request_id FROM tenuto_inventory.items WHERE name = $1", item.name)
    return bool(found == request_id)


async def item_exists(connection: Connection, name: str) -> bool:
    found = await connection.fetchval("SELECT EXISTS (SELECT FROM tenuto_inventory.items WHERE name = $1)", name)
    return bool(found)


async def place_order(database: Database, task_id: UUID, item: str, quantity: int) -> None:
    """Place the order of a task once, however often the task is repeated."""
    await database.write_all(
        "WITH placed AS (INSERT INTO tenuto_inventory.orders (task_id, item, quantity) VALUES ($1, $2, $3)"
        " ON CONFLICT DO NOTHING RETURNING item, quantity)"
        " UPDATE tenuto_inventory.items SET stock = stock + placed.quantity, updated_at = clock_timestamp()"
        " FROM placed WHERE name = placed.item",
        task_id,
        item,
        quantity,
    )


async def delete_old_orders(database: Database, cutoff: datetime, limit: int) -> int:
    rows = await database.write_all(
        "DELETE FROM tenuto_inventory.orders WHERE task_id IN"
        " (SELECT task_id FROM tenuto_inventory.orders WHERE at < $1 LIMIT $2) RETURNING 1",
        cutoff,
        limit,
    )
    return len(rows)


async def list_orders_since(database: Database, since: datetime) -> Sequence[tuple[UUID, datetime, str, int]]:
    rows = await database.fetch_all(
        "SELECT task_id, at, item, quantity FROM tenuto_inventory.orders WHERE at >= $1 ORDER BY at LIMIT 1000", since
    )
    return [(row["task_id"], row["at"], row["item"], row["quantity"]) for row in rows]


async def list_low_items(database: Database) -> list[Item]:
    rows = await database.fetch_all(
        "SELECT name, stock, level FROM tenuto_inventory.items WHERE stock < level ORDER BY name LIMIT 20"
    )
    return [Item(**row) for row in rows]


async def record_levels(database: Database) -> None:
    await database.write_all(
        "INSERT INTO tenuto_inventory.levels (at, item, stock)"
        " SELECT clock_timestamp(), name, stock FROM tenuto_inventory.items"
    )
