"""Writing to a directory: each request of the contract becomes a few LDAP requests, many of them in flight at once.

A request is a generator that yields LDAP requests and receives their replies, so its steps read in order while the
steps of other requests are sent in between. Requests whose parent does not exist, or whose new name is still taken, are
repeated after all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from tenuto_identity.connectors.contract import (
    ConnectorError,
    WriteChange,
    WriteOutcome,
    WriteRequest,
    WriteResult,
    missing,
    refused,
    target_address,
)
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.directory import Directory, attribute_values, check_complete
from tenuto_identity.connectors.ldap.entries import (
    BINARY,
    EntryReader,
    container_of,
    encode_value,
    merge_masked,
    merge_ranges,
)
from tenuto_identity.connectors.ldap.protocol import controls
from tenuto_identity.connectors.ldap.protocol.client import (
    Add,
    Code,
    Control,
    Delete,
    Disconnected,
    Entry,
    Mod,
    Modification,
    Modify,
    ModifyDn,
    Reply,
    Request,
    Scope,
    Search,
)
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.model import dn
from tenuto_identity.model.decoding import Decoding, decode_object
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Equality, EqualityKind

Steps: TypeAlias = Generator[Request, Reply, WriteResult]
MAX_KNOWN_CONTAINERS = 10_000
MAX_REPLACED_VALUES = 20
"""A larger set is changed by single values, so that one change of a large group is not the whole group."""
_FAILURES = (Code.BUSY, Code.UNAVAILABLE, Code.TIME_LIMIT_EXCEEDED, Code.ADMIN_LIMIT_EXCEEDED, Code.REFERRAL)
"""The server did not decide about the request: the run fails, and the request is uncertain."""
_VALUE_CODES = frozenset({Code.NO_SUCH_ATTRIBUTE, Code.ATTRIBUTE_OR_VALUE_EXISTS})
"""A modify adds a value that is there already, or removes one that is not."""
_AD_VALUE_CODES = frozenset({Code.ENTRY_ALREADY_EXISTS, Code.UNWILLING_TO_PERFORM})
"""The same for members on Active Directory; Samba answers so in spite of permissive modify."""
_CONTAINER_CLASSES = {"ou": "organizationalUnit", "o": "organization", "l": "locality"}
_REPEATED = ("missing_parent", "exists")
_PERMISSIVE = Control(controls.PERMISSIVE_MODIFY)
_DN = Equality(EqualityKind.DN)


class DirectoryWriter:
    """Writes requests to a directory."""

    def __init__(self, directory: Directory, types: Iterable[ObjectType], schema: DirectorySchema) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._types = {each.name: each for each in types}
        self._schema = schema
        self._readers = {each.name: EntryReader(each, directory.settings, schema) for each in self._types.values()}
        self._reachable: dict[str, bool] = {}
        """Whether a container is below a base, for those of earlier requests."""

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        """Return one result for each request, by position."""
        results = self._perform(requests, self._settings.pipeline_depth)
        # A parent may have been created, and a name released, by another request of the batch.
        repeated = [position for position, each in enumerate(results) if self._is_repeated(requests[position], each)]
        for position in repeated:
            request = requests[position]
            if results[position].error == "missing_parent" and self._settings.create_containers:
                problem = self._create_parents(target_address(request))
                if problem is not None:
                    results[position] = problem
                    continue
            results[position] = self._perform([request], 1)[0]
        for cycle in _find_swaps(requests, results):
            self._swap(requests, results, cycle)
        return results

    def _swap(self, requests: Sequence[WriteRequest], results: list[WriteResult], cycle: Sequence[int]) -> None:
        """Rename entries that take each other's names: the first one gets a temporary name meanwhile.

        An attempt that is interrupted leaves it there; the next one finds it by its anchor."""
        first = requests[cycle[0]]
        kind = dn.parse(first.address)[0][0].type
        aside = f"{kind}={dn.escape(f'tenuto-{first.anchor}')},{dn.parent(first.address)}"
        (moved,) = self._perform([replace(first, changes=(WriteChange("address", ChangeOp.RENAME, (aside,)),))], 1)
        if not moved.is_ok:
            results[cycle[0]] = moved
            return
        for position in reversed(cycle[1:]):
            results[position] = self._perform([requests[position]], 1)[0]
        results[cycle[0]] = self._perform([replace(first, address=moved.address or aside)], 1)[0]

    @staticmethod
    def _is_repeated(request: WriteRequest, result: WriteResult) -> bool:
        if result.error not in _REPEATED:
            return False
        return result.error == "missing_parent" or request.kind is ExportKind.UPDATE

    def _perform(self, requests: Sequence[WriteRequest], depth: int) -> list[WriteResult]:
        """Send requests; those without a result after a lost connection are sent again once, as uncertain ones."""
        results: dict[int, WriteResult] = {}
        try:
            self._run(list(enumerate(requests)), results, depth)
        except Disconnected:
            self._directory.disconnect()
            left = [
                (position, replace(each, uncertain=True))
                for position, each in enumerate(requests)
                if position not in results
            ]
            self._run(left, results, depth)
        return [results[position] for position in range(len(requests))]

    def _run(self, requests: Sequence[tuple[int, WriteRequest]], results: dict[int, WriteResult], depth: int) -> None:
        """Run the steps of requests with at most ``depth`` LDAP requests in flight."""
        client = self._directory.client
        waiting = deque(requests)
        flying: deque[tuple[int, Steps, int]] = deque()

        def advance(position: int, steps: Steps, reply: Reply | None) -> None:
            try:
                request = next(steps) if reply is None else steps.send(reply)
            except StopIteration as end:
                results[position] = end.value
                return
            flying.append((position, steps, client.send(request)))

        while waiting or flying:
            while waiting and len(flying) < depth:
                position, request = waiting.popleft()
                advance(position, self._steps(request), None)
            if flying:
                position, steps, number = flying.popleft()
                advance(position, steps, client.receive(number))

    def _steps(self, request: WriteRequest) -> Steps:
        object_type = self._types.get(request.type)
        if object_type is None:
            return _finished(refused("unknown_type", f"the type {request.type!r} is not selected"))
        try:
            address = target_address(request)
            if not dn.parse(address):
                return _finished(refused("invalid_address", "the address is empty"))
        except dn.InvalidDn as error:
            return _finished(refused("invalid_address", str(error)))
        if not self._is_reachable(address):
            bases = ", ".join(self._directory.bases)
            return _finished(refused("out_of_reach", f"{address!r} is not below {bases}; no import would read it"))
        writing = _ObjectWriter(self._directory, object_type, request, self._schema, self._readers[object_type.name])
        match request.kind:
            case ExportKind.CREATE:
                return _refuse_unreadable(writing.create())
            case ExportKind.UPDATE:
                return _refuse_unreadable(writing.update())
            case ExportKind.DELETE:
                return _refuse_unreadable(writing.delete())

    def _is_reachable(self, address: str) -> bool:
        """Return whether an address is below a base, so that an import reads it."""
        container = container_of(address)
        found = self._reachable.get(container)
        if found is None:
            found = any(dn.is_below(container, base) for base in self._directory.bases)
            if len(self._reachable) < MAX_KNOWN_CONTAINERS:
                self._reachable[container] = found
        return found or any(dn.normalize(address) == dn.normalize(base) for base in self._directory.bases)

    def _create_parents(self, address: str) -> WriteResult | None:
        """Create the missing containers above an address, the highest first; return why it is not possible."""
        absent: list[str] = []
        current = dn.parent(address)
        while current and self._directory.read_entry(current, ("1.1",)) is None:
            absent.append(current)
            current = dn.parent(current)
        if not current:
            return missing("missing_parent", f"none of the containers above {address!r} exists")
        for each in reversed(absent):
            ((kind, value), *others) = dn.parse(each)[0]
            class_name = _CONTAINER_CLASSES.get(kind.lower())
            if kind.lower() == "cn" and self._directory.root_dse.is_active_directory:
                class_name = "container"
            if class_name is None or others:
                return missing("missing_parent", f"the container {each!r} cannot be created, only ou, o and l can be")
            attributes = {"objectClass": [b"top", class_name.encode()], kind: [value.encode()]}
            reply = self._directory.request(Add(each, attributes))
            if reply.code not in (Code.SUCCESS, Code.ENTRY_ALREADY_EXISTS):
                return refused("refused", f"the container {each!r} was not created: {reply.describe()}")
        return None


def _find_swaps(requests: Sequence[WriteRequest], results: Sequence[WriteResult]) -> list[list[int]]:
    """Return renames that wait for each other in a circle, by position: each takes the name of the next one."""
    waiting = {
        dn.normalize(each.address): position
        for position, each in enumerate(requests)
        if results[position].error == "exists" and each.kind is ExportKind.UPDATE and each.anchor is not None
    }
    following = {
        position: waiting.get(dn.normalize(target_address(requests[position]))) for position in waiting.values()
    }
    cycles: list[list[int]] = []
    visited: set[int] = set()
    for start in following:
        path: list[int] = []
        position: int | None = start
        while position is not None and position not in visited:
            visited.add(position)
            path.append(position)
            position = following.get(position)
        if position is not None and position in path:
            cycles.append(path[path.index(position) :])
    return cycles


def _finished(result: WriteResult) -> Steps:
    """Return steps without any request."""
    nothing: tuple[Request, ...] = ()
    yield from nothing
    return result


class _ObjectWriter:
    """The steps of one request."""

    def __init__(
        self,
        directory: Directory,
        object_type: ObjectType,
        request: WriteRequest,
        schema: DirectorySchema,
        reader: EntryReader,
    ) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._is_active_directory = directory.root_dse.is_active_directory
        self._type = object_type
        self._request = request
        self._schema = schema
        self._reader = reader
        self._anchor = object_type.attributes[object_type.anchor]
        self._member = reader.member
        self._placeholder = self._settings.placeholder_member.encode()
        self._value_codes = _VALUE_CODES | _AD_VALUE_CODES if self._is_active_directory else _VALUE_CODES
        self._has_assertions = directory.root_dse.supports(controls.ASSERTION)
        self._uses_post_read = directory.root_dse.supports(controls.POST_READ)

    # --- create -----------------------------------------------------------------------------------------------------

    def create(self) -> Steps:
        request = self._request
        attributes, further = self._new_attributes()
        read = (controls.post_read(self._anchor.name),) if self._uses_post_read else ()
        reply = yield Add(request.address, {self._sent_name(each): found for each, found in attributes.items()}, read)
        _check_decided(reply)
        if reply.code == Code.ENTRY_ALREADY_EXISTS:
            return (yield from self._adopt(further))
        if reply.code == Code.NO_SUCH_OBJECT:
            return missing("missing_parent", f"there is no container {dn.parent(request.address)!r}")
        if reply.code:
            return _refusal(reply)
        problem = yield from self._modify_in_parts(request.address, further, ())
        created = yield from self._created(controls.read_entry(reply.controls))
        if problem is not None:
            return replace(problem, anchor=created.anchor, address=created.address, was_created=True)
        return created

    def _new_attributes(self) -> tuple[dict[str, list[bytes]], list[Modification]]:
        """Return the attributes of a new entry, and the values that do not fit into the first request."""
        attributes: dict[str, list[bytes]] = {}
        further: list[Modification] = []
        for change in self._request.changes:
            if change.op not in (ChangeOp.SET, ChangeOp.ADD) or not change.values:
                continue
            values = self._encoded(change)
            attributes[change.attribute] = values[: self._settings.max_values]
            left = _chunks(values[self._settings.max_values :], self._settings.max_values)
            further += [Modification(change.attribute, Mod.ADD, chunk) for chunk in left]
        names = {name.lower(): name for name in attributes}
        if "objectclass" not in names:
            chosen = self._settings.type_settings(self._type.name).create_classes
            classes = chosen or (self._settings.object_class(self._type.name),)
            attributes["objectClass"] = [each.encode() for each in classes]
        for kind, value in dn.parse(self._request.address)[0]:
            values = attributes.setdefault(names.get(kind.lower(), kind), [])
            if value.casefold() not in {each.decode("utf-8", "replace").casefold() for each in values}:
                values.append(value.encode())
        if self._member is not None and self._member not in names:
            attributes[self._member] = [self._placeholder]
        return attributes, further

    def _created(self, entry: Entry | None) -> Steps:
        """Return the result of a new entry: the anchor that the server gave it, and its address."""
        if entry is None or not attribute_values(entry, self._anchor.name):
            with suppress(_Unreadable):
                entry = yield from self._read(self._request.address, (self._anchor.name,))
        if entry is None or not attribute_values(entry, self._anchor.name):
            text = f"the entry {self._request.address!r} cannot be read after it was created"
            return replace(refused("refused", text), was_created=True)
        return WriteResult(anchor=self._reader.read(entry).anchor, address=entry.dn)

    def _adopt(self, further: Sequence[Modification]) -> Steps:
        """The entry exists: it is ours if it has our values, or a part of a set that an earlier attempt began."""
        entry: Entry | None = None
        with suppress(_Unreadable):
            entry = yield from self._read(self._request.address, (*self._reader.attributes, "objectClass"))
        if entry is None:
            return refused("exists", f"there is an entry {self._request.address!r}, which the account may not read")
        imported = self._reader.read(entry)
        decoded = decode_object(self._type, imported.cells, Decoding())
        other = refused("exists", f"there is an entry {entry.dn!r} already, with other values", anchor=imported.anchor)
        if self._request.anchor and self._request.anchor != imported.anchor:
            return other
        partial = {each.attribute for each in further} if self._request.uncertain else set()
        for change in self._request.changes:
            attribute = self._type.attributes.get(change.attribute)
            if change.op not in (ChangeOp.SET, ChangeOp.ADD) or not change.values or attribute is None:
                continue
            if attribute.equality.kind is EqualityKind.WRITE_ONLY:
                continue
            equality = _DN if attribute.is_reference else attribute.equality
            found = decoded.references.get(change.attribute) or decoded.attributes.get(change.attribute, ())
            sent, present = equality.keys(change.values), equality.keys(found)
            if sent != present and not (change.attribute in partial and present < sent):
                return other
        if partial:
            whole = [
                Modification(each.attribute, Mod.ADD, tuple(self._encoded(each)))
                for each in self._request.changes
                if each.attribute in partial
            ]
            problem = yield from self._modify_in_parts(self._request.address, whole, ())
            if problem is not None:
                return replace(problem, anchor=imported.anchor, address=entry.dn, was_created=True)
        return WriteResult(anchor=imported.anchor, address=entry.dn)

    # --- update -----------------------------------------------------------------------------------------------------

    def update(self) -> Steps:
        request = self._request
        address = request.address
        renamed = next((each for each in request.changes if each.op is ChangeOp.RENAME), None)
        if renamed is not None:
            result = yield from self._rename(str(renamed.values[0]))
            if not result.is_ok:
                return result
            address = result.address or address
        changes = [each for each in request.changes if each.op is not ChangeOp.RENAME and self._is_sent(each, address)]
        if not changes:
            return WriteResult(anchor=request.anchor, address=address)
        confirmed = yield from self._confirm(address)
        if confirmed is None:
            return refused("missing_object", f"there is no entry {request.anchor or address!r}")
        address = confirmed
        modifications = yield from self._modifications(changes, address)
        for _ in range(2):
            problem = yield from self._modify_in_parts(self._target(address), modifications, self._guards())
            if problem is None:
                return WriteResult(anchor=request.anchor, address=address)
            if problem.error != "moved":
                return problem
            entry = yield from self._locate()
            if entry is None:
                return refused("missing_object", f"there is no entry {request.anchor or request.address!r}")
            address = entry.dn
        return missing("missing_reference", f"an entry that {address!r} refers to does not exist")

    def _is_sent(self, change: WriteChange, address: str) -> bool:
        """Active Directory changes the naming attribute by a rename only, and refuses it in a modify."""
        naming = {pair.type.lower() for pair in dn.parse(address)[0]}
        return not (self._is_active_directory and change.attribute.lower() in (naming | {"name", "distinguishedname"}))

    def _rename(self, target: str) -> Steps:
        address = self._request.address
        for _ in range(2):
            if target == address:
                break
            confirmed = yield from self._confirm(address)
            if confirmed is None:
                return refused("missing_object", f"there is no entry {self._request.anchor or address!r}")
            if dn.normalize_or_fold(confirmed) == dn.normalize_or_fold(target) != dn.normalize_or_fold(address):
                address = confirmed
                break  # an earlier attempt renamed it
            address = confirmed
            parent = dn.parent(target)
            is_moved = dn.normalize(parent) != dn.normalize(dn.parent(address))
            guards = (*self._guards(), *((controls.post_read(self._anchor.name),) if self._uses_post_read else ()))
            reply = yield ModifyDn(self._target(address), dn.first_rdn(target), parent if is_moved else None, guards)
            _check_decided(reply)
            if reply.code == Code.SUCCESS:
                found = controls.read_entry(reply.controls)
                return WriteResult(anchor=self._request.anchor, address=found.dn if found else target)
            # Samba answers `other` if the new parent does not exist.
            if reply.code == Code.OTHER and is_moved and (yield from self._read(parent, ("1.1",))) is None:
                return missing("missing_parent", f"there is no container {parent!r}")
            if reply.code not in (Code.NO_SUCH_OBJECT, Code.ASSERTION_FAILED, Code.ENTRY_ALREADY_EXISTS):
                return _refusal(reply)
            entry = yield from self._locate()
            if entry is None:
                return refused("missing_object", f"there is no entry {self._request.anchor or address!r}")
            if dn.normalize_or_fold(entry.dn) == dn.normalize_or_fold(target):
                address = entry.dn
                break  # an earlier attempt renamed it
            if reply.code == Code.ENTRY_ALREADY_EXISTS:
                return refused("exists", f"there is an entry {target!r} already")
            if dn.normalize_or_fold(entry.dn) == dn.normalize_or_fold(address):
                return missing("missing_parent", f"there is no container {parent!r}")
            address = entry.dn
        else:
            return refused("moved", f"the entry {address!r} was moved while it was renamed: {reply.describe()}")
        return WriteResult(anchor=self._request.anchor, address=address)

    def _modifications(
        self, changes: Sequence[WriteChange], address: str
    ) -> Generator[Request, Reply, list[Modification]]:
        """Return the modifications of an update. Large sets and masked numbers need the current values first."""
        found: list[Modification] = []
        current: Entry | None = None
        if any(self._needs_current(each) for each in changes):
            current = yield from self._read(self._target(address), tuple(each.attribute for each in changes))
        for change in changes:
            values = tuple(self._encoded(change))
            attribute = self._type.attributes.get(change.attribute)
            old = attribute_values(current, change.attribute) if current is not None else ()
            match change.op:
                case ChangeOp.ADD:
                    found.append(Modification(change.attribute, Mod.ADD, values))
                    if self._is_member(change):
                        found.append(Modification(change.attribute, Mod.DELETE, (self._placeholder,)))
                case ChangeOp.REMOVE:
                    found.append(Modification(change.attribute, Mod.DELETE, values))
                case ChangeOp.SET if attribute is not None and attribute.equality.kind is EqualityKind.MASK and old:
                    merged = merge_masked(int(old[0]), int(values[0]), attribute.equality.bits)
                    found.append(Modification(change.attribute, Mod.REPLACE, (str(merged).encode(),)))
                case ChangeOp.SET if self._needs_current(change) and current is not None:
                    found += _difference(change.attribute, old, values, attribute)
                case _:
                    found.append(Modification(change.attribute, Mod.REPLACE, values))
        return found

    def _needs_current(self, change: WriteChange) -> bool:
        attribute = self._type.attributes.get(change.attribute)
        if change.op is not ChangeOp.SET or not change.values or attribute is None:
            return False
        return attribute.equality.kind is EqualityKind.MASK or len(change.values) > MAX_REPLACED_VALUES

    def _modify_in_parts(
        self, address: str, modifications: Sequence[Modification], guards: tuple[Control, ...]
    ) -> Generator[Request, Reply, WriteResult | None]:
        """Send modifications in requests of at most ``max_values`` values for each attribute; return the problem."""
        named = [replace(each, attribute=self._sent_name(each.attribute)) for each in modifications]
        for part in _split(named, self._settings.max_values):
            reply = yield Modify(address, part, (*guards, _PERMISSIVE))
            _check_decided(reply)
            if reply.code in self._value_codes:
                reply = yield from self._modify_difference(address, part, guards)
            if reply.code == Code.OBJECT_CLASS_VIOLATION and any(self._empties_group(each) for each in part):
                reply = yield Modify(address, self._with_placeholder(part), (*guards, _PERMISSIVE))
            if reply.code in (Code.NO_SUCH_OBJECT, Code.ASSERTION_FAILED):
                return missing("moved", reply.describe())
            if reply.code:
                return _refusal(reply)
        return None

    def _modify_difference(
        self, address: str, part: tuple[Modification, ...], guards: tuple[Control, ...]
    ) -> Generator[Request, Reply, Reply]:
        """A server without permissive modify refuses values that are there already: send the others."""
        entry = yield from self._read(address, tuple(each.attribute for each in part))
        left: list[Modification] = []
        for each in part:
            old = attribute_values(entry, each.attribute) if entry is not None else ()
            attribute = self._type.attributes.get(each.attribute.removesuffix(BINARY))
            present = {_key(value, attribute) for value in old}
            wanted = tuple(v for v in each.values if (_key(v, attribute) in present) is (each.mod is Mod.DELETE))
            if each.mod is Mod.REPLACE or wanted:
                left.append(each if each.mod is Mod.REPLACE else replace(each, values=wanted))
        if not left:
            return Reply(Code.SUCCESS)
        return (yield Modify(address, tuple(left), guards))

    def _is_member(self, change: WriteChange) -> bool:
        return self._member is not None and change.attribute.lower() == self._member

    def _empties_group(self, each: Modification) -> bool:
        return self._member is not None and each.attribute.lower() == self._member and each.mod is not Mod.ADD

    def _with_placeholder(self, part: tuple[Modification, ...]) -> tuple[Modification, ...]:
        found: list[Modification] = []
        for each in part:
            if self._empties_group(each) and each.mod is Mod.REPLACE:
                found.append(replace(each, values=(self._placeholder,)))
            elif self._empties_group(each):
                found += [Modification(each.attribute, Mod.ADD, (self._placeholder,)), each]
            else:
                found.append(each)
        return tuple(found)

    # --- delete -----------------------------------------------------------------------------------------------------

    def delete(self) -> Steps:
        address = self._request.address
        for _ in range(2):
            confirmed = yield from self._confirm(address)
            if confirmed is None:
                return (yield from self._check_deleted(address))
            address = confirmed
            reply = yield Delete(self._target(address), self._guards())
            _check_decided(reply)
            if reply.code == Code.SUCCESS:
                break
            if reply.code not in (Code.NO_SUCH_OBJECT, Code.ASSERTION_FAILED):
                return _refusal(reply)
            entry = yield from self._locate()
            if entry is None:
                return (yield from self._check_deleted(address))
            address = entry.dn
        else:
            return refused("moved", f"the entry {address!r} exists, but the server did not find it: {reply.describe()}")
        return WriteResult(anchor=self._request.anchor, address=address)

    def _check_deleted(self, address: str) -> Steps:
        """The entry was not found: it was deleted already, unless the account cannot read what is at its address."""
        done = WriteResult(anchor=self._request.anchor, address=address)
        if not self._request.anchor or self._target(address) != address:
            return done
        search = self._directory.limited(Search(address, Scope.BASE, filters.EVERYTHING, (self._anchor.name,)))
        reply = yield search
        if reply.code == Code.NO_SUCH_OBJECT:
            return done
        _check_readable(reply, search)
        anchors = {each for entry in reply.entries for each in attribute_values(entry, self._anchor.name)}
        # guard: identity.ldap_unreadable_is_not_deleted
        if not anchors or encode_value(self._request.anchor, self._anchor) in anchors:
            text = (
                f"there is an entry {address!r}, whose {self._anchor.name} the account may not read; it was not deleted"
            )
            return refused("unreadable", text)
        return done

    # --- finding the entry ------------------------------------------------------------------------------------------

    def _target(self, address: str) -> str:
        """Return the name by which the server finds the entry: on Active Directory by its objectGUID."""
        anchor = self._request.anchor
        if self._is_active_directory and anchor and self._anchor.name.lower() == "objectguid":
            return f"<GUID={anchor}>"
        return address

    def _guards(self) -> tuple[Control, ...]:
        """Return the control that makes sure that the entry at the address is the one with the anchor."""
        anchor = self._request.anchor
        # guard: identity.ldap_anchor_asserted
        if not anchor or not self._has_assertions:
            return ()
        return (controls.assertion(self._anchor.name, encode_value(anchor, self._anchor)),)

    def _confirm(self, address: str) -> Generator[Request, Reply, str | None]:
        """Return the address of the entry with the anchor of the request; None if there is none.

        Where the change itself names or asserts the anchor, nothing is read."""
        anchor = self._request.anchor
        if not anchor or self._has_assertions or self._target(address) != address:
            return address
        condition = filters.equal(self._anchor.name, encode_value(anchor, self._anchor))
        search = self._directory.limited(Search(address, Scope.BASE, condition, ("1.1",)))
        reply = yield search
        if reply.code != Code.NO_SUCH_OBJECT:
            _check_readable(reply, search)
            if reply.entries:  # guard: identity.ldap_anchor_read
                return address
        entry = yield from self._locate()
        return entry.dn if entry is not None else None

    def _locate(self) -> Generator[Request, Reply, Entry | None]:
        """Return the entry with the anchor of the request, wherever it is; None if there is none."""
        anchor = self._request.anchor
        if not anchor:
            return None
        condition = filters.equal(self._anchor.name, encode_value(anchor, self._anchor))
        for base in self._directory.bases:
            search = self._directory.limited(Search(base, Scope.SUBTREE, condition, (self._anchor.name,)))
            reply = yield search
            _check_readable(reply, search)
            if reply.entries:
                return reply.entries[0]
        return None

    def _read(self, address: str, attributes: tuple[str, ...]) -> Generator[Request, Reply, Entry | None]:
        search = self._directory.limited(Search(address, Scope.BASE, filters.EVERYTHING, attributes))
        reply = yield search
        if reply.code == Code.NO_SUCH_OBJECT:
            return None
        _check_readable(reply, search)
        entry = next(iter(reply.entries), None)
        parts: dict[str, Mapping[str, Sequence[bytes]]] = {}
        while entry is not None:
            try:
                return merge_ranges(entry, parts.__getitem__)
            except KeyError as missing_part:  # Active Directory sends large attributes in parts
                name = str(missing_part.args[0])
            search = self._directory.limited(Search(address, Scope.BASE, filters.EVERYTHING, (name,)))
            reply = yield search
            check_complete(reply, search)
            parts[name] = reply.entries[0].attributes if reply.entries else {}
        return None

    def _sent_name(self, name: str) -> str:
        """Return the name by which an attribute is written: certificates need an option (RFC 4523)."""
        known = self._schema.attribute(name)
        has_option = name.lower().endswith(BINARY)
        return f"{name}{BINARY}" if known is not None and known.needs_binary and not has_option else name

    def _encoded(self, change: WriteChange) -> list[bytes]:
        attribute = self._type.attributes.get(change.attribute)
        return [encode_value(each, attribute) for each in change.values]


class _Unreadable(Exception):
    """The account may not read an entry. The request is refused; the others are not concerned."""

    def __init__(self, result: WriteResult) -> None:
        super().__init__(result.text)
        self.result = result


def _check_readable(reply: Reply, search: Search) -> None:
    """Raise `_Unreadable` if the account may not search, `ConnectorError` if the reply is not complete otherwise."""
    if reply.code == Code.INSUFFICIENT_ACCESS:  # guard: identity.ldap_unreadable_item
        raise _Unreadable(refused("unreadable", f"the account may not read {search.base!r}: {reply.describe()}"))
    check_complete(reply, search)


def _refuse_unreadable(steps: Steps) -> Steps:
    """Return the result of steps; refuse the request if they need an entry that the account may not read."""
    try:
        return (yield from steps)
    except _Unreadable as error:
        return error.result


def _check_decided(reply: Reply) -> None:
    if reply.code in _FAILURES:
        raise ConnectorError("incomplete", f"the server did not execute a request: {reply.describe()}")


def _refusal(reply: Reply) -> WriteResult:
    if reply.code == Code.ENTRY_ALREADY_EXISTS:
        return refused("exists", reply.describe())
    if reply.code == Code.INVALID_DN_SYNTAX:
        return refused("invalid_address", reply.describe())
    return WriteResult(WriteOutcome.REFUSED, "refused", reply.describe())


def _key(value: bytes, attribute: Attribute | None) -> object:
    text = value.decode("utf-8", "replace")
    if attribute is None or attribute.type is DataType.BINARY:
        return value
    return _DN.key(text) if attribute.is_reference else attribute.equality.key(text)


def _difference(
    name: str, old: Sequence[bytes], new: Sequence[bytes], attribute: Attribute | None
) -> list[Modification]:
    before: Mapping[object, bytes] = {_key(each, attribute): each for each in old}
    after: Mapping[object, bytes] = {_key(each, attribute): each for each in new}
    added = tuple(value for key, value in after.items() if key not in before)
    removed = tuple(value for key, value in before.items() if key not in after)
    found = [Modification(name, Mod.ADD, added)] if added else []
    return [*found, Modification(name, Mod.DELETE, removed)] if removed else found


def _chunks(values: Sequence[bytes], size: int) -> Iterable[tuple[bytes, ...]]:
    for start in range(0, len(values), size):
        yield tuple(values[start : start + size])


def _split(modifications: Sequence[Modification], size: int) -> list[tuple[Modification, ...]]:
    """Return modifications in groups, none with more than ``size`` values; the first group has all that fits."""
    groups: list[list[Modification]] = [[]]
    used = 0
    for each in modifications:
        first = True
        for chunk in _chunks(each.values, size) if each.values else [()]:
            if used + len(chunk) > size and groups[-1]:
                groups.append([])
                used = 0
            mod = Mod.ADD if each.mod is Mod.REPLACE and not first else each.mod
            groups[-1].append(Modification(each.attribute, mod, chunk))
            used += len(chunk)
            first = False
    return [tuple(group) for group in groups if group]
