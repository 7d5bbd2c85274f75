"""Sessions on PostgreSQL.

The driver is asynchronous and a connector is plain code in a thread, so each session has a separate event loop
that runs only during its calls. Values are exchanged as text and cast by the server: every type of column can be read
and written, also those of extensions.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from tenuto.clock import monotonic_seconds
from tenuto.postgres import script_runner
from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.sql.session import Column, ConnectionLost, Dialect, RefusalKind, Row, StatementRefused
from tenuto_identity.connectors.sql.settings import PostgresqlAddress, TableName
from tenuto_identity.connectors.sql.statements import all_columns, quote_table
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.values import BadValue, DataType, Value

DIALECT = Dialect(
    parameter="${number}::text",
    typed_parameter="${number}::text::{type}",
    text_column="{column}::text",
    binary_column="encode({column}, 'base64')",
    differs="IS DISTINCT FROM",
    newest_time="CASE WHEN max({column}) IS NOT NULL THEN least(max({column}), now()::{type}) END",
    earlier_time="({value} - make_interval(secs => {overlap}::float8))",
    earlier_number="({value} - {overlap}::numeric)",
)
_CLOSE_SECONDS = 5
_POLL_SECONDS = 0.05
_SHORT_LOCK_WAIT = "100ms"
_GRACE_SECONDS = 5
"""Additional wait for the answer after the server's own timeout."""
_DATA_TYPES = {
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "char"), DataType.TEXT),
    **dict.fromkeys(("int2", "int4", "int8", "oid"), DataType.INTEGER),
    **dict.fromkeys(("numeric", "float4", "float8"), DataType.DECIMAL),
    **dict.fromkeys(("timestamp", "timestamptz"), DataType.DATETIME),
    "bool": DataType.BOOLEAN,
    "date": DataType.DATE,
    "bytea": DataType.BINARY,
    "uuid": DataType.GUID,
}
_INTEGER_LIMITS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
_LOST_CLASSES = ("08",)
_UNUSABLE_STATES = frozenset({"25006", "57P04"})
_UNUSABLE_CLASSES = ("28", "3D", "53", "58", "XX")
_LOST_ERRORS = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
_DETAILED_STATES = frozenset({"23505", "23503"})
_REFUSALS = {
    "23505": RefusalKind.UNIQUE,
    "23503": RefusalKind.FOREIGN_KEY,
    "57014": RefusalKind.TIMEOUT,
    **dict.fromkeys(("40001", "40P01", "55P03"), RefusalKind.BUSY),
}

_COLUMN_PROPERTIES = """
SELECT attname, attgenerated <> '' OR attidentity = 'a'
FROM pg_catalog.pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
_TABLES = """
SELECT space.nspname, relation.relname, (
    SELECT CASE WHEN count(*) = 1 THEN min(attname::text) END
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = relation.oid AND i.indisprimary
)
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace AS space ON space.oid = relation.relnamespace
WHERE relation.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relation.relispartition
  AND space.nspname <> 'information_schema' AND NOT starts_with(space.nspname, 'pg_')
  AND has_table_privilege(relation.oid, 'SELECT')
ORDER BY space.nspname, relation.relname
"""
_OPEN_TRANSACTIONS = """
-- Every transaction holds the lock of its virtual id, which every login may see. Sessions without a user are those of
-- the server itself. A prepared transaction has no session.
SELECT lock.virtualxid
FROM pg_catalog.pg_locks AS lock
JOIN pg_catalog.pg_stat_activity AS session ON session.pid = lock.pid
JOIN pg_catalog.pg_database AS database ON database.oid = session.datid
WHERE lock.locktype = 'virtualxid' AND lock.granted AND lock.mode = 'ExclusiveLock'
  AND database.datname = current_database() AND session.usesysid IS NOT NULL AND lock.pid <> pg_backend_pid()
