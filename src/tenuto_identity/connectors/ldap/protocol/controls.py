"""Controls of LDAP requests and their replies: values encoded and decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap.protocol import ber
from tenuto_identity.connectors.ldap.protocol.client import Control, Entry

PAGED_RESULTS = "1.2.840.113556.1.4.319"
ASSERTION = "1.3.6.1.1.12"
POST_READ = "1.3.6.1.1.13.2"
PERMISSIVE_MODIFY = "1.2.840.113556.1.4.1413"
DOMAIN_SCOPE = "1.2.840.113556.1.4.1339"
SHOW_DELETED = "1.2.840.113556.1.4.417"
DIRSYNC = "1.2.840.113556.1.4.841"
SYNC_REQUEST = "1.3.6.1.4.1.4203.1.9.1.1"
SYNC_STATE = "1.3.6.1.4.1.4203.1.9.1.2"
SYNC_DONE = "1.3.6.1.4.1.4203.1.9.1.3"
SYNC_INFO = "1.3.6.1.4.1.4203.1.9.1.4"
REFRESH_ONLY = 1
DIRSYNC_FLAGS = 0x1 | 0x800
"""Objects that the account may read (1), parents before children (0x800)."""


def paged_results(size: int, cookie: bytes = b"") -> Control:
    """Return the control that asks for one page (RFC 2696). It is critical: without it a read would be cut off."""
    return Control(PAGED_RESULTS, ber.sequence(ber.integer(size), ber.octets(cookie)), is_critical=True)


def page_cookie(controls: Mapping[str, bytes]) -> bytes:
    """Return the cookie of the next page; empty after the last one."""
    value = controls.get(PAGED_RESULTS)
    if value is None:
        return b""
    return _fields(value, 2)[1].content


def assertion(attribute: str, value: bytes) -> Control:
    """Return the control that lets a request fail unless the entry has this value (RFC 4528)."""
    content = ber.octets(attribute) + ber.octets(value)
    return Control(ASSERTION, ber.encode(0xA3, content), is_critical=True)


def post_read(*attributes: str) -> Control:
    """Return the control that asks for attributes of the entry after a change (RFC 4527)."""
    return Control(POST_READ, ber.sequence_of(attributes))


def read_entry(controls: Mapping[str, bytes]) -> Entry | None:
    """Return the entry of the reply to `post_read`; None if the server sent none."""
    value = controls.get(POST_READ)
    if value is None:
        return None
    name, attributes = _checked(lambda: ber.decode_one(value, 0x64).children())
    found = {}
    for each in attributes.children():
        kind, values = each.children()
        found[kind.content.decode()] = [part.content for part in values.children()]
    return Entry(name.content.decode(), found)


# --- content synchronisation (RFC 4533) -----------------------------------------------------------------------------


class SyncState(IntEnum):
    """State of an entry in a refresh."""

    PRESENT = 0
    ADD = 1
    MODIFY = 2
    DELETE = 3


@dataclass(frozen=True, slots=True)
class SyncInfo:
    """An intermediate response of a refresh."""

    deleted: tuple[str, ...] = ()
    """entryUUIDs of entries that do not exist any more."""
    is_present_phase: bool = False
    """The server lists what exists instead of what was deleted."""


@dataclass(frozen=True, slots=True)
class SyncDone:
    """The end of a refresh."""

    cookie: str | None
    has_deletes: bool
    """The deletions were listed; otherwise entries that were not mentioned do not exist any more."""


def sync_request(cookie: str | None) -> Control:
    """Return the control that asks for the changes since a cookie."""
    parts = [ber.integer(REFRESH_ONLY, ber.ENUMERATED)]
    if cookie is not None:
        parts.append(ber.octets(cookie))
    return Control(SYNC_REQUEST, ber.sequence(*parts), is_critical=True)


def sync_state(controls: Mapping[str, bytes]) -> tuple[SyncState, str]:
    """Return state and entryUUID of an entry of a refresh."""
    value = controls.get(SYNC_STATE)
    if value is None:
        raise ConnectorError("protocol", "an entry of the refresh has no state; the server does not follow RFC 4533")
    state, identifier = _fields(value, 2)[:2]
    return SyncState(state.integer()), str(UUID(bytes=identifier.content))


def sync_done(controls: Mapping[str, bytes]) -> SyncDone:
    """Return the end of a refresh."""
    value = controls.get(SYNC_DONE)
    if value is None:
        raise ConnectorError(
            "protocol", "the server ended the refresh without the control Sync Done, which RFC 4533 requires"
        )
    cookie, has_deletes = None, False
    for each in _fields(value, 0):
        if each.tag == ber.OCTETS:
            cookie = each.content.decode()
        elif each.tag == ber.BOOLEAN:
            has_deletes = each.boolean()
    return SyncDone(cookie, has_deletes)


def sync_info(value: bytes) -> SyncInfo:
    """Return an intermediate response: a new cookie, the end of a phase, or a set of entryUUIDs."""
    found = _checked(lambda: list(ber.decode(value)))
    if len(found) != 1:
        raise ConnectorError("protocol", "an intermediate response of the refresh is not valid")
    (choice,) = found
    match choice.tag:
        case 0xA2:  # refreshPresent
            return SyncInfo(is_present_phase=True)
        case 0xA3:  # syncIdSet
            has_deletes = False
            identifiers: tuple[str, ...] = ()
            for each in choice.children():
                if each.tag == ber.BOOLEAN:
                    has_deletes = each.boolean()
                elif each.tag == ber.SET:
                    identifiers = tuple(str(UUID(bytes=part.content)) for part in each.children())
            return SyncInfo(deleted=identifiers) if has_deletes else SyncInfo(is_present_phase=bool(identifiers))
        case _:  # newcookie, refreshDelete
            return SyncInfo()


# --- Active Directory -----------------------------------------------------------------------------------------------


def dirsync(cookie: bytes, max_bytes: int = 1 << 20) -> Control:
    """Return the control that asks for the changes since a cookie (MS-ADTS 3.1.1.3.4.1.3)."""
    value = ber.sequence(ber.integer(DIRSYNC_FLAGS), ber.integer(max_bytes), ber.octets(cookie))
    return Control(DIRSYNC, value, is_critical=True)


def dirsync_reply(controls: Mapping[str, bytes]) -> tuple[bool, bytes]:
    """Return whether there are further changes, and the new cookie."""
    value = controls.get(DIRSYNC)
    if value is None:
        raise ConnectorError("protocol", "the reply to DirSync has no cookie")
    more, _, cookie = _fields(value, 3)[:3]
    return more.integer() != 0, cookie.content


def show_deleted() -> Control:
    """Return the control that finds deleted objects, too."""
    return Control(SHOW_DELETED, None, is_critical=True)


def _fields(value: bytes, at_least: int) -> Sequence[ber.Element]:
    found = _checked(lambda: ber.decode_one(value, ber.SEQUENCE).children())
    if len(found) < at_least:
        raise ConnectorError("protocol", "a control in a reply of the server is not complete")
    return found


def _checked(decode: Callable[[], list[ber.Element]]) -> list[ber.Element]:
    try:
        return decode()
    except ber.BerError as error:
        raise ConnectorError("protocol", f"a control in a reply of the server is not valid: {error}") from None
