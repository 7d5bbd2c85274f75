"""Measurements in Debian's chromium: first visits, and the time until a change is on the screen."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass

from playwright.async_api import Browser, BrowserContext, async_playwright

from benchmarks.processes import ContenderFailed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.25
HIDDEN_AFTER_SECONDS = 12.0
"""A tab that has been hidden for 10 s closes its stream."""

_PAINTS = """
window.paints = [];
new PerformanceObserver((list) => { for (const each of list.getEntries()) window.paints.push(each.startTime); })
  .observe({ type: "largest-contentful-paint", buffered: true });
"""
# Notes when each step is first shown as completed, and when each line of the log is first shown.
_OBSERVER = """
window.seenSteps = {}; window.seenLines = {};
const look = () => {
  const now = Date.now();
  for (const row of document.querySelectorAll("tr")) {
    const step = /Step (\\d+)/.exec(row.textContent);
    if (step && row.textContent.includes("Completed") && !(step[1] in seenSteps)) seenSteps[step[1]] = now;
  }
  for (const [, number, sent] of document.body.textContent.matchAll(/line (\\d+) sent (\\d{13})/g))
    if (!(number in seenLines)) seenLines[number] = [Number(sent), now];
};
document.addEventListener("DOMContentLoaded", () =>
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true }));
"""
_HIDE = """
Object.defineProperty(document, "hidden", { value: true, configurable: true });
Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
document.dispatchEvent(new Event("visibilitychange"));
"""


@dataclass(frozen=True)
class Visit:
    """What loading a page took."""

    transferred_bytes: int
    request_count: int
    loaded_milliseconds: float
    """Until DOMContentLoaded."""
    painted_milliseconds: float
    """Largest contentful paint."""


@dataclass(frozen=True)
class Watched:
    """When changes were on the screen."""

    steps: dict[int, float]
    """Seconds since the epoch by number of the step."""
    line_delays: list[float]
    """Seconds from a line of the log until it was shown."""


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    assert CHROMIUM is not None
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


async def log_in(browser: Browser, address: str, key: str) -> BrowserContext:
    """Return a browser profile with a session and an empty cache."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, base_url=address)
    await context.add_cookies([{"name": "tenuto_zone", "value": "Europe/London", "url": address}])
    page = await context.new_page()
    await page.goto("/login")
    await page.get_by_label("Login link or API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url("**/")
    session = await context.new_cdp_session(page)
    await session.send("Network.clearBrowserCache")
    await page.close()
    return context


async def visit(context: BrowserContext, path: str) -> Visit:
    """Load a page and count what is transferred until it is loaded; the event stream is not counted."""
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Network.enable")
    sizes: dict[str, float] = {}
    streams: set[str] = set()
    session.on("Network.requestWillBeSent", lambda event: _note_request(event, sizes, streams))
    session.on("Network.loadingFinished", lambda event: _note_size(event, sizes))
    await page.add_init_script(_PAINTS)
    await page.goto(path, wait_until="load")
    await page.wait_for_timeout(500)
    navigation = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    loaded = float(await page.evaluate(navigation))
    painted = float(await page.evaluate("Math.max(0, ...window.paints)"))
    await page.close()
    return Visit(round(sum(sizes.values())), len(sizes.keys() - streams), loaded, painted)


def _note_request(event: dict[str, object], sizes: dict[str, float], streams: set[str]) -> None:
    sizes.setdefault(str(event["requestId"]), 0.0)
    if event.get("type") == "EventSource":
        streams.add(str(event["requestId"]))


def _note_size(event: dict[str, object], sizes: dict[str, float]) -> None:
    sizes[str(event["requestId"])] = float(str(event["encodedDataLength"]))


async def watch_execution(context: BrowserContext, path: str, step_count: int, line_count: int) -> Watched:
    """Keep the page of a running execution open until all steps and all lines of its last step are shown."""
    page = await context.new_page()
    await page.add_init_script(_OBSERVER)
    await page.goto(path)
    done = f"Object.keys(seenSteps).length >= {step_count} && Object.keys(seenLines).length >= {line_count}"
    # Not `wait_for_function`: it evaluates text in the page, which the policy of the page forbids.
    for _ in range(int(WAIT_SECONDS / _POLL_SECONDS)):
        if await page.evaluate(done):
            break
        await asyncio.sleep(_POLL_SECONDS)
    else:
        raise ContenderFailed(f"{path} did not show all changes within {WAIT_SECONDS:.0f} s")
    steps = await page.evaluate("seenSteps")
    lines = await page.evaluate("seenLines")
    await page.close()
    delays = [(seen - sent) / 1000 for sent, seen in lines.values()]
    return Watched({int(number): seen / 1000 for number, seen in steps.items()}, delays)


async def count_requests_of_hidden_tab(context: BrowserContext, path: str, seconds: float) -> int:
    """Return the number of requests that a tab sends after it has been hidden for a while."""
    page = await context.new_page()
    await page.goto(path)
    await page.wait_for_load_state("load")
    await page.evaluate(_HIDE)
    await asyncio.sleep(HIDDEN_AFTER_SECONDS)
    sent = 0

    def note(_request: object) -> None:
        nonlocal sent
        sent += 1

    page.on("request", note)
    await asyncio.sleep(seconds)
    await page.close()
    return sent
