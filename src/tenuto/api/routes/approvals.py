"""``/api/v1/approvals``: list approvals, approve, reject, and create links with which persons decide."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body, ReasonBody
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, cursor_instant, decode_cursor, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto.model.events.approvals import ApprovalState, DeadlineRule, Decision
from tenuto.operations.events.approvals import LINK_LIFETIME, ApprovalDetails
from tenuto.presentation.event_views import APPROVALS
from tenuto.store.events.approvals import ApprovalRecord

router = APIRouter(prefix="/api/v1/approvals", tags=["approvals"], route_class=ApiRoute)

ITEM: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "execution_id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a2",
    "schedule_name": "release",
    "step": "go live",
    "message": "Deploy version 4.2 to production?",
    "context": {"version": "4.2"},
    "role": None,
    "approvers": ["ana", "ben"],
    "required_count": 2,
    "on_deadline": "fail",
    "requested_at": "2031-05-04T02:00:00Z",
    "expires_at": "2031-05-06T02:00:00Z",
    "requester_name": "scheduler",
    "state": "pending",
    "ended_at": None,
    "approval_count": 1,
}
DECISION: dict[str, Any] = {
    "person": "ana",
    "decision": "approve",
    "reason": "tests are green",
    "via_link": False,
    "decided_at": "2031-05-04T08:00:00Z",
}
EXAMPLE = {**ITEM, "decisions": [DECISION]}
LINK = {
    "approval_id": ITEM["id"],
    "person": "ana",
    "expires_at": "2031-05-06T02:00:00Z",
    "link": "tna_…",
    "path": "/approve?link=tna_…",
    "url": "https://tenuto.example.org/approve?link=tna_…",
}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "approval.read")]
_DECISION_PROBLEMS: dict[str, Any] = {
    "not_found": "approval.not_found",
    "forbidden": "approval.not_an_approver",
    "conflict": ("approval.not_pending", "approval.expired", "approval.already_decided"),
    "invalid": "value.too_large",
}


_DecisionValue = Literal[Decision.APPROVE, Decision.REJECT]
"""Described inline: `Decision` is the name of decisions about due times, and generated clients need names once."""


class ApprovalDecision(BaseModel):
    """The decision of one person."""

    person: str
    decision: _DecisionValue
    reason: str | None
    via_link: bool = Field(description="Whether the person decided by a link instead of logging in.")
    decided_at: datetime


class Approval(BaseModel):
    """An approval with the decisions about it."""

    id: UUID = Field(description="Id of the task of the step.")
    execution_id: UUID | None
    schedule_name: str | None
    step: str
    message: str
    context: dict[str, Any]
    role: str | None = Field(description="Callers with this role or a higher one may decide.")
    approvers: list[str] = Field(description="Persons who may decide, whatever their role.")
    required_count: int
    on_deadline: DeadlineRule
    requested_at: datetime
    expires_at: datetime
    requester_name: str
    state: ApprovalState
    ended_at: datetime | None
    approval_count: int
    decisions: list[ApprovalDecision]


class NewLink(Body):
    """A link for a person."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"person": "ana", "lifetime_seconds": 86400}]})

    person: str = Field(min_length=1, max_length=200, description="One of the approvers.")
    lifetime_seconds: float = Field(
        default=LINK_LIFETIME.total_seconds(), ge=60, le=30 * 86_400, description="How long the link is valid."
    )


class ApprovalLink(BaseModel):
    """A link with which one person decides once. Its text is not stored."""

    approval_id: UUID
    person: str
    expires_at: datetime
    link: str
    path: str = Field(description="Path of the page in the web service.")
    url: str | None = Field(description="Address of the page; null if the setting `base_url` is not set.")


@router.get("", operation_id="approvals_list", responses=describe_page(ITEM))
@listed_as(APPROVALS)
async def list_approvals(
    call: Viewer,
    state: ApprovalState | None = None,
    execution_id: Annotated[UUID | None, Query(description="Execution whose step requested it.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[ApprovalRecord]:
    """List approvals, newest first."""
    found = await call.app.approvals.list(
        state=state, execution_id=execution_id, below=decode_cursor(after, cursor_instant, UUID), limit=limit
    )
    return make_page(found, limit, lambda each: (each.requested_at, each.id))


@router.get("/{id}", operation_id="approvals_get", responses=describe(EXAMPLE, not_found="approval.not_found"))
async def get_approval(call: Viewer, id: Id) -> Approval:
    """Get an approval with the decisions about it."""
    return _to_body(await call.app.approvals.get(id))


@router.post("/{id}/approve", operation_id="approvals_approve", responses=describe(EXAMPLE, **_DECISION_PROBLEMS))
async def approve(
    call: Annotated[ApiCall, requires(Role.VIEWER, "approval.approve", handles_repeats=True)],
    id: Id,
    body: ReasonBody | None = None,
) -> Approval:
    """Approve what a step waits for. The approval names who may: persons whatever their role, or a role. The step
    continues when enough persons have approved."""
    # A repeated request finds its decision.
    reason = (body and body.reason) or call.reason
    return _to_body(await call.app.approvals.approve(id, reason, role=call.caller.role))


@router.post("/{id}/reject", operation_id="approvals_reject", responses=describe(EXAMPLE, **_DECISION_PROBLEMS))
async def reject(
    call: Annotated[ApiCall, requires(Role.VIEWER, "approval.reject", handles_repeats=True)],
    id: Id,
    body: ReasonBody | None = None,
) -> Approval:
    """Reject what a step waits for. The step fails; whether the execution goes on is decided by its
    `continue_on_failure`."""
    # A repeated request finds its decision.
    reason = (body and body.reason) or call.reason
    return _to_body(await call.app.approvals.reject(id, reason, role=call.caller.role))


@router.post(
    "/{id}/links",
    operation_id="approvals_create_link",
    status_code=201,
    responses=describe(
        LINK,
        201,
        not_found="approval.not_found",
        conflict=("approval.not_pending", "approval.expired"),
        invalid="approval.link.not_an_approver",
    ),
)
async def create_link(
    call: Annotated[ApiCall, requires(Role.ADMIN, "approval.link", stores_response=False)], id: Id, new: NewLink
) -> ApprovalLink:
    """Create a link with which a named approver decides once, without logging in. The page behind it asks for
    confirmation; opening it decides nothing."""
    found = await call.app.approvals.create_link(id, new.person, lifetime=timedelta(seconds=new.lifetime_seconds))
    base_url = call.app.settings.base_url
    return ApprovalLink(**asdict(found), url=base_url and f"{base_url}{found.path}")


def _to_body(found: ApprovalDetails) -> Approval:
    return Approval.model_validate(
        {
            **{name: getattr(found.approval, name) for name in Approval.model_fields if name != "decisions"},
            "decisions": [
                {name: getattr(each, name) for name in ApprovalDecision.model_fields} for each in found.decisions
            ],
        }
    )
