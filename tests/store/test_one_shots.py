"""How the registry is read: along its own index, however many other tasks there are."""

from __future__ import annotations

from tenuto.store.database import Database
from tenuto.store.oneshots import SQL
from tests.store.test_plans import FILL, plan_of


async def test_the_registry_and_the_past_are_read_along_their_indexes(db: Database) -> None:
    async with db.connection() as connection:
        await connection.execute(FILL)
        await connection.execute("UPDATE tenuto.tasks SET origin = 'once' WHERE rank = 3")
        await connection.execute("ANALYZE tenuto.tasks")
        for name in ("registry", "hold_some"):
            nodes = await plan_of(connection, name, getattr(SQL, name))
            assert "tasks_once" in {node.get("Index Name") for node in nodes}, name
            assert not {"Sort", "Seq Scan"} & {node["Node Type"] for node in nodes}, name
        found = await plan_of(connection, "past", SQL.past)
        assert "Seq Scan" not in {node["Node Type"] for node in found}
