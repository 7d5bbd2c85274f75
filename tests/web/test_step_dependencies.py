"""Pages of schedules and executions show what steps take from each other."""

from __future__ import annotations

from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient
from tests.api.test_step_dependencies import run_flow
from tests.web.conftest import get_page, log_in


async def test_pages_show_what_steps_take_from_each_other(service: ApiClient) -> None:
    execution = await run_flow(service)
    await log_in(service, Role.EDITOR)
    page = (await get_page(service, f"/executions/{execution['id']}?step=2")).text
    assert "Runs if" in page
    assert "steps.first.output &gt; 3" in page
    assert "from <bdi>steps.first.output</bdi>" in page
    page = (await get_page(service, f"/executions/{execution['id']}?step=3")).text
    assert "Skipped" in page
    assert "its condition steps.second.skipped is not met" in page
    page = (await get_page(service, "/schedules/flow")).text
    assert "needs first; if steps.first.output &gt; 3; n from steps.first.output" in page
    page = (await get_page(service, "/schedules/flow/edit")).text
    assert 'name="when" data-type="text" value="steps.first.output &gt; 3"' in page
    assert '<textarea name="needs" data-type="lines"' in page
