"""The contract between Tenuto and a connector: the code that reads and writes one kind of store.

A connector is plain code; it is called in a thread, and one instance serves one run. It parses what it reads but does
not decode it: cells are text or bytes. It never retries by itself, except that it reconnects once. Failures have four
levels: a value (`ReadWarning` with an error and the name of the attribute), an object (`ReadWarning` with an error), a
warning, an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict

from tenuto_identity.model.decoding import Decoding
from tenuto_identity.model.schema import ContainerSelection, ObjectType, Schema
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Value

Watermark: TypeAlias = Mapping[str, Any]
"""Position in the changes of a system: plain data that only the connector understands."""
Cells: TypeAlias = Mapping[str, Sequence[str | bytes]]
"""Attribute name → values as delivered. An attribute without a value is absent."""


class ConnectorError(Exception):
    """The connector cannot continue: the run fails, no deletion is detected and the watermark is kept.

    ``code`` is stable: ``empty_source``, ``truncated``, ``missing_column``, ``source_changed``, ``unreachable`` …
    """

    def __init__(self, code: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{message} ({remedy})" if remedy else message)
        self.code = code
        self.message = message
        self.remedy = remedy


class WatermarkLost(ConnectorError):
    """The system no longer knows the changes since the watermark; a full import is needed."""

    def __init__(self, message: str) -> None:
        super().__init__("watermark_lost", message)


class ReferenceForm(StrEnum):
    """How references to other objects are written into the system."""

    ADDRESS = "address"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a connector can do."""

    full: bool = True
    delta: bool = False
    export: bool = False
    confirms_immediately: bool = False
    """Success of a write is its confirmation."""
    containers: bool = False
    read_one: bool = False
    """`Connector.read` accepts anchors in the scope."""
    unique_anchors: bool = False
    """The system guarantees that anchors are unique. An object that occurs again in one read was changed meanwhile: its
    last state counts, and an object that a full read did not find is looked up by its anchor before it counts as
    deleted."""
    delta_returns_watermark: bool = False
    """A delta ends with its new watermark (`ReadComplete.watermark`). `Connector.watermark` is called before full
    reads only, because it costs as much as reading everything."""
    max_values: int = 1000
    """How many values of one attribute a request may contain."""
    write_batch: int = 100
    """How many requests one call of `write` gets, unless the run profile sets ``batch_size``. Larger for systems where
    each call is expensive."""
    references: ReferenceForm = ReferenceForm.ADDRESS


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What a read covers: the selected types, attributes and containers."""

    types: tuple[ObjectType, ...]
    containers: tuple[ContainerSelection, ...] = ()
    """Empty: all containers."""
    anchors: tuple[str, ...] | None = None
    """Only these objects (capability ``read_one``)."""
    partition: str = ""


@value_class
class ImportedObject:
    """An object that exists in the system, with its current values."""

    type: str
    anchor: str
    """As delivered; blank if it is missing, which the import reports for the object."""
    address: str
    container: str
    cells: Cells
    line: int | None = None
    """Line or position in the source, for messages."""


@dataclass(frozen=True, slots=True)
class DeletedObject:
    """An object that was deleted in the system since the watermark, or left the scope of the read.

    The import ignores objects that it does not know, and those of containers that it does not read. An object that the
    same read yields as `ImportedObject`, before or after, or names in an error, is not deleted."""

    type: str
    anchor: str


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that was changed since the watermark, and that the account may not read any more.

    The import ignores objects that it does not know. The others become items with the error ``unreadable`` and do not
    count as deleted."""

    type: str
    anchor: str


@dataclass(frozen=True, slots=True)
class ReadWarning:
    """Something is wrong with one object or one value, or with the source as a whole."""

    code: str
    """A value of ``error`` (``bad_value``, ``undecodable``, ``duplicate_attribute`` …) or a free warning code."""
    message: str
    is_error: bool = False
    """The object was not read; it becomes an item with this error."""
    type: str | None = None
    anchor: str | None = None
    """If it could be read: the object does not count as deleted."""
    attribute: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ReadComplete:
    """The last thing that a read yields: everything in the scope was read."""

    types: tuple[str, ...]
    """Types that were really read."""
    containers: tuple[str, ...] | None = None
    """Containers that were really read; None: the system has none, or all were read."""
    is_delta: bool = False
    object_count: int = 0
    watermark: Watermark | None = None
    """The watermark after a delta, with the capability ``delta_returns_watermark``."""
    may_have_moved_containers: bool = False
    """A container with everything in it may have been moved out of what is read, and the system does not report what
    was in it. The import then reads the objects again whose container does not have them any more."""
    moved_containers: tuple[str, ...] = ()
    """Former addresses of containers that were certainly moved out of what is read."""


class ObjectBatch(Protocol):
    """Several objects of one type that exist in the system, created one by one when they are needed.

    Measured (`identity`, import without changes): most objects are recognised by their fingerprints as unchanged.
    """

    @property
    def type(self) -> str:
        """The object type."""
        ...

    @property
    def descriptions(self) -> Sequence[str]:
        """What `DescribedCells.describe` returns for each object, without lone surrogates."""
        ...

    def make_object(self, position: int) -> ImportedObject:
        """Return an object. Its cells are `DescribedCells`."""
        ...


@dataclass(frozen=True, slots=True)
class ImportedBatch:
    """Objects that exist in the system, in one event."""

    objects: ObjectBatch


ReadEvent: TypeAlias = ImportedObject | DeletedObject | UnreadableObject | ReadWarning | ReadComplete


@value_class
class WriteChange:
    """A change of one attribute, with references already replaced by addresses or anchors."""

    attribute: str
    op: ChangeOp
    values: tuple[Value, ...] = ()


