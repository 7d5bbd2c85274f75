"""The connector of a preview: reads the real system, keeps requests instead of sending them, and shows their effect.

Requests are assumed to succeed. A read after an export returns the system as it would be, so that whole chains of runs
can be previewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from tenuto_identity.connectors.contract import (
    Capabilities,
    Cells,
    Connector,
    ConnectorError,
    ContainerConnector,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    Watermark,
    WriteChange,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.model import dn
from tenuto_identity.model.decoding import Decoding, canonical_anchor
from tenuto_identity.model.schema import Attribute, ObjectType, Schema
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Value

_EMPTY_SOURCES = ("empty_source", "unreachable")
"""Errors of a target that does not exist before its first export."""


@dataclass(slots=True)
class _Written:
    """What requests would have done to one object."""

    type: ObjectType
    anchor: str
    address: str
    is_created: bool = False
    is_deleted: bool = False
    is_renamed: bool = False
    changes: list[WriteChange] = field(default_factory=list)


@dataclass(slots=True)
class PreviewedSystem:
    """The requests to one system in all runs of a preview, and their effect. It is kept in memory."""

    decoding: Decoding
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Requests of the current run, as they are stored."""
    written: dict[tuple[str, str], _Written] = field(default_factory=dict)
    """(type, anchor) → effect."""
    new_count: int = 0

    def take_requests(self) -> list[dict[str, Any]]:
        """Return the requests of the run that has ended."""
        taken, self.requests = self.requests, []
        return taken


