"""The interface between the connector and an LDAP library: requests, replies, result codes.

An adapter sends requests and receives their replies; it decides nothing. Values are bytes, as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeAlias

from tenuto_identity.connectors.contract import ConnectorError


class Code(IntEnum):
    """Result codes (RFC 4511) that the connector knows by name."""

    SUCCESS = 0
    OPERATIONS_ERROR = 1
    TIME_LIMIT_EXCEEDED = 3
    SIZE_LIMIT_EXCEEDED = 4
    STRONGER_AUTH_REQUIRED = 8
    REFERRAL = 10
    ADMIN_LIMIT_EXCEEDED = 11
    UNAVAILABLE_CRITICAL_EXTENSION = 12
    CONFIDENTIALITY_REQUIRED = 13
    NO_SUCH_ATTRIBUTE = 16
    UNDEFINED_ATTRIBUTE_TYPE = 17
    CONSTRAINT_VIOLATION = 19
    ATTRIBUTE_OR_VALUE_EXISTS = 20
    INVALID_SYNTAX = 21
    NO_SUCH_OBJECT = 32
    INVALID_DN_SYNTAX = 34
    INVALID_CREDENTIALS = 49
    INSUFFICIENT_ACCESS = 50
    BUSY = 51
    UNAVAILABLE = 52
    UNWILLING_TO_PERFORM = 53
    NAMING_VIOLATION = 64
    OBJECT_CLASS_VIOLATION = 65
    NOT_ALLOWED_ON_NON_LEAF = 66
    ENTRY_ALREADY_EXISTS = 68
    OTHER = 80
    ASSERTION_FAILED = 122
    SYNC_REFRESH_REQUIRED = 4096


def code_name(code: int) -> str:
    """Return a result code for messages, such as ``size limit exceeded (4)``."""
    try:
        return f"{Code(code).name.lower().replace('_', ' ')} ({code})"
    except ValueError:
        return f"result {code}"


class Scope(IntEnum):
    """Scope of a search."""

    BASE = 0
    ONE_LEVEL = 1
    SUBTREE = 2


class Mod(IntEnum):
    """Kind of a modification."""

    ADD = 0
    DELETE = 1
    REPLACE = 2


@dataclass(frozen=True, slots=True)
class Control:
    """A control of a request."""

    oid: str
    value: bytes | None = None
    is_critical: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    base: str
    scope: Scope = Scope.SUBTREE
    filter: str = "(objectClass=*)"
    attributes: tuple[str, ...] = ("1.1",)
    """``1.1``: none."""
    controls: tuple[Control, ...] = ()
    time_limit_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Add:
    dn: str
    attributes: Mapping[str, Sequence[bytes]]
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class Modification:
    attribute: str
    mod: Mod
    values: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Modify:
    dn: str
    modifications: tuple[Modification, ...]
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class ModifyDn:
    dn: str
    new_rdn: str
    new_superior: str | None = None
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    dn: str
    controls: tuple[Control, ...] = ()


Request: TypeAlias = Search | Add | Modify | ModifyDn | Delete


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a search."""

    dn: str
    attributes: Mapping[str, Sequence[bytes]]
    """Names as the server delivers them, with options."""
    controls: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """The complete reply to a request."""

    code: int
    message: str = ""
    matched_dn: str = ""
    controls: Mapping[str, bytes] = field(default_factory=dict)
    entries: Sequence[Entry] = ()
    references: Sequence[str] = ()
    """Servers that have further entries; the connector does not follow them."""
    intermediates: Sequence[tuple[str, bytes]] = ()
    """Intermediate responses: name and value."""

    def describe(self) -> str:
        return f"{code_name(self.code)}: {self.message}" if self.message else code_name(self.code)


class Disconnected(ConnectorError):
    """The connection was lost or timed out; requests without a reply may have taken effect."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message)


class LdapClient(Protocol):
    """A bound connection of an LDAP library."""

    def send(self, request: Request) -> int:
        """Send a request and return its message number; raise `Disconnected`."""
        ...

    def receive(self, message_number: int) -> Reply:
        """Wait for the complete reply to a request; raise `Disconnected`."""
        ...

    def interrupt(self) -> None:
        """Let the thread that waits for a reply raise `Disconnected`; called by another thread."""
        ...

    def close(self) -> None:
        """Close the connection; never raises."""
        ...
