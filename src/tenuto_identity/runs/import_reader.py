"""Reading a system page by page, one page ahead, in a separate thread.

Everything that needs no database happens in that thread: anchors are normalised, fingerprints computed, and duplicates
within a page found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tenuto_identity.connectors.contract import (
    BatchConnector,
    Cells,
    Connector,
    ConnectorError,
    DeletedObject,
    ImportedBatch,
    ImportedObject,
    ObjectBatch,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    UnreadableObject,
    Watermark,
)
from tenuto_identity.model.decoding import (
    address_key,
    canonical_anchor,
    describe_content,
    hash_content,
    hash_descriptions,
)
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import BadValue
from tenuto_identity.runs.definition_snapshot import System

PAGE_OBJECTS = 2_500
"""Measured (`identity`, import of 50,000 new people): CPU time of worker and server as with pages of 5,000, and half of
the memory; a page is read while another one is written."""
PAGE_BYTES = 8 * 1024 * 1024


@value_class
class ReadObject:
    """An imported object with everything that can be known without the database."""

    type: str
    type_number: int
    anchor: str
    address: str | None
    address_key: str | None
    container: str | None
    cells: Cells
    fingerprint: bytes
    line: int | None


@dataclass(frozen=True, slots=True)
class RefusedObject:
    """An object that is not imported. With an anchor it does not count as deleted."""

    error: str
    message: str
    type: str | None = None
    type_number: int | None = None
    anchor: str | None = None


@dataclass(frozen=True, slots=True)
class FingerprintedBatch:
    """A batch of objects that may be recognised by their fingerprints."""

    objects: ObjectBatch
    fingerprints: Sequence[bytes]


@dataclass(slots=True)
class ReadPage:
    """One page of a read."""

    objects: list[ReadObject] = field(default_factory=list)
    batches: list[FingerprintedBatch] = field(default_factory=list)
    """Further objects, for which `ObjectMaker` has not created a `ReadObject` yet."""
    refused: list[RefusedObject] = field(default_factory=list)
    deleted: list[tuple[int, str]] = field(default_factory=list)
    """Type number and anchor of objects that the system reports as deleted."""
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    """Type number and anchor of objects that the account may not read any more."""
    warnings: list[str] = field(default_factory=list)
    complete: ReadComplete | None = None
    """Set in the last page."""


class ObjectMaker:
    """Creates the objects of a page from the events of a connector."""

    def __init__(self, system: System, decode_key: bytes) -> None:
        self._system = system
        self._decode_key = decode_key

    def make_all(
        self, batches: Iterable[FingerprintedBatch], page: ReadPage, positions: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Add objects of batches to a page: all, or those at these positions of each batch."""
        for number, batch in enumerate(batches):
            for position in range(len(batch.fingerprints)) if positions is None else positions[number]:
                made = self.make(batch.objects.make_object(position), batch.fingerprints[position])
                if isinstance(made, RefusedObject):
                    page.refused.append(made)
                else:
                    page.objects.append(made)

    def make(self, event: ImportedObject, fingerprint: bytes) -> ReadObject | RefusedObject:
        """Return an object with what is known without the database, or a refused object with the reason."""
        object_type = self._system.definition.types.get(event.type)
        where = f" in line {event.line}" if event.line is not None else ""
        if object_type is None:
            return RefusedObject("unknown_type", f"the type {event.type!r}{where} is not selected", event.type)
        number = self._system.type_numbers[event.type]
        try:
            anchor = canonical_anchor(event.anchor, object_type)
        except BadValue as error:
            return RefusedObject("bad_value", f"{object_type.anchor}{where}: {error}", event.type, number)
        if not anchor:
            return RefusedObject("missing_anchor", f"{object_type.anchor} has no value{where}", event.type, number)
        return ReadObject(
            event.type,
            number,
            anchor,
            event.address or None,
            index_key(address_key(event.address, object_type)) if event.address else None,
            event.container or None,
            event.cells,
            fingerprint,
            event.line,
        )


