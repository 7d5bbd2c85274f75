"""Who did it: the initiator every task and every change carries.

Type, id and the name as it was then, kept together so that the trail survives the deletion of whom it speaks of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tenuto.errors import Invalid


class ActorType(StrEnum):
    USER = "user"
    API_KEY = "api_key"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody or something that may ask for work."""

    type: ActorType
    id: str | None
    name: str

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200:
            raise Invalid("must be 1 to 200 characters", field="actor.name", remedy="give the actor a short name")

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
    """What somebody may do; each may do what those before it may."""

    VIEWER = 1
    """Look."""
    OPERATOR = 2
    """Run, enqueue, cancel, pause, retry, resolve."""
    EDITOR = 3
    """Change definitions and limits."""
    ADMIN = 4
    """Keys, secrets, the audit trail, wiping."""

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def named(cls, word: str) -> Role:
        """The role of this name."""
        for role in cls:
            if role.word == word:
                return role
        raise Invalid(
            f"{word!r:.60} is no role", field="role", remedy=f"use one of {', '.join(role.word for role in cls)}"
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has shown who they are."""

    actor: Actor
    role: Role
    session: bool = False
    """By way of a browser's session rather than with the key itself."""

    def may(self, needed: Role) -> bool:
        return self.role >= needed
