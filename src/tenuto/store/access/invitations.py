"""Rows of invitations. Only digests of their links are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from tenuto.model.access.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, RowMapper

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class InvitationRecord:
    """An invitation without the digest of its link."""

    id: UUID
    name: str
    role: str
    """The key of the `Role` that the person gets."""
    created_at: datetime
    created_by: str
    expires_at: datetime
    accepted_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    expired: bool

    @property
    def state(self) -> str:
        """``accepted``, ``revoked``, ``expired`` or ``open``."""
        if self.accepted_at is not None:
            return "accepted"
        if self.revoked_at is not None and self.revoked_by != "expiry":
            return "revoked"
        return "expired" if self.expired else "open"


_INVITATIONS = RowMapper(InvitationRecord, SQL.load_invitation, SQL.list_invitations, SQL.find_invitations)


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """An invitation that is to be created."""

    id: UUID
    name: str
    role: Role
    digest: bytes
    by: str
    inviter_id: str | None
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class OpenInvitation:
    """An invitation that can be accepted."""

    id: UUID
    name: str
    role: Annotated[Role, FromColumn(Role.from_key)]
    created_by: str


_OPEN_INVITATIONS = RowMapper(OpenInvitation, SQL.lock_open_invitation)


async def insert_invitation(connection: Connection, new: NewInvitation) -> InvitationRecord | None:
    """Insert an invitation and return it; None if the name has an open one."""
    await connection.execute(SQL.revoke_expired_invitations, new.name)
    await connection.execute(
        SQL.insert_invitation, new.id, new.name, new.role.key, new.digest, new.by, new.inviter_id, new.lifetime
    )
    return _INVITATIONS.optional(await connection.fetchrow(SQL.load_invitation, new.id))


async def load_invitation(connection: Connection, id: UUID) -> InvitationRecord | None:
    """Return one invitation."""
    return _INVITATIONS.optional(await connection.fetchrow(SQL.load_invitation, id))


async def find_invitations(database: Database, name: str, id: UUID | None) -> list[InvitationRecord]:
    """Return the open invitation of a name, and the invitation with an id."""
    return _INVITATIONS.all(await database.fetch_all(SQL.find_invitations, name, id))


async def list_invitations(database: Database, below: UUID | None, limit: int) -> list[InvitationRecord]:
    """Return invitations, newest first."""
    return _INVITATIONS.all(await database.fetch_all(SQL.list_invitations, below, limit))


async def lock_open_invitation(connection: Connection, link: bytes, key: UUID) -> OpenInvitation | None:
    """Return the invitation of a link, and let no other transaction accept or revoke it, if it is open or was accepted
    with this key."""
    return _OPEN_INVITATIONS.optional(await connection.fetchrow(SQL.lock_open_invitation, link, key))


async def accept_invitation(connection: Connection, id: UUID, key: UUID) -> None:
    """Store that an invitation was accepted, and the key of the person."""
    await connection.execute(SQL.accept_invitation, id, key)


async def revoke_invitation(connection: Connection, id: UUID, by: str) -> bool:
    """Revoke an open invitation; return False if it is not open."""
    return await connection.fetchval(SQL.revoke_invitation, id, by) is not None


async def revoke_open_invitations(connection: Connection, by: str) -> int:
    """Revoke all invitations that were not accepted; return how many were not expired."""
    return sum(row["was_open"] for row in await connection.fetch(SQL.revoke_open_invitations, by))


async def delete_old_invitations(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of invitations that expired before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_old_invitations, cutoff, limit))
