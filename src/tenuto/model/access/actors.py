"""Actors, roles and callers: the initiator that every task and every recorded change carries.

Type, id and name at the time are stored together, so that the record stays readable after an actor is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from uuid import UUID

from tenuto.errors import Invalid, quoted


class ActorType(StrEnum):
    USER = "user"
    API_KEY = "api_key"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """A user, an API key or a system component that requests work."""

    type: ActorType
    id: str | None
    name: str

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200:
            raise Invalid(
                f"actor name {quoted(self.name, 60)} does not have 1 to 200 characters",
                code="actor.name.invalid",
                field="actor.name",
                remedy="give the actor a short name",
            )

    @classmethod
    def user(cls, id: str, name: str | None = None) -> Actor:
        return cls(ActorType.USER, id, name or id)

    @classmethod
    def api_key(cls, id: str, name: str) -> Actor:
        return cls(ActorType.API_KEY, id, name)

    @classmethod
    def system(cls, name: str) -> Actor:
        return cls(ActorType.SYSTEM, None, name)


class Role(IntEnum):
    """Permissions of a caller; each role includes the ones before it."""

    VIEWER = 1
    """Read."""
    OPERATOR = 2
    """Run, enqueue, cancel, pause, retry, resolve."""
    EDITOR = 3
    """Change definitions and limits."""
    ADMIN = 4
    """Manage API keys and secrets, read the audit trail, wipe data."""

    @property
    def key(self) -> str:
        """The name in settings, on the wire and in the database."""
        return self.name.lower()

    @classmethod
    def from_key(cls, key: str) -> Role:
        for role in cls:
            if role.key == key:
                return role
        raise Invalid(
            f"unknown role {quoted(key, 60)}",
            code="role.unknown",
            field="role",
            remedy=f"use one of {', '.join(role.key for role in cls)}",
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller of the web service."""

    actor: Actor
    role: Role
    via_session: bool = False
    """Authenticated by a browser, with a session or by the header of a proxy, instead of the API key itself."""
    key_id: UUID | None = field(default=None, compare=False)
    """The API key; None for a user that a proxy names."""
    session_id: UUID | None = field(default=None, compare=False)
    is_initial_key: bool = field(default=False, compare=False)
    """The key is the one that the first start created, so the audit log names no person."""

    def has_role(self, needed: Role) -> bool:
        return self.role >= needed
