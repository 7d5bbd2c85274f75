"""Decisions of approvals: who may decide, and what follows from the decisions and from the deadline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from tenuto.model.access.actors import Role


class ApprovalState(StrEnum):
    """State of an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """The deadline has passed without a decision."""
    WITHDRAWN = "withdrawn"
    """The step ended before a decision, for example because its execution was cancelled."""


class Decision(StrEnum):
    """The decision of one person."""

    APPROVE = "approve"
    REJECT = "reject"


class DeadlineRule(StrEnum):
    """What happens when the deadline of an approval has passed."""

    FAIL = "fail"
    """The step fails."""
    APPROVE = "approve"
    """The step completes, with a warning that no person decided."""
    REJECT = "reject"
    """The step fails like after a rejection."""
    SKIP = "skip"
    """The step completes with the decision ``skipped``."""


def may_decide(name: str, role: Role | None, *, needed: str | None, approvers: Collection[str]) -> bool:
    """Return whether a caller may decide: a named person, or a caller with the needed role or a higher one."""
    if name in approvers:
        return True
    return needed is not None and role is not None and role >= Role.from_key(needed)


def state_after(decisions: Sequence[Decision], required_count: int) -> ApprovalState:
    """Return the state that follows from all decisions: one rejection rejects, enough approvals approve."""
    if Decision.REJECT in decisions:
        return ApprovalState.REJECTED
    return ApprovalState.APPROVED if len(decisions) >= required_count else ApprovalState.PENDING
