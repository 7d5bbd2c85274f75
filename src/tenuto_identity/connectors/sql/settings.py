"""Settings of the SQL connector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tenuto_identity.connectors.contract import SecretName

POSTGRESQL_SCHEMES = ("postgresql", "postgres")
SQLITE_SCHEME = "sqlite"
TLS_MODES = ("disable", "require", "verify-ca", "verify-full")
_ADDRESS_OPTIONS = frozenset({"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"})

TableName = tuple[str, ...]
"""Schema and table, or table only."""


def _as_table(value: object) -> object:
    """Return the parts of ``schema.table``. A list is taken as it is, for names that contain a dot."""
    return tuple(value.split(".")) if isinstance(value, str) else value


def _check_table(value: TableName | None) -> TableName | None:
    if value is not None and (len(value) not in (1, 2) or not all(part.strip() for part in value)):
        raise ValueError("write TABLE, SCHEMA.TABLE or [SCHEMA, TABLE]")
    return value


class ChangeTable(BaseModel):
    """A table to which triggers of the database write one row for each change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: Annotated[TableName, BeforeValidator(_as_table)]
    key: str = "key"
    """Column with the key of the changed row."""
    sequence: str = "seq"
    """Column with a unique number that grows with each change."""

    _table = field_validator("table")(_check_table)


class ListTable(BaseModel):
    """A table with the values of a multi-valued attribute, one row for each value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: Annotated[TableName, BeforeValidator(_as_table)]
    key: str
    """Column with the key of the object that has the value."""
    value: str
    """Column with the value: a text, or the key of another object."""

    _table = field_validator("table")(_check_table)


class DeletionMarker(BaseModel):
    """A column that marks rows as deleted, instead of deleting them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str
    deleted: bool | int | str | None = None
    """Value of deleted rows. None: every row with a value is deleted, and an export writes the current time."""
    active: bool | int | str | None = None
    """Value that an export writes into other rows."""

    @model_validator(mode="after")
    def _check_values(self) -> DeletionMarker:
        if self.deleted == self.active and not (self.deleted is None and self.active is None):
            raise ValueError("deleted and active have the same value")
        if self.deleted is None and self.active is not None:
            raise ValueError("active needs a value for deleted, too")
        return self


class TypeSettings(BaseModel):
    """Where the objects of one type are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: Annotated[TableName | None, BeforeValidator(_as_table)] = None
    """Table or view; the name of the type by default."""
    query: str | None = None
    """A query to import instead of a table. It cannot be exported to."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Attribute → column, where the names differ."""
    lists: dict[str, ListTable] = Field(default_factory=dict)
    """Multi-valued attribute → table with its values."""
    change_column: str | None = None
    """Column that grows with each change of a row, for delta imports."""
    change_table: ChangeTable | None = None
    """Table of changes, for delta imports."""
    deletion_marker: DeletionMarker | None = None

    _table = field_validator("table")(_check_table)

    @field_validator("query")
    @classmethod
    def _check_query(cls, value: str | None) -> str | None:
        if value is None:
            return None
        text = value.strip().removesuffix(";").strip()
        if not text:
            raise ValueError("the query is empty")
        return text

    @model_validator(mode="after")
    def _check_sources(self) -> TypeSettings:
        if self.table is not None and self.query is not None:
            raise ValueError("table and query exclude each other")
        if self.change_column is not None and self.change_table is not None:
            raise ValueError("change_column and change_table exclude each other")
        return self

    @property
    def has_delta(self) -> bool:
        return self.change_column is not None or self.change_table is not None


