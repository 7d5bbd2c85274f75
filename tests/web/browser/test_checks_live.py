"""Checks C50 to C55, C62 to C65, C68 and C70 of the dashboard: live updates, keyboard, small screens, audit."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Locator, Page, Request, expect

from tenuto.model.access.actors import Role
from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import REFRESH, Site, within
from tests.web.browser.test_accessibility import fill
from tests.web.browser.test_checks_work import fail
from tests.web.browser.test_live_updates import HIDE


@pytest.mark.timeout(240)
async def test_c50_hidden_tabs_hold_no_connection_and_each_is_current_when_shown(site: Site) -> None:
    paths = ("/queues", "/executions", "/tasks", "/activities", "/workers", "/schedules", "/dead-letters", "/batches")
    first = await site.open(paths[0])
    pages = [first]
    for path in paths[1:]:
        await pages[-1].evaluate(HIDE, True)
        pages.append(await first.context.new_page())
        await pages[-1].goto(path)
    sent: list[str] = []
    for each in pages[:-1]:
        each.on("request", lambda request: sent.append(request.url))
    await expect(pages[-1].locator("[data-live-text]")).to_have_text("live")
    await eventually(lambda: site.stream_count == 1, times(40, in_a_proof=12), what="only the visible tab has a stream")
    sent.clear()
    await fail(site, "reports", 1)
    await expect(dead_letter_count(pages[-1])).to_have_text("1")
    assert sent == [], "hidden tabs ask for nothing"
    for hidden, page in zip([pages[-1], *pages], pages, strict=False):
        await hidden.evaluate(HIDE, True)
        await page.evaluate(HIDE, False)
        await expect(dead_letter_count(page)).to_have_text("1", timeout=within(1.5))
        await page.get_by_role("navigation", name="Main").get_by_role("link", name="Ledger").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Ledger", timeout=within(1.5))


def dead_letter_count(page: Page) -> Locator:
    """Return the number beside the entry of the sidebar."""
    return page.get_by_role("navigation", name="Main").get_by_role("link", name="Dead letters").locator(".count")


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


async def test_c52_page_outlives_a_stop_of_the_server_and_loses_nothing_typed(site: Site) -> None:
    await site.app.pause_queue("held", "server down")
    page, other = [await site.open("/queues/held", Role.EDITOR) for _ in range(2)]
    live_text = page.locator("[data-live-text]")
    await eventually(lambda: site.stream_count == 2, 20)
    await page.evaluate("window.isSamePage = true")
    await page.get_by_role("button", name="Limit…").click()
    dialog = page.get_by_role("dialog")
    field = dialog.locator("input").first
    await field.fill("3")
    text = await page.locator("#main").inner_text()
    site.expect_problems("net::ERR_")  # requests and streams without a server

    await site.stop_server()
    await expect(live_text).to_have_text(re.compile(r"offline for \d+ s"), timeout=within(3.0))
    await expect(page.locator("body")).to_have_class(re.compile("is-stale"))
    assert await page.locator("#main").evaluate("each => getComputedStyle(each).filter") == "grayscale(1)"
    await dialog.locator("button.primary").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The server cannot be reached")
    await expect(field).to_have_value("3")
    await other.get_by_role("button", name="Resume").click()
    await expect(other.locator(".toast.is-error")).to_contain_text("The server cannot be reached")

    async def is_counted() -> bool:
        seconds = re.search(r"(\d+) s", await live_text.inner_text())
        return seconds is not None and int(seconds[1]) >= times(3, in_a_proof=30)

    await eventually(is_counted, times(30, in_a_proof=60))
    assert re.sub(r"\d+ s", "", await page.locator("#main").inner_text()) == re.sub(r"\d+ s", "", text)

    await site.start_server()
    await expect(live_text).to_have_text("live", timeout=40_000)
    await expect(page.locator("body")).not_to_have_class(re.compile("is-stale"))
    await expect(field).to_have_value("3")
    await dialog.locator("button.primary").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("[data-part=head]")).to_contain_text("of at most 3")
    await expect(other.locator("[data-part=head]")).to_contain_text("of at most 3")
    assert await page.evaluate("window.isSamePage"), "the page was not loaded again"


async def test_c52_page_says_that_only_its_stream_is_lost_and_connects_again(site: Site) -> None:
    page = await site.open("/executions")
    await eventually(lambda: site.stream_count == 1, 20)
    site.expect_problems("net::ERR_")
    await page.route("**/api/v1/events**", lambda route: route.abort())
    await site.stop_server()
    await site.start_server()
    await expect(page.locator("[data-live-text]")).to_contain_text("offline", timeout=20_000)
    await site.run("Month end", wait=True)
    async with page.expect_response(lambda each: "tenuto-parts" in each.request.headers and each.ok):
        await page.evaluate(REFRESH)
    await expect(page.locator("tr[data-key]")).to_contain_text("Failed")
    assert "offline" in await page.locator("[data-live-text]").inner_text(), "parts are answered, but nothing is live"
    await page.unroute("**/api/v1/events**")
    await expect(page.locator("[data-live-text]")).to_have_text("live", timeout=20_000)


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


AGE = re.compile(r"now|in \d+ \w+|\d+ \w+ ago")


@pytest.mark.timeout(240)
async def test_c68_every_page_shows_the_same_rows_without_scripts(site: Site) -> None:
    addresses = await fill(site)
    page = await site.open("/", Role.ADMIN)
    plain = await site.open("/", Role.ADMIN, java_script_enabled=False)
    site.expect_problems("status of 404", "status of 422")

    async def read_rows(page: Page, address: str) -> list[str]:
        await page.goto(address)
        rows = await page.locator("main tr[data-key] th, main h1, main h2").all_inner_texts()
        return [AGE.sub("", each) for each in rows]

    for address in addresses:
        if address == "/account":  # it lists the sessions of the two browsers, each its own as such
            continue
        for _ in range(3):  # between the two loads a row may appear or move
            shown, without = await read_rows(page, address), await read_rows(plain, address)
            if shown == without:
                break
        assert without == shown, address
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
