"""Approval operations (``app.approvals``): list approvals, approve, reject, and create links for persons."""

from __future__ import annotations

import builtins
import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.errors import Conflict, Forbidden, Invalid, NotFound
from tenuto.model import validation
from tenuto.model.access.actors import Role
from tenuto.model.events.approvals import ApprovalState, Decision, may_decide, state_after
from tenuto.operations.argument_checks import check_limit, require_single_match
from tenuto.operations.bound_operation import Operation, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store.events import approvals
from tenuto.store.events.approvals import ApprovalRecord, DecisionRecord
from tenuto.store.work import activities

LINK_LIFETIME = timedelta(days=2)
MAX_LINK_LIFETIME = timedelta(days=30)
MAX_REASON_LENGTH = 4000
LINK_PATH = "/approve"
_LINK_PATTERN = re.compile(r"tna_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class ApprovalDetails:
    """An approval with the decisions about it."""

    approval: ApprovalRecord
    decisions: Sequence[DecisionRecord]


@dataclass(frozen=True, slots=True)
class ApprovalLink:
    """A link with which one person decides once. Its text is not stored."""

    approval_id: UUID
    person: str
    expires_at: datetime
    link: str
    path: str
    """Path of the page in the web service."""


@dataclass(frozen=True, slots=True)
class LinkedApproval:
    """What the page of a link shows."""

    approval: ApprovalRecord
    person: str
    expires_at: datetime


class Approvals(OperationGroup):
    """Operations on approvals."""

    async def list(
        self,
        *,
        state: str | None = None,
        execution_id: UUID | None = None,
        below: tuple[datetime, UUID] | None = None,
        limit: int = 50,
    ) -> Sequence[ApprovalRecord]:
        """List approvals, newest first; page with ``below``: instant and id of the last one."""
        if state is not None and state not in builtins.list(ApprovalState):
            raise Invalid(
                f"{state!r} is not a state of approvals",
                code="approval.state.unknown",
                field="state",
                remedy=f"use one of {', '.join(ApprovalState)}",
            )
        return await approvals.list_approvals(
            await self._open(), state=state, execution_id=execution_id, below=below, limit=check_limit(limit)
        )

    async def pending(self, *, limit: int = 50) -> Sequence[ApprovalRecord]:
        """List the approvals that wait for a decision, the first deadline first."""
        return await approvals.list_pending_approvals(await self._open(), check_limit(limit))

    async def get(self, id: UUID) -> ApprovalDetails:
        """Return an approval with the decisions about it."""
        database = await self._open()
        found = await approvals.find_approval(database, id)
        if found is None:
            raise _not_found(id)
        return ApprovalDetails(found, await approvals.list_decisions(database, [id]))

    async def find(self, prefix: str) -> UUID:
        """Return the only approval id that begins with this prefix."""
        found = await approvals.find_approvals(await self._open(), *activities.id_range_of_prefix(prefix))
        return require_single_match(found, prefix, noun="approval", list_command="`tenuto approval list`")

    def may_decide(self, approval: ApprovalRecord, role: Role) -> bool:
        """Return whether the caller may decide about an approval."""
        return may_decide(self._caller.actor.name, role, needed=approval.role, approvers=approval.approvers)

    async def approve(self, id: UUID, reason: str | None = None, *, role: Role = Role.ADMIN) -> ApprovalDetails:
        """Approve on behalf of the caller. The step continues when enough persons have approved.

        ``role`` is the role of the caller; a program with access to the database has every role.
        """
        return await self._decide(id, Decision.APPROVE, reason, role)

    async def reject(self, id: UUID, reason: str | None = None, *, role: Role = Role.ADMIN) -> ApprovalDetails:
        """Reject on behalf of the caller: the step fails. For ``role`` see `approve`."""
        return await self._decide(id, Decision.REJECT, reason, role)

    async def _decide(self, id: UUID, decision: Decision, reason: str | None, role: Role) -> ApprovalDetails:
        action = "approval.approve"
        if decision is Decision.REJECT:
            action = "approval.reject"
        operation = await self._begin(action, target=str(id), reason=_check_reason(reason))

        async def decide(connection: Connection) -> None:
            await _decide_in_tx(connection, operation, id, decision, role)

        await operation.database.transaction(decide)
        return await self.get(id)

    async def create_link(self, id: UUID, person: str, *, lifetime: timedelta = LINK_LIFETIME) -> ApprovalLink:
        """Create a link with which a named approver decides once, without logging in.

        The link opens a page on which the person confirms the decision; opening it decides nothing.
        """
        if not timedelta(minutes=1) <= lifetime <= MAX_LINK_LIFETIME:
            raise Invalid(
                f"a link cannot be valid for {lifetime}",
                code="approval.link.lifetime_invalid",
                field="lifetime_seconds",
                remedy="give a duration between 1 minute and 30 days",
            )
        text = _new_link_text()
        operation = await self._begin("approval.link", target=str(id))

        async def create(connection: Connection) -> ApprovalLink:
            found = await _lock_pending(connection, id, operation.now)
            if person not in found.approvers:
                raise Invalid(
                    f"{person!r} is not one of the approvers: {', '.join(found.approvers) or 'none is named'}",
                    code="approval.link.not_an_approver",
                    field="person",
                    remedy="name the person in the arguments of the step: approvers",
                )
            expires_at = min(operation.now + lifetime, found.expires_at)
            operation.entry.after = {"person": person, "expires_at": expires_at}
            if not await approvals.insert_link(
                connection, _digest(text), id, person, operation.now, operation.actor.name, expires_at
            ):
                operation.entry.mark_unchanged()  # the reply to the first commit was lost
            return _make_link(id, person, expires_at, text)

        return await operation.database.transaction(create)

    async def list_undecided(self, id: UUID) -> Sequence[str]:
        """List the named approvers who have not decided; none if the approval is not pending, or has been deleted."""
        database = await self._open()
        found = await approvals.find_approval(database, id)
        if found is None or found.state is not ApprovalState.PENDING or found.expires_at <= database.clock.now():
            return []
        decided = {each.person for each in await approvals.list_decisions(database, [id])}
        return [person for person in found.approvers if person not in decided]

    async def create_links(self, id: UUID, *, persons: Container[str] | None = None) -> Sequence[ApprovalLink]:
        """Create a link for each named approver who has not decided; none if the approval is not pending.

        ``persons`` restricts them. The links are valid until the deadline, at most 30 days. See `create_link`.
        """
        operation = await self._begin("approval.link", target=str(id))
        texts = defaultdict[str, str](_new_link_text)  # kept here: a repeated transaction creates the same links

        async def create(connection: Connection) -> Sequence[ApprovalLink]:
            found = await approvals.lock_approval(connection, id)
            if found is None or found.state is not ApprovalState.PENDING or found.expires_at <= operation.now:
                operation.entry.mark_unchanged()
                return []
            decided = {each.person for each in await approvals.load_decisions(connection, id)}
            expires_at = min(operation.now + MAX_LINK_LIFETIME, found.expires_at)
            links = [
                _make_link(id, person, expires_at, texts[person])
                for person in found.approvers
                if person not in decided and (persons is None or person in persons)
            ]
            operation.entry.after = {"persons": [each.person for each in links], "expires_at": expires_at}
            stored = [
                await approvals.insert_link(
                    connection, _digest(each.link), id, each.person, operation.now, operation.actor.name, expires_at
                )
                for each in links
            ]
            if not any(stored):
                operation.entry.mark_unchanged()  # no person is named, or the reply to the first commit was lost
            return links

        return await operation.database.transaction(create)

    async def open_link(self, link: str) -> LinkedApproval | None:
        """Return what the page of a link shows, and change nothing; None if the link cannot be used."""
        if _LINK_PATTERN.fullmatch(link) is None:
            return None
        database = await self._open()
        found = await approvals.find_link(database, _digest(link), database.clock.now())
        if found is None:
            return None
        approval = await approvals.find_approval(database, found.approval_id)
        return None if approval is None else LinkedApproval(approval, found.person, found.expires_at)

    async def decide_by_link(self, link: str, decision: Decision, reason: str | None = None) -> ApprovalRecord | None:
        """Decide with a link, on behalf of its person, who is the caller; None if the link cannot be used."""
        if _LINK_PATTERN.fullmatch(link) is None:
            return None
        action = "approval.approve"
        if decision is Decision.REJECT:
            action = "approval.reject"
        operation = await self._begin(action, reason=_check_reason(reason))
        id: UUID | None = None  # kept here: after a lost reply to the commit, the link is used

        async def decide(connection: Connection) -> ApprovalRecord | None:
            nonlocal id
            used = await approvals.use_link(connection, _digest(link), operation.actor.name, operation.now)
            if used is None:
                operation.entry.mark_unchanged()
                if id is None or await _find_own_decision(connection, id, operation.actor.name) is not decision:
                    return None
                return await approvals.load_approval(connection, id)
            id = used.approval_id
            operation.entry.target = str(id)
            await _decide_in_tx(connection, operation, id, decision, None, via_link=True)
            return await approvals.load_approval(connection, id)

        return await operation.database.transaction(decide)


async def _decide_in_tx(
    connection: Connection,
    operation: Operation,
    id: UUID,
    decision: Decision,
    role: Role | None,
    *,
    via_link: bool = False,
) -> None:
    """Store a decision, and end the approval if it completes it."""
    actor, reason, now = operation.actor, operation.context.reason, operation.now
    earlier = await _find_own_decision(connection, id, actor.name)
    if earlier is decision:  # a repeated request
        operation.entry.mark_unchanged()
        return
    found = await _lock_pending(connection, id, now)
    # guard: approvals.may_decide
    if not may_decide(actor.name, role, needed=found.role, approvers=found.approvers):
        raise Forbidden(
            f"{actor.name} may not decide about this approval",
            code="approval.not_an_approver",
            remedy=f"it can be decided by {describe_approvers(found)}",
        )
    if not await approvals.insert_decision(connection, id, actor, decision, reason, now, via_link=via_link):
        raise Conflict(
            f"{actor.name} has decided about this approval before",
            code="approval.already_decided",
            remedy=f"see `tenuto approval show {id}`",
        )
    decisions = [each.decision for each in await approvals.load_decisions(connection, id)]
    state = state_after(decisions, found.required_count)
    if state is not ApprovalState.PENDING:
        await approvals.end_approval(connection, id, state, now)
    operation.entry.after = {"decision": decision, "state": state, "via_link": via_link}


async def _find_own_decision(connection: Connection, id: UUID, person: str) -> Decision | None:
    return next(
        (each.decision for each in await approvals.load_decisions(connection, id) if each.person == person), None
    )


async def _lock_pending(connection: Connection, id: UUID, now: datetime) -> ApprovalRecord:
    found = await approvals.lock_approval(connection, id)
    if found is None:
        raise _not_found(id)
    if found.state is not ApprovalState.PENDING:
        raise Conflict(
            f"the approval is {found.state}",
            code="approval.not_pending",
            remedy=f"see `tenuto approval show {id}`",
        )
    if found.expires_at <= now:  # guard: approvals.deadline
        raise Conflict("the deadline of the approval has passed", code="approval.expired")
    return found


def _not_found(id: UUID) -> NotFound:
    return NotFound(f"there is no approval {id}", code="approval.not_found", remedy="see `tenuto approval list`")


def describe_approvers(approval: ApprovalRecord) -> str:
    """Return who may decide, in plain English."""
    named = list(approval.approvers)
    if approval.role is not None:
        named.append(f"callers with the role {approval.role} or a higher one")
    return ", ".join(named)


def _check_reason(reason: str | None) -> str | None:
    if reason is not None:
        validation.check_text(reason, field="reason", limit=MAX_REASON_LENGTH)
    return reason or None


def _new_link_text() -> str:
    return f"tna_{secrets.token_urlsafe(32)}"


def _make_link(id: UUID, person: str, expires_at: datetime, text: str) -> ApprovalLink:
    return ApprovalLink(id, person, expires_at, text, f"{LINK_PATH}?link={text}")


def _digest(link: str) -> bytes:
    return hashlib.sha256(link.encode()).digest()
