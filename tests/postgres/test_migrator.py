"""Migrations: each applied once, completely, by one process at a time; the rendered script is equivalent."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from tenuto.errors import Invalid, SchemaBehind, SchemaMismatch, Unavailable
from tenuto.postgres import migrator
from tenuto.postgres.database import Database, DatabaseError
from tenuto.postgres.migrator import Component
from tests.support.errors import raises_code
from tests.support.tasks import read_rows
from tests.support.waiting import eventually

SCHEMA_QUERIES = {
    "columns": """
        SELECT table_name, column_name, data_type, udt_name, is_nullable, column_default
        FROM information_schema.columns WHERE table_schema = 'tenuto' ORDER BY 1, ordinal_position""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'tenuto'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'tenuto' ORDER BY 1",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(pg_trigger.oid)
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = 'tenuto'::regnamespace AND NOT tgisinternal ORDER BY 1, 2""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'tenuto'::regnamespace ORDER BY 1""",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'tenuto' ORDER BY 1",
    "relations": """
        SELECT relname, relkind, reloptions, pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid)
        FROM pg_class WHERE relnamespace = 'tenuto'::regnamespace ORDER BY 1""",
    "migrations": "SELECT component, number, name, checksum FROM tenuto.migrations ORDER BY 1, 2",
}


async def describe_schema(db: Database) -> dict[str, list[tuple[object, ...]]]:
    return {kind: [tuple(row) for row in await db.fetch_all(query)] for kind, query in SCHEMA_QUERIES.items()}


@pytest.fixture
async def empty_database(empty_url: str) -> AsyncIterator[Database]:
    """A database without a schema."""
    database = await Database.open(empty_url)
    yield database
    await database.close()


@pytest.fixture
def add_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Return a function that adds a migration with this SQL and returns its number."""
    number = migrator.load_migrations()[-1].number + 1

    def write(sql: str) -> int:
        (directory / f"{number:04}_next_release.sql").write_text(sql)
        return number

    directory = Path(shutil.copytree(migrator._MIGRATIONS_DIRECTORY, tmp_path / "migrations"))
    monkeypatch.setattr(migrator, "_MIGRATIONS_DIRECTORY", directory)
    return write


async def test_migrator_applies_all_migrations_once(empty_database: Database) -> None:
    assert [migration.number for migration in await migrator.migrate(empty_database)] == [
        m.number for m in migrator.load_migrations()
    ]
    before = await describe_schema(empty_database)
    assert await migrator.migrate(empty_database) == []
    assert await describe_schema(empty_database) == before
    await migrator.check_schema(empty_database)


async def test_concurrent_migrators_apply_each_migration_once(empty_database: Database, empty_url: str) -> None:
    others = [await Database.open(empty_url) for _ in range(3)]
    try:
        applied = await asyncio.gather(*(migrator.migrate(database) for database in (empty_database, *others)))
    finally:
        for other in others:
            await other.close()
    assert sorted(map(len, applied)) == [0, 0, 0, len(migrator.load_migrations())]


async def test_rendered_script_creates_the_same_schema(empty_database: Database, db: Database, url: str) -> None:
    connection = await asyncpg.connect(empty_database.url)
    try:
        await connection.execute(migrator.render_script())
    finally:
        await connection.close()
    await migrator.check_schema(empty_database)
    assert await migrator.migrate(empty_database) == []
    migrated, scripted = await describe_schema(db), await describe_schema(empty_database)
    months = await db.fetch_all("SELECT relname FROM pg_class WHERE relname ~ '^activities_[0-9]{4}_[0-9]{2}'")
    partitions = tuple(row["relname"] for row in months)  # services create the partitions, not migrations
    assert partitions
    for kind, lines in migrated.items():
        without_months = [line for line in lines if not any(month in str(line) for month in partitions)]
        assert scripted[kind] == without_months, kind


async def test_schema_check_rejects_a_database_without_schema(empty_database: Database) -> None:
    with raises_code("schema.missing", SchemaMismatch):
        await migrator.check_schema(empty_database)


async def test_schema_check_rejects_an_older_schema(db: Database) -> None:
    await db.fetch_all("UPDATE tenuto.migrations SET number = 0 - number")
    with raises_code("schema.too_old", SchemaMismatch):
        await migrator.check_schema(db)


async def test_newer_schema_is_rejected_and_unchanged(db: Database) -> None:
    await db.fetch_all("INSERT INTO tenuto.migrations (number, name, checksum) VALUES (9999, 'of_the_future', 'x')")
    before = await describe_schema(db)
    for operation in (migrator.check_schema, migrator.migrate):
        with raises_code("schema.too_new", SchemaMismatch):
            await operation(db)
    assert await describe_schema(db) == before


async def test_changed_migration_is_rejected(db: Database) -> None:
    await db.fetch_all("UPDATE tenuto.migrations SET checksum = 'another' WHERE number = 1")
    with raises_code("schema.migration.changed", SchemaMismatch):
        await migrator.migrate(db)


