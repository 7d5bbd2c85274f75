"""The schema: numbered files, forward only, each applied once.

Two processes may migrate at the same time: one advisory lock lets them in one after the other, and the second finds
nothing to do. An applied file must never change; its checksum is kept to notice.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tenuto.errors import SchemaBehind, SchemaMismatch
from tenuto.store.database import Connection, Database, DatabaseError

_FOLDER = Path(__file__).parent / "migrations"

_PREPARE = """
CREATE SCHEMA IF NOT EXISTS tenuto;
CREATE TABLE IF NOT EXISTS tenuto.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('tenuto migrate'))"
_APPLIED = "SELECT number, name, checksum FROM tenuto.migrations ORDER BY number"
_RECORD = "INSERT INTO tenuto.migrations (number, name, checksum) VALUES ($1, $2, $3)"
_REACHED = "SELECT max(number) FROM tenuto.migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


def migrations() -> list[Migration]:
    """All of them, in order."""
    found = []
    for file in sorted(_FOLDER.glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_(\w+)", file.stem)
        assert match is not None, f"{file.name} is not named like 0001_what_it_does.sql"
        found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return found


def as_script() -> str:
    """Everything `migrate` would run on an empty database, for people who run SQL themselves."""
    parts = ["BEGIN;", _PREPARE.strip()]
    for migration in migrations():
        parts.append(f"\n-- {migration.number:04} {migration.name}\n{migration.sql.strip()}")
        parts.append(
            f"INSERT INTO tenuto.migrations (number, name, checksum)"  # noqa: S608 — our own file names, for people to read
            f" VALUES ({migration.number}, '{migration.name}', '{migration.checksum}');"
        )
    return "\n".join([*parts, "COMMIT;"])


async def migrate(database: Database) -> list[Migration]:
    """Bring the schema up to date; the ones applied now."""

    async def apply_missing(connection: Connection) -> list[Migration]:
        await connection.execute(_LOCK)
        await connection.execute(_PREPARE)
        applied = {row["number"]: row for row in await connection.fetch(_APPLIED)}
        _refuse_newer(max(applied, default=0))
        done = []
        for migration in migrations():
            before = applied.get(migration.number)
            if before is None:
                await connection.execute(migration.sql)
                await connection.execute(_RECORD, migration.number, migration.name, migration.checksum)
                done.append(migration)
            elif before["checksum"] != migration.checksum:
                raise SchemaMismatch(
                    f"migration {migration.number:04} {migration.name} was changed after it had been applied",
                    remedy="restore the released file, and put the change into a new migration",
                )
        return done

    return await database.transaction(apply_missing)


async def check(database: Database) -> None:
    """Refuse to work on a schema this program does not know."""
    newest = migrations()[-1].number
    try:
        reached = await database.value(_REACHED) or 0
    except DatabaseError as error:
        if error.state not in ("42P01", "3F000"):
            raise
        reached = 0
    _refuse_newer(reached)
    if reached < newest:
        raise SchemaBehind(
            "the database has no Tenuto schema yet" if reached == 0 else f"the schema is at {reached}, not {newest}",
            remedy="run `tenuto migrate`",
        )


def _refuse_newer(reached: int) -> None:
    newest = migrations()[-1].number
    if reached > newest:
        raise SchemaMismatch(
            f"the database's schema ({reached}) is newer than this version of Tenuto knows ({newest})",
            remedy="upgrade Tenuto on this machine",
        )
