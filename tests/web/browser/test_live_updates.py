"""Live updates in the browser: morph, unchanged parts, an unreachable server, double clicks, loading parts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Route, expect

from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import REFRESH, Site

MORPH_PROPERTY = """
async ([base, count]) => {
  const { morph } = await import(`${base}/js/morph.js`);
  let seed = 7;
  const random = (n) => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed % n; };
  const tree = (depth) => {
    const element = document.createElement(["div", "span", "ul"][random(3)]);
    if (random(2)) element.setAttribute("class", "c" + random(4));
    if (random(3) === 0) element.setAttribute("title", "t" + random(4));
    const keys = [1, 2, 3, 4, 5].sort(() => random(3) - 1);
    for (let index = random(5); index > 0; index -= 1) {
      const child = depth && random(4) ? tree(depth - 1) : document.createTextNode("x" + random(9));
      if (child.nodeType === 1 && random(2)) child.setAttribute("data-key", "k" + keys.pop());
      element.append(child);
    }
    return element;
  };
  for (let round = 0; round < count; round += 1) {
    const current = tree(3);
    const target = tree(3);
    const wrapper = document.createElement("div");
    const goal = document.createElement("div");
    wrapper.append(current);
    goal.append(target);
    const keyed = [...current.children].filter((each) => each.dataset.key);
    const kept = new Map(keyed.map((each) => [each.dataset.key, each]));
    morph(wrapper, goal);
    if (wrapper.outerHTML !== goal.outerHTML) return `round ${round}: ${wrapper.outerHTML} is not ${goal.outerHTML}`;
    if (wrapper.firstElementChild === current) {
      for (const child of current.children) {
        const before = kept.get(child.dataset.key);
        if (before?.localName === child.localName && before !== child) return `round ${round}: key was replaced`;
      }
    }
  }
  return "";
}
"""


async def test_morph_makes_any_tree_equal_to_any_other_and_keeps_keyed_elements(site: Site) -> None:
    page = await site.open("/queues")
    source = await page.locator("script[src*='app.js']").get_attribute("src")
    assert source is not None
    base = source.rpartition("/js/")[0]
    assert await page.evaluate(MORPH_PROPERTY, [base, times(500, in_a_proof=5000)]) == ""


async def test_morph_leaves_edited_fields_open_details_and_protected_parts(site: Site) -> None:
    page = await site.open("/queues")
    source = await page.locator("script[src*='app.js']").get_attribute("src")
    result = await page.evaluate(
        """async (source) => {
          const { morph } = await import(source.replace("app.js", "morph.js"));
          const make = (value, text) => {
            const box = document.createElement("div");
            const field = Object.assign(document.createElement("input"), { id: "f" });
            field.setAttribute("value", value);
            const details = Object.assign(document.createElement("details"), { id: "d" });
            details.append(text);
            const kept = Object.assign(document.createElement("p"), { id: "k" });
            kept.dataset.keep = "";
            kept.append(text);
            box.append(field, details, kept);
            return box;
          };
          const box = make("server", "old");
          document.body.append(box);
          box.querySelector("#f").focus();
          box.querySelector("#f").value = "typed";
          box.querySelector("#d").open = true;
          morph(box, make("changed", "new"));
          const field = box.querySelector("#f");
          return [field.value, document.activeElement === field, box.querySelector("#d").open,
            box.querySelector("#d").textContent, box.querySelector("#k").textContent];
        }""",
        source,
    )
    assert result == ["typed", True, True, "new", "old"]


async def test_c60_unchanged_parts_are_not_sent_again_and_change_nothing(site: Site) -> None:
    started = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{started}")
    statuses: list[int] = []
    page.on("response", lambda each: statuses.append(each.status) if "tenuto-parts" in each.request.headers else None)

    async def refresh_twice() -> tuple[list[int], int]:
        """Load the page and request its parts two times; return the statuses and the number of changes in the page."""
        await page.reload()
        statuses.clear()
        await page.evaluate(
            """() => {
              window.mutations = 0;
              new MutationObserver((found) => { window.mutations += found.length; })
                .observe(document.querySelector(".cols"), { subtree: true, childList: true, attributes: true });
            }"""
        )
        for _ in range(2):
            answered_count = len(statuses)
            await page.evaluate(REFRESH)
            await eventually(lambda: len(statuses) > answered_count)  # noqa: B023 — called before the next round
        return statuses[:2], await page.evaluate("window.mutations")

    async def is_unchanged() -> bool:  # figures of the run may still change for a moment after its end
        return await refresh_twice() == ([200, 304], 0)

    await eventually(is_unchanged, 30)


async def test_c55_double_click_starts_one_execution_and_the_list_shows_it(site: Site) -> None:
    page = await site.open("/schedules")
    button = page.get_by_role("row", name="Nightly sync").get_by_role("button", name="Run now")
    await button.dblclick()
    await expect(page.get_by_role("status").get_by_role("link", name="Open").first).to_be_visible()
    assert (await site.app.executions.count(schedule="Nightly sync")).count == 1
    await page.goto("/executions")
    await expect(page.locator("tr[data-key]")).to_have_count(1)
    await site.app.schedules.run("Month end")
    await expect(page.locator("tr[data-key]")).to_have_count(2, timeout=15_000)


@pytest.mark.parametrize("is_feed_running", [False, True])
async def test_list_shows_a_change_between_its_load_and_its_event_stream(site: Site, is_feed_running: bool) -> None:
    other = await site.open("/executions" if is_feed_running else "/login")
    page = await site.open("/")
    arrived, committed = asyncio.Event(), asyncio.Event()

    async def hold_stream(route: Route) -> None:
        arrived.set()
        await committed.wait()
        await route.continue_()

    await page.route("**/api/v1/events**", hold_stream)
    await page.goto("/executions")
    await asyncio.wait_for(arrived.wait(), 20)
    await site.run("Month end", wait=True)
    if is_feed_running:  # the feed has published the change to its other subscriber
        await expect(other.locator("tr[data-key]")).to_contain_text("Failed", timeout=20_000)
    await expect(page.locator("tr[data-key]")).to_have_count(0)
    committed.set()
    await expect(page.locator("tr[data-key]")).to_contain_text("Failed", timeout=20_000)


async def test_page_without_server_says_so_and_recovers(site: Site) -> None:
    page = await site.open("/queues")
    indicator = page.get_by_role("button", name="live")
    await expect(indicator).to_be_visible()
    await page.route("**/*", lambda route: route.abort())
    await page.evaluate(REFRESH)
    await expect(page.locator("[data-live-text]")).to_contain_text("offline", timeout=10_000)
    assert await page.evaluate("document.body.classList.contains('is-stale')")
    await page.unroute("**/*")
    await expect(page.locator("[data-live-text]")).to_have_text("live", timeout=15_000)
    site.expect_problems("net::ERR_FAILED")  # the aborted requests


async def test_page_asks_again_for_what_a_failed_answer_did_not_show(site: Site) -> None:
    page = await site.open("/queues/held")
    await expect(page.locator("[data-live-text]")).to_have_text("live")
    await page.route("**/api/v1/events**", lambda route: asyncio.sleep(0))  # no event marks anything as stale again
    await page.reload()
    failed: list[str] = []

    async def fail_once(route: Route) -> None:
        names = route.request.headers.get("tenuto-parts")
        if names is None or failed:
            await route.continue_()
        else:
            failed.append(names)
            await route.fulfill(status=500, body="")

    await page.route("**/queues/held", fail_once)
    async with page.expect_response(
        lambda each: each.status in (200, 304) and each.request.headers.get("tenuto-parts") in failed, timeout=20_000
    ):
        await page.evaluate(REFRESH)
    site.expect_problems("status of 500")


MARK_STALE = """async (name) => {
  const live = await import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"));
  live.markStale(name);
}"""
"""Fetches one part of a page again, and its title."""


async def test_page_shows_the_newest_state_after_other_parts_were_fetched_with_it(site: Site) -> None:
    page = await site.open("/login")
    await page.route("**/api/v1/events**", lambda route: asyncio.sleep(0))  # parts are fetched by this test only
    await page.goto("/queues/held")
    head = page.locator("[data-part=head]")

    async def fetch_again(script: str, *arguments: str) -> None:
        async with page.expect_response(lambda each: "tenuto-parts" in each.request.headers):
            await page.evaluate(script, *arguments)

    await fetch_again(MARK_STALE, "head")
    await site.app.pause_queue("held", "server down")
    await fetch_again(REFRESH)
    await expect(head).to_contain_text("server down")
    await site.app.resume_queue("held")
    await fetch_again(MARK_STALE, "head")
    await expect(head).not_to_contain_text("server down")


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Headless chromium never reports a page as hidden."""