async def test_failed_migration_changes_nothing(empty_database: Database) -> None:
    """All migrations are one transaction; here a table with the same name exists."""
    await empty_database.fetch_all("CREATE SCHEMA tenuto")
    await empty_database.fetch_all("CREATE TABLE tenuto.tasks (mine integer)")
    with pytest.raises(Exception, match="already exists"):
        await migrator.migrate(empty_database)
    names = await empty_database.fetch_all("SELECT relname FROM pg_class WHERE relnamespace = 'tenuto'::regnamespace")
    assert [row["relname"] for row in names] == ["tasks"]


# --- long migrations -------------------------------------------------------------------------------------------------


async def test_migration_has_no_statement_timeout(url: str, add_migration: Callable[[str], int]) -> None:
    number = add_migration("SELECT pg_sleep(1.5)")
    impatient = await Database.open(url, max_connections=1, reply_timeout_seconds=1.0)
    try:
        await impatient.fetch_all("SET statement_timeout = '1 s'")
        assert [each.number for each in await migrator.migrate(impatient)] == [number]
        assert await impatient.fetch_value("SELECT current_setting('statement_timeout')") == "1s", (
            "unchanged for other statements"
        )
    finally:
        await impatient.close()


async def test_second_migrator_waits_for_the_first(url: str, db: Database) -> None:
    impatient = await Database.open(url, max_connections=1, reply_timeout_seconds=0.5)
    waiting = "SELECT waitstart < clock_timestamp() - interval '1 s' FROM pg_locks WHERE NOT granted"
    try:
        await impatient.fetch_all("SET lock_timeout = '100 ms'")
        async with db.connection() as other, other.transaction():
            await other.execute(migrator._LOCK_MIGRATIONS)
            second = asyncio.create_task(migrator.migrate(impatient))
            await eventually(lambda: db.fetch_value(waiting))
        assert await second == []
    finally:
        await impatient.close()


