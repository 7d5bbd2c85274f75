"""Shared models of pages: how old they may be, and that a page shows what changed before it was asked for."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tenuto.web.view_cache import ViewCache
from tests.api.conftest import ApiClient
from tests.web.conftest import get_page, log_in

VALID_SECONDS = 600.0


class Source:
    """Counts computations; each returns its number once it is let through."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.gate = asyncio.Event()

    async def compute(self) -> int:
        number = next(self.numbers)
        await self.gate.wait()
        return number


async def test_concurrent_and_later_requests_share_one_computation() -> None:
    cache, source = ViewCache(VALID_SECONDS), Source()
    waiting = [asyncio.create_task(cache.get("key", source.compute)) for _ in range(3)]
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert await cache.get("key", source.compute, VALID_SECONDS) == 1
    assert await cache.get("other", source.compute) == 2


async def test_request_does_not_get_a_model_whose_computation_began_too_early() -> None:
    cache, source = ViewCache(VALID_SECONDS), Source()
    first = asyncio.create_task(cache.get("key", source.compute))
    await asyncio.sleep(0)
    second = asyncio.create_task(cache.get("key", source.compute, 0.0))
    await asyncio.sleep(0)
    source.gate.set()
    assert [await first, await second] == [1, 2]
    assert await cache.get("key", source.compute) == 2, "the newer model is shared"


@pytest.fixture
def kept_models(service: ApiClient) -> ViewCache:
    """Keep the models of pages for so long that a test does not depend on time."""
    cache = ViewCache(VALID_SECONDS)
    service.api.state.dashboard.cache = cache
    return cache


@pytest.mark.usefixtures("kept_models")
async def test_opened_page_shows_a_change_made_after_another_viewer_opened_it(service: ApiClient) -> None:
    await log_in(service)
    assert "nightly-import" not in (await get_page(service, "/logs")).text
    await service.app.logs.append("nightly-import", "begins")
    assert "nightly-import" in (await get_page(service, "/logs")).text


@pytest.mark.parametrize(("max_age", "is_shown"), [("0", True), ("599999", False), ("", False), ("x", False)])
@pytest.mark.usefixtures("kept_models")
async def test_live_page_states_how_old_its_parts_may_be(service: ApiClient, max_age: str, is_shown: bool) -> None:
    await log_in(service)
    await get_page(service, "/logs")
    await service.app.logs.append("nightly-import", "begins")
    part = await get_page(service, "/logs", 200, **{"Tenuto-Parts": "list", "Tenuto-Max-Age": max_age})
    assert "data-part" in part.text
    assert ("nightly-import" in part.text) == is_shown
