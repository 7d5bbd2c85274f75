"""Pages of a step that waits for an approval: it neither runs nor is queued, and the question leads to its decision."""

from __future__ import annotations

import re

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.testing import run_until_idle
from tests.api.conftest import ApiClient
from tests.web.conftest import get_page, log_in


async def test_step_that_waits_for_an_approval_does_not_run(service: ApiClient) -> None:
    app = service.app
    gate = Step.approval("Deploy <b>4.2</b>?", role="operator", count=2)
    await app.schedules.apply([schedule_definition("Release", manual(), [gate])])
    id = (await app.schedules.run("Release")).execution_id
    await run_until_idle(app)
    [approval] = await app.approvals.pending()
    await log_in(service, Role.OPERATOR)

    page = (await get_page(service, f"/executions/{id}")).text
    row = re.search(r'<tr data-key="s1".*?</tr>', page, re.DOTALL)
    assert row is not None
    assert "Waiting for approval" in row[0]
    assert "fill-run" not in row[0]
    assert "data-since" not in row[0], "no duration grows"
    assert "0/2" not in page, "the progress of its request is not that of its decisions"

    listed = (await get_page(service, "/approvals")).text
    assert f'href="/approvals/{approval.id}"' in listed
    assert "Pending" in listed
    assert "Scheduled" not in re.sub("<nav.*?</nav>", "", listed, flags=re.DOTALL)
    assert "<bdi>Deploy &lt;b&gt;4.2&lt;/b&gt;?</bdi></a>" in listed
    shown = (await get_page(service, f"/approvals/{approval.id}")).text
    assert "the step fails" in shown
