"""Accessibility of all pages by axe-core, in both themes and widths; no horizontal scrolling on a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tenuto.model.actors import Actor, ActorType, Role
from tests.web.browser.conftest import Site

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def find_violations(page: Page) -> list[str]:
    found = await Axe().run(page, options={"runOnly": {"type": "tag", "values": TAGS}})
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
        "/secrets",
        "/settings",
        "/docs",
        "/nothing",
    ]


@pytest.mark.timeout(240)
async def test_all_pages_have_no_violation_in_both_themes_and_widths(site: Site) -> None:
    addresses = await fill(site)
    violations: dict[str, list[str]] = {}
    for width, theme in ((1280, "light"), (390, "dark")):
        page = await site.open("/", Role.ADMIN, width=width, theme=theme)
        for address in addresses:
            await page.goto(address)
            if found := await find_violations(page):
                violations[f"{width} {theme} {address}"] = found
            if width == 390 and await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                violations.setdefault(f"{width} {theme} {address}", []).append("scrolls horizontally")
    site.problems[:] = [each for each in site.problems if "status of 404" not in each and "status of 422" not in each]
    assert violations == {}


async def test_dialog_help_and_menu_have_no_violation(site: Site) -> None:
    started = await site.run("Talk")
    page = await site.open(f"/executions/{started}")
    await page.get_by_role("button", name="Cancel…").click()
    assert await find_violations(page) == []
    await page.keyboard.press("Escape")
    assert await page.evaluate("document.activeElement.textContent") == "Cancel…"
    await page.keyboard.press("?")
    assert await find_violations(page) == []
    await page.keyboard.press("Escape")
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url("**/queues")
