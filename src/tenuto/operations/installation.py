"""What is done to a database now and then, on request: bring its schema up to date, have the doctor look."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tenuto.diagnostics.doctor import Finding, Told, examine
from tenuto.postgres import migrator as schema
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store import partitions

Connect = Callable[[], Awaitable[Database]]


async def migrate(connect: Connect) -> list[schema.Migration]:
    """Bring the schema up to date and make the partitions of the months ahead; the migrations applied now."""
    database = await connect()
    try:
        applied = await schema.migrate(database)
        await partitions.ensure(database, database.clock.now())
        return applied
    finally:
        await database.close()


async def doctor(connect: Connect, settings: Settings, told: Told | None = None) -> list[Finding]:
    """What the doctor finds; ``told`` hears of each answer as it comes."""
    database = await connect()
    try:
        return await (examine(database, settings) if told is None else examine(database, settings, told=told))
    finally:
        await database.close()
