"""Who did it: the initiator every task and every change carries.

Type, id and the name as it was then, kept together so that the trail survives the deletion of whom it speaks of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
