"""Delta import: the watermark of a directory and the changes since one, by the method that the server offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from tenuto_identity.connectors.contract import (
    ConnectorError,
    ReadEvent,
    ReadScope,
    ReadWarning,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.delta import accesslog, active_directory, syncrepl
from tenuto_identity.connectors.ldap.directory import Directory, attribute_values
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.protocol import controls
from tenuto_identity.connectors.ldap.protocol.client import Search
from tenuto_identity.connectors.ldap.settings import DeltaMethod
from tenuto_identity.model.schema import ObjectType


class DeltaSource(Protocol):
    """One method to find changes."""

    def watermark(self, directory: Directory, scope: ReadScope) -> Watermark: ...

    def read(self, reader: DirectoryReader, since: Watermark) -> Iterator[ReadEvent]: ...


class ModifyTimestampSource:
    """Entries changed since a time. Deletions and moves out of the scope are left to the next full import."""

    def watermark(self, directory: Directory, scope: ReadScope) -> Watermark:
        return self._newest(directory, "", filters.EVERYTHING)

    def _newest(self, directory: Directory, newest: str, condition: str) -> Watermark:
        for base in directory.bases:
            for page in directory.search_pages(Search(base, filter=condition, attributes=("modifyTimestamp",))):
                for entry in page:
                    for value in attribute_values(entry, "modifyTimestamp"):
                        newest = max(newest, value.decode("ascii", "replace"))
        return {"method": DeltaMethod.MODIFY_TIMESTAMP.value, "bases": list(directory.bases), "time": newest}

    def read(self, reader: DirectoryReader, since: Watermark) -> Iterator[ReadEvent]:
        reader.check_bases(since.get("bases", ()))
        yield ReadWarning("no_deletions", "a delta by modify_timestamp does not find deletions; run a full import")
        count = 0
        condition = filters.at_least("modifyTimestamp", str(since["time"]))
        # Before the objects are read, so that the next delta reads those again that are changed meanwhile.
        following = self._newest(reader.directory, str(since["time"]), condition)
        for each in reader.read_matching(condition):
            count += 1
            yield each
        yield reader.complete(count, is_delta=True, watermark=following)


_SOURCES: Mapping[DeltaMethod, DeltaSource] = {
    DeltaMethod.SYNCREPL: syncrepl.SyncreplSource(),
    DeltaMethod.ACCESSLOG: accesslog.AccesslogSource(),
    DeltaMethod.USN: active_directory.UsnSource(),
    DeltaMethod.DIRSYNC: active_directory.DirSyncSource(),
    DeltaMethod.MODIFY_TIMESTAMP: ModifyTimestampSource(),
}


def find_method(directory: Directory) -> DeltaMethod:
    """Return the method of the settings, or the best one that the server offers."""
    chosen = directory.settings.delta
    if chosen is not DeltaMethod.AUTO:
        return chosen
    root = directory.root_dse
    if root.is_active_directory:
        return DeltaMethod.USN
    if root.supports(controls.SYNC_REQUEST) and syncrepl.has_context_csn(directory):
        return DeltaMethod.SYNCREPL
    if directory.log_bases:
        return DeltaMethod.ACCESSLOG
    return DeltaMethod.NONE


def current_watermark(directory: Directory, scope: ReadScope) -> Watermark | None:
    """Return the watermark of now; None if the server offers no method."""
    source = _SOURCES.get(find_method(directory))
    return source.watermark(directory, scope) if source is not None else None


def read_changes(reader: DirectoryReader, since: Watermark) -> Iterator[ReadEvent]:
    """Yield the changes since a watermark.

    Raises `WatermarkLost` if it is not valid any more, or if ``auto`` found a method that does not fit an anchor."""
    method = find_method(reader.directory)
    if since.get("method") != method.value:
        raise WatermarkLost(f"the watermark is one of {since.get('method')!r}, and the method is {method.value!r} now")
    try:
        _check_anchor(reader.directory, method, reader.scope.types)
    except ConnectorError as error:
        if reader.directory.settings.delta is not DeltaMethod.AUTO:
            raise
        # The server offers no method that fits: as without a method, a full import finds the deletions.
        raise WatermarkLost(f"{error.message}; {error.remedy}") from None
    yield from _SOURCES[method].read(reader, since)


def check(directory: Directory, types: Iterable[ObjectType]) -> None:
    """Raise `ConnectorError` if the method of the settings cannot work; ``auto`` is checked by `read_changes`."""
    method = directory.settings.delta
    if method in (DeltaMethod.AUTO, DeltaMethod.NONE):
        return
    is_for_ad = method in (DeltaMethod.USN, DeltaMethod.DIRSYNC)
    if is_for_ad and not directory.root_dse.is_active_directory:
        raise ConnectorError("delta", f"delta {method.value} needs Active Directory, and the server is none")
    if method is DeltaMethod.USN and (hidden := active_directory.find_hidden_deletions(directory)):
        raise ConnectorError(
            "delta",
            f"delta usn needs the deleted objects, and the account may not read {', '.join(hidden)}",
            remedy=active_directory.DELETIONS_REMEDY,
        )
    if method is DeltaMethod.SYNCREPL and not syncrepl.has_context_csn(directory):
        raise ConnectorError(
            "delta",
            "delta syncrepl needs the overlay syncprov, and the suffix has no contextCSN that the account may read",
            remedy="set up syncprov with a session log, or choose delta: accesslog",
        )
    if method is DeltaMethod.ACCESSLOG and not directory.log_bases:
        raise ConnectorError(
            "delta",
            "delta accesslog needs the log of changes, and the account sees none",
            remedy="set up the overlay accesslog and grant the account read access to it, or set log_base",
        )
    if method is DeltaMethod.ACCESSLOG:
        accesslog.check(directory)
    _check_anchor(directory, method, types)


def _check_anchor(directory: Directory, method: DeltaMethod, types: Iterable[ObjectType]) -> None:
    """Raise `ConnectorError` if the method names deleted entries by another attribute than the anchor of a type."""
    if method in (DeltaMethod.MODIFY_TIMESTAMP, DeltaMethod.NONE):
        return
    anchor = directory.anchor
    for each in types:
        if each.anchor.lower() != anchor.lower():
            raise ConnectorError(
                "delta",
                f"delta {method.value} needs the anchor {anchor}, and the type {each.name} has {each.anchor}",
                remedy="choose that anchor, or delta: none",
            )