async def test_page_that_was_hidden_for_a_moment_shows_what_changed_meanwhile(site: Site) -> None:
    page = await site.open("/login")
    await page.route("**/api/v1/events**", lambda route: asyncio.sleep(0))  # no later event makes up for it
    await page.goto("/executions")
    await page.evaluate(HIDE, True)
    await page.evaluate(MARK_STALE, "nav")
    async with page.expect_response(lambda each: "nav" in each.request.headers.get("tenuto-parts", "")):
        await page.evaluate(HIDE, False)


async def test_announcements_are_made_at_most_once_in_ten_seconds_and_the_last_is_not_lost(site: Site) -> None:
    page = await site.open("/login")
    await page.clock.install()
    await page.goto("/queues")
    await page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    announce = """(texts) => import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"))
      .then((live) => texts.forEach(live.announce))"""
    announcer = page.locator("#announcer")
    await page.evaluate(announce, ["one"])
    await page.clock.run_for(1)
    await expect(announcer).to_have_text("one")
    await page.evaluate(announce, ["two", "three"])
    await page.clock.run_for(9_900)
    await expect(announcer).to_have_text("one")
    await page.clock.run_for(200)
    await expect(announcer).to_have_text("three")


async def test_part_that_is_fetched_later_is_marked_as_loading_until_it_is_shown(site: Site) -> None:
    started = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{started}?tab=log")
    held: asyncio.Future[Route] = asyncio.get_running_loop().create_future()

    async def hold_parts(route: Route) -> None:
        if "inspector" in route.request.headers.get("tenuto-parts", "") and not held.done():
            held.set_result(route)
        else:
            await route.continue_()

    await page.route(f"**/executions/{started}**", hold_parts)
    inspector = page.locator("[data-part=inspector]")
    steady = await inspector.evaluate("each => getComputedStyle(each).opacity")
    await page.get_by_role("link", name="Input", exact=True).click()
    request = await asyncio.wait_for(held, 20)
    await expect(inspector).to_have_attribute("aria-busy", "true")
    assert await inspector.evaluate("each => getComputedStyle(each).opacity") != steady, "it does not look like data"
    await request.continue_()
    await expect(page.locator(".tabs [aria-current]")).to_contain_text("Input")
    await expect(inspector).not_to_have_attribute("aria-busy", "true")
