"""The database committed what was done with the link of an approval, but the reply is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenuto import Actor, Step, Tenuto, manual
from tenuto.model.events.approvals import Decision
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.store.events import approvals
from tenuto.store.events.approvals import ApprovalRecord
from tests.races.proxy import Proxy
from tests.support.waiting import eventually

ANA = Actor.user("ana")


@pytest.fixture
async def proxied_app(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(proxy.url, home=tmp_path) as app:
        yield app


@pytest.fixture
async def approval(proxied_app: Tenuto) -> ApprovalRecord:
    step = Step.approval("Go?", approvers=["ana"], count=1)
    await proxied_app.schedules.apply([schedule_definition("release", manual(), [step])])
    async with proxied_app.worker():
        await proxied_app.schedules.run("release")
        (found,) = await eventually(proxied_app.approvals.pending)
    pending: ApprovalRecord = found
    return pending


async def count_entries(db: Database, action: str) -> int:
    found: int = await db.fetch_value("SELECT count(*) FROM tenuto.audit WHERE action = $1", action)
    return found


async def test_decision_by_link_is_reported_despite_a_lost_reply(
    proxied_app: Tenuto, db: Database, proxy: Proxy, approval: ApprovalRecord
) -> None:
    link = (await proxied_app.approvals.create_link(approval.id, "ana")).link
    proxy.lose_reply("COMMIT", within=approvals.SQL.use_link)
    decided = await proxied_app.acting_as(ANA).approvals.decide_by_link(link, Decision.APPROVE)
    assert proxy.lost == 1
    assert decided is not None
    assert decided.state == "approved"
    assert len(await approvals.list_decisions(db, [approval.id])) == 1
    assert await count_entries(db, "approval.approve") == 1
    assert await proxied_app.acting_as(ANA).approvals.decide_by_link(link, Decision.APPROVE) is None


async def test_link_created_despite_a_lost_reply_can_be_used(
    proxied_app: Tenuto, db: Database, proxy: Proxy, approval: ApprovalRecord
) -> None:
    proxy.lose_reply("COMMIT", within=approvals.SQL.insert_link)
    link = (await proxied_app.acting_as(ANA).approvals.create_link(approval.id, "ana")).link
    assert proxy.lost == 1
    assert await db.fetch_value("SELECT count(*) FROM tenuto.approval_links") == 1
    assert await count_entries(db, "approval.link") == 1
    assert await proxied_app.acting_as(ANA).approvals.decide_by_link(link, Decision.APPROVE) is not None
