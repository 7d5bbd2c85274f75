"""Details of pages: what was done with an object, what its retry did, what will happen, how much is open."""

from __future__ import annotations

import re
from uuid import UUID

from tenuto import Step, every, manual
from tenuto.model.access.actors import Role
from tenuto.testing import run_until_idle
from tests.api.conftest import ApiClient
from tests.web.conftest import get_page, log_in


async def make_dead_letter(service: ApiClient) -> UUID:
    app = service.app
    app.manifest("bills", app.jobs.jobs_by_name["boom"], trigger=every("1h"), properties={"why": "no address"})
    await app.manifests.deploy()
    await app.manifests.run("bills", {"why": "no address"})
    await run_until_idle(app)
    [dead_letter] = await app.dead_letters.list()
    return dead_letter.id


async def test_dead_letter_shows_the_policies_and_the_result_of_its_retry(service: ApiClient) -> None:
    id = await make_dead_letter(service)
    await log_in(service, Role.OPERATOR)
    page = (await get_page(service, f"/dead-letters/{id}")).text
    assert "<dt>Policy</dt><dd>" in page
    assert "Result of the retry" not in page
    retried = await service.app.dead_letters.retry(id)
    await run_until_idle(service.app)
    page = (await get_page(service, f"/dead-letters/{id}")).text
    result = page.partition("Result of the retry")[2].partition("</dd>")[0]
    assert "Failed" in result
    assert "task:" in page.partition('data-part="head"')[2][:200]
    database = await service.app.open()
    async with database.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")  # activities are written once
        await connection.execute("DELETE FROM tenuto.activities WHERE task_id = $1", retried)
    page = (await get_page(service, f"/dead-letters/{id}")).text
    assert "removed by retention" in page


async def test_execution_shows_what_people_did_with_it(service: ApiClient) -> None:
    app = service.app
    app.schedule("hourly", manual(), [Step.job(app.jobs.jobs_by_name["double"], 1)])
    await app.schedules.deploy()
    id = (await app.schedules.run("hourly")).execution_id
    await log_in(service)
    assert "History" not in (await get_page(service, f"/executions/{id}")).text
    headers = {"Authorization": f"Bearer {service.keys[Role.OPERATOR]}"}
    cancelled = await service.client.post(
        f"/api/v1/executions/{id}/cancel", json={"reason": "not today"}, headers=headers
    )
    assert cancelled.status_code < 300, cancelled.text
    page = (await get_page(service, f"/executions/{id}")).text
    history = page.partition('data-part="history"')[2]
    assert "Cancel" in history
    assert "not today" in history


async def test_timeline_says_what_will_happen(service: ApiClient) -> None:
    app = service.app
    app.schedule("hourly", every("1h"), [Step.job(app.jobs.jobs_by_name["double"], 1)])
    await app.schedules.deploy()
    await log_in(service)
    expected = (await get_page(service, "/timeline")).text.partition("What will happen")[2].partition("</p>")[0]
    assert "Every hour, UTC." in expected
    assert "Overlap: a run that is due while another is active is skipped." in expected
    assert "Missed runs: one run replaces all missed runs." in expected


async def test_sidebar_counts_batches_with_open_items(service: ApiClient) -> None:
    app = service.app
    app.manifest("doubles", app.jobs.jobs_by_name["double"], on_demand=True)
    await app.manifests.deploy()
    for _ in range(2):
        await app.batches.enqueue("doubles", [{"n": 1}, {"n": 2}])
    await log_in(service)
    entry = re.compile(r'<a href="/batches"[^>]*>Batches(?: <span class="count">(\d+)</span>)?')
    assert entry.search((await get_page(service, "/")).text)[1] == "2"  # type: ignore[index]
    assert (await app.reports.count_open_work()).batch_count == 2
    await run_until_idle(app)
    assert (await app.reports.count_open_work()).batch_count == 0


async def test_overview_runs_a_manifest_now(service: ApiClient) -> None:
    app = service.app
    app.manifest("doubles", app.jobs.jobs_by_name["double"], trigger=every("1h"), properties={"n": 1})
    await app.manifests.deploy()
    await log_in(service, Role.OPERATOR)
    next_runs = (await get_page(service, "/")).text.partition('data-part="next_runs"')[2]
    button = next_runs.partition(">Run now")[0].rpartition("<")[2]
    assert "/api/v1/manifests/doubles/" in button
    assert "disabled" not in button
