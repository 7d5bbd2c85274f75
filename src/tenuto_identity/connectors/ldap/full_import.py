"""Reading a directory: complete, by anchors, and below one entry. Several searches run on their own connections."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from tenuto_identity.connectors.contract import (
    ConnectorError,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.ldap import discovery, filters
from tenuto_identity.connectors.ldap.directory import UNIQUE_ANCHORS, Directory, attribute_values
from tenuto_identity.connectors.ldap.entries import (
    EntryReader,
    ScopeFilter,
    TypeResolver,
    container_of,
    encode_value,
    merge_ranges,
)
from tenuto_identity.connectors.ldap.protocol.client import Entry, Scope, Search
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.model import dn
from tenuto_identity.model.schema import ContainerScope

ANCHORS_IN_ONE_SEARCH = 100
INTERRUPT_INTERVAL_SECONDS = 0.1
MAX_LOOKUPS = 10
"""How often a changed entry is looked up that is moved in the meantime."""
MAX_REPEATED_READS = 3
"""How often the changes made during a read are read; later ones are left to the next import."""
CONTAINER_CLASSES = ("organizationalUnit", "container", "builtinDomain")
CONTAINERS = filters.any_of(*(filters.equal("objectClass", each) for each in CONTAINER_CLASSES))
"""Entries of Active Directory that have others below them."""


@dataclass(frozen=True, slots=True)
class SearchBase:
    """Where a search begins and how far it reaches."""

    address: str
    scope: Scope = Scope.SUBTREE
    skips_itself: bool = False
    """The entry at the address is not part of the container."""


_SearchOfType: TypeAlias = tuple[SearchBase, EntryReader]
_Outcome: TypeAlias = "list[ImportedObject] | Exception | None"
"""A page, the failure of a search, or None at the end of one."""


def _take_pages(pages: queue.Queue[_Outcome], worker_count: int) -> Iterator[list[ImportedObject]]:
    """Yield pages until every worker has ended; raise the first failure."""
    left = worker_count
    while left:
        outcome = pages.get()
        if outcome is None:
            left -= 1
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            yield outcome


class DirectoryReader:
    """Reads the objects of a scope from a directory."""

    def __init__(self, directory: Directory, scope: ReadScope, schema: DirectorySchema) -> None:
        self.directory = directory
        self.scope = scope
        self.schema = schema
        self.filter = ScopeFilter(scope)
        self.readers = tuple(EntryReader(each, directory.settings, schema) for each in scope.types)
        self.resolver = TypeResolver(self.readers, schema)
        self._has_several_types = len(self.readers) > 1

    # --- everything -------------------------------------------------------------------------------------------------

    def read_all(self) -> Iterator[ReadEvent]:
        """Yield every object of the scope, and `ReadComplete`."""
        discovery.check_selection(self.schema, self.scope.types, self.directory)
        count = 0
        positions = self._positions()
        for page in self._read_searches([(base, reader) for base in self.bases() for reader in self.readers]):
            count += len(page)
            yield from page
        for each in self._read_moved(positions):
            count += 1
            yield each
        yield self.complete(count)

    def _positions(self) -> dict[str, str]:
        """Return the position of the server for each base; empty if it has none, or if an anchor is not unique."""
        if not all(each.anchor.lower() in UNIQUE_ANCHORS for each in self.scope.types):
            return {}
        found = {base.address: self.directory.change_position(base.address) for base in self.bases()}
        return found if all(found.values()) else {}

    def _read_moved(self, before: Mapping[str, str]) -> Iterator[ImportedObject]:
        """Yield the objects that were written while they were read, with their current state.

        An entry that was moved between two searches is in none of them, or in both. An object may therefore occur
        twice in a read; its last state counts (`Capabilities.unique_anchors`)."""
        for _ in range(MAX_REPEATED_READS):
            now = self._positions()
            changed = {base for base in now if base in before and now[base] != before[base]}
            if not changed:
                return
            for base in self.bases():
                if base.address in changed:
                    condition = self.directory.changed_since(before[base.address])
                    yield from self.read_matching(condition, (base,))
                    yield from self._read_below_changed(base, condition)
            before = now

    def _read_below_changed(self, base: SearchBase, condition: str) -> Iterator[ImportedObject]:
        """Yield the objects below changed containers: a container that is moved does not change what is in it."""
        has_children = CONTAINERS if self.directory.root_dse.is_active_directory else "(hasSubordinates=TRUE)"
        search = Search(base.address, base.scope, filters.all_of(has_children, condition))
        for address in [entry.dn for page in self.directory.search_pages(search) for entry in page]:
            yield from self.read_below(address)

    def complete(
        self,
        count: int,
        *,
        is_delta: bool = False,
        may_have_moved_containers: bool = False,
        moved_containers: Sequence[str] = (),
        watermark: Watermark | None = None,
    ) -> ReadComplete:
        return ReadComplete(
            types=tuple(each.name for each in self.scope.types),
            containers=self._containers(),
            is_delta=is_delta,
            object_count=count,
            may_have_moved_containers=may_have_moved_containers,
            moved_containers=tuple(moved_containers),
            watermark=watermark,
        )

    def _containers(self) -> tuple[str, ...] | None:
        if self.scope.partition:
            return (self.scope.partition,)
        selected = tuple(each.address for each in self.scope.containers if each.included)
        return selected or self.directory.bases  # what is stored below other bases was not read

    def bases(self) -> list[SearchBase]:
        """Return where to search: the selected containers without those below another one, or the bases."""
        included = [each for each in self.scope.containers if each.included]
        if self.scope.partition:
            return [SearchBase(self.scope.partition, skips_itself=True)]
        if not included:
            return [SearchBase(each) for each in self.directory.bases]
        trees = [each.address for each in included if each.scope is ContainerScope.SUBTREE]
        found = [
            SearchBase(address, skips_itself=True)
            for address in trees
            if not any(other != address and dn.is_below(address, other) for other in trees)
        ]
        levels = [each.address for each in included if each.scope is ContainerScope.ONE_LEVEL]
        found += [
            SearchBase(address, Scope.ONE_LEVEL)
            for address in levels
            if not any(dn.is_below(address, other) for other in trees)
        ]
        return found

    def _read_searches(self, searches: Sequence[_SearchOfType]) -> Iterator[list[ImportedObject]]:
        worker_count = min(self.directory.settings.concurrency, len(searches))
        if worker_count <= 1:
            for base, reader in searches:
                yield from self._read_search(self.directory, base, reader)
            return
        yield from self._read_in_parallel(searches, worker_count)

    def _read_in_parallel(self, searches: Sequence[_SearchOfType], worker_count: int) -> Iterator[list[ImportedObject]]:
        """Read on several connections. The first failure ends all searches and is raised."""
        waiting = deque(searches)
        pages: queue.Queue[_Outcome] = queue.Queue(maxsize=worker_count * 2)
        is_over = threading.Event()

        def put(outcome: _Outcome) -> None:
            while not is_over.is_set():
                with suppress(queue.Full):
                    pages.put(outcome, timeout=0.1)
                    return

        def work(directory: Directory) -> None:
            try:
                with suppress(IndexError):  # no search is left
                    while not is_over.is_set():
                        for page in self._read_search(directory, *waiting.popleft()):
                            put(page)
                            if is_over.is_set():
                                return
                put(None)
            except Exception as error:  # noqa: BLE001 - raised again by the thread that reads
                put(error)
            finally:
                directory.disconnect()

        self.directory.root_dse  # noqa: B018 - read once, before the connections are copied
        threads = {
            threading.Thread(target=work, args=(directory,), name=f"tenuto-ldap-{number}", daemon=True): directory
            for number, directory in enumerate(self.directory.clone() for _ in range(worker_count))
        }
        for thread in threads:
            thread.start()
        try:
            yield from _take_pages(pages, worker_count)
        finally:
            is_over.set()
            for thread, directory in threads.items():
                while thread.is_alive():  # it may be about to connect
                    directory.interrupt()
                    thread.join(INTERRUPT_INTERVAL_SECONDS)

    def _read_search(
        self, directory: Directory, base: SearchBase, reader: EntryReader
    ) -> Iterator[list[ImportedObject]]:
        search = Search(
            base.address,
            base.scope,
            directory.settings.type_filter(reader.type_name),
            self.attributes_of(reader),
        )
        own = dn.normalize(base.address) if base.skips_itself else None
        for page in directory.search_pages(search):
            found: list[ImportedObject] = []
            for entry in page:
                if (
                    own is not None
                    and len(entry.dn) <= len(base.address) + 20
                    and dn.normalize_or_fold(entry.dn) == own
                ):
                    continue
                if (each := self.read_entry(directory, entry, reader)) is not None:
                    found.append(each)
            yield found

    def attributes_of(self, reader: EntryReader) -> tuple[str, ...]:
        return (*reader.attributes, "objectClass") if self._has_several_types else reader.attributes

    def read_entry(self, directory: Directory, entry: Entry, reader: EntryReader) -> ImportedObject | None:
        """Return the object of an entry; None if it is not in the scope or belongs to a more specific type."""
        if not self.filter.includes(container_of(entry.dn)):
            return None
        if self._has_several_types and self.resolver.find(entry) is not reader:
            return None

        def read_more(attribute: str) -> dict[str, Sequence[bytes]]:
            found = directory.read_entry(entry.dn, (attribute,))
            return dict(found.attributes) if found else {}

        return reader.read(merge_ranges(entry, read_more))

    # --- changes ----------------------------------------------------------------------------------------------------

    def check_bases(self, known: Iterable[str]) -> None:
        """Raise `WatermarkLost` unless the bases of a watermark are those that are read now.

        An entry below a base that is not read any more would count as deleted; the older entries of a new base would
        not be read."""
        if set(known) != set(self.directory.bases):
            raise WatermarkLost(f"the bases are {', '.join(self.directory.bases)} now")

    # --- parts ------------------------------------------------------------------------------------------------------

    def read_anchors(self, anchors: Sequence[str]) -> Iterator[ReadEvent]:
        """Yield the objects with these anchors, and `ReadComplete`."""
        count = 0
        for reader in self.readers:
            attribute = reader.object_type.attributes[reader.object_type.anchor]
            for start in range(0, len(anchors), ANCHORS_IN_ONE_SEARCH):
                left = dict.fromkeys(anchors[start : start + ANCHORS_IN_ONE_SEARCH])
                for base in self._bases_twice() if attribute.name.lower() in UNIQUE_ANCHORS else self.bases():
                    if not left:
                        break
                    wanted = filters.any_of(
                        *(filters.equal(attribute.name, encode_value(each, attribute)) for each in left)
                    )
                    condition = filters.all_of(self.directory.settings.type_filter(reader.type_name), wanted)
                    search = Search(base.address, base.scope, condition, self.attributes_of(reader))
                    for entry in self._entries_of(search):
                        if (each := self.read_entry(self.directory, entry, reader)) is not None:
                            left.pop(each.anchor, None)
                            count += 1
                            yield each
        yield self.complete(count)

    def _bases_twice(self) -> list[SearchBase]:
        """Return the bases; several ones again in the other order, because an entry may be moved between them."""
        bases = self.bases()
        return [*bases, *reversed(bases[:-1])]

    def _entries_of(self, search: Search) -> list[Entry]:
        """Return all entries of a search for a few entries, so that further searches can follow on the connection."""
        return [entry for page in self.directory.search_pages(search) for entry in page]

    def read_matching(self, condition: str, bases: Sequence[SearchBase] | None = None) -> Iterator[ImportedObject]:
        """Yield the objects of the scope that satisfy a further condition."""
        for base in self.bases() if bases is None else bases:
            for reader in self.readers:
                search = Search(
                    base.address,
                    base.scope,
                    filters.all_of(self.directory.settings.type_filter(reader.type_name), condition),
                    self.attributes_of(reader),
                )
                for page in self.directory.search_pages(search):
                    for entry in page:
                        if (each := self.read_entry(self.directory, entry, reader)) is not None:
                            yield each

    def find_by_uuid(self, identifiers: Sequence[str]) -> Iterator[tuple[Entry, str]]:
        """Yield the entries with these entryUUIDs, of any type, wherever they are below the bases."""
        names = {name for reader in self.readers for name in reader.attributes}
        return self._find_by_uuid(identifiers, self.directory.bases, (*sorted(names), "objectClass"))

    def find_elsewhere(self, anchors: Sequence[str]) -> set[str]:
        """Return the anchors of entries that exist in containers which are not read."""
        contexts = {dn.normalize(each): each for each in (*self.directory.bases, *self._readable_contexts())}
        found: set[str] = set()
        for reader in self.readers:
            attribute = reader.object_type.attributes[reader.object_type.anchor]
            for start in range(0, len(anchors), ANCHORS_IN_ONE_SEARCH):
                page = anchors[start : start + ANCHORS_IN_ONE_SEARCH]
                wanted = filters.any_of(
                    *(filters.equal(attribute.name, encode_value(each, attribute)) for each in page)
                )
                for context in contexts.values():
                    for entry in self._entries_of(Search(context, Scope.SUBTREE, wanted, (attribute.name,))):
                        if not self.is_read(container_of(entry.dn)):
                            found.add(reader.read(entry).anchor)
        return found

    def _readable_contexts(self) -> list[str]:
        contexts = [each for each in self.directory.root_dse.all("namingContexts") if each]
        others = [each for each in contexts if each not in self.directory.log_bases]
        return [each for each in others if self.directory.probe(each, ("1.1",)) is not None]

    def find_outside(self, identifiers: Sequence[str]) -> Iterator[tuple[Entry, str]]:
        """Yield the entries with these entryUUIDs in the naming contexts that the account may read."""
        known = {dn.normalize(each) for each in self.directory.bases}
        contexts = self.directory.root_dse.all("namingContexts") if identifiers else ()
        others = [each for each in contexts if each and dn.normalize(each) not in known]
        readable = [
            each
            for each in others
            if each not in self.directory.log_bases and self.directory.probe(each, ("1.1",)) is not None
        ]
        return self._find_by_uuid(identifiers, readable, ())

    def _find_by_uuid(
        self, identifiers: Sequence[str], bases: Sequence[str], selected: Sequence[str]
    ) -> Iterator[tuple[Entry, str]]:
        attributes = (*selected, "entryUUID", "hasSubordinates")
        for start in range(0, len(identifiers), ANCHORS_IN_ONE_SEARCH):
            left = dict.fromkeys(identifiers[start : start + ANCHORS_IN_ONE_SEARCH])
            for base in (*bases, *reversed(bases[:-1])):  # an entry may be moved between two searches
                if not left:
                    break
                condition = filters.any_of(*(filters.equal("entryUUID", each) for each in left))
                for entry in self._entries_of(Search(base, Scope.SUBTREE, condition, attributes)):
                    identifier = attribute_values(entry, "entryUUID")
                    found = identifier[0].decode("ascii", "replace").lower() if identifier else ""
                    left.pop(found, None)
                    yield entry, found

    def has_children(self, entry: Entry) -> bool:
        return b"TRUE" in attribute_values(entry, "hasSubordinates")

    def resolve_entry(self, entry: Entry, identifier: str) -> ImportedObject | None:
        """Return the object of an entry that `find_by_uuid` found; None if it is not in the scope."""
        current: Entry | None = entry
        for _ in range(MAX_LOOKUPS):
            if current is None:
                return None
            reader = self.resolver.find(current)
            if reader is None or not self._is_below_a_base(current.dn):
                return None
            matches = self._matches_filter(reader, current)
            if matches is not None:
                return self.read_entry(self.directory, current, reader) if matches else None
            # It was moved or deleted after it was found.
            current = next((found for found, _ in self.find_by_uuid([identifier])), None)
        raise ConnectorError("incomplete", f"the entry {entry.dn!r} is moved again and again; repeat the run")

    def is_read(self, container: str) -> bool:
        """Return whether the objects in a container are read."""
        return self._is_below_a_base(container) and self.filter.includes(container)

    def _is_below_a_base(self, address: str) -> bool:
        return any(dn.is_below(address, base.address) for base in self.bases())

    def _matches_filter(self, reader: EntryReader, entry: Entry) -> bool | None:
        """Ask the server whether an entry satisfies the further filter of its type; None if the entry is not there."""
        further = self.directory.settings.type_settings(reader.type_name).filter
        if further is None:
            return True
        return self.directory.matches(entry.dn, further)

    def read_below(self, address: str) -> Iterator[ImportedObject]:
        """Yield the objects of the scope below an entry, for example after it was renamed."""
        for reader in self.readers:
            base = SearchBase(address, skips_itself=True)
            for page in self._read_search(self.directory, base, reader):
                yield from page
