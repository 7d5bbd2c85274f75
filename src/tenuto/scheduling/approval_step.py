"""Approval as a step of a schedule: the task of the step requests a decision and gives up its slot until it is made.

The approval has the id of the task, so that a repeated attempt continues with it. Which decision was made, and by whom,
is the output of the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tenuto.jobs.context import Context, PermanentFailure, TaskDeferred
from tenuto.jobs.step_kind import StepKind
from tenuto.logs import Log
from tenuto.model import validation
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import plan_from_json
from tenuto.model.definitions.steps import APPROVAL
from tenuto.model.events.approvals import ApprovalState, DeadlineRule
from tenuto.model.events.event_names import parse_wait_seconds
from tenuto.model.work.tasks import Deferral
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import retry_while_unavailable
from tenuto.store.events import approvals
from tenuto.store.events.approvals import APPROVAL_WAIT, ApprovalRecord, DecisionRecord, NewApproval

MAX_CONTEXT_BYTES = 64 * 1024

log = Log("tenuto.steps")


class ApprovalArguments(BaseModel):
    """Arguments of an approval step. Without ``role`` and ``approvers``, operators may decide."""

    model_config = ConfigDict(extra="forbid")

    message: Annotated[str, Field(min_length=1, max_length=4000)]
    """What is to be decided."""
    context: dict[str, Any] = {}
    """Data that helps to decide, shown with the message."""
    role: Literal["viewer", "operator", "editor", "admin"] | None = None
    """Callers with this role or a higher one may decide."""
    approvers: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)] = []
    """Names of persons who may decide, whatever their role."""
    count: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of persons who must approve. One rejection rejects."""
    deadline: float | str | None = None
    """Maximum time to wait, such as ``2d``; 366 days if it is left out."""
    on_deadline: Literal["fail", "approve", "reject", "skip"] = "fail"
    """What happens then: the step fails, counts as approved or as rejected, or completes as skipped."""

    @model_validator(mode="after")
    def _check(self) -> ApprovalArguments:
        if self.role is None and self.approvers and self.count > len(set(self.approvers)):
            raise PydanticCustomError(
                "approval_count",
                "{count} approvals are required, but only {named} persons may decide",
                {"count": self.count, "named": len(set(self.approvers))},
            )
        parse_wait_seconds(self.deadline)
        validation.dump_json(self.context, field="context", limit=MAX_CONTEXT_BYTES)
        return self


def approval_kind(open: Callable[[], Awaitable[Database]]) -> StepKind:
    """Return the step kind ``approval``."""

    async def run(arguments: ApprovalArguments, ctx: Context) -> dict[str, Any]:
        async def check() -> dict[str, Any]:
            return await _check_approval(await open(), ctx, arguments)

        return await retry_while_unavailable(check, log, "check of approval postponed", task_id=str(ctx.task_id))

    return StepKind.of(
        APPROVAL,
        ApprovalArguments,
        run,
        help="Wait until persons approve or reject, or until a deadline",
        policy=TaskPolicy(RetryPolicy(max_attempts=1)),
    )


async def _check_approval(database: Database, ctx: Context, arguments: ApprovalArguments) -> dict[str, Any]:
    """Request the approval at the first call; return the output once it is decided."""
    # The worker that resumes at the deadline may be slightly behind the clock of the one that promoted the task.
    now = max(database.clock.now(), ctx.task.run_at)
    approval = await approvals.find_approval(database, ctx.task_id)
    if approval is None:
        approval = await _request(database, ctx, arguments)
    elif approval.state is ApprovalState.PENDING and approval.expires_at <= now:
        approval = await _expire(database, ctx)
    if approval.state is ApprovalState.PENDING:
        ctx.progress(
            approval.approval_count, approval.required_count, f"waits for approval: {approval.message.splitlines()[0]}"
        )
        raise TaskDeferred(Deferral(resume_at=approval.expires_at, waits=(APPROVAL_WAIT,)))
    decisions = await approvals.list_decisions(database, [approval.id])
    for each in decisions:
        verb = "approved" if each.decision == "approve" else "rejected"
        ctx.log.info("%s by %s%s", verb, each.person, f": {each.reason}" if each.reason else "")
    ctx.progress(approval.approval_count, approval.required_count, str(approval.state))
    return _conclude(ctx, approval, decisions)


async def _request(database: Database, ctx: Context, arguments: ApprovalArguments) -> ApprovalRecord:
    step = await approvals.load_requesting_step(database, ctx.task_id)
    name = ctx.task.name
    if step is not None and step.plan_json is not None and step.step_index is not None:
        name = plan_from_json(step.plan_json).step_at(step.step_index).name
    now = database.clock.now()
    new = NewApproval(
        name,
        ctx.task.execution_id,
        None if step is None else step.schedule_name,
        arguments.message,
        validation.dump_json(arguments.context, field="context", limit=MAX_CONTEXT_BYTES),
        arguments.role or (None if arguments.approvers else "operator"),
        sorted(set(arguments.approvers)),
        arguments.count,
        arguments.on_deadline,
        now + timedelta(seconds=parse_wait_seconds(arguments.deadline)),
        ctx.initiator,
    )

    async def request(connection: Connection) -> ApprovalRecord:
        await approvals.request_approval(connection, ctx.task, new, now)
        return _existing(await approvals.load_approval(connection, ctx.task_id))

    return await database.transaction(request)


async def _expire(database: Database, ctx: Context) -> ApprovalRecord:
    """End the approval at its deadline, unless a decision was made at the last moment."""
    now = max(database.clock.now(), ctx.task.run_at)

    async def expire(connection: Connection) -> ApprovalRecord:
        found = _existing(await approvals.lock_approval(connection, ctx.task_id))
        if found.state is not ApprovalState.PENDING:
            return found
        await approvals.end_approval(connection, found.id, ApprovalState.EXPIRED, now)
        return _existing(await approvals.load_approval(connection, ctx.task_id))

    return await database.transaction(expire)


def _existing(approval: ApprovalRecord | None) -> ApprovalRecord:
    assert approval is not None
    return approval


def _conclude(ctx: Context, approval: ApprovalRecord, decisions: list[DecisionRecord]) -> dict[str, Any]:
    """Return the output of a step that continues; raise the failure of one that does not."""
    rejection = next((each for each in decisions if each.decision == "reject"), None)
    if rejection is not None:
        raise PermanentFailure(
            f"rejected by {rejection.person}{f': {rejection.reason}' if rejection.reason else ''}",
            code="approval.rejected",
        )
    decision = "approved"
    if approval.state is ApprovalState.EXPIRED:
        shortfall = f"{approval.approval_count} of {approval.required_count} persons approved until the deadline"
        if approval.on_deadline is DeadlineRule.FAIL:
            raise PermanentFailure(shortfall, code="approval.expired")
        if approval.on_deadline is DeadlineRule.REJECT:
            raise PermanentFailure(f"rejected, because {shortfall}", code="approval.rejected")
        ctx.warn(shortfall)
        decision = "skipped" if approval.on_deadline is DeadlineRule.SKIP else "approved"
    return {
        "decision": decision,
        "by_deadline": approval.state is ApprovalState.EXPIRED,
        "approved_by": [
            {"name": each.person, "reason": each.reason, "decided_at": each.decided_at.isoformat()}
            for each in decisions
        ],
    }
