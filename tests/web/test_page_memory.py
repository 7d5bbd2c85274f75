"""Garbage collections must not interrupt pages: what a page was made of is freed with its response."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto.app import Tenuto
from tenuto.settings import load_settings
from tenuto.web.server import web_server
from tenuto.web.views.work.tasks import TaskRow
from tests.api.conftest import ApiClient
from tests.support.waiting import eventually
from tests.web.conftest import get_page, log_in


@pytest.fixture
def saved_garbage() -> Iterator[None]:
    """Keep unreachable objects in ``gc.garbage`` instead of freeing them."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_rows_of_a_page_are_not_in_a_reference_cycle(service: ApiClient, request: pytest.FixtureRequest) -> None:
    await service.app.enqueue_many(service.app.jobs.jobs_by_name["double"], range(20))
    await log_in(service)
    await get_page(service, "/tasks")
    request.getfixturevalue("saved_garbage")
    for _ in range(3):
        await get_page(service, "/tasks")
    gc.collect()
    assert gc.garbage, "a request leaves some garbage, which is seen"
    assert [each for each in gc.garbage if type(each) is TaskRow] == []


async def test_web_server_loads_the_overview_before_the_first_request(url: str, tmp_path: Path) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))

    async def is_loaded() -> bool:
        return app.reports._overview._last is not None

    async with app, web_server(app, port=0):
        await eventually(is_loaded)


async def test_web_server_that_stops_has_ended_the_load_of_the_overview(url: str, tmp_path: Path) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    async with app, (await app.open()).connection() as locking, locking.transaction():
        await locking.execute("LOCK TABLE tenuto.tasks IN ACCESS EXCLUSIVE MODE")
        async with web_server(app, port=0):
            assert is_warming_up()
        assert not is_warming_up()


def is_warming_up() -> bool:
    return any(each.get_name() == "tenuto-web-warm-up" for each in asyncio.all_tasks())
