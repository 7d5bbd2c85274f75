"""The page behind an approval link: opening it decides nothing, its buttons decide once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tenuto import Step, Tenuto, manual
from tenuto.api.application import add_middleware
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.web.application import create_web_application
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


@pytest.fixture
async def client(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser without a login."""
    application = add_middleware(app, create_web_application(app))
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_link_decides_once_and_not_by_opening_it(
    app: Tenuto, worker: WorkerFactory, client: httpx2.AsyncClient
) -> None:
    gate = Step.approval("Deploy <b>4.2</b>?", approvers=["ana"], context={"version": "4.2"})
    await app.schedules.apply([schedule_definition("release", manual(), [gate])])
    async with worker():
        id = (await app.schedules.run("release")).execution_id
        assert id is not None
        (approval,) = await eventually(app.approvals.pending)
        link = await app.approvals.create_link(approval.id, "ana")
        for _ in range(3):  # a chat program previews the link
            page = await client.get(link.path)
            assert (page.status_code, "Deploy &lt;b&gt;4.2" in page.text) == (200, True)
        assert (await app.approvals.get(approval.id)).decisions == []

        form = {"link": link.link, "decision": "approve", "reason": "fine"}
        cross_site = await client.post("/approve", data=form, headers={"Origin": "https://evil.example"})
        assert cross_site.status_code == 403
        decided = await client.post("/approve", data=form)
        assert (decided.status_code, "Your decision was recorded" in decided.text) == (200, True)
        assert (await client.post("/approve", data=form)).status_code == 404
        assert (await client.get(link.path)).status_code == 404
        assert (await app.executions.wait(id, timeout=10)).state == "completed"

    (decision,) = (await app.approvals.get(approval.id)).decisions
    assert (decision.person, decision.reason, decision.via_link) == ("ana", "fine", True)
