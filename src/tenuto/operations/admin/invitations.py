"""Invitation operations (``app.invitations``): invite a person, list, revoke and accept invitations.

The link of an invitation is accepted once: the person gets a key of their own and a browser session.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.access.actors import Caller, Role
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.admin.api_keys import (
    ApiKeys,
    audit_values,
    digest,
    generate_key,
    generate_session_token,
    key_row,
    new_session,
)
from tenuto.operations.argument_checks import MAX_LIMIT, check_limit
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store.access import api_keys, invitations
from tenuto.store.access.api_keys import ApiKeyRecord
from tenuto.store.access.invitations import InvitationRecord

INVITATION_LIFETIME = timedelta(days=3)
MAX_INVITATION_LIFETIME = timedelta(days=30)
_INVITATION_PATTERN = re.compile(r"tni_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class AcceptedInvitation:
    """API key and browser session created by an accepted invitation."""

    key: ApiKeyRecord
    text: str
    """Text of the key, which is not stored."""
    token: str
    """Token of the browser session."""
    caller: Caller


class Invitations(OperationGroup):
    """Operations on invitations."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, keys: ApiKeys) -> None:
        super().__init__(open, caller)
        self._keys = keys

    async def create(
        self, name: str, role: Role, *, lifetime: timedelta = INVITATION_LIFETIME
    ) -> tuple[InvitationRecord, str]:
        """Invite a person and return the invitation and its link, which is not stored."""
        validation.check_name(name, field="name")
        if not timedelta(minutes=1) <= lifetime <= MAX_INVITATION_LIFETIME:
            raise Invalid(
                f"an invitation cannot be valid for {lifetime}",
                code="invitation.lifetime.invalid",
                field="lifetime_seconds",
                remedy="give a duration between 1 minute and 30 days",
            )
        text = f"tni_{secrets.token_urlsafe(32)}"
        operation = await self._begin("invitation.create", target=name)
        operation.entry.after = {"role": role.key, "lifetime_seconds": lifetime.total_seconds()}
        actor = operation.actor
        new = invitations.NewInvitation(new_id(), name, role, digest(text), actor.name, actor.id, lifetime)

        async def insert(connection: Connection) -> InvitationRecord:
            if await api_keys.has_active_name(connection, name):
                raise Conflict(
                    f"an API key named {name} exists",
                    code="api_key.name.taken",
                    field="name",
                    remedy="choose another name, or revoke that key first",
                )
            made = await invitations.insert_invitation(connection, new)
            if made is None:
                raise Conflict(
                    f"there is an open invitation for {name}",
                    code="invitation.name.taken",
                    field="name",
                    remedy=f"revoke it first: tenuto invitation revoke {name}",
                )
            return made

        return await operation.database.transaction(insert), text

    async def list(self, *, below: UUID | None = None, limit: int = MAX_LIMIT) -> Sequence[InvitationRecord]:
        """List invitations, newest first. The next page is ``below`` the last id."""
        return await invitations.list_invitations(await self._open(), below, check_limit(limit))

    async def revoke(self, name_or_id: str) -> InvitationRecord:
        """Revoke an open invitation and return it."""
        found = await invitations.find_invitations(await self._open(), name_or_id[:200], _parse_id(name_or_id))
        if not found:
            raise NotFound(
                f"there is no open invitation {name_or_id[:200]!r}",
                code="invitation.not_found",
                remedy="see `tenuto invitation list`",
            )
        operation = await self._begin("invitation.revoke", target=found[0].name)
        by = operation.actor.name

        async def revoke(connection: Connection) -> InvitationRecord:
            if not await invitations.revoke_invitation(connection, found[0].id, by):
                raise Conflict(
                    f"the invitation for {found[0].name} was accepted or revoked before",
                    code="invitation.not_open",
                    remedy=f"to end the access of the person, revoke the key: tenuto key revoke {found[0].name}",
                )
            revoked = await invitations.load_invitation(connection, found[0].id)
            assert revoked is not None
            return revoked

        return await operation.database.transaction(revoke)

    async def accept(self, link: str, *, browser: str | None = None) -> AcceptedInvitation | None:
        """Accept an invitation: create the key of the person and open a session; None if the link is not valid."""
        if _INVITATION_PATTERN.fullmatch(link) is None:
            return None
        operation = await self._begin("invitation.accept")
        token, session_id, key_id = generate_session_token(), new_id(), new_id()
        session = new_session(token, operation, browser)

        async def accept(connection: Connection, text: str) -> ApiKeyRecord | None:
            found = await invitations.lock_open_invitation(connection, digest(link), key_id)
            if found is None:
                return None
            new = key_row(text, found.name, found.role, found.created_by, None, "person", id=key_id)
            operation.entry.target, operation.entry.after = found.name, audit_values(new)
            made = await api_keys.insert_key(connection, new)
            if made is None:
                raise api_keys.PrefixInUse
            await invitations.accept_invitation(connection, found.id, key_id)
            await api_keys.open_session(connection, session_id, key_id, session)
            return made

        while True:
            text = generate_key()
            with contextlib.suppress(api_keys.PrefixInUse):
                key = await operation.database.transaction(partial(accept, text=text))
                caller = await self._keys.authenticate_session(token)
                return None if key is None or caller is None else AcceptedInvitation(key, text, token, caller)


def _parse_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
