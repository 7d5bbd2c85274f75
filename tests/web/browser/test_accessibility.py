"""Accessibility of all pages by axe-core, in both themes and widths; no horizontal scrolling on a phone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import axe_playwright_python
import pytest
from fastapi.routing import iter_route_contexts
from playwright.async_api import Browser, Page, expect

from tenuto import Step, Tenuto, manual
from tenuto.model.access.actors import Actor, ActorType, Role
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.settings import load_settings
from tenuto.web.application import create_web_application
from tenuto.web.page import PageRoute
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site, running_site

AXE_FILE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


CHECK = """async ([place, runOnly, exclude]) => {
  // Style sheets and media need not be fetched again, and there are no frames.
  const options = { runOnly, resultTypes: ["violations"], preload: false, iframes: false };
  const found = await axe.run({ include: [place], exclude }, options);
  const targets = (each) => each.nodes.slice(0, 3).map((node) => node.target);
  return found.violations.map((each) => `${each.id}: ${each.help}: ${targets(each)}`);
}"""
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
FRAME = ["header.top", "nav.sidebar"]
"""What surrounds all pages: it is the same on each, and has a third of the elements of most."""


async def find_violations(
    page: Page, rules: Sequence[str] = (), place: str = "html", without: Sequence[str] = ()
) -> list[str]:
    """Check a page, or the part of it at ``place``, by all rules, or only by these, except for ``without``."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_FILE.read_text())
    chosen = {"type": "rule", "values": [*rules]} if rules else {"type": "tag", "values": TAGS}
    exclude = [[each] for each in without]
    found: list[str] = await page.evaluate(CHECK, [place, chosen, exclude])
    return found


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
    gate = Step.approval("Deploy 4.2?", role="operator", approvers=["ana", "ben"], count=2, context={"version": "4.2"})
    await app.schedules.apply([schedule_definition("Release", manual(), [gate])])
    await site.run("Release")
    [approval] = await eventually(app.approvals.pending)
    await app.acting_as(Actor.user("ana")).approvals.approve(approval.id, "tested")
    link = await app.approvals.create_link(approval.id, "ben")
    await app.enqueue(app.jobs.jobs_by_name["await_payment"], order="order-17")
    await eventually(app.events.waits)
    event = await app.events.send("feed.ready", {"rows": 40_512}, key="prices")
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
        "/approvals",
        "/approvals?state=expired",
        f"/approvals/{approval.id}",
        "/events",
        f"/events/{event.id}",
        link.path,
        "/approve",
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


async def find_violations_of_all(page: Page, addresses: Sequence[str]) -> dict[str, list[str]]:
    """Check pages in both themes and widths; return what is wrong by address.

    Each page is loaded once, and checked by all rules in both widths. In dark it is the same page in other colours, so
    that only the rules of colours apply again; the frame around all pages is checked with the first one.
    """
    violations: dict[str, list[str]] = {}
    for address in addresses:
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto(address)
        found: list[str] = []
        place, without = ("html", []) if address == addresses[0] else ("main", FRAME)
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.wait_for_function("(width) => innerWidth === width", arg=width)
            found += [f"{width} light: {each}" for each in await find_violations(page, without=without)]
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{width}: scrolls horizontally")
            await page.evaluate("document.documentElement.dataset.theme = 'dark'")
            found += [f"{width} dark: {each}" for each in await find_violations(page, COLOUR_RULES, place)]
            await page.evaluate("document.documentElement.dataset.theme = 'light'")
        if found:
            violations[address] = found
    return violations


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_all_pages_have_no_violation_in_both_themes_and_widths(site: Site) -> None:
    addresses = await fill(site)
    assert find_unvisited_pages(site, addresses) == []
    page = await site.open("/", Role.ADMIN)
    site.expect_problems("status of 404", "status of 422")
    assert await find_violations_of_all(page, addresses) == {}


EMPTY_PAGES = (
    "/", "/timeline", "/executions", "/schedules", "/tasks", "/activities", "/dead-letters", "/batches", "/operations",
    "/manifests", "/one-shots", "/jobs", "/workers", "/queues", "/events", "/approvals", "/ledger", "/logs", "/audit",
    "/secrets",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_pages_of_a_new_installation_have_no_violation(url: str, tmp_path: Path, browser: Browser) -> None:
    """The fixture *empty*: nothing is defined, and nothing runs."""
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    async with running_site(app, browser, services=False) as site:
        page = await site.open("/", Role.ADMIN)
        assert await find_violations_of_all(page, EMPTY_PAGES) == {}


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