UNION ALL
SELECT 'prepared ' || transaction::text
FROM pg_catalog.pg_prepared_xacts
WHERE database = current_database()
"""

T = TypeVar("T")


class PostgresqlSession:
    """A connection to a PostgreSQL database."""

    dialect = DIALECT

    def __init__(
        self,
        address: PostgresqlAddress,
        password: str | None,
        *,
        read_only: bool,
        allows_privileged_login: bool,
        connect_timeout_seconds: float,
        timeout_seconds: float,
    ) -> None:
        self._address = address
        self._password = password
        self._read_only = read_only
        self._allows_privileged_login = allows_privileged_login
        self._connect_timeout_seconds = connect_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: asyncpg.Connection | None = None
        self._is_in_transaction = False
        self._type_names: dict[int, str] = {}

    # --- structure --------------------------------------------------------------------------------------------------

    def describe(self, source: str, table: TableName | None) -> list[Column]:
        attributes = self._run(self._attributes(all_columns(source)))
        computed: dict[str, bool] = {}
        if table is not None:
            computed = {str(row[0]): bool(row[1]) for row in self.fetch(_COLUMN_PROPERTIES, [quote_table(table)])}
        columns = []
        for each in attributes:
            if each.type.oid not in self._type_names:
                # -1 is a type without its limit: a cast to varchar(5) would cut a value off without an error.
                ((name,),) = self.fetch("SELECT format_type($1::text::oid, -1)", [str(each.type.oid)])
                self._type_names[each.type.oid] = str(name)
            found = _DATA_TYPES.get(each.type.name) if each.type.kind == "scalar" else None
            if each.type.kind != "scalar":
                found = DataType.TEXT
            columns.append(
                Column(
                    each.name, self._type_names[each.type.oid], found, is_writable=not computed.get(each.name, False)
                )
            )
        return columns

    async def _attributes(self, statement: str) -> Sequence[asyncpg.Attribute]:
        connection = await self._connect()
        return (await connection.prepare(statement)).get_attributes()

    def list_tables(self) -> list[tuple[TableName, str | None]]:
        return [((str(schema), str(name)), key) for schema, name, key in self.fetch(_TABLES)]

    # --- transactions -----------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"):
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._transaction("BEGIN"):
            yield

    def limit_lock_waits(self) -> None:
        self._run(self._command(f"SET LOCAL lock_timeout = '{_SHORT_LOCK_WAIT}'"))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._run(self._command("SAVEPOINT request"))
        with self._ended_by("RELEASE request", "ROLLBACK TO request; RELEASE request"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._ensure_connection()
        self._run(self._command(begin))
        self._is_in_transaction = True
        try:
            with self._ended_by("COMMIT", "ROLLBACK"):
                yield
        finally:
            self._is_in_transaction = False

    @contextmanager
    def _ended_by(self, end: str, undo: str) -> Iterator[None]:
        try:
            yield
            self._run(self._command(end))
        except BaseException:
            if self._opened is not None and self._opened.is_in_transaction():
                with suppress(ConnectionLost):  # then there is nothing to undo
                    self._run(self._command(undo))
            raise

    async def _command(self, text: str) -> None:
        await (await self._connect()).execute(text)

    # --- statements -------------------------------------------------------------------------------------------------

    def stream(self, statement: str, parameters: Sequence[Any], page_size: int) -> Iterator[list[Row]]:
        cursor = self._run(self._open_cursor(statement, parameters))
        while True:
            page: list[Row] = self._run(cursor.fetch(page_size))
            if not page:
                return
            yield page

    async def _open_cursor(self, statement: str, parameters: Sequence[Any]) -> Any:
        return await (await self._connect()).cursor(statement, *parameters)

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._run(self._fetch(statement, parameters))

    async def _fetch(self, statement: str, parameters: Sequence[Any]) -> list[Row]:
        rows: list[Any] = await (await self._connect()).fetch(statement, *parameters)
        return rows

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        status = self._run(self._execute(statement, parameters))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def _execute(self, statement: str, parameters: Sequence[Any]) -> str:
        return str(await (await self._connect()).execute(statement, *parameters))

    # --- connection -------------------------------------------------------------------------------------------------

    def _run(self, work: Awaitable[T]) -> T:
        """Run an asynchronous call of the driver and translate its errors."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(work)
        except asyncpg.PostgresError as error:
            raise self._translate(error) from error
        except UnicodeEncodeError:
            raise StatementRefused(RefusalKind.VALUE, "a text contains a lone surrogate") from None
        except _LOST_ERRORS as error:
            self._forget()
            raise ConnectionLost(
                f"the connection to {self._where} was lost: {str(error) or type(error).__name__}"
            ) from error

    def _translate(self, error: asyncpg.PostgresError) -> Exception:
        state = error.sqlstate or ""
        text = describe_error(error)
        if state in _LOST_STATES or state.startswith(_LOST_CLASSES):
            self._forget()
            return ConnectionLost(f"the connection to {self._where} was lost: {text}")
        if state in _UNUSABLE_STATES or state.startswith(_UNUSABLE_CLASSES):
            return ConnectorError("unreachable", f"the database {self._where} cannot be used: {text}")
        if state in _REFUSALS:
            return StatementRefused(_REFUSALS[state], text)
        return StatementRefused(RefusalKind.VALUE if state.startswith(("22", "23")) else RefusalKind.OTHER, text)

    async def _connect(self) -> asyncpg.Connection:
        if self._opened is not None and not self._opened.is_closed():
            return self._opened
        if self._is_in_transaction:  # guard: identity.sql_lost_transaction
            # Another connection would commit the rest of the transaction statement by statement.
            raise ConnectionLost(f"the connection to {self._where} was lost within a transaction")
        address = self._address
        settings = {
            "application_name": "tenuto identity",
            "timezone": "UTC",
            "datestyle": "ISO",
            "statement_timeout": str(max(1, round(self._timeout_seconds * 1000))),
            # guard: identity.sql_read_only_session
            "default_transaction_read_only": "on" if self._read_only else "off",
        }
        try:
            self._opened = await asyncpg.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                # An empty password keeps the driver from sending PGPASSWORD or ~/.pgpass of the worker to this server.
                password=self._password or "",  # guard: identity.sql_no_foreign_password
                database=address.database,
                ssl=tls_context(address),
                timeout=self._connect_timeout_seconds,
                command_timeout=self._timeout_seconds + _GRACE_SECONDS,
                server_settings=settings,
            )
        except (ssl.SSLError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            reason = describe_error(error) if isinstance(error, asyncpg.PostgresError) else str(error)
            raise ConnectorError(
                "unreachable",
                f"the database {self._where} cannot be reached: {reason or type(error).__name__}",
                remedy="check url, password and sslmode",
            ) from error
        return self._opened

    def _ensure_connection(self) -> None:
        """Open another connection if the server has ended this one since the last call."""
        with suppress(ConnectionLost):  # guard: identity.sql_idle_connection
            self._run(self._command("SELECT 1"))

    @property
    def _where(self) -> str:
        return f"{self._address.database} on {self._address.host}"

    def _forget(self) -> None:
        """End a connection that cannot be used further; the next call opens another one."""
        if self._opened is not None:
            self._opened.terminate()
            self._opened = None

    def close(self) -> None:
        if self._loop is None:
            return
        if self._opened is not None and not self._opened.is_closed():
            with suppress(Exception):  # the connection is given up in any case
                self._loop.run_until_complete(self._opened.close(timeout=_CLOSE_SECONDS))
        self._opened = None
        self._loop.close()
        self._loop = None

    # --- login and transactions of others ---------------------------------------------------------------------------

    def check_login(self) -> None:
        if self._allows_privileged_login:
            return
        statements = script_runner.SQL
        for statement in (statements.find_privilege_on_tenuto, statements.find_privilege_on_server):
            found = self.fetch(statement)
            if found:  # guard: identity.sql_privileged_login
                raise ConnectorError(
                    "login_too_powerful",
                    f"the login {self._address.user!r} of the database {self._where} {found[0][0]}",
                    remedy="create a login role for the connector with only the necessary rights, or name a connection"
                    " that has allow_privileged_login = true in the worker's settings",
                )

    def wait_for_writers(self, seconds: float) -> bool:
        ((is_standby,),) = self.fetch("SELECT pg_is_in_recovery()")
        if is_standby:
            raise ConnectorError(
                "standby",
                f"the database {self._where} is a standby, which does not show open transactions",
                remedy="run delta imports on the primary server, or only full imports here",
            )
        open_before = {row[0] for row in self.fetch(_OPEN_TRANSACTIONS)}
        deadline = monotonic_seconds() + seconds
        while open_before:
            open_before &= {row[0] for row in self.fetch(_OPEN_TRANSACTIONS)}
            if not open_before:
                break
            if monotonic_seconds() >= deadline:
                return False
            self._run(asyncio.sleep(_POLL_SECONDS))
        return True

    # --- values -----------------------------------------------------------------------------------------------------

    def cell(self, value: Any, attribute: Attribute) -> str | bytes | None:
        return None if value is None else str(value)

    def parameter(self, value: Value, attribute: Attribute, column: Column) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        if attribute.type is DataType.BINARY and column.data_type is DataType.BINARY:
            return "\\x" + base64.b64decode(str(value)).hex()
        limit = _INTEGER_LIMITS.get(column.type_name)
        is_number = isinstance(value, int) or str(value).removeprefix("-").isdecimal()
        if limit is not None and is_number and not -limit <= int(value) < limit:
            raise BadValue(f"column {column.name} ({column.type_name}): {value} is out of range")
        return str(value)

    def marker(self, value: bool | int | str | None) -> Any:
        return ("true" if value else "false") if isinstance(value, bool) else None if value is None else str(value)

    def current_time(self) -> Any:
        return str(self.fetch("SELECT now()::text")[0][0])


def describe_error(error: asyncpg.PostgresError) -> str:
    """Return the message of the server with its hint, and the detail if it names only the key of a constraint."""
    first, _, _ = str(error).partition("\n")
    # The detail of other violations is the whole row, also columns that are not selected.
    labels = ("detail", "hint") if error.sqlstate in _DETAILED_STATES else ("hint",)  # guard: identity.sql_row_in_error
    more = [f"{label}: {text}" for label in labels if (text := getattr(error, label, None))]
    return "; ".join([first or type(error).__name__, *more])


def tls_context(address: PostgresqlAddress) -> ssl.SSLContext | bool:
    """Return how a connection is protected; False without protection."""
    if address.tls_mode == "disable":
        return False
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.certificate_file is not None:
            context.load_cert_chain(address.certificate_file, address.key_file)
    except OSError as error:
        raise ConnectorError(
            "tls_files",
            f"the certificates of the database connection cannot be used: {error}",
            remedy="check sslrootcert, sslcert and sslkey of the url",
        ) from None
    context.check_hostname = address.tls_mode == "verify-full"  # guard: identity.sql_tls_host_name
    if address.tls_mode == "require":
        context.verify_mode = ssl.CERT_NONE
    return context
