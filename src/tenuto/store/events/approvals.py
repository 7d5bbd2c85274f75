"""Rows of approvals, of the decisions about them, and of the links with which persons decide.

The task of an approval step waits like a task that waits for an event (`store.events.events`); its wait ends with the
decision that completes the approval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from tenuto.model.access.actors import Actor
from tenuto.model.events.approvals import ApprovalState, DeadlineRule, Decision
from tenuto.model.events.event_names import APPROVAL_EVENT, EventWait
from tenuto.model.work.tasks import Task, WaitKey
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.events import external_events
from tenuto.store.row_mapping import FromJson, RowMapper
from tenuto.store.statement_groups import Rows, StatementGroup

SQL = load_statements(__file__)

APPROVAL_WAIT = WaitKey("", 1)
"""The wait of every approval step."""


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """An approval that a step requested."""

    id: UUID
    """Id of the task of the step."""
    execution_id: UUID | None
    schedule_name: str | None
    step: str
    message: str
    context: Annotated[dict[str, Any], FromJson]
    role: str | None
    """Callers with this role or a higher one may decide."""
    approvers: list[str]
    """Persons who may decide, whatever their role."""
    required_count: int
    on_deadline: DeadlineRule
    requested_at: datetime
    expires_at: datetime
    requester_name: str
    state: ApprovalState
    ended_at: datetime | None
    approval_count: int


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What the event feed says about a new approval."""

    id: UUID
    execution_id: UUID | None
    schedule_name: str | None
    step: str
    message: str
    role: str | None
    approvers: list[str]
    requested_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class DecisionCount:
    """A pending approval and the number of decisions about it."""

    id: UUID
    decision_count: int


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The decision of one person."""

    approval_id: UUID
    person: str
    actor_type: str
    actor_id: str | None
    decision: Decision
    reason: str | None
    via_link: bool
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class RequestingStep:
    """The step that requests an approval."""

    execution_id: UUID | None
    schedule_name: str | None
    plan_json: str | None
    step_index: int | None


@dataclass(frozen=True, slots=True)
class NewApproval:
    """An approval to be requested."""

    step: str
    execution_id: UUID | None
    schedule_name: str | None
    message: str
    context: str
    role: str | None
    approvers: Sequence[str]
    required_count: int
    on_deadline: str
    expires_at: datetime
    requester: Actor


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link with which a person decides."""

    approval_id: UUID
    person: str
    expires_at: datetime


_APPROVALS = RowMapper(ApprovalRecord, SQL.load_approval, SQL.list_approvals, SQL.list_pending_approvals)
_REQUESTS = RowMapper(ApprovalRequest, SQL.list_requests_since)
_DECISION_COUNTS = RowMapper(DecisionCount, SQL.count_decisions)
_DECISIONS = RowMapper(DecisionRecord, SQL.list_decisions)
_STEPS = RowMapper(RequestingStep, SQL.load_requesting_step)
_LINKS = RowMapper(LinkRecord, SQL.load_link, SQL.use_link)


async def load_requesting_step(database: Database, task_id: UUID) -> RequestingStep | None:
    """Return the execution and the position of a step."""
    return _STEPS.optional(await database.fetch_one(SQL.load_requesting_step, task_id))


async def request_approval(connection: Connection, task: Task, new: NewApproval, now: datetime) -> None:
    """Store an approval and the wait of its step, both or none; raise StaleLease if the task is no longer held."""
    wait = EventWait(APPROVAL_WAIT.step, APPROVAL_WAIT.number, APPROVAL_EVENT, str(task.id), new.expires_at)
    await external_events.insert_wait(connection, task, wait, now)
    requester = new.requester
    await connection.execute(
        SQL.insert_approval, task.id, task.activity_id, new.execution_id, new.schedule_name, new.step, new.message,
        new.context, new.role, list(new.approvers), new.required_count, new.on_deadline, now, new.expires_at,
        requester.type, requester.id, requester.name,
    )  # fmt: skip


async def find_approval(database: Database, id: UUID) -> ApprovalRecord | None:
    """Return one approval."""
    return _APPROVALS.optional(await database.fetch_one(SQL.load_approval, id))


async def load_approval(connection: Connection, id: UUID) -> ApprovalRecord | None:
    """Return one approval."""
    return _APPROVALS.optional(await connection.fetchrow(SQL.load_approval, id))


