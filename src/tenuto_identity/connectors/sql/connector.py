"""The SQL connector: the contract on top of sessions, tables, reading and writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from tenuto_identity.connectors.contract import (
    Capabilities,
    ConnectorContext,
    ConnectorError,
    ConnectorKind,
    NamedConnection,
    ReadEvent,
    ReadScope,
    ReferenceForm,
    Watermark,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.connectors.file_access import allowed_path
from tenuto_identity.connectors.sql import tables
from tenuto_identity.connectors.sql.postgresql import PostgresqlSession
from tenuto_identity.connectors.sql.session import ConnectionLost, Session
from tenuto_identity.connectors.sql.settings import (
    SqlSettings,
    check_url,
    database_name,
    is_sqlite,
    postgresql_address,
    sqlite_file,
)
from tenuto_identity.connectors.sql.sqlite import SqliteSession
from tenuto_identity.connectors.sql.table_reader import TableReader, reported, unsettled_warning
from tenuto_identity.connectors.sql.table_writer import TableWriter
from tenuto_identity.connectors.sql.tables import TypeTable
from tenuto_identity.model.schema import ObjectType, Schema


class SqlConnector:
    """Reads and writes tables of one database."""

    def __init__(self, settings: SqlSettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        named = None if settings.connection is None else _named_connection(settings.connection, context)
        url = settings.url if named is None else named.url
        assert url is not None  # the settings have a url or a connection
        self._database = database_name(url)
        self._session = _open_session(settings, context, url, named)
        self._loaded: dict[str, TypeTable] = {}
        self._is_checked = False
        self._is_unsettled = False
        """The last watermark could not be taken, because transactions were open."""

    @property
    def capabilities(self) -> Capabilities:
        types = self._context.types
        return Capabilities(
            full=True,
            delta=bool(types) and all(self._settings.type_settings(each.name).has_delta for each in types),
            export=not self._settings.read_only,
            read_one=True,
            references=ReferenceForm.ANCHOR,
            write_batch=500,
        )

    def check(self) -> None:
        self._prepare()
        for each in self._context.types:
            self._table(each)

    def discover(self) -> Schema:
        self._prepare()
        with reported("the tables cannot be read"):
            return tables.discover(self._session, self._settings, self._context.types)

    def watermark(self, scope: ReadScope) -> Watermark | None:
        """Return the newest change of each table, if every transaction that may have an older one has ended.

        The newest change is read first. A transaction that begins later has a newer one, whether its time is that of
        its begin or of its statement. A transaction that was open then may still commit an older one, which a delta
        from this watermark would miss; if it does not end in time, there is no new watermark.
        """
        if not self.capabilities.delta:
            return None
        self._prepare()
        found = self._reader(scope).newest_changes()
        with reported("the watermark cannot be taken"):
            # guard: identity.sql_settled_watermark
            self._is_unsettled = not self._session.wait_for_writers(self._settings.settle_seconds)
        return None if found is None or self._is_unsettled else {"types": found}

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        self._prepare()
        reader = self._reader(scope)
        if scope.anchors is not None:
            yield from reader.read_anchors(scope.anchors)
            return
        if self._is_unsettled:
            self._is_unsettled = False
            yield unsettled_warning()
        yield from reader.read_all() if since is None else reader.read_changes(since)

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._context.read_only or self._settings.read_only:
            raise ConnectorError("read_only", "the connector was opened for reading only")
        self._prepare()
        known = {each.name: self._table(each) for each in self._context.types}
        return TableWriter(self._session, known, page_size=self._settings.page_size).write(requests)

    def close(self) -> None:
        self._session.close()

    def _prepare(self) -> None:
        """Check the login, once. A connection that ended since the last call is opened again, once."""
        if self._is_checked:
            return
        with reported("the database cannot be used"):
            try:
                self._session.check_login()
            except ConnectionLost:
                self._session.check_login()
        self._is_checked = True

    def _table(self, object_type: ObjectType) -> TypeTable:
        if object_type.name not in self._loaded:
            with reported(f"the table of the type {object_type.name} cannot be read"):
                self._loaded[object_type.name] = tables.load_table(self._session, self._settings, object_type)
        return self._loaded[object_type.name]

    def _reader(self, scope: ReadScope) -> TableReader:
        chosen = [self._table(each) for each in scope.types]
        return TableReader(
            self._session,
            chosen,
            database=self._database,
            page_size=self._settings.page_size,
            overlap=self._settings.overlap,
        )


def _open_session(settings: SqlSettings, context: ConnectorContext, url: str, named: NamedConnection | None) -> Session:
    read_only = settings.read_only or context.read_only
    if is_sqlite(url):
        # The administrator of the worker may name any file; a definition only files in the allowed folders.
        folders = context.allowed_folders if named is None else ()
        path = allowed_path(str(sqlite_file(url)), folders)
        return SqliteSession(path, read_only=read_only, timeout_seconds=settings.timeout_seconds)
    return PostgresqlSession(
        postgresql_address(url),
        _password(settings, context) if named is None else unquote(urlsplit(url).password or "") or None,
        read_only=read_only,
        allows_privileged_login=named is not None and named.allows_privileged_login,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        timeout_seconds=settings.timeout_seconds,
    )


def _named_connection(name: str, context: ConnectorContext) -> NamedConnection:
    found = context.connections.get(name)
    if found is None:
        raise ConnectorError(
            "unknown_connection",
            f"there is no connection named {name!r} in the settings of this worker",
            remedy="add it under [connections.NAME]",
        )
    try:
        check_url(found.url)
    except ValueError as error:
        raise ConnectorError("settings", f"the url of the connection {name!r} cannot be used: {error}") from None
    return found


def _password(settings: SqlSettings, context: ConnectorContext) -> str | None:
    if settings.password is None:
        return None
    password = context.secrets.get(settings.password.secret)
    if not password:
        raise ConnectorError(
            "password_missing",
            f"the secret {settings.password.secret!r} of the password is empty or does not exist",
            remedy=f"set it with `tenuto secret set {settings.password.secret}`",
        )
    return password


def _open(settings: Any, context: ConnectorContext) -> SqlConnector:
    return SqlConnector(settings, context)


SQL = ConnectorKind(
    name="sql",
    settings=SqlSettings,
    open=_open,
    capabilities=Capabilities(full=True, delta=True, export=True, read_one=True, references=ReferenceForm.ANCHOR),
)