class PreviewConnector:
    """A connector that was opened for reading, with the effect of the requests of a preview laid over it."""

    def __init__(self, connector: Connector, system: PreviewedSystem, types: Iterable[ObjectType]) -> None:
        self._connector = connector
        self._system = system
        self._types = {each.name: each for each in types}

    @property
    def capabilities(self) -> Capabilities:
        return self._connector.capabilities

    def check(self) -> None:
        self._connector.check()

    def discover(self) -> Schema:
        return self._connector.discover()

    def watermark(self, scope: ReadScope) -> Watermark | None:
        return self._connector.watermark(scope)

    def find_elsewhere(self, scope: ReadScope, anchors: Sequence[str]) -> set[str]:
        connector = self._connector
        return connector.find_elsewhere(scope, anchors) if isinstance(connector, ContainerConnector) else set()

    def close(self) -> None:
        """The real connector is closed by the code that opened it."""

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        return [self._keep(request) for request in requests]

    def _keep(self, request: WriteRequest) -> WriteResult:
        self._system.requests.append(
            {
                "kind": request.kind.value,
                "type": request.type,
                "anchor": request.anchor,
                "address": request.address or None,
                "changes": [
                    {"attribute": each.attribute, "op": each.op.value, "values": list(each.values)}
                    for each in request.changes
                ],
            }
        )
        object_type = self._types[request.type]
        anchor = self._anchor_of(request, object_type)
        found = self._system.written.get((request.type, anchor))
        if found is None:
            found = _Written(object_type, anchor, request.address, is_created=request.kind is ExportKind.CREATE)
            self._system.written[request.type, anchor] = found
        found.is_deleted = request.kind is ExportKind.DELETE
        for change in request.changes:
            if change.op is ChangeOp.RENAME:
                found.address, found.is_renamed = str(change.values[0]), True
            else:
                found.changes.append(change)
        return WriteResult(anchor=anchor, address=found.address or None)

    def _anchor_of(self, request: WriteRequest, object_type: ObjectType) -> str:
        """Return the anchor of an object; the system would give one to a new object, so one is made up."""
        if request.anchor:
            return canonical_anchor(request.anchor, object_type)
        for change in request.changes:
            if change.attribute == object_type.anchor and change.values:
                return canonical_anchor(str(change.values[0]), object_type)
        self._system.new_count += 1
        attribute = object_type.attributes.get(object_type.anchor)
        match attribute.type if attribute is not None else DataType.TEXT:
            case DataType.INTEGER:
                return str(2**63 - 1 - self._system.new_count)
            case DataType.GUID:
                return str(uuid5(NAMESPACE_OID, f"preview {self._system.new_count}"))
            case _:
                return f"new-{self._system.new_count}"

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        pending = dict(self._system.written)
        complete: ReadComplete | None = None
        try:
            for event in self._connector.read(scope, since):
                if isinstance(event, ReadComplete):
                    complete = event
                elif (found := self._overlay(event, pending, is_delta=since is not None)) is not None:
                    yield found
        except ConnectorError as error:
            is_new = any(each.is_created and not each.is_deleted for each in pending.values())
            if error.code not in _EMPTY_SOURCES or not is_new:
                raise
            complete = ReadComplete(types=tuple(each.name for each in scope.types))
        if complete is None:
            return  # the reader reports that the read is incomplete
        if since is not None:
            yield from self._read_changed(scope, pending)
        created = [each for each in pending.values() if each.is_created and not each.is_deleted]
        for each in created:
            if each.type.name in complete.types and (scope.anchors is None or each.anchor in scope.anchors):
                yield self._changed(ImportedObject(each.type.name, each.anchor, each.address, "", {}), each)
        yield replace(complete, object_count=complete.object_count + len(created))

    def _overlay(
        self, event: ReadEvent, pending: dict[tuple[str, str], _Written], *, is_delta: bool
    ) -> ReadEvent | None:
        """Return what a read yields instead of an event of the real system."""
        if not isinstance(event, ImportedObject | DeletedObject):
            return event
        key = self._key(event)
        pending.pop(key, None)
        written = self._system.written.get(key)  # an object may occur again if it was moved while it was read
        if written is None:
            return event
        if isinstance(event, ImportedObject) and not written.is_deleted:
            return self._changed(event, written)
        return DeletedObject(event.type, event.anchor) if is_delta else None

    def _read_changed(self, scope: ReadScope, pending: dict[tuple[str, str], _Written]) -> Iterator[ReadEvent]:
        """Yield the objects that requests changed or deleted, which the log of the real system does not contain."""
        deleted = [key for key, each in pending.items() if each.is_deleted]
        for key in deleted:
            del pending[key]
            yield DeletedObject(*key)
        wanted = {key for key, each in pending.items() if not each.is_created}
        if not wanted:
            return
        anchors = tuple(anchor for _, anchor in wanted) if self.capabilities.read_one else None
        for event in self._connector.read(replace(scope, anchors=anchors), None):
            if isinstance(event, ImportedObject) and (key := self._key(event)) in wanted:
                yield self._changed(event, pending.pop(key))

    def _key(self, event: ImportedObject | DeletedObject) -> tuple[str, str]:
        object_type = self._types.get(event.type)
        try:
            return event.type, canonical_anchor(event.anchor, object_type) if object_type else event.anchor
        except ValueError:
            return event.type, event.anchor

    def _changed(self, event: ImportedObject, written: _Written) -> ImportedObject:
        cells: dict[str, tuple[str | bytes, ...]] = {name: tuple(found) for name, found in event.cells.items()}
        if written.is_created:
            cells.setdefault(written.type.anchor, (written.anchor,))
        for change in written.changes:
            attribute = written.type.attributes.get(change.attribute)
            if attribute is None:
                continue
            sent = tuple(render_cell(value, attribute, self._system.decoding) for value in change.values)
            after = _apply(cells.get(change.attribute, ()), sent, change.op)
            cells.pop(change.attribute, None)
            if after:
                cells[change.attribute] = after
        moves = written.is_created or written.is_renamed
        address = written.address if moves else event.address
        container = _container_of(address) if moves and written.type.address_is_dn else event.container
        if written.type.address and moves and address:
            cells[written.type.address] = (address,)
        return replace(event, cells=_ordered(cells, event.cells, written.type), address=address, container=container)


def render_cell(value: Value, attribute: Attribute, decoding: Decoding) -> str:
    """Return a value as a cell that the import of the system reads as this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if attribute.type is DataType.DECIMAL:
        return str(value).replace(".", decoding.decimal_separator)
    return str(value)


def _apply(old: Sequence[str | bytes], sent: Sequence[str], op: ChangeOp) -> tuple[str | bytes, ...]:
    match op:
        case ChangeOp.SET:
            return tuple(sent)
        case ChangeOp.ADD:
            return (*old, *(value for value in sent if value not in old))
        case ChangeOp.REMOVE:
            return tuple(value for value in old if value not in sent)
        case ChangeOp.CLEAR | ChangeOp.RENAME:
            return ()


def _ordered(cells: Mapping[str, tuple[str | bytes, ...]], before: Cells, object_type: ObjectType) -> Cells:
    """Return cells in the order of the connector; fingerprints depend on it."""
    names = [*before, *(name for name in object_type.attributes if name not in before)]
    return {name: cells[name] for name in dict.fromkeys([*names, *cells]) if name in cells}


def _container_of(address: str) -> str:
    try:
        return dn.parent(address)
    except dn.InvalidDn:
        return ""
