"""Checks C50 to C55, C62 to C65, C68 and C70 of the dashboard: live updates, keyboard, small screens, audit."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Request, expect

from tenuto.model.access.actors import Role
from tests.support.waiting import eventually
from tests.web.browser.conftest import REFRESH, Site
from tests.web.browser.test_checks_work import fail

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.timeout(240)
async def test_c50_hidden_tab_holds_no_connection_and_is_current_when_shown(site: Site) -> None:
    first = await site.open("/queues")
    pages = [first]
    streams: set[Request] = set()
    first.context.on("request", lambda request: streams.add(request) if "/api/v1/events" in request.url else None)
    first.context.on("requestfinished", lambda request: streams.discard(request))
    first.context.on("requestfailed", lambda request: streams.discard(request))
    for path in ("/executions", "/tasks", "/activities", "/workers", "/schedules", "/dead-letters", "/batches"):
        for each in pages:
            await each.evaluate(HIDE, True)
        page = await first.context.new_page()
        await page.goto(path)
        pages.append(page)
    sent: list[str] = []
    for each in pages[:-1]:
        each.on("request", lambda request: sent.append(request.url))
    await expect(pages[-1].locator("[data-live-text]")).to_have_text("live")

    await eventually(lambda: len(streams) == 1, 20, what="only the visible tab holds a stream")
    sent.clear()
    await site.run("Month end", wait=True)
    assert sent == []
    await pages[-1].evaluate(HIDE, True)
    await pages[1].evaluate(HIDE, False)
    await expect(pages[1].locator("tr[data-key]")).to_have_count(1, timeout=20_000)
    await pages[1].get_by_role("link", name="Month end").click()
    await expect(pages[1].get_by_role("heading", level=1)).to_have_text("Month end")


async def test_c51_paused_page_states_its_time_and_catches_up(site: Site) -> None:
    page = await site.open("/executions")
    await page.locator("[data-live-indicator]").click()
    await expect(page.locator("[data-live-text]")).to_contain_text(re.compile(r"paused, as of \d\d:\d\d:\d\d"))
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    await site.run("Month end", wait=True)
    second = await site.open("/executions")
    await expect(second.locator("tr[data-key]")).to_have_count(1)
    await expect(page.locator("tr[data-key]")).to_have_count(0)
    assert requests == []
    await page.locator("[data-live-indicator]").click()
    await expect(page.locator("tr[data-key]")).to_have_count(1, timeout=20_000)


async def test_c52_actions_without_server_are_refused_and_nothing_typed_is_lost(site: Site) -> None:
    await site.app.pause_queue("held", "server down")
    page = await site.open("/queues/held", Role.EDITOR)
    await page.get_by_role("button", name="Limit…").click()
    dialog = page.get_by_role("dialog")
    field = dialog.locator("input").first
    await field.fill("3")
    await page.route("**/*", lambda route: route.abort())
    await dialog.locator("button.primary").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The server cannot be reached")
    await expect(field).to_have_value("3")
    await page.evaluate(REFRESH)
    await expect(page.locator("[data-live-text]")).to_contain_text("offline", timeout=20_000)
    await page.unroute("**/*")
    await dialog.locator("button.primary").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("[data-part=head]")).to_contain_text("of at most 3", timeout=20_000)
    await expect(page.locator("[data-live-text]")).to_have_text("live", timeout=20_000)
    site.expect_problems("net::ERR_FAILED")  # the aborted requests


async def test_c54_second_of_two_tabs_shows_who_resolved_the_dead_letter(site: Site) -> None:
    await fail(site, "reports", 1)
    [letter] = await site.app.dead_letters.list()
    pages = [await site.open(f"/dead-letters/{letter.id}", role) for role in (Role.OPERATOR, Role.ADMIN)]
    for page in pages:
        await page.locator("[data-live-indicator]").click()  # neither learns of the other
        await page.get_by_role("button", name="Retry…", exact=True).click()
    await asyncio.gather(*(page.get_by_role("dialog").get_by_role("button", name="Retry").click() for page in pages))

    async def refusals() -> list[str]:
        return [text for page in pages for text in await page.get_by_role("alert").all_inner_texts() if text]

    [refusal] = await eventually(refusals)
    resolved = await site.app.dead_letters.get(letter.id)
    assert resolved.resolved_by in refusal
    assert (await site.app.count_tasks("name:report")).count + len(await site.app.activities("name:report")) >= 2
    assert len({each.task_id for each in await site.app.activities("name:report")}) <= 2
    site.expect_problems("status of 409")


async def test_c62_failed_execution_is_retried_by_keyboard_alone(site: Site) -> None:
    await site.run("Month end", wait=True)
    page = await site.open("/executions")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/executions/*")
    await page.keyboard.press("r")
    await expect(page.get_by_role("dialog").get_by_label("Reason (optional)")).to_be_focused()
    await page.keyboard.type("from the keyboard")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.wait_for_function("document.activeElement !== document.body")
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    [entry] = await site.app.audit.list("action:execution.retry")
    assert entry.reason == "from the keyboard"


async def test_c63_phone_can_acknowledge_retry_and_cancel(site: Site) -> None:
    await fail(site, "reports", 2)
    site.hold_talks()
    running = await site.run("Talk")
    page = await site.open("/dead-letters", width=390, theme="dark")
    first = page.locator("[data-part=list] tr[data-key]").first
    await first.get_by_role("button", name="Actions of").click()
    await page.locator(".row-menu:popover-open").get_by_role("button", name="Acknowledge…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    await expect(page.locator("[data-part=list] tr[data-key]")).to_have_count(1)
    await page.locator("[data-part=list] tr[data-key]").get_by_role("button", name="Retry…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.goto(f"/executions/{running}")
    await page.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel the execution").click()
    await expect(page.locator("[data-part=head] .status").first).to_have_text("Cancelled", timeout=20_000)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_c64_zoom_reduced_motion_and_forced_colours(site: Site) -> None:
    id = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{id}", width=320, reduced_motion="reduce", forced_colors="active")
    for path in (f"/executions/{id}", "/executions", "/", "/dead-letters"):
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        moving = await page.evaluate("document.getAnimations().length")
        assert moving == 0
    await page.goto(f"/executions/{id}")
    texts = await page.locator("tr[data-key^=s] .status").all_inner_texts()
    assert texts == ["Completed", "Failed", "Not run"]


async def test_c65_accessibility_tree_of_an_execution(site: Site) -> None:
    id = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{id}")
    for landmark in (page.get_by_role("banner"), page.get_by_role("navigation"), page.get_by_role("main")):
        assert await landmark.count() >= 1
    await expect(page.get_by_role("heading", level=1)).to_have_count(1)
    table = page.get_by_role("table", name="Steps of this execution")
    assert await table.get_by_role("columnheader").all_inner_texts() != []
    for row in await table.locator("tr[data-key^=s]").all():
        await expect(row.get_by_role("rowheader")).to_have_count(1)
        assert await row.get_by_role("cell").count() == 4
    live = await page.locator("[aria-live=assertive]").count()
    assert live == 0


async def test_c68_every_list_shows_the_same_rows_without_scripts(site: Site) -> None:
    await fail(site, "reports", 2)
    await site.run("Month end", wait=True)
    page = await site.open("/", Role.ADMIN)
    plain = await site.open("/", Role.ADMIN, java_script_enabled=False)
    for path in ("/executions", "/tasks", "/activities", "/dead-letters", "/schedules", "/manifests", "/batches"):
        await page.goto(path)
        await plain.goto(path)
        rows = await page.locator("tr[data-key] th").all_inner_texts()
        assert await plain.locator("tr[data-key] th").all_inner_texts() == rows, path
        await expect(plain.locator("[data-pick]:visible")).to_have_count(0)


async def test_c70_every_change_goes_to_the_api_with_a_key_and_leaves_one_entry(site: Site) -> None:
    await fail(site, "reports", 1)
    before = len(await site.app.audit.list())
    page = await site.open("/dead-letters")
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if request.method != "GET" else None)
    await page.locator("[data-part=list]").get_by_role("button", name="Retry…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.goto("/schedules")
    await page.get_by_role("row", name="Nightly sync").get_by_role("button", name="Run now").click()
    await expect(page.get_by_role("status").get_by_role("link", name="Open").first).to_be_visible()
    assert len(sent) == 2
    for request in sent:
        assert "/api/v1/" in request.url
        headers = await request.all_headers()
        assert headers["idempotency-key"]
        assert headers["tenuto-page"] == "1"
    actions = [entry.action for entry in (await site.app.audit.list())[: -before or None]]
    assert sorted(each for each in actions if not each.startswith("session.")) == ["dead_letter.retry", "schedule.run"]
