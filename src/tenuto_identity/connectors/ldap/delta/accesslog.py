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
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.directory import Directory, attribute_values
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.protocol.client import Scope, Search
from tenuto_identity.connectors.ldap.settings import DeltaMethod
from tenuto_identity.model import dn

_ROW = ("reqType", "reqDN", "reqEntryUUID", "entryCSN")


@dataclass(slots=True)
class Changes:
    """What the rows of a log say."""

    changed: dict[str, None] = field(default_factory=dict)
    """entryUUIDs, in the order of their first change."""
    renamed: dict[str, str] = field(default_factory=dict)
    """entryUUID → the first old DN."""
    deleted: dict[str, str] = field(default_factory=dict)
    """entryUUID → DN."""

    def note(self, kind: str, identifier: str, address: str) -> None:
        """Add a row: the kind of change, the entryUUID and the DN before the change."""
        if kind == "delete":
            self.deleted[identifier] = address
            self.changed.pop(identifier, None)
            return
        self.changed.setdefault(identifier)
        if kind == "modrdn":
            self.renamed.setdefault(identifier, address)


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
        changes = Changes()
        for base, watermark in known.items():
            _read_log(directory, base, watermark, changes)
        count = 0
        for event in resolve(reader, changes):
            count += 1
            yield event
        yield reader.complete(count, is_delta=True)


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
            kind, address, identifier, csn = (
                next((each.decode("utf-8", "replace") for each in attribute_values(entry, name)), "") for name in _ROW
            )
            if csn > watermark.get(server_of(csn), ""):
                if not identifier:
                    raise WatermarkLost(f"a row of the log {base!r} does not name its entry; OpenLDAP before 2.5?")
                changes.note(kind, identifier, address)
    # Rows may have been purged while they were read.
    _check_log(base, watermark, current, _newest(directory, base, "minCSN"))


def resolve(reader: DirectoryReader, changes: Changes) -> Iterator[ReadEvent]:
    """Yield the current state of changed entries, each once, and the deletions.

    An entry that is not in the scope counts as deleted: it was moved out of it, or does not satisfy the filter of its
    type any more. The import ignores those that it does not know, and those of containers that it does not read."""
    seen: set[str] = set()
    gone: dict[str, None] = {}
    # Deleted ones too: an entry that was moved to another base is deleted in the refresh of the first one.
    wanted = list(dict.fromkeys((*changes.changed, *changes.deleted)))
    for entry, identifier in reader.find_by_uuid(wanted):
        if identifier in changes.renamed and reader.has_children(entry):
            _check_still_read(reader, changes.renamed[identifier], entry.dn)
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
    gone.update(dict.fromkeys(each for each in wanted if each not in seen))
    for identifier in gone:
        for each in reader.scope.types:
            yield DeletedObject(each.name, identifier)


def _check_still_read(reader: DirectoryReader, old: str, new: str) -> None:
    """Raise `WatermarkLost` if a container was moved out of what is read: what was in it is not listed anywhere."""
    bases = [base.address for base in reader.bases()]
    if any(dn.is_below(old, base) for base in bases) and not any(dn.is_below(new, base) for base in bases):
        raise WatermarkLost(f"the container {old!r} was moved out of what is read")