async def test_migration_gives_up_on_locked_tables_after_a_short_time(
    db: Database, add_migration: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other statements would queue behind it."""
    number = add_migration("CREATE TABLE tenuto.half (); ALTER TABLE tenuto.tasks ADD COLUMN other integer")
    before = await describe_schema(db)
    monkeypatch.setattr(migrator, "TABLE_LOCK_TIMEOUT_SECONDS", 0.05)
    async with db.connection() as dump, dump.transaction():
        await dump.execute("LOCK TABLE tenuto.tasks IN ACCESS SHARE MODE")
        with raises_code("schema.tables.locked", Unavailable):
            await migrator.migrate(db)
    assert await describe_schema(db) == before
    assert [each.number for each in await migrator.migrate(db)] == [number]


async def test_migration_interrupted_by_a_server_crash_is_applied_completely_later(
    db: Database, add_migration: Callable[[str], int]
) -> None:
    number = add_migration("CREATE TABLE tenuto.half (); SELECT pg_advisory_xact_lock(4711)")
    waiting_backend = "SELECT pid FROM pg_locks WHERE NOT granted AND objid = 4711"
    async with db.connection() as other:
        await other.execute("SELECT pg_advisory_lock(4711)")
        migrating = asyncio.create_task(migrator.migrate(db))
        first = await eventually(lambda: db.fetch_value(waiting_backend))
        await db.fetch_all("SELECT pg_terminate_backend($1)", first)
        await eventually(lambda: db.fetch_value(f"{waiting_backend} AND pid <> $1", first), what="another attempt")
        assert await db.fetch_value("SELECT to_regclass('tenuto.half')") is None
        await other.execute("SELECT pg_advisory_unlock(4711)")
    assert [each.number for each in await migrating] == [number]
    assert await db.fetch_value("SELECT count(*) FROM tenuto.migrations WHERE number = $1", number) == 1


async def test_migration_is_recorded_with_name_and_checksum(db: Database) -> None:
    assert [(row["number"], row["name"], row["checksum"]) for row in await read_rows(db, "migrations")] == [
        (migration.number, migration.name, migration.checksum) for migration in migrator.load_migrations()
    ]


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [migration.number for migration in migrator.load_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


# --- components ------------------------------------------------------------------------------------------------------


@pytest.fixture
def inventory(tmp_path: Path) -> Component:
    """The component of an extension with two migrations."""
    directory = tmp_path / "inventory"
    directory.mkdir()
    (directory / "0001_items.sql").write_text("CREATE TABLE tenuto_inventory.items (name text PRIMARY KEY);")
    (directory / "0002_counts.sql").write_text("ALTER TABLE tenuto_inventory.items ADD COLUMN count integer;")
    return Component("inventory", directory)


async def test_component_has_its_own_numbers_and_schema(db: Database, inventory: Component) -> None:
    applied = await migrator.migrate(db, inventory)
    assert [(each.component, each.number) for each in applied] == [("inventory", 1), ("inventory", 2)]
    assert await migrator.migrate(db, inventory) == []
    assert await db.fetch_value("SELECT count(*) FROM tenuto_inventory.items") == 0
    newest = migrator.load_migrations()[-1].number
    assert await migrator.load_versions(db) == {"tenuto": newest, "inventory": 2}
    await migrator.check_schema(db, [inventory])


async def test_schema_errors_name_the_component(db: Database, inventory: Component) -> None:
    with raises_code("schema.missing", SchemaBehind) as missing:
        await migrator.check_schema(db, [inventory])
    assert "extension 'inventory'" in missing.value.message
    await migrator.migrate(db, inventory)
    await db.fetch_all("DELETE FROM tenuto.migrations WHERE component = 'inventory' AND number = 2")
    with raises_code("schema.too_old", SchemaBehind) as older:
        await migrator.check_schema(db, [inventory])
    assert (
        older.value.message
        == "the database schema of the extension 'inventory' has version 1, but this program needs 2"
    )
    await db.fetch_all(
        "INSERT INTO tenuto.migrations (component, number, name, checksum) VALUES ('inventory', 9, 'later', 'x')"
    )
    for operation in (migrator.check_schema(db, [inventory]), migrator.migrate(db, inventory)):
        with raises_code("schema.too_new", SchemaMismatch) as newer:
            await operation
        assert newer.value.remedy == "upgrade the extension on this machine"


async def test_concurrent_migrators_of_a_component_apply_each_migration_once(
    db: Database, url: str, inventory: Component
) -> None:
    others = [await Database.open(url) for _ in range(3)]
    try:
        applied = await asyncio.gather(*(migrator.migrate(database, inventory) for database in (db, *others)))
    finally:
        for other in others:
            await other.close()
    assert sorted(map(len, applied)) == [0, 0, 0, 2]


async def test_failed_migration_of_a_component_changes_nothing(db: Database, inventory: Component) -> None:
    (inventory.directory / "0003_broken.sql").write_text("CREATE TABLE tenuto_inventory.items ()")
    with pytest.raises(DatabaseError, match="already exists"):
        await migrator.migrate(db, inventory)
    assert await db.fetch_value("SELECT to_regnamespace('tenuto_inventory')") is None
    await migrator.check_schema(db)


async def test_rendered_script_contains_all_components(empty_database: Database, inventory: Component) -> None:
    connection = await asyncpg.connect(empty_database.url)
    try:
        await connection.execute(migrator.render_script([inventory]))
    finally:
        await connection.close()
    await migrator.check_schema(empty_database, [inventory])
    assert await migrator.migrate(empty_database, inventory) == []


async def test_database_without_components_is_upgraded(empty_database: Database) -> None:
    """The records of migrations of earlier versions have no component."""
    await empty_database.fetch_all("CREATE SCHEMA tenuto")
    async with empty_database.connection() as connection:
        await connection.execute(migrator._CREATE_MIGRATIONS_TABLE)
        for migration in migrator.load_migrations()[:14]:
            await connection.execute(migration.sql)
            await connection.execute(migrator._INSERT_CORE, migration.number, migration.name, migration.checksum)
    with raises_code("schema.too_old", SchemaBehind):
        await migrator.check_schema(empty_database)
    assert (await migrator.migrate(empty_database))[0].number == 15
    await migrator.check_schema(empty_database)


async def test_index_of_expiry_is_built_without_an_exclusive_lock_and_old_workers_keep_theirs(
    empty_database: Database,
) -> None:
    async with empty_database.connection() as connection:
        await connection.execute("CREATE SCHEMA tenuto")
        await connection.execute(migrator._CREATE_MIGRATIONS_TABLE)
        for migration in migrator.load_migrations()[:39]:
            await connection.execute(migration.sql)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(migrator.load_migrations()[39].sql)
        locks = "SELECT mode FROM pg_locks WHERE relation = 'tenuto.tasks'::regclass AND pid = pg_backend_pid()"
        assert {row["mode"] for row in await connection.fetch(locks)} <= {"AccessShareLock", "ShareLock"}
        await transaction.commit()
        names = (
            "SELECT indexname FROM pg_indexes WHERE tablename = 'tasks' AND indexdef LIKE '%(expires_at)%' ORDER BY 1"
        )
        found = [row["indexname"] for row in await connection.fetch(names)]
    assert found == ["tasks_by_expiry", "tasks_to_expire"]


@pytest.mark.parametrize("name", ["items.sql", "0002_items.sql", "1_items.sql"])
def test_component_with_misnamed_migrations_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("SELECT 1")
    with raises_code("schema.migration.name_invalid", Invalid):
        Component("inventory", tmp_path).load_migrations()


def test_component_without_migrations_is_rejected(tmp_path: Path) -> None:
    with raises_code("schema.migration.missing", Invalid):
        Component("inventory", tmp_path).load_migrations()
