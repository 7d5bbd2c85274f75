"""Approval steps: who may decide, when the step continues, and what the deadline does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Step, Tenuto, manual
from tenuto.model.access.actors import Role
from tenuto.model.events.approvals import Decision
from tenuto.operations.admin.backups import end_restored_access
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.store.events import approvals
from tenuto.store.events.approvals import ApprovalRecord
from tenuto.testing import TimeMachine
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


async def find_pending(app: Tenuto) -> ApprovalRecord:
    async def find() -> ApprovalRecord | None:
        found = await app.approvals.pending()
        return found[0] if found and (await app.task(found[0].id)).state == "scheduled" else None

    found: ApprovalRecord = await eventually(find)
    return found


async def start(app: Tenuto, *steps: Step) -> UUID:
    await app.schedules.apply([schedule_definition("release", manual(), list(steps))])
    started = (await app.schedules.run("release")).execution_id
    assert started is not None
    return started


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
    assert "approved by ana: tested" in (record.log or "")


async def test_rejected_step_fails_the_execution(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        id = await start(app, Step.approval("Deploy?", role="editor"))
        approval = await find_pending(app)
        await app.acting_as(Actor.user("eve")).approvals.reject(approval.id, "not today", role=Role.EDITOR)
        ended = await app.executions.wait(id, timeout=10)
    assert (ended.state, "rejected by eve: not today" in (ended.error or "")) == ("failed", True)


async def test_only_named_persons_and_roles_decide_each_once(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        await start(app, Step.approval("Deploy?", approvers=["ana"], role="editor", count=2))
        approval = await find_pending(app)
        eve, ana = app.acting_as(Actor.user("eve")), app.acting_as(Actor.user("ana"))
        with raises_code("approval.not_an_approver"):
            await eve.approvals.approve(approval.id, role=Role.OPERATOR)
        await ana.approvals.approve(approval.id, role=Role.VIEWER)
        repeated = await ana.approvals.approve(approval.id, role=Role.VIEWER)
        assert (repeated.approval.approval_count, len(repeated.decisions)) == (1, 1)
        with raises_code("approval.already_decided"):
            await ana.approvals.reject(approval.id, role=Role.VIEWER)
        await eve.approvals.approve(approval.id, role=Role.EDITOR)
        with raises_code("approval.not_pending"):
            await app.acting_as(Actor.user("ben")).approvals.approve(approval.id)


@pytest.mark.parametrize(
    ("rule", "state", "decision"),
    [
        ("fail", "failed", None),
        ("reject", "failed", None),
        ("approve", "completed_with_warning", "approved"),
        ("skip", "completed_with_warning", "skipped"),
    ],
)
async def test_deadline_decides_by_its_rule(app: Tenuto, rule: Any, state: str, decision: str | None) -> None:
    await app.schedules.apply(
        [schedule_definition("release", manual(), [Step.approval("Go?", deadline="2d", on_deadline=rule)])]
    )
    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        await app.schedules.run("release")
        await time.run_until_idle()
        (approval,) = await app.approvals.pending()
        await time.advance("47h")
        assert (await app.approvals.get(approval.id)).approval.state == "pending"
        await time.advance("1h")
        record = (await app.attempts(approval.id))[-1]
        assert (await app.approvals.get(approval.id)).approval.state == "expired"
        with raises_code("approval.not_pending"):
            await app.approvals.approve(approval.id)
    assert record.state == state
    assert (record.output or {}).get("decision") == decision


async def test_decision_after_the_deadline_is_refused_before_the_step_continues(
    app: Tenuto, worker: WorkerFactory, sql: Sql
) -> None:
    async with worker():
        await start(app, Step.approval("Go?"))
        approval = await find_pending(app)
    await sql("UPDATE tenuto.approvals SET expires_at = now() - interval '1 s'")
    with raises_code("approval.expired"):
        await app.approvals.approve(approval.id)


async def test_cancelled_execution_withdraws_the_approval(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        id = await start(app, Step.approval("Go?"))
        approval = await find_pending(app)
        await app.executions.cancel(id)
        with raises_code("approval.not_pending"):
            await app.approvals.approve(approval.id)
    assert (await app.approvals.get(approval.id)).approval.state == "withdrawn"
    assert await app.approvals.pending() == []


async def test_why_and_attention_name_the_approval(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        id = await start(app, Step.approval("Go?", name="go live"))
        approval = await find_pending(app)
        (reason,) = (await app.executions.why(id)).reasons
        overview = await app.reports.overview()
    assert (reason.code, reason.command) == ("waits_for_approval", f"tenuto approval approve {approval.id}")
    assert [(each.code, each.id) for each in overview.attention] == [("approval_pending", str(approval.id))]


async def test_time_machine_approves_by_the_name_of_the_step(app: Tenuto) -> None:
    await app.schedules.apply([schedule_definition("release", manual(), [Step.approval("Go?", name="go live")])])
    async with TimeMachine(app, start="2031-03-24T00:00:00Z") as time:
        started = (await app.schedules.run("release")).execution_id
        assert started is not None
        await time.run_until_idle()
        with raises_code("testing.approval.not_found"):
            await time.approve("go", by="ana")
        await time.approve("go live", by="ana")
        assert (await app.executions.get(started)).state == "completed"


async def test_more_approvals_than_approvers_are_refused(app: Tenuto) -> None:
    with raises_code("job.input.invalid"):
        await start(app, Step.approval("Go?", approvers=["ana"], count=2))


async def test_approvals_of_ended_steps_are_deleted(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        id = await start(app, Step.approval("Go?"))
        await find_pending(app)
        database = await app.open()
        later = database.clock.now() + timedelta(minutes=1)
        assert await approvals.delete_ended_approvals(database, later, 10) == 0
        await app.executions.cancel(id)
    assert await approvals.delete_ended_approvals(database, later, 10) == 1


async def test_expired_link_does_not_decide(app: Tenuto, worker: WorkerFactory, sql: Sql) -> None:
    async with worker():
        await start(app, Step.approval("Go?", approvers=["ana"]))
        approval = await find_pending(app)
    ana = app.acting_as(Actor.user("ana"))
    link = (await app.approvals.create_link(approval.id, "ana")).link
    with raises_code("approval.link.not_an_approver"):
        await app.approvals.create_link(approval.id, "eve")
    assert await app.acting_as(Actor.user("eve")).approvals.decide_by_link(link, Decision.APPROVE) is None
    await sql("UPDATE tenuto.approval_links SET expires_at = now() - interval '1 s', used_at = NULL")
    assert await ana.approvals.open_link(link) is None
    assert await ana.approvals.decide_by_link(link, Decision.APPROVE) is None
    assert (await app.approvals.get(approval.id)).decisions == []


async def test_restored_link_does_not_decide(app: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        await start(app, Step.approval("Go?", approvers=["ana"]))
        approval = await find_pending(app)
    link = (await app.approvals.create_link(approval.id, "ana")).link
    assert await app.approvals.open_link(link) is not None
    await (await app.open()).transaction(lambda connection: end_restored_access(connection, "ana"))
    assert await app.approvals.open_link(link) is None