async def lock_approval(connection: Connection, id: UUID) -> ApprovalRecord | None:
    """Return one approval, and let no other transaction decide or expire it."""
    if await connection.fetchval(SQL.lock_approval, id) is None:
        return None
    return await load_approval(connection, id)  # read after the lock


async def insert_decision(
    connection: Connection,
    id: UUID,
    actor: Actor,
    decision: Decision,
    reason: str | None,
    now: datetime,
    *,
    via_link: bool,
) -> bool:
    """Store the decision of a person; return False if the person has decided before."""
    values = (id, actor.name, actor.type, actor.id, decision, reason, via_link, now)
    return await connection.fetchval(SQL.insert_decision, *values) is not None


async def end_approval(connection: Connection, id: UUID, state: ApprovalState, now: datetime) -> None:
    """End a pending approval and the wait of its step."""
    await connection.execute(SQL.end_approval, id, state, now)
    await external_events.end_waits_of_task(connection, id, APPROVAL_EVENT, now)


async def list_decisions(database: Database, ids: Sequence[UUID]) -> list[DecisionRecord]:
    """Return the decisions of approvals."""
    return _DECISIONS.all(await database.fetch_all(SQL.list_decisions, list(ids)))


async def load_decisions(connection: Connection, id: UUID) -> list[DecisionRecord]:
    """Return the decisions of an approval."""
    return _DECISIONS.all(await connection.fetch(SQL.list_decisions, [id]))


async def list_approvals(
    database: Database,
    *,
    state: str | None,
    execution_id: UUID | None,
    below: tuple[datetime, UUID] | None,
    limit: int,
) -> list[ApprovalRecord]:
    """Return approvals, newest first."""
    instant, id = below or (None, None)
    return _APPROVALS.all(await database.fetch_all(SQL.list_approvals, state, execution_id, instant, id, limit))


async def list_pending_approvals(database: Database, limit: int) -> list[ApprovalRecord]:
    """Return the approvals that wait for a decision, the first deadline first."""
    return _APPROVALS.all(await database.fetch_all(SQL.list_pending_approvals, limit))


def query_pending_approvals(group: StatementGroup, limit: int) -> Rows[ApprovalRecord]:
    """Add the query of `list_pending_approvals` to a group."""
    return group.add(_APPROVALS, SQL.list_pending_approvals, limit)


async def list_requests_since(database: Database, since: datetime, limit: int) -> list[ApprovalRequest]:
    """Return the approvals that were requested after an instant."""
    return _REQUESTS.all(await database.fetch_all(SQL.list_requests_since, since, limit))


async def count_decisions(database: Database, limit: int) -> list[DecisionCount]:
    """Return the approvals that wait for a decision, with the number of decisions about each."""
    return _DECISION_COUNTS.all(await database.fetch_all(SQL.count_decisions, limit))


async def find_approvals(database: Database, first: UUID, last: UUID) -> list[UUID]:
    """Return the ids of up to three approvals in a range."""
    return [row["id"] for row in await database.fetch_all(SQL.find_approvals, first, last)]


async def insert_link(
    connection: Connection, link: bytes, id: UUID, person: str, now: datetime, by: str, expires_at: datetime
) -> bool:
    """Store the digest of a link with which a person decides; return False if it is stored."""
    return await connection.fetchrow(SQL.insert_link, link, id, person, now, by, expires_at) is not None


async def find_link(database: Database, link: bytes, now: datetime) -> LinkRecord | None:
    """Return the link with a digest, if it can be used."""
    return _LINKS.optional(await database.fetch_one(SQL.load_link, link, now))


async def use_link(connection: Connection, link: bytes, person: str, now: datetime) -> LinkRecord | None:
    """Use the link of a person, and return it; None if it was used, has expired or is that of another person."""
    return _LINKS.optional(await connection.fetchrow(SQL.use_link, link, now, person))


async def end_links(connection: Connection) -> None:
    """End all links that can still be used."""
    await connection.execute(SQL.end_links)


async def delete_ended_approvals(database: Database, cutoff: datetime, limit: int) -> int:
    """Delete a small batch of approvals that were requested before the cut-off; return their number."""
    return len(await database.write_all(SQL.delete_ended_approvals, cutoff, limit))
