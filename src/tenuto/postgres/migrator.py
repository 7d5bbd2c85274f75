"""Schema migrations: numbered files, forward only, each applied once.

An advisory lock serialises processes that migrate at the same time; the second finds nothing to do. An applied file
must not change; its stored checksum detects that. All missing migrations run in one transaction without statement
timeout, so an interrupted migration changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tenuto.errors import SchemaBehind, SchemaMismatch, Unavailable
from tenuto.postgres.database import Connection, Database, DatabaseError, LockTimeout

_MIGRATIONS_DIRECTORY = Path(__file__).parent / "migrations"

_CREATE_MIGRATIONS_TABLE = """
CREATE SCHEMA IF NOT EXISTS tenuto;
CREATE TABLE IF NOT EXISTS tenuto.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
TABLE_LOCK_TIMEOUT_SECONDS = 5.0
"""How long a migration waits for a table lock: shorter than the timeout of statements that queue behind it."""
_ONE_DAY_SECONDS = 86_400.0  # for the driver, None means the timeout of the connection

# A migration of a large table takes longer than the timeouts of the connection.
_DISABLE_TIMEOUTS = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
_SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', $1, true)"
_LOCK_MIGRATIONS = "SELECT pg_advisory_xact_lock(hashtext('tenuto migrate'))"  # guard: migrations.one_at_a_time
_LIST_APPLIED = "SELECT number, name, checksum FROM tenuto.migrations ORDER BY number"
_INSERT_APPLIED = "INSERT INTO tenuto.migrations (number, name, checksum) VALUES ($1, $2, $3)"
_LATEST_NUMBER = "SELECT max(number) FROM tenuto.migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def load_migrations() -> list[Migration]:
    """Return all migrations in order."""
    found = []
    for file in sorted(_MIGRATIONS_DIRECTORY.glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_(\w+)", file.stem)
        assert match is not None, f"{file.name} is not named like 0001_description.sql"
        found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return found


def render_script() -> str:
    """Return the SQL that `migrate` runs on an empty database."""
    parts = ["BEGIN;", _CREATE_MIGRATIONS_TABLE.strip()]
    for migration in load_migrations():
        parts.append(f"\n-- {migration.number:04} {migration.name}\n{migration.sql.strip()}")
        parts.append(
            f"INSERT INTO tenuto.migrations (number, name, checksum)"  # noqa: S608 — names of our own files
            f" VALUES ({migration.number}, '{migration.name}', '{migration.checksum}');"
        )
    return "\n".join([*parts, "COMMIT;"])


async def migrate(database: Database) -> list[Migration]:
    """Apply the missing migrations and return them."""

    async def apply_missing(connection: Connection) -> list[Migration]:
        await connection.execute(_DISABLE_TIMEOUTS)
        await connection.execute(_LOCK_MIGRATIONS, timeout=_ONE_DAY_SECONDS)  # another migration may take long
        await connection.execute(_SET_LOCK_TIMEOUT, f"{TABLE_LOCK_TIMEOUT_SECONDS * 1000:.0f}")
        await connection.execute(_CREATE_MIGRATIONS_TABLE)
        applied = {row["number"]: row for row in await connection.fetch(_LIST_APPLIED)}
        _reject_newer(max(applied, default=0))
        done = []
        for migration in load_migrations():
            before = applied.get(migration.number)
            if before is None:
                await connection.execute(migration.sql, timeout=_ONE_DAY_SECONDS)
                await connection.execute(_INSERT_APPLIED, migration.number, migration.name, migration.checksum)
                done.append(migration)
            elif before["checksum"] != migration.checksum:
                raise SchemaMismatch(
                    f"migration {migration.number:04} {migration.name} was changed after it was applied",
                    code="schema.migration.changed",
                    remedy="restore the released file, and write a new migration for the change",
                )
        return done

    try:
        return await database.transaction(apply_missing)
    except LockTimeout as error:
        raise Unavailable(
            "the schema was not changed: other sessions lock its tables",
            code="schema.tables.locked",
            remedy="wait for the session that locks them (a long query, a dump) or end it, and migrate again",
        ) from error


async def check_schema(database: Database) -> None:
    """Raise an error unless the schema has exactly the version of this program."""
    newest = load_migrations()[-1].number
    try:
        reached = await database.fetch_value(_LATEST_NUMBER) or 0
    except DatabaseError as error:
        if error.sqlstate not in ("42P01", "3F000"):
            raise
        reached = 0
    _reject_newer(reached)
    if reached < newest:
        raise SchemaBehind(
            "the database has no Tenuto schema"
            if reached == 0
            else f"the database schema has version {reached}, but this program needs {newest}",
            code="schema.missing" if reached == 0 else "schema.too_old",
            remedy="run `tenuto migrate`",
        )


def _reject_newer(reached: int) -> None:
    newest = load_migrations()[-1].number
    if reached > newest:
        raise SchemaMismatch(
            f"the database schema has version {reached}, but this program knows only {newest}",
            code="schema.too_new",
            remedy="upgrade Tenuto on this machine",
        )
