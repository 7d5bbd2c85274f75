"""C56: the number of statements that a page sends is counted, so that it grows neither with rows nor by accident."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tests.api.conftest import ApiClient, running_api
from tests.web.conftest import get_page, log_in
from tests.web.test_pages import list_addresses

MAX_STATEMENTS = 8
"""Including the session of the viewer and the counts of the sidebar."""
MORE_STATEMENTS = {
    "/batches/": 11,
    "/executions/compare": 24,
    "/executions/": 19,
    "/manifests/": 22,
    "/queues/": 10,
    "/schedules/": 12,
    "/tasks/": 18,
    "/activities/": 18,
}
"""Pages of one object that is explained: its diagnosis loads the facts of each possible obstacle."""
_NOT_COUNTED = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|SET TRANS|WITH RECURSIVE typeinfo_tree|SELECT\s+current_setting)")
"""Transaction control, and what the driver asks once per connection."""

Sent = list[str]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The statements of all connections that are opened from now on."""
    found: Sent = []
    create = asyncpg.Connection.__init__

    def create_with_logger(self: asyncpg.Connection, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        self.add_query_logger(lambda logged: found.append(logged.query))

    monkeypatch.setattr(asyncpg.Connection, "__init__", create_with_logger)
    return found


@pytest.fixture
async def logged_service(sent: Sent, url: str, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with running_api(url, tmp_path, create_web_application) as client:
        yield client


@pytest.mark.slow
async def test_c56_pages_send_few_statements(logged_service: ApiClient, sent: Sent) -> None:
    addresses = await list_addresses(logged_service)
    await log_in(logged_service, Role.ADMIN)
    too_many = {}
    for address in addresses:
        counts = []
        for _ in range(2):  # the second time, no connection is new
            sent.clear()
            await get_page(logged_service, address)
            counts.append([each for each in sent if not _NOT_COUNTED.match(each)])
        counted = min(counts, key=len)
        limit = next((most for start, most in MORE_STATEMENTS.items() if address.startswith(start)), MAX_STATEMENTS)
        assert counted, f"{address}: the statements are logged"
        if len(counted) > limit:
            too_many[address] = (len(counted), [" ".join(each.split())[:60] for each in counted])
    assert too_many == {}


@pytest.mark.slow
async def test_workers_page_does_not_load_the_overview(logged_service: ApiClient, sent: Sent) -> None:
    await log_in(logged_service)
    await get_page(logged_service, "/workers")
    assert [each for each in sent if "FROM tenuto.workers" in each], "the statements are logged"
    assert [each for each in sent if "dead_letters AS" in each or "FROM tenuto.queues" in each] == []
