"""Live updates in the browser: morph, unchanged parts, an unreachable server, double clicks, scripts off."""

from __future__ import annotations

import asyncio
import json

import pytest
from playwright.async_api import Route, expect

from tenuto.model.access.actors import Role
from tests.support.proofs import times
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


async def test_pages_can_be_read_without_scripts(site: Site) -> None:
    started = await site.run("Month end", wait=True)
    for path in ("/", "/executions", "/schedules", f"/executions/{started}", "/activities", "/queues"):
        with_scripts = await site.open(path, Role.VIEWER)
        rows = await with_scripts.locator("tr[data-key] th").all_inner_texts()
        without = await site.open(path, Role.VIEWER, java_script_enabled=False)
        assert await without.locator("tr[data-key] th").all_inner_texts() == rows, path
        assert json.dumps(rows)