@value_class
class WriteRequest:
    """One object to be created, updated or deleted."""

    kind: ExportKind
    type: str
    anchor: str | None
    """None for a create, unless the anchor is one of the attributes set."""
    address: str
    """The current address; for a create the address of the new object."""
    changes: tuple[WriteChange, ...] = ()
    uncertain: bool = False
    """An earlier attempt may have taken effect: read before writing."""


def target_address(request: WriteRequest) -> str:
    """Return the address that the object has after the request."""
    renamed = next((each for each in request.changes if each.op is ChangeOp.RENAME), None)
    return str(renamed.values[0]) if renamed is not None and renamed.values else request.address


class WriteOutcome(StrEnum):
    """Result of a request."""

    OK = "ok"
    REFUSED = "refused"
    MISSING = "missing"
    """A dependency does not exist yet, such as the parent; the request is repeated later without counting."""


@value_class
class WriteResult:
    """Result of a request, at the position of the request."""

    outcome: WriteOutcome = WriteOutcome.OK
    error: str | None = None
    """``refused``, ``exists``, ``missing_parent``, ``invalid_address``, ``out_of_reach`` …"""
    text: str | None = None
    """The message of the system."""
    anchor: str | None = None
    """Anchor that the system gave to a new object. With the error ``exists`` that of the other object, if known."""
    address: str | None = None
    was_created: bool = False
    """A create that is not ``ok``: the object exists, with the anchor of the result, but a later part was refused."""

    @property
    def is_ok(self) -> bool:
        return self.outcome is WriteOutcome.OK


def refused(error: str, text: str, *, anchor: str | None = None) -> WriteResult:
    """Return a result that says that the system refused the request. ``anchor`` is that of the other object."""
    return WriteResult(WriteOutcome.REFUSED, error, text, anchor)


def missing(error: str, text: str) -> WriteResult:
    """Return a result that says that a dependency is missing."""
    return WriteResult(WriteOutcome.MISSING, error, text)


@dataclass(frozen=True, slots=True)
class NamedConnection:
    """A connection to a database, from the settings of the worker."""

    url: str = field(repr=False)
    """With the password, if it has one."""
    allows_privileged_login: bool = False


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class SecretName(BaseModel):
    """A secret of Tenuto: ``{secret: NAME}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str


@dataclass(frozen=True, slots=True)
class ConnectorContext:
    """What the worker gives to a connector."""

    types: tuple[ObjectType, ...] = ()
    """Selected object types of the system."""
    allowed_folders: tuple[Path, ...] = ()
    """Folders that files may be in."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts and networks that HTTP connections may lead to although they are not public, for
    `tenuto.extension.open_http_transport`."""
    secrets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Decrypted secrets that the settings name."""
    connections: Mapping[str, NamedConnection] = field(default_factory=lambda: MappingProxyType({}))
    """The connection that the settings name by ``connection``, if the worker has it."""
    read_only: bool = False
    """Preview: `write` must not be called."""
    wait: Callable[[float], bool] = _wait
    """Waits for so many seconds, for example for a busy system. Returns True at once when the run is cancelled: the
    connector then ends the call, and leaves out what it has not sent. Connectors wait in no other way."""
    containers: tuple[ContainerSelection, ...] = ()
    """Selected and excluded containers; empty: all."""


class Connector(Protocol):
    """The code that reads and writes one kind of store."""

    @property
    def capabilities(self) -> Capabilities:
        """What the connector can do with these settings."""
        ...

    def check(self) -> None:
        """Verify settings and reachability; raise `ConnectorError` with a message for users."""
        ...

    def discover(self) -> Schema:
        """Return the types, attributes, partitions and containers of the system."""
        ...

    def watermark(self, scope: ReadScope) -> Watermark | None:
        """Return the current watermark, taken before reading; None without the capability ``delta``."""
        ...

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        """Yield the objects of the scope, or the changes since a watermark, and `ReadComplete` at the end.

        Raises `ConnectorError` if anything is incomplete, `WatermarkLost` if the watermark is not valid any more.
        """
        ...

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        """Send requests and return one result for each, by position. Every request may be repeated.

        Success is returned for: create of an object that exists with our values (only if the request is uncertain or
        the values are equal); set, add or remove whose result is already present; delete of an object that does not
        exist; rename that is already done.
        """
        ...

    def close(self) -> None:
        """Release connections and files."""
        ...


@runtime_checkable
class BatchConnector(Protocol):
    """A connector that can also yield objects in batches. Optional; used for full imports only."""

    def read_batches(self, scope: ReadScope, size: int) -> Iterator[ReadEvent | ImportedBatch]:
        """Yield what `Connector.read` yields without a watermark, with batches of at most ``size`` objects."""
        ...


@runtime_checkable
class ContainerConnector(Protocol):
    """A connector that can find objects elsewhere. Optional; used after `ReadComplete.may_have_moved_containers`."""

    def find_elsewhere(self, scope: ReadScope, anchors: Sequence[str]) -> set[str]:
        """Return the anchors of the objects that exist where the scope does not reach."""
        ...


class ConnectorFactory(Protocol):
    """Creates a connector for one run."""

    def __call__(self, settings: Any, context: ConnectorContext) -> Connector: ...


def _default_decoding(_settings: Any) -> Decoding:
    return Decoding()


@dataclass(frozen=True, slots=True)
class ConnectorKind:
    """A registered kind of connector, found by the entry point group ``tenuto_identity.connectors``."""

    name: str
    settings: type[BaseModel]
    """Model of the settings; unknown fields are refused."""
    open: ConnectorFactory
    capabilities: Capabilities
    """What connectors of this kind can do at most; for the validation of run profiles."""
    decoding: Callable[[Any], Decoding] = _default_decoding
    """Returns how the cells of a system with these settings are decoded."""
    addresses_are_dns: bool = False
