"""The schema: numbered files, forward only, each applied once.

Two processes may migrate at the same time: one advisory lock lets them in one after the other, and the second finds
nothing to do. An applied file must never change; its checksum is kept to notice. On a big table a step takes its time,
and is given it; all of them are one transaction, so one that breaks off, wherever, leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tenuto.errors import SchemaBehind, SchemaMismatch, Unavailable
from tenuto.postgres.database import Connection, Database, DatabaseError

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
LOCK_SECONDS = 5.0
"""For so long a step waits for a table: less than those who meanwhile queue up behind it are ready to wait."""
_A_DAY = 86_400.0  # to the driver, None is what the connection was opened with
_LOCK_NOT_AVAILABLE = "55P03"

# What is true of a worker's statements is not of these: they last as long as a table is big.
_WITHOUT_HASTE = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
_LET_OTHERS_PASS = "SELECT set_config('lock_timeout', $1, true)"
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
        await connection.execute(_WITHOUT_HASTE)
        await connection.execute(_LOCK, timeout=_A_DAY)  # whoever is at it needs its time too
        await connection.execute(_LET_OTHERS_PASS, f"{LOCK_SECONDS * 1000:.0f}")
        await connection.execute(_PREPARE)
        applied = {row["number"]: row for row in await connection.fetch(_APPLIED)}
        _refuse_newer(max(applied, default=0))
        done = []
        for migration in migrations():
            before = applied.get(migration.number)
            if before is None:
                await connection.execute(migration.sql, timeout=_A_DAY)
                await connection.execute(_RECORD, migration.number, migration.name, migration.checksum)
                done.append(migration)
            elif before["checksum"] != migration.checksum:
                raise SchemaMismatch(
                    f"migration {migration.number:04} {migration.name} was changed after it had been applied",
                    remedy="restore the released file, and put the change into a new migration",
                )
        return done

    try:
        return await database.transaction(apply_missing)
    except Unavailable as error:
        if getattr(error.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Unavailable(
            "the schema was left as it is: others hold on to its tables",
            remedy="wait for what holds them (a long query, a dump) or end it, and migrate again",
        ) from error


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
