"""Schema migrations per component: numbered files, forward only, each applied once.

The core is the component ``tenuto``. Every extension with tables is another component, with its own numbers and the
schema ``tenuto_NAME``. An advisory lock serialises processes that migrate at the same time; the second finds
nothing to do. An applied file must not change; its stored checksum detects that. All missing migrations of a component
run in one transaction without statement timeout, so an interrupted migration changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tenuto.errors import Invalid, SchemaBehind, SchemaMismatch, Unavailable
from tenuto.postgres.database import Connection, Database, DatabaseError, LockTimeout

_MIGRATIONS_DIRECTORY = Path(__file__).parent / "migrations"
_CORE_NAME = "tenuto"

# As in the first release: migration 0015 adds the component.
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
# Through `to_jsonb`, because the column `component` is missing before migration 0015.
_LIST_APPLIED = """
SELECT number, name, checksum FROM tenuto.migrations AS applied
WHERE coalesce(to_jsonb(applied) ->> 'component', 'tenuto') = $1 ORDER BY number
"""
_LATEST_NUMBERS = """
SELECT coalesce(to_jsonb(applied) ->> 'component', 'tenuto') AS component, max(number) AS number
FROM tenuto.migrations AS applied GROUP BY 1
"""
_INSERT_CORE = "INSERT INTO tenuto.migrations (number, name, checksum) VALUES ($1, $2, $3)"
_INSERT_APPLIED = "INSERT INTO tenuto.migrations (number, name, checksum, component) VALUES ($1, $2, $3, $4)"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str
    component: str = _CORE_NAME

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Component:
    """A part of Tenuto with its own tables: the core or an extension."""

    name: str
    directory: Path

    @property
    def is_core(self) -> bool:
        return self.name == _CORE_NAME

    @property
    def schema(self) -> str:
        """The schema of the component's tables."""
        return _CORE_NAME if self.is_core else f"{_CORE_NAME}_{self.name}"

    @property
    def title(self) -> str:
        """The component in error messages."""
        return "the database schema" if self.is_core else f"the database schema of the extension {self.name!r}"

    def load_migrations(self) -> list[Migration]:
        """Return the migrations of this component in order."""
        found: list[Migration] = []
        for file in sorted(self.directory.glob("*.sql")):
            match = re.fullmatch(r"(\d{4})_(\w+)", file.stem)
            if match is None or int(match[1]) != len(found) + 1:
                raise Invalid(
                    f"the migration {file} is not named like {len(found) + 1:04}_description.sql",
                    code="schema.migration.name_invalid",
                    remedy="number the migrations of a component from 0001 without gaps",
                )
            found.append(Migration(int(match[1]), match[2], _read_file(file), self.name))
        if not found:
            raise Invalid(
                f"there are no migrations in {self.directory}",
                code="schema.migration.missing",
                remedy="include the .sql files in the package",
            )
        return found


def _read_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"the migration {file} cannot be read: {error}",
            code="schema.migration.unreadable",
            remedy="save the file as UTF-8, readable for this user",
        ) from error


def core_component() -> Component:
    """Return the migrations of Tenuto itself, as opposed to those of an extension."""
    return Component(_CORE_NAME, _MIGRATIONS_DIRECTORY)


def load_migrations() -> list[Migration]:
    """Return the migrations of the core in order."""
    return core_component().load_migrations()


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Schema version and missing migrations of one component."""

    component: str
    schema: str
    version: int
    """Number of the last applied migration; 0 if there is none."""
    newest_version: int
    """Number of the last migration that this program knows."""
    pending: Sequence[str]
    """Migrations that `tenuto migrate` would apply."""


def describe_status(reached: Mapping[str, int], extensions: Sequence[Component] = ()) -> list[ComponentStatus]:
    """Return the status of the core and of these extensions, from the versions that were reached."""
    found = []
    for component in (core_component(), *extensions):
        version, known = reached.get(component.name, 0), component.load_migrations()
        pending = [f"{each.number:04} {each.name}" for each in known if each.number > version]
        found.append(ComponentStatus(component.name, component.schema, version, known[-1].number, pending))
    return found


def render_script(extensions: Sequence[Component] = (), reached: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return the SQL that migrating the core and these extensions runs on a database that has reached these versions;
    by default on an empty one."""
    parts = ["BEGIN;", *([] if reached else [_CREATE_MIGRATIONS_TABLE.strip()])]
    is_complete = True
    for component in (core_component(), *extensions):
        version = reached.get(component.name, 0)
        missing = [migration for migration in component.load_migrations() if migration.number > version]
        parts.append(f"\n-- component {component.name}" + (f", from version {version}" if reached else ""))
        if not missing:
            parts.append("-- nothing to migrate")
            continue
        is_complete = False
        if not component.is_core:
            parts.append(f"CREATE SCHEMA IF NOT EXISTS {component.schema};")
        for migration in missing:
            parts.append(f"\n-- {migration.number:04} {migration.name}\n{migration.sql.strip()}")
            values = f"{migration.number}, '{migration.name}', '{migration.checksum}'"
            columns = "number, name, checksum"
            if not component.is_core:
                columns, values = f"{columns}, component", f"{values}, '{component.name}'"
            parts.append(f"INSERT INTO tenuto.migrations ({columns}) VALUES ({values});")  # noqa: S608 — our own names
    return "\n".join(["-- the schema is up to date"] if is_complete else [*parts, "COMMIT;"])


