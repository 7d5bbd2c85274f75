"""Delta import by the accesslog overlay of OpenLDAP.

A row of the log names the entry by its entryUUID, so the current state is found after any number of renames. Rows are
ordered by their entryCSN, which the server draws when it commits; ``reqStart`` is drawn earlier, and a slow write would
be lost behind a watermark of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tenuto_identity.connectors.contract import (
    ConnectorError,
    DeletedObject,
    ReadEvent,
    ReadScope,
    UnreadableObject,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.directory import Directory, attribute_values
from tenuto_identity.connectors.ldap.entries import container_of
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.protocol.client import Scope, Search
from tenuto_identity.connectors.ldap.settings import DeltaMethod

_ROW = ("reqType", "reqDN", "reqEntryUUID", "entryCSN", "reqNewRDN", "reqNewSuperior")


@dataclass(slots=True)
class Changes:
    """What the rows of a log say."""

    changed: dict[str, None] = field(default_factory=dict)
    """entryUUIDs, in the order of their first change."""
    renamed: dict[str, str] = field(default_factory=dict)
    """entryUUID → the last new DN; empty if it is not known whether the entry was renamed."""
    deleted: dict[str, None] = field(default_factory=dict)
    """entryUUIDs."""
    former: dict[str, str] = field(default_factory=dict)
    """entryUUID → the DN before the first rename, if the log names it."""
    moved_containers: list[str] = field(default_factory=list)
    """Former DNs of containers that `resolve` found moved out of what is read."""
    has_moved_containers: bool = False
    """`resolve` found that a container may have been moved out of what is read."""

    def note(self, kind: str, identifier: str, new_address: str = "", address: str = "") -> None:
        """Add a row: the kind of change, the entryUUID, the new DN of a renamed entry and the DN before it."""
        if kind == "delete":
            self.deleted.setdefault(identifier)
            self.changed.pop(identifier, None)
            self.renamed.pop(identifier, None)
            return
        self.changed.setdefault(identifier)
        if kind == "modrdn":
            self.renamed[identifier] = new_address
            self.former.setdefault(identifier, address)

    def note_moved_container(self, identifier: str) -> None:
        """Note that a container was, or may have been, moved out of what is read."""
        self.has_moved_containers = True
        if former := self.former.get(identifier):
            self.moved_containers.append(former)


SYNCPROV_REMEDY = "add the overlay syncprov to the database of the log"


def server_of(csn: str) -> str:
    """Return the part of a CSN that names the server which made the change."""
    return csn.split("#")[2] if csn.count("#") == 3 else ""


class AccesslogSource:
    """The log of changes of OpenLDAP."""

    def watermark(self, directory: Directory, scope: ReadScope) -> Watermark:
        return {
            "method": DeltaMethod.ACCESSLOG.value,
            "bases": list(directory.bases),
            "logs": {base: _newest(directory, base, "contextCSN") for base in _logs(directory)},
        }

    def read(self, reader: DirectoryReader, since: Watermark) -> Iterator[ReadEvent]:
        directory = reader.directory
        reader.check_bases(since.get("bases", ()))
        known = since["logs"]
        if set(known) != set(_logs(directory)):
            raise WatermarkLost(f"the logs of changes are {', '.join(_logs(directory))} now")
        changes = _read_logs(directory, known)
        count = 0
        unreadable: list[str] = []
        for event in resolve(reader, changes, unreadable):
            count += 1
            yield event
        if unreadable:
            # Some may have been deleted after the log was read; the next delta has their rows.
            later = _read_logs(directory, known).deleted
            for identifier in unreadable:
                if identifier not in later:
                    yield from (UnreadableObject(each.name, identifier) for each in reader.scope.types)
        yield reader.complete(
            count,
            is_delta=True,
            may_have_moved_containers=changes.has_moved_containers,
            moved_containers=changes.moved_containers,
        )


def check(directory: Directory) -> None:
    """Raise `ConnectorError` if a log does not say how far it reaches, so that new rows cannot be distinguished."""
    for base in _logs(directory):
        if _newest(directory, base, "minCSN") and not _newest(directory, base, "contextCSN"):
            raise ConnectorError("delta", f"the log {base!r} has no contextCSN", remedy=SYNCPROV_REMEDY)


def _logs(directory: Directory) -> Sequence[str]:
    if not directory.log_bases:
        raise ConnectorError(
            "delta",
            "the account sees no log of changes",
            remedy="grant it read access to the database of accesslog, or set log_base",
        )
    return directory.log_bases


def _newest(directory: Directory, base: str, name: str) -> dict[str, str]:
    """Return the CSN of each server in an attribute of the log: ``contextCSN``, or ``minCSN``, the oldest one."""
    entry = directory.read_entry(base, (name,))
    if entry is None:
        raise ConnectorError("delta", f"the log of changes {base!r} does not exist, or the account may not read it")
    values = [each.decode("ascii", "replace") for each in attribute_values(entry, name)]
    return {server_of(each): each for each in values}


def _check_log(base: str, watermark: Mapping[str, str], current: Mapping[str, str], oldest: Mapping[str, str]) -> None:
    """Raise `WatermarkLost` if rows after a watermark are not in the log any more."""
    for server, csn in watermark.items():
        if current.get(server, "") < csn:
            raise WatermarkLost(f"the log {base!r} ends before the watermark {csn}; it was set up again")
    for server, csn in oldest.items():
        if server in watermark and csn > watermark[server]:  # guard: identity.ldap_log_purged
            raise WatermarkLost(f"the log {base!r} begins at {csn}, after the watermark {watermark[server]}")
    if not watermark and current:
        raise WatermarkLost(f"the log {base!r} was empty when the watermark was taken")


def _read_logs(directory: Directory, watermarks: Mapping[str, Mapping[str, str]]) -> Changes:
    """Return the changes of all logs after a watermark."""
    changes = Changes()
    for base, watermark in watermarks.items():
        _read_log(directory, base, watermark, changes)
    return changes


def _read_log(directory: Directory, base: str, watermark: Mapping[str, str], changes: Changes) -> None:
    """Collect the rows after a watermark."""
    current, oldest = _newest(directory, base, "contextCSN"), _newest(directory, base, "minCSN")
    if oldest and not current:  # guard: identity.ldap_log_without_csn
        raise WatermarkLost(f"the log {base!r} has no contextCSN; {SYNCPROV_REMEDY}")
    _check_log(base, watermark, current, oldest)
    if current == watermark:
        return
    condition = filters.all_of(
        filters.equal("objectClass", "auditWriteObject"),
        filters.equal("reqResult", "0"),
        filters.at_least("entryCSN", min(watermark.values())),
    )
    for page in directory.search_pages(Search(base, Scope.ONE_LEVEL, condition, _ROW)):
        for entry in page:
            kind, address, identifier, csn, rdn, superior = (
                next((each.decode("utf-8", "replace") for each in attribute_values(entry, name)), "") for name in _ROW
            )
            if csn > watermark.get(server_of(csn), ""):
                if not identifier:
                    raise WatermarkLost(f"a row of the log {base!r} does not name its entry; OpenLDAP before 2.5?")
                changes.note(kind, identifier, f"{rdn},{superior or container_of(address)}", address)
    # Rows may have been purged while they were read.
    _check_log(base, watermark, current, _newest(directory, base, "minCSN"))


def resolve(reader: DirectoryReader, changes: Changes, unreadable: list[str] | None = None) -> Iterator[ReadEvent]:
    """Yield the current state of changed entries, each once, and the deletions.

    An entry that is not in the scope counts as deleted: it was moved out of it, or does not satisfy the filter of its
    type any more. The import ignores those that it does not know, and those of containers that it does not read.

    With ``unreadable``, the changes name every deletion. An entry that should be there and is not found cannot be read
    any more; it is added to the list instead."""
    seen: set[str] = set()
    gone: dict[str, None] = {}
    # Deleted ones too: an entry that was moved to another base is deleted in the refresh of the first one.
    wanted = list(dict.fromkeys((*changes.changed, *changes.deleted)))
    for entry, identifier in reader.find_by_uuid(wanted):
        if identifier in changes.renamed and reader.has_children(entry):
            if not reader.is_read(entry.dn):  # guard: identity.ldap_moved_container
                changes.note_moved_container(identifier)
            for below in reader.read_below(entry.dn):
                if below.anchor not in seen:
                    seen.add(below.anchor)
                    yield below
        if identifier in seen:
            continue
        seen.add(identifier)
        imported = reader.resolve_entry(entry, identifier)
        if imported is not None:
            yield imported
        else:
            gone.setdefault(identifier)
    missing = [each for each in wanted if each not in seen]
    gone.update(dict.fromkeys(_find_left(reader, changes, missing, unreadable)))
    for identifier in gone:
        for each in reader.scope.types:
            yield DeletedObject(each.name, identifier)


def _find_left(
    reader: DirectoryReader, changes: Changes, missing: Sequence[str], unreadable: list[str] | None
) -> Iterator[str]:
    """Yield the entries that were deleted or moved out of what is read, of those that were not found."""
    moved = {identifier: reader.has_children(entry) for entry, identifier in reader.find_outside(missing)}
    for identifier in missing:
        if unreadable is not None and identifier in changes.changed and identifier not in moved:
            new_address = changes.renamed.get(identifier)
            if new_address is None or reader.is_read(container_of(new_address)):
                unreadable.append(identifier)  # guard: identity.ldap_lost_rights
                continue
        # An entry that is found nowhere may have been moved to where the account may not read.
        if identifier in changes.renamed and moved.get(identifier, True):
            changes.note_moved_container(identifier)
        yield identifier
