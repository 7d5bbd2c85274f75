"""The LDAP connector: the contract on top of reading, deltas and writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tenuto_identity.connectors.contract import (
    Capabilities,
    ConnectorContext,
    ConnectorError,
    ConnectorKind,
    ReadEvent,
    ReadScope,
    Watermark,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.connectors.ldap import discovery
from tenuto_identity.connectors.ldap.delta import methods
from tenuto_identity.connectors.ldap.directory import UNIQUE_ANCHORS, Directory
from tenuto_identity.connectors.ldap.export import DirectoryWriter
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.connectors.ldap.settings import DeltaMethod, LdapSettings
from tenuto_identity.model.schema import Schema


class LdapConnector:
    """Reads and writes a directory."""

    def __init__(self, settings: LdapSettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        self._directory = Directory(settings, _password(settings, context))
        self._loaded_schema: DirectorySchema | None = None
        self._writer: DirectoryWriter | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            full=True,
            delta=self._settings.delta is not DeltaMethod.NONE,
            export=True,
            containers=True,
            read_one=True,
            unique_anchors=all(each.anchor.lower() in UNIQUE_ANCHORS for each in self._context.types),
            delta_returns_watermark=self._settings.delta in (DeltaMethod.DIRSYNC, DeltaMethod.MODIFY_TIMESTAMP),
            max_values=self._settings.max_values,
            write_batch=500,
        )

    def check(self) -> None:
        selected = (each.address for each in self._context.containers if each.included)
        for base in (*self._directory.bases, *selected):
            if self._directory.read_entry(base, ("1.1",)) is None:
                raise ConnectorError(
                    "missing_container",
                    f"there is no entry {base!r}, or the account may not read it",
                    remedy="check the setting base, the selected containers and the permissions of the account",
                )
        discovery.check_selection(self._schema, self._context.types, self._directory)
        methods.check(self._directory, self._context.types)

    def discover(self) -> Schema:
        return discovery.discover(self._directory, self._context.types)

    def watermark(self, scope: ReadScope) -> Watermark | None:
        return methods.current_watermark(self._directory, scope)

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        reader = DirectoryReader(self._directory, scope, self._schema)
        if scope.anchors is not None:
            return reader.read_anchors(scope.anchors)
        return reader.read_all() if since is None else methods.read_changes(reader, since)

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._context.read_only:
            raise ConnectorError("read_only", "the connector was opened for reading only")
        if self._writer is None:
            self._writer = DirectoryWriter(self._directory, self._context.types, self._schema)
        return self._writer.write(requests)

    def find_elsewhere(self, scope: ReadScope, anchors: Sequence[str]) -> set[str]:
        return DirectoryReader(self._directory, scope, self._schema).find_elsewhere(anchors)

    def close(self) -> None:
        self._directory.disconnect()

    @property
    def _schema(self) -> DirectorySchema:
        """The schema of the directory, read once in a run."""
        if self._loaded_schema is None:
            self._loaded_schema = discovery.load_schema(self._directory)
        return self._loaded_schema


def _password(settings: LdapSettings, context: ConnectorContext) -> str | None:
    """Return the password; an empty one is refused, because a directory accepts it as anonymous."""
    if settings.password is None:
        return None
    password = context.secrets.get(settings.password.secret)
    if not password:  # guard: identity.ldap_empty_password
        raise ConnectorError(
            "password_missing",
            f"the secret {settings.password.secret!r} of the password is empty or does not exist",
            remedy=f"set it with `tenuto secret set {settings.password.secret}`",
        )
    return password


def _open(settings: Any, context: ConnectorContext) -> LdapConnector:
    return LdapConnector(settings, context)


LDAP = ConnectorKind(
    name="ldap",
    settings=LdapSettings,
    open=_open,
    capabilities=Capabilities(full=True, delta=True, export=True, containers=True, read_one=True),
    addresses_are_dns=True,
)