async def migrate(database: Database, component: Component | None = None) -> list[Migration]:
    """Apply the missing migrations of one component, by default the core, and return them."""
    migrated = component or core_component()

    async def apply_missing(connection: Connection) -> list[Migration]:
        await connection.execute(_DISABLE_TIMEOUTS)
        await connection.execute(_LOCK_MIGRATIONS, timeout=_ONE_DAY_SECONDS)  # another migration may take long
        await connection.execute(_SET_LOCK_TIMEOUT, f"{TABLE_LOCK_TIMEOUT_SECONDS * 1000:.0f}")
        if migrated.is_core:
            await connection.execute(_CREATE_MIGRATIONS_TABLE)
        else:
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {migrated.schema}")
        applied = {row["number"]: row for row in await connection.fetch(_LIST_APPLIED, migrated.name)}
        known = migrated.load_migrations()
        _reject_newer(migrated, max(applied, default=0), known[-1].number)
        done = []
        for migration in known:
            before = applied.get(migration.number)
            if before is None:
                await connection.execute(migration.sql, timeout=_ONE_DAY_SECONDS)
                values = (migration.number, migration.name, migration.checksum)
                if migrated.is_core:  # the first migrations run before the column `component` exists
                    await connection.execute(_INSERT_CORE, *values)
                else:
                    await connection.execute(_INSERT_APPLIED, *values, migrated.name)
                done.append(migration)
            elif before["checksum"] != migration.checksum:
                raise SchemaMismatch(
                    f"migration {migration.number:04} {migration.name} of {migrated.title} was changed after it was"
                    " applied",
                    code="schema.migration.changed",
                    remedy="restore the released file, and write a new migration for the change",
                )
        return done

    try:
        return await database.transaction(apply_missing)
    except LockTimeout as error:
        raise Unavailable(
            f"{migrated.title} was not changed: other sessions lock its tables",
            code="schema.tables.locked",
            remedy="wait for the session that locks them (a long query, a dump) or end it, and migrate again",
        ) from error


async def load_versions(database: Database) -> dict[str, int]:
    """Return the number of the last migration of each component."""
    try:
        return {row["component"]: row["number"] for row in await database.fetch_all(_LATEST_NUMBERS)}
    except DatabaseError as error:
        if error.sqlstate not in ("42P01", "3F000"):
            raise
        return {}


async def check_schema(database: Database, extensions: Sequence[Component] = ()) -> None:
    """Raise an error unless the schema of the core and of these extensions has exactly the version of this program."""
    reached = await load_versions(database)
    for component in (core_component(), *extensions):
        check_component(component, reached.get(component.name, 0))


def check_component(component: Component, reached: int) -> None:
    """Raise an error unless the component has reached exactly the version of this program."""
    newest = component.load_migrations()[-1].number
    _reject_newer(component, reached, newest)
    if reached < newest:
        missing = "the database has no Tenuto schema" if component.is_core else f"{component.title} is missing"
        raise SchemaBehind(
            missing if reached == 0 else f"{component.title} has version {reached}, but this program needs {newest}",
            code="schema.missing" if reached == 0 else "schema.too_old",
            remedy="run `tenuto migrate`",
        )


def _reject_newer(component: Component, reached: int, newest: int) -> None:
    if reached > newest:
        raise SchemaMismatch(
            f"{component.title} has version {reached}, but this program knows only {newest}",
            code="schema.too_new",
            remedy="upgrade Tenuto on this machine" if component.is_core else "upgrade the extension on this machine",
        )
