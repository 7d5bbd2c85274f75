"""Accessibility of all pages by axe-core, in both themes and widths; no horizontal scrolling on a phone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from axe_playwright_python.async_playwright import Axe
from fastapi.routing import iter_route_contexts
from playwright.async_api import Page, expect

from tenuto.model.access.actors import Actor, ActorType, Role
from tenuto.web.application import create_web_application
from tenuto.web.page import PageRoute
from tests.web.browser.conftest import Site

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def find_violations(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """Check a page by all rules, or only by these."""
    chosen = {"type": "rule", "values": [*rules]} if rules else {"type": "tag", "values": TAGS}
    found = await Axe().run(page, options={"runOnly": chosen, "resultTypes": ["violations"]})
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:3]}"
        for each in found.response["violations"]
    ]


async def fill(site: Site) -> list[str]:
    """Create objects of every kind; return the addresses of all pages."""
    app = site.app
    batch = await app.bulk_enqueue("bills", [{"number": number} for number in range(3)])
    failed, running = await site.run("Month end", wait=True), await site.run("Talk")
    done = await app.executions.get(failed)
    await app.pause_queue("mail", "server down")
    letter = (await app.dead_letters.list())[0]
    await app.acting_as(Actor(ActorType.USER, None, "ana"), source="test").pause_queue("print", "no paper")
    [entry] = await app.audit.list("action:queue.pause")
    await app.logs.append("night", "an entry")
    operation = await app.bulk_operations.create("dead_letter.acknowledge", f"id:{letter.id}", reason="seen")
    waiting = (await app.executions.get(running)).steps[-1]  # its last group has not started
    assert waiting.task_id is not None
    return [
        "/",
        "/timeline",
        "/executions",
        "/executions?q=stat:failed",
        f"/executions/{failed}",
        f"/executions/{running}",
        "/schedules",
        "/schedules/Month%20end",
        "/tasks",
        f"/activities/{done.steps[1].activity_id}",
        "/activities",
        "/dead-letters",
        f"/dead-letters/{letter.id}",
        "/workers",
        "/queues",
        "/queues/mail",
        "/manifests",
        "/manifests/bills",
        "/batches",
        f"/batches/{batch.id}",
        "/one-shots",
        "/jobs",
        "/jobs/bill",
        "/ledger",
        "/logs",
        "/audit",
        f"/audit/{entry.id}",
        "/keys",
        "/account",
        "/secrets",
        "/settings",
        "/docs",
        "/docs/tasks_enqueue",
        "/tasks?order=claim",
        "/operations",
        f"/operations/{operation.id}",
        f"/tasks/{waiting.task_id}",
        f"/executions/compare?a={failed}&b={running}",
        "/schedules/new",
        "/schedules/Month%20end/edit",
        "/manifests/new",
        "/manifests/bills/edit",
        "/logs/night",
        "/login",
        "/nothing",
    ]


def find_unvisited_pages(site: Site, addresses: Sequence[str]) -> list[str]:
    """Return the pages of the dashboard of which no address is given."""
    api = create_web_application(site.app)
    pages = {
        context.path_format or ""
        for context in iter_route_contexts(api.routes)
        if isinstance(context.route, PageRoute) and "GET" in (context.methods or ())
    }
    paths = [address.partition("?")[0] for address in addresses]
    patterns = {page: re.compile(re.sub(r"\{[^}]*\}", "[^/]+", page)) for page in pages}
    return sorted(page for page, pattern in patterns.items() if not any(map(pattern.fullmatch, paths)))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("width", [1280, 390])
async def test_all_pages_have_no_violation_in_both_themes_and_widths(site: Site, width: int) -> None:
    """Each page is checked completely in light. In dark it is the same page with other colours."""
    addresses = await fill(site)
    assert find_unvisited_pages(site, addresses) == []
    page = await site.open("/", Role.ADMIN, width=width)
    violations: dict[str, list[str]] = {}
    for address in addresses:
        await page.goto(address)
        found = await find_violations(page)
        if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append("scrolls horizontally")
        await page.evaluate("document.documentElement.dataset.theme = 'dark'")
        found += [f"dark: {each}" for each in await find_violations(page, ["color-contrast", "link-in-text-block"])]
        if found:
            violations[address] = found
    site.expect_problems("status of 404", "status of 422")
    assert violations == {}


async def test_dialog_help_and_menu_have_no_violation(site: Site) -> None:
    site.hold_talks()
    started = await site.run("Talk")
    page = await site.open(f"/executions/{started}")
    await page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    assert await find_violations(page) == []
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Cancel…")).to_be_focused()
    await page.keyboard.press("?")
    await expect(dialog).to_be_visible()
    assert await find_violations(page) == []
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url("**/queues")