class PageReader:
    """Reads a connector in a thread, one page ahead of the caller."""

    def __init__(self, connector: Connector, system: System, decode_key: bytes, page_size: int | None = None) -> None:
        self._connector = connector
        self._system = system
        self._decode_key = decode_key
        self._page_size = page_size or PAGE_OBJECTS
        self._maker = ObjectMaker(system, decode_key)
        self.makes_objects = True
        """Whether the thread creates the objects of batches for the next pages, because most are not recognised."""
        self._thread = ThreadPoolExecutor(1, "tenuto-identity-read")
        self._events: Iterator[ReadEvent | ImportedBatch] | None = None
        self._next: asyncio.Future[ReadPage] | None = None

    def start(self, scope: ReadScope, since: Watermark | None) -> None:
        """Begin to read."""
        connector = self._connector
        is_whole = since is None and scope.anchors is None and not connector.capabilities.unique_anchors
        if is_whole and isinstance(connector, BatchConnector):
            self._events = connector.read_batches(scope, self._page_size)
        else:
            self._events = connector.read(scope, since)
        self._prefetch()

    async def next_page(self) -> ReadPage:
        """Return the next page, and begin to read the one after it. Raises what the connector raises."""
        assert self._next is not None
        page = await asyncio.shield(self._next)
        if page.complete is None:
            self._prefetch()
        return page

    async def close(self) -> None:
        """Wait for the thread and end the read."""
        if self._next is not None:
            await asyncio.wait([self._next])
            if not self._next.cancelled():
                self._next.exception()  # it has been reported, or the run has ended before
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        close = getattr(self._events, "close", None)
        if close is not None:
            close()

    def _prefetch(self) -> None:
        self._next = asyncio.get_running_loop().run_in_executor(self._thread, self._read_page)

    def _read_page(self) -> ReadPage:
        assert self._events is not None
        page = ReadPage()
        byte_count = object_count = 0
        for event in self._events:
            match event:
                case ImportedObject():
                    byte_count += self._add_object(page, event)
                    object_count += 1
                case ImportedBatch():
                    byte_count += self._add_batch(page, event.objects)
                    object_count += len(event.objects.descriptions)
                case DeletedObject():
                    page.deleted += self._key(event)
                case UnreadableObject():
                    page.unreadable += self._key(event)
                case ReadWarning():
                    self._add_warning(page, event)
                case ReadComplete():
                    page.complete = event
                    break
            if byte_count >= PAGE_BYTES or object_count + len(page.deleted) + len(page.unreadable) >= self._page_size:
                break
        else:
            raise ConnectorError(
                "incomplete",
                "the connector ended without reporting that everything was read",
                remedy="report it to the author of the connector",
            )
        if self._connector.capabilities.unique_anchors:
            _keep_last_states(page)
        else:
            refuse_duplicates(page)
        return page

    def _add_object(self, page: ReadPage, event: ImportedObject) -> int:
        content = describe_content(event.type, event.address, event.container, event.cells)
        made = self._maker.make(event, hash_content(self._decode_key, content))
        if isinstance(made, RefusedObject):
            page.refused.append(made)
            return 0
        page.objects.append(made)
        return len(content)

    def _add_batch(self, page: ReadPage, objects: ObjectBatch) -> int:
        batch = FingerprintedBatch(objects, hash_descriptions(self._decode_key, objects.type, objects.descriptions))
        if self.makes_objects:
            self._maker.make_all([batch], page)
        else:
            page.batches.append(batch)
        return sum(map(len, objects.descriptions))

    def _key(self, event: DeletedObject | UnreadableObject) -> list[tuple[int, str]]:
        """Return type number and anchor of an object; nothing if its type is not selected."""
        object_type = self._system.definition.types.get(event.type)
        if object_type is None:
            return []
        return [(self._system.type_numbers[event.type], canonical_anchor(event.anchor, object_type))]

    def _add_warning(self, page: ReadPage, event: ReadWarning) -> None:
        if not event.is_error:
            page.warnings.append(event.message)
            return
        object_type = self._system.definition.types.get(event.type or "")
        anchor = canonical_anchor(event.anchor, object_type) if event.anchor and object_type else None
        number = self._system.type_numbers.get(event.type or "")
        page.refused.append(RefusedObject(event.code, event.message, event.type, number, anchor))


def _keep_last_states(page: ReadPage) -> None:
    """Keep the last state of objects that occur several times, because they were moved while they were read."""
    last = {(each.type_number, each.anchor): each for each in page.objects}
    if len(last) < len(page.objects):
        page.objects = list(last.values())


def refuse_duplicates(page: ReadPage) -> None:
    """Refuse all objects of a page that have the same type and anchor: none of them wins."""
    first: dict[tuple[int, str], ReadObject] = {}
    repeated: dict[tuple[int, str], list[ReadObject]] = {}
    for each in page.objects:
        key = each.type_number, each.anchor
        if key in first:
            repeated.setdefault(key, [first[key]]).append(each)
        else:
            first[key] = each
    if not repeated:
        return
    page.objects = [each for each in page.objects if (each.type_number, each.anchor) not in repeated]
    for same in repeated.values():
        page.refused.extend(refuse_duplicate(each, same) for each in same)


def refuse_duplicate(each: ReadObject, same: Sequence[ReadObject]) -> RefusedObject:
    """Return the refusal of an object whose anchor occurs several times."""
    lines = ", ".join(str(other.line) for other in same if other.line is not None)
    where = f" in lines {lines}" if lines else ""
    message = f"the anchor {each.anchor!r} occurs several times{where}"
    return RefusedObject("duplicate_object", message, each.type, each.type_number, each.anchor)


def index_key(key: str) -> str:
    """Return a key that fits into an index: a long one is replaced by its hash."""
    if len(key) <= 500:
        return key
    from hashlib import blake2b

    return "blake2b:" + blake2b(key.encode(), digest_size=16).hexdigest()
