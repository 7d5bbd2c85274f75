"""Approvals in the dashboard: the list, one approval, and the cards on the overview and on the page of an execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tenuto.api.list_pages import cursor_instant, decode_cursor, encode_cursor
from tenuto.errors import Invalid, NotFound
from tenuto.extension import PageRequest
from tenuto.model.events.approvals import ApprovalState, DeadlineRule
from tenuto.operations.events.approvals import Approvals, describe_approvers
from tenuto.presentation.event_views import APPROVALS
from tenuto.store.events.approvals import ApprovalRecord, DecisionRecord
from tenuto.web.components.extension_kit import Action, FilterField, Table, path_of
from tenuto.web.components.html_templates import HtmlPattern

APPROVALS_OF_PAGE = 50
MAX_CARDS = 20
_COLUMNS = {column.name: column for column in APPROVALS.columns}
_VIEW = replace(
    APPROVALS,
    columns=tuple(
        _COLUMNS[name] for name in ("message", "state", "approved", "schedule", "step", "requested", "until")
    ),
)
"""The columns of the command line, with the question first: its text is the link to the approval."""
_LINK = HtmlPattern('<a href="{}">{}</a>')
_DEADLINE_EFFECTS = {
    DeadlineRule.FAIL: "the step fails",
    DeadlineRule.APPROVE: "the step completes with a warning",
    DeadlineRule.REJECT: "the step fails as after a rejection",
    DeadlineRule.SKIP: "the step is skipped",
}


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval in a card."""

    approval: ApprovalRecord
    path: str
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class ApprovalPage:
    """The page of one approval."""

    approval: ApprovalRecord
    decisions: Sequence[DecisionRecord]
    actions: Sequence[Action]

    def facts(self, ui: Any, links: Any) -> list[tuple[str, Any]]:
        """Return names and values for the heading."""
        approval = self.approval
        is_pending = approval.state is ApprovalState.PENDING
        facts = [
            (
                "Schedule",
                approval.schedule_name and _LINK.format(links.schedule(approval.schedule_name), approval.schedule_name),
            ),
            (
                "Execution",
                approval.execution_id
                and _LINK.format(links.execution(approval.execution_id), ui.id(approval.execution_id)),
            ),
            ("Approved", f"{approval.approval_count} of {approval.required_count}"),
            ("May decide", describe_approvers(approval)),
            ("Requested", ui.age(approval.requested_at)),
            ("By", approval.requester_name),
        ]
        if is_pending:
            facts += [
                ("Deadline", ui.soon(approval.expires_at)),
                ("Without a decision", _DEADLINE_EFFECTS[approval.on_deadline]),
            ]
        elif approval.ended_at is not None:
            facts.append(("Ended", ui.age(approval.ended_at)))
        return [(name, value) for name, value in facts if value is not None]


async def load_approvals(request: PageRequest) -> Table:
    """Return the list of approvals."""
    state = request.query.get("state", "")
    if state and state not in list(ApprovalState):
        raise Invalid(f"{state!r} is not a state of approvals", code="approval.state.unknown", field="state")
    after = request.query.get("after") or None
    cursor = decode_cursor(after, cursor_instant, UUID)
    below = (cursor[0], cursor[1]) if cursor else None
    found = await _operations(request).list(state=state or None, below=below, limit=APPROVALS_OF_PAGE)
    return Table(
        "Approvals",
        _VIEW,
        found,
        "/approvals",
        link=_path,
        next=encode_cursor(found[-1].requested_at, found[-1].id) if len(found) == APPROVALS_OF_PAGE else None,
        is_first=after is None,
        filters=[FilterField("state", "State", state, tuple(ApprovalState))],
        actions=lambda approval: _actions(request, approval),
        empty="No step has requested an approval yet. A step of the kind approval waits until persons approve.",
    )


async def load_approval(request: PageRequest) -> ApprovalPage:
    """Return one approval with its decisions."""
    try:
        id = UUID(request.parameters["id"])
    except ValueError:
        raise NotFound("there is no approval with this id", code="approval.not_found") from None
    found = await _operations(request).get(id)
    return ApprovalPage(found.approval, found.decisions, _actions(request, found.approval))


async def load_pending_panel(request: PageRequest) -> Sequence[ApprovalRow] | None:
    """Return the approvals that wait for a decision, for the overview."""
    return _rows(request, await _operations(request).pending(limit=MAX_CARDS))


async def load_execution_panel(request: PageRequest) -> Sequence[ApprovalRow] | None:
    """Return the approvals of an execution, for its page."""
    id = getattr(request.subject, "id", None)
    if not isinstance(id, UUID):
        return None
    return _rows(request, await _operations(request).list(execution_id=id, limit=MAX_CARDS))


def _operations(request: PageRequest) -> Approvals:
    operations: Approvals = request.operations
    return operations


def _rows(request: PageRequest, found: Sequence[ApprovalRecord]) -> list[ApprovalRow] | None:
    return [ApprovalRow(each, _path(each), _actions(request, each)) for each in found] or None


def _path(approval: ApprovalRecord) -> str:
    return path_of("approvals", approval.id)


def _actions(request: PageRequest, approval: ApprovalRecord) -> list[Action]:
    if approval.state is not ApprovalState.PENDING:
        return []
    allowed = _operations(request).may_decide(approval, request.role)
    blocked = "" if allowed else f"It can be decided by {describe_approvers(approval)}"
    parameters = {"id": approval.id}
    return [
        Action(
            "approvals_approve",
            "Approve…",
            parameters,
            text=f"{approval.message}",
            reason="optional",
            submit="Approve",
            done="Your approval was recorded.",
            blocked=blocked,
            style="primary",
        ),
        Action(
            "approvals_reject",
            "Reject…",
            parameters,
            text="The step fails.",
            reason="optional",
            submit="Reject",
            done="Your rejection was recorded.",
            blocked=blocked,
        ),
    ]
