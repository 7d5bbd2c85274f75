"""Connector space objects and metaverse objects as the engine sees them: frozen values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Document


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


class ObjectState(StrEnum):
    """State of a connector space object."""

    NORMAL = "normal"
    OBSOLETE = "obsolete"
    """Deleted in the system; the next sync disconnects it."""
    PROVISIONING = "provisioning"
    """Created by a sync and not yet seen by an import."""


class JoinKind(StrEnum):
    """Kind of join: by a rule, by provisioning or by a user."""

    PROJECTED = "projected"
    JOINED = "joined"
    PROVISIONED = "provisioned"


class Origin(StrEnum):
    """Where a metaverse object comes from."""

    PROJECTED = "projected"
    INTERNAL = "internal"
    """Created by a template; deletion rules do not apply."""


@value_class
class Reference:
    """A reference of a connector space object: raw value and, as far as known, its target."""

    raw: str
    target_id: int | None = None
    """Id of the connector space object referred to."""
    metaverse_id: int | None = None
    """Id of the metaverse object that the target is joined to."""


@value_class
class ConnectorObject:
    """A connector space object."""

    id: int
    system: str
    type: str
    anchor: str | None
    address: str = ""
    attributes: Document = field(default_factory=_empty)
    references: Mapping[str, tuple[Reference, ...]] = field(default_factory=_empty)
    state: ObjectState = ObjectState.NORMAL
    metaverse_id: int | None = None
    join_kind: JoinKind | None = None
    pinned: bool = False
    """A user decided this join, or decided that the object is not joined."""
    drift_reported: frozenset[str] = frozenset()
    """Attributes whose drift was reported and is not corrected; the next change of the object empties it."""


@value_class
class MetaverseObject:
    """A metaverse object."""

    id: int
    type: str
    attributes: Document = field(default_factory=_empty)
    references: Mapping[str, frozenset[int]] = field(default_factory=_empty)
    provenance: Mapping[str, tuple[int, int]] = field(default_factory=_empty)
    """Attribute → (rule number, connector space object id) of the contribution that won."""
    origin: Origin = Origin.PROJECTED
    deletion_scheduled_at: datetime | None = None
    delete_after: datetime | None = None
    deletion_system: str | None = None
    """Name of the system whose disconnection scheduled the deletion."""
