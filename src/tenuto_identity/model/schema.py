"""Object types and attributes of systems and of the metaverse, and the deletion rule of a metaverse type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType

from tenuto_identity.model.values import EXACT, DataType, Equality

ADDRESS = "address"
"""Name of the address in mappings and expressions; no attribute may have it."""
RESERVED_NAMES = frozenset({ADDRESS, "system", "value", "deletion_scheduled", "none", "true", "false"})
"""Names that expressions use for something else."""
ANCHOR_TYPES = frozenset({DataType.TEXT, DataType.INTEGER, DataType.GUID})
CREDENTIAL_ATTRIBUTES = frozenset(
    {
        "userpassword",
        "unicodepwd",
        "unixuserpassword",
        "ntpwdhistory",
        "lmpwdhistory",
        "dbcspwd",
        "supplementalcredentials",
        "sambantpassword",
        "sambalmpassword",
        "sambapasswordhistory",
        "msds-managedpassword",
        "krbprincipalkey",
        "authpassword",
    }
)
"""Attributes that are refused in schema, flow and storage, in lower case."""


class Writable(StrEnum):
    """Whether a system accepts values of an attribute."""

    YES = "yes"
    ON_CREATE = "on_create"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an object type or of a metaverse type."""

    name: str
    type: DataType = DataType.TEXT
    multi: bool = False
    to: str | None = None
    """For references: the object type or metaverse type referred to."""
    writable: Writable = Writable.YES
    equality: Equality = EXACT
    sensitive: bool = False
    """Viewers and logs see ``***``."""

    @property
    def is_reference(self) -> bool:
        return self.type is DataType.REFERENCE


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object type of a connected system: the selected attributes."""

    name: str
    anchor: str
    """Name of the attribute that identifies an object for ever."""
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    address: str | None = None
    """Name of the attribute that is the address; None if the connector reports the address itself, or has none."""
    address_is_dn: bool = False


class ContainerScope(StrEnum):
    """How far the selection of a container reaches."""

    SUBTREE = "subtree"
    ONE_LEVEL = "one_level"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a system, such as an organisational unit."""

    address: str
    name: str = ""
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerSelection:
    """A container that is included in, or excluded from, reading and writing."""

    address: str
    included: bool = True
    scope: ContainerScope = ContainerScope.SUBTREE


@dataclass(frozen=True, slots=True)
class Schema:
    """What a connector found in a system."""

    types: tuple[ObjectType, ...]
    partitions: tuple[str, ...] = ()
    containers: tuple[Container, ...] = ()


class DeletionTrigger(StrEnum):
    """When a metaverse object is deleted."""

    NEVER = "never"
    LAST_CONNECTOR = "last_connector"
    AUTHORITATIVE_SOURCE = "authoritative_source"


@dataclass(frozen=True, slots=True)
class DeletionRule:
    """The deletion rule of a metaverse type."""

    trigger: DeletionTrigger = DeletionTrigger.LAST_CONNECTOR
    sources: frozenset[str] = frozenset()
    """For ``authoritative_source``: names of systems."""
    all_sources: bool = False
    """Whether all sources must have disconnected, instead of any one."""
    grace: timedelta | None = None


@dataclass(frozen=True, slots=True)
class MetaverseType:
    """A type of metaverse objects."""

    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    deletion: DeletionRule = DeletionRule()
    display: str | None = None
    """Name of the attribute that is shown as the name of an object."""


def is_credential(name: str) -> bool:
    """Return whether an attribute holds a password or a hash of one."""
    return name.lower().partition(";")[0] in CREDENTIAL_ATTRIBUTES
