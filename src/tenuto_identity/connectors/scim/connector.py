"""The SCIM connector: the contract on top of discovery, reading and writing."""

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
    ReferenceForm,
    Watermark,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.connectors.scim import discovery
from tenuto_identity.connectors.scim.client import ScimClient
from tenuto_identity.connectors.scim.export import ResourceWriter
from tenuto_identity.connectors.scim.resource_reader import ResourceReader
from tenuto_identity.connectors.scim.resource_schema import ServiceSchema, load_schema
from tenuto_identity.connectors.scim.settings import DeltaMethod, ScimSettings
from tenuto_identity.model.schema import Schema


class ScimConnector:
    """Reads and writes a SCIM service."""

    def __init__(self, settings: ScimSettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        self._client = ScimClient(settings, context)
        self._loaded_schema: ServiceSchema | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            full=True,
            delta=self._settings.delta is not DeltaMethod.NONE,
            export=True,
            read_one=True,
            max_values=self._settings.max_values,
            references=ReferenceForm.ANCHOR,
        )

    def check(self) -> None:
        discovery.check_selection(self._schema, self._context.types, self._settings)
        if self._settings.delta is DeltaMethod.LAST_MODIFIED and not self._schema.features.filter:
            raise ConnectorError(
                "delta",
                "delta last_modified needs filters, and the server does not support them",
                remedy="choose delta: none, and run full imports",
            )
        for each in self._context.types:
            path = self._schema.resource_type(self._settings.resource_name(each.name)).endpoint
            if self._client.get(path, {"startIndex": 1, "count": 1}).status == 404:
                raise ConnectorError("missing_class", f"the service has no list {path}")

    def discover(self) -> Schema:
        return discovery.discover(self._schema, self._context.types, self._settings)

    def watermark(self, scope: ReadScope) -> Watermark | None:
        return ResourceReader(self._client, self._schema, scope).watermark()

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        reader = ResourceReader(self._client, self._schema, scope)
        if scope.anchors is not None:
            return reader.read_anchors(scope.anchors)
        return reader.read_all() if since is None else reader.read_changes(since)

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._context.read_only:
            raise ConnectorError("read_only", "the connector was opened for reading only")
        return ResourceWriter(self._client, self._schema, self._context.types).write(requests)

    def close(self) -> None:
        self._client.close()

    @property
    def _schema(self) -> ServiceSchema:
        """Resource types and schemas of the service, loaded once per run."""
        if self._loaded_schema is None:
            self._loaded_schema = load_schema(self._client)
        return self._loaded_schema


def _open(settings: Any, context: ConnectorContext) -> ScimConnector:
    return ScimConnector(settings, context)


SCIM = ConnectorKind(
    name="scim",
    settings=ScimSettings,
    open=_open,
    capabilities=Capabilities(full=True, delta=True, export=True, read_one=True),
)
