"""Approval steps: who may decide, when the step continues, and what the deadline does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tenuto import Actor, Step, Tenuto, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.store.events.approvals import ApprovalRecord
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


async def find_pending(app: Tenuto) -> ApprovalRecord:
    async def find() -> ApprovalRecord | None:
        found = await app.approvals.pending()
        return found[0] if found and (await app.task(found[0].id)).state == "scheduled" else None

    return await eventually(find)


async def start(app: Tenuto, *steps: Step) -> UUID:
    await app.schedules.apply([schedule_definition("release", manual(), list(steps))])
    return (await app.schedules.run("release")).execution_id  # type: ignore[return-value]


async def test_approved_step_completes_with_the_names_of_the_approvers(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def deploy() -> str:
        return "deployed"

    gate = Step.approval("Deploy 4.2?", approvers=["ana", "ben"], count=2, context={"version": "4.2"}, name="go live")
    async with worker():
        id = await start(app, gate, Step.job(deploy))
        approval = await find_pending(app)
        await app.acting_as(Actor.user("ana")).approvals.approve(approval.id, "tested", role=Role.VIEWER)
        assert (await app.approvals.get(approval.id)).approval.approval_count == 1
        details = await app.acting_as(Actor.user("ben")).approvals.approve(approval.id, role=Role.VIEWER)
        ended = await app.executions.wait(id, timeout=10)

    assert (approval.step, approval.schedule_name, approval.context) == ("go live", "release", {"version": "4.2"})
    assert details.approval.state == "approved"
    assert ended.state == "completed"
    record = (await app.attempts(approval.id))[-1]
    assert [each["name"] for each in record.output["approved_by"]] == ["ana", "ben"]
    assert "approved by ana: tested" in (await app.attempts(approval.id))[-1].log
