"""First visit to the overview with an empty cache: bytes, requests and scripts; the second visit uses the cache."""

from __future__ import annotations

from benchmarks import browser
from tenuto.model.access.actors import Role
from tests.web.browser.conftest import Site

MAX_FIRST_BYTES, MAX_FIRST_REQUESTS, MAX_SECOND_BYTES = 60_000, 14, 15_000
MAX_MODULES_PER_PAGE = 8


async def test_c57_first_visit_is_small_and_the_second_uses_the_cache(site: Site) -> None:
    await site.run("Nightly sync", wait=True)
    context = await browser.log_in(site.browser, site.address, site.keys[Role.ADMIN])
    first = await browser.visit(context, "/")
    assert 5_000 < first.transferred_bytes <= MAX_FIRST_BYTES
    assert 5 < first.request_count <= MAX_FIRST_REQUESTS
    assert first.painted_milliseconds > 0
    second = await browser.visit(context, "/")
    assert 0 < second.transferred_bytes <= MAX_SECOND_BYTES


async def test_no_page_loads_more_than_eight_modules(site: Site) -> None:
    done = await site.run("Nightly sync", wait=True)
    page = await site.open("/")
    for path in ("/", f"/executions/{done}", "/timeline", "/dead-letters", "/schedules/Nightly%20sync", "/activities"):
        await page.goto(path)
        await page.wait_for_load_state("load")
        loaded = await page.evaluate(
            "performance.getEntriesByType('resource').map((each) => each.name).filter((name) => name.endsWith('.js'))"
        )
        assert 0 < len(set(loaded)) <= MAX_MODULES_PER_PAGE, path