class SqlSettings(BaseModel):
    """Settings of the SQL connector."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = None
    """``postgresql://USER@HOST[:PORT]/DATABASE[?sslmode=…]`` or ``sqlite:///FILE``."""
    connection: str | None = None
    """Name of a connection in the settings of the worker, instead of ``url`` and ``password``."""
    password: SecretName | None = None
    """Password of the PostgreSQL login, as ``{secret: NAME}``."""
    read_only: bool = False
    """Only import: no session can write, and run profiles of the kind export are refused."""
    types: dict[str, TypeSettings] = Field(default_factory=dict)
    """Object type → table or query, columns, change column or table, deletion marker."""
    page_size: int = Field(1_000, ge=1, le=50_000)
    """Rows that are fetched at once."""
    overlap: float = Field(0, ge=0)
    """How far before the watermark a delta by ``change_column`` begins: seconds, or units of a numeric column."""
    settle_seconds: float = Field(10, ge=0, le=600)
    """PostgreSQL: how long an import waits for open transactions, whose changes a watermark could miss."""
    connect_timeout_seconds: float = Field(10, gt=0, le=600)
    timeout_seconds: float = Field(120, gt=0, le=86_400)
    """How long a statement may take, waiting for locks included."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_url(value)
            if urlsplit(value).password is not None:
                raise ValueError("the address has a password; write password: {secret: NAME} instead")
        return value

    @model_validator(mode="after")
    def _check_address(self) -> SqlSettings:
        if (self.url is None) == (self.connection is None):
            raise ValueError("exactly one of url and connection is required")
        if self.password is not None and (self.url is None or is_sqlite(self.url)):
            raise ValueError("a connection has its password in the settings of the worker, and a SQLite file has none")
        return self

    def type_settings(self, name: str) -> TypeSettings:
        return self.types.get(name) or TypeSettings()


def check_url(url: str) -> None:
    """Raise `ValueError` if a URL is not the address of a database. The message does not contain the URL."""
    parts = urlsplit(url)
    if parts.scheme == SQLITE_SCHEME:
        if parts.netloc or len(parts.path) < 2 or parts.query or parts.fragment:
            raise ValueError("the address of a SQLite file is sqlite:///FILE, without options")
        return
    if parts.scheme not in POSTGRESQL_SCHEMES:
        raise ValueError("write postgresql://USER@HOST/DATABASE or sqlite:///FILE")
    if not parts.username or len(parts.path) < 2 or parts.fragment:
        raise ValueError("the address needs a login role and a database: postgresql://USER@HOST/DATABASE")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    try:
        int(options.get("port") or parts.port or 0)
    except ValueError:
        raise ValueError("the address has a port that is not a number") from None
    if unknown := sorted(set(options) - _ADDRESS_OPTIONS):
        raise ValueError(
            f"the address has the unknown option {unknown[0]}; known are {', '.join(sorted(_ADDRESS_OPTIONS))}"
        )
    if options.get("sslmode", "verify-full") not in TLS_MODES:
        raise ValueError(f"sslmode {options['sslmode']!r:.40} is not one of {', '.join(TLS_MODES)}")
    if not (parts.hostname or options.get("host")):
        raise ValueError("the address needs a host")


def is_sqlite(url: str) -> bool:
    return urlsplit(url).scheme == SQLITE_SCHEME


def sqlite_file(url: str) -> Path:
    """Return the path in the address of a SQLite file."""
    return Path(unquote(urlsplit(url).path[1:]))


def database_name(url: str) -> str:
    """Return what identifies a database and the login that reads it, without its password."""
    if is_sqlite(url):
        return str(sqlite_file(url))
    address = postgresql_address(url)
    return f"{address.user}@{address.host}:{address.port}/{address.database}"


def postgresql_address(url: str) -> PostgresqlAddress:
    """Return the parts of the address of a PostgreSQL database."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    host = options.get("host") or unquote(parts.hostname or "")
    return PostgresqlAddress(
        host=host,
        port=int(options.get("port") or parts.port or 5432),
        user=unquote(parts.username or ""),
        database=unquote(parts.path[1:]),
        tls_mode=options.get("sslmode") or ("disable" if host.startswith("/") else "verify-full"),
        ca_file=options.get("sslrootcert"),
        certificate_file=options.get("sslcert"),
        key_file=options.get("sslkey"),
    )


class PostgresqlAddress(BaseModel):
    """Where a PostgreSQL server is, and how the connection to it is protected."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: int
    user: str
    database: str
    tls_mode: str
    """``verify-full`` unless the address names another mode; ``disable`` for a socket file."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the operating system by default."""
    certificate_file: str | None = None
    key_file: str | None = None
