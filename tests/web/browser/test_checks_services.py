"""Acceptance checks with processes that start, are killed, or lose the database: C5, C7, C9, C19, C30, C53, C59."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, CDPSession, Page, Request, expect

from tenuto import Step, Tenuto, manual
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tests.cli.conftest import Shell, open_shell  # noqa: F401
from tests.races.proxy import Proxy
from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site, make_app, running_site
from tests.web.browser.test_checks_lists import hold

SCHEDULE = """
schedules:
  - name: Hourly
    trigger: {every: 1h}
    steps:
      - {job: double, input: {n: 4}}
"""
LIVE_TEXT = "[data-live-text]"
WORKER = """
import asyncio
from tenuto import Context, Step, Tenuto, manual

app = Tenuto()


@app.job(queue="doomed")
async def hold(ctx: Context) -> str:
    if ctx.attempt == 1:
        await asyncio.sleep(600)
    return "recovered"
"""


@pytest.mark.slow
async def test_c5_commands_of_the_first_steps_work_and_their_cards_disappear(
    url: str,
    tmp_path: Path,
    browser: Browser,
    open_shell: Callable[..., Shell],  # noqa: F811
) -> None:
    shell = open_shell(TENUTO_DATABASE=url, TENUTO_HOME=str(tmp_path / "home"))
    (tmp_path / "schedule.yaml").write_text(SCHEDULE)
    app = Tenuto(settings=load_settings(database=url, home=tmp_path / "web"))
    async with running_site(app, browser, services=False) as site:
        page = await site.open("/", permissions=["clipboard-read", "clipboard-write"])
        cards = page.get_by_role("region", name="First steps")
        await expect(cards.get_by_role("heading", level=2)).to_have_count(3)
        commands = []
        for button in await cards.get_by_role("button", name="Copy").all():
            await button.click()
            commands.append(shlex.split(await page.evaluate("navigator.clipboard.readText()")))
        assert [command[0] for command in commands] == ["tenuto"] * 3
        up, apply, run = (command[1:] for command in commands)
        services = shell.start_service(*up)
        await asyncio.to_thread(services.wait_for_line, "worker started")
        applied = await asyncio.to_thread(shell, *apply)
        assert applied.code == 0, applied.err
        await expect(cards.get_by_text("Done")).to_have_count(2, timeout=20_000)
        started = await asyncio.to_thread(shell, *["Hourly" if word == "NAME" else word for word in run])
        assert started.code == 0, started.err
        await expect(cards).to_have_count(0, timeout=20_000)
        assert await asyncio.to_thread(services.stop) == 0


@asynccontextmanager
async def on_terminal(arguments: list[str], **environment: str) -> AsyncIterator[Callable[[str], Any]]:
    """Run a command on a pseudo-terminal; provide a function that waits for a text of its output."""
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", *arguments],
        env={**os.environ, **environment, "COLUMNS": "300"},
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    shown = ""

    def read_until(pattern: str) -> re.Match[str]:
        nonlocal shown
        while (found := re.search(pattern, shown)) is None:
            shown += os.read(terminal, 4096).decode(errors="replace")
        return found

    try:
        yield lambda pattern: asyncio.wait_for(asyncio.to_thread(read_until, pattern), 60)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        await asyncio.to_thread(process.wait, 30)
        os.close(terminal)


async def log_in_by_link(browser: Browser, link: str) -> Page:
    """Follow a login link in a new browser profile."""
    address = link.partition("/login")[0]
    context = await browser.new_context(base_url=address, timezone_id="Europe/London")
    page = await context.new_page()
    await page.goto(link)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{address}/")
    return page


@pytest.mark.slow
async def test_c7_up_on_a_terminal_prints_a_link_that_opens_the_overview(
    browser: Browser, url: str, tmp_path: Path
) -> None:
    arguments = ["up", "--database", url, "--home", str(tmp_path / "up"), "--port", "0"]
    async with on_terminal(arguments) as read_until:
        link = (await read_until(r"dashboard +(\S+/login\?link=\S+)"))[1]
        page = await log_in_by_link(browser, link)
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()


async def test_c9_pages_below_a_path_prefix_never_leave_it(url: str, tmp_path: Path, browser: Browser) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, web_path="/ops/tenuto"))

    @app.job
    async def quick() -> None:
        pass

    app.schedule("Nightly", manual(), [Step.job(quick)])
    async with running_site(app, browser) as site:
        assert site.address.endswith("/ops/tenuto")
        page = await (await site.new_context()).new_page()
        requests: list[Request] = []
        page.on("request", lambda request: requests.append(request))
        await page.goto(f"{site.address}/executions?q=state:failed")
        assert page.url.partition("?")[0] == f"{site.address}/login"
        await page.get_by_label("Login link or API key").fill(site.keys[Role.OPERATOR])
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{site.address}/executions?q=state:failed")
        [cookie] = [each for each in await page.context.cookies() if "session" in each["name"]]
        assert cookie["path"] == "/ops/tenuto"
        await page.get_by_role("link", name="Schedules").click()
        await page.get_by_role("row", name="Nightly").get_by_role("button", name="Run now").click()
        await page.get_by_role("status").get_by_role("link", name="Open").first.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Nightly")
        await expect(page.locator("[data-part=head]")).to_contain_text("Completed", timeout=20_000)
        await eventually(lambda: any("/api/v1/events" in each.url for each in requests))
        for path in ("/", "/timeline", "/dead-letters", "/queues", "/docs"):
            await page.goto(site.address + path)
            for target in await page.locator("[href], [src], [action], [data-url]").evaluate_all(
                "all => all.map((e) => e.dataset.url ?? e.getAttribute('action') ?? e.getAttribute('src')"
                " ?? e.getAttribute('href'))"
            ):
                assert target.startswith(("/ops/tenuto/", "#")), (path, target)
        assert [each.url for each in requests if not each.url.startswith(f"{site.address}/")] == []
        await page.close()


@pytest.mark.slow
async def test_c19_lost_attempt_of_a_killed_worker_is_shown_with_the_recovery(
    url: str,
    tmp_path: Path,
    browser: Browser,
    open_shell: Callable[..., Shell],  # noqa: F811
) -> None:
    (tmp_path / "doomed.py").write_text(WORKER)
    shell = open_shell(TENUTO_DATABASE=url, TENUTO_HOME=str(tmp_path / "home"))
    app = Tenuto(settings=load_settings(database=url, home=tmp_path / "web"))

    @app.job(queue="doomed")
    async def hold() -> str:
        return "recovered"

    app.schedule("Doomed", manual(), [Step.job(hold, name="Hold")])
    async with running_site(app, browser) as site:
        doomed = shell.start_service("worker", "--app", "doomed:app", "--queues", "doomed", "--name", "box-9")
        await asyncio.to_thread(doomed.wait_for_line, "worker started")
        id = await site.run("Doomed")
        page = await site.open(f"/executions/{id}?tab=attempts")
        row = page.get_by_role("row", name="Hold")
        await expect(row).to_contain_text("Running", timeout=20_000)
        overview = await site.open("/")
        doomed.process.kill()
        database = await app.open()
        # Its last heartbeat and its lease are moved back instead of waiting for half a minute.
        await database.fetch_all("UPDATE tenuto.workers SET seen_at = seen_at - interval '1 min' WHERE name = 'box-9'")
        line = overview.get_by_role("listitem").filter(has_text="box-9 is dead")
        await expect(line.locator("[data-until]")).to_contain_text(re.compile(r"\d+ s"), timeout=40_000)
        before = await line.locator("[data-until]").inner_text()
        await expect(line.locator("[data-until]")).not_to_have_text(before)
        await database.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() WHERE state = 'running'")
        async with app.worker(queues=["doomed"]):
            await expect(row).to_contain_text("Completed, attempt 2", timeout=40_000)
        await expect(page.locator("[data-part=inspector]")).to_contain_text("lost", timeout=20_000)
        assert await row.locator("rect.fill-fail").count() >= 1
        await expect(line.locator("[data-until]")).to_have_count(0, timeout=40_000)


@pytest.mark.slow
async def test_c30_operation_of_a_killed_scheduler_is_followed_to_its_end_on_the_page(
    url: str,
    tmp_path: Path,
    browser: Browser,
    open_shell: Callable[..., Shell],  # noqa: F811
) -> None:
    count = 6000
    shell = open_shell(TENUTO_DATABASE=url, TENUTO_HOME=str(tmp_path / "home"))
    app = make_app(url, tmp_path / "web")
    async with running_site(app, browser, services=False) as site:
        await app.manifests.deploy()
        await hold(app, count)
        page = await site.open("/tasks?q=state:queued")
        await page.locator("[data-pick-all]").check()
        bar = page.get_by_role("region", name="Selected tasks")
        await bar.get_by_role("button", name="Select all 6,000 matching").click()
        await bar.get_by_role("button", name="Cancel…").click()
        await page.get_by_label("Type 6000 to confirm").fill("6000")
        await page.get_by_label("Reason (optional)").fill("supplier down")
        await page.get_by_role("button", name="Cancel 6,000 tasks").click()
        await page.get_by_role("status").get_by_role("link", name="Open").click()
        await page.wait_for_url("**/operations/*")
        head = page.locator("[data-part=head]")
        [operation] = await app.bulk_operations.list()

        async def succeeded_count() -> int:
            return (await app.bulk_operations.get(operation.id)).succeeded_count

        async def has_begun() -> bool:
            return await succeeded_count() > 0

        first = await asyncio.to_thread(shell.start_service, "scheduler", "--name", "s1")
        await eventually(has_begun, 60)
        await asyncio.to_thread(first.stop, signal.SIGKILL)
        done = await succeeded_count()
        assert 0 < done < count, "the scheduler was killed in the middle"
        assert (await app.count_tasks("state:queued")).count == count - done
        await expect(head).not_to_contain_text("Completed")
        await asyncio.to_thread(shell.start_service, "scheduler", "--name", "s2")
        await expect(head).to_contain_text("Completed", timeout=100_000)
        ended = await app.bulk_operations.get(operation.id)
        totals = (ended.item_count, ended.succeeded_count, ended.failed_count, ended.skipped_count)
        assert totals == (count, count, 0, 0)
        await expect(page.get_by_role("main")).to_contain_text("6,000")
        await expect(page.get_by_role("main")).to_contain_text("supplier down")
        row = await (await app.open()).fetch_one(
            "SELECT count(*) AS rows, count(DISTINCT task_id) AS tasks FROM tenuto.activities"
        )
        assert row is not None
        assert (row["rows"], row["tasks"]) == (count, count)


@pytest.mark.slow
async def test_c53_page_names_an_unreachable_database_and_recovers(url: str, tmp_path: Path, browser: Browser) -> None:
    async with Proxy(url) as proxy, running_site(make_app(proxy.url, tmp_path), browser) as site:
        page = await site.open("/queues")
        await expect(page.locator(LIVE_TEXT)).to_have_text("live")
        rows = await page.locator("main").inner_text()
        site.expect_problems("status of 503", "status of 500", "net::ERR_", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        proxy.refuse()
        await expect(page.locator(LIVE_TEXT)).to_contain_text("The database is currently unreachable", timeout=60_000)
        await expect(page.locator("body")).to_have_class(re.compile("is-stale"))
        assert await page.locator("main").inner_text() == rows, "the page can still be read"
        other = await page.context.new_page()
        answer = await other.goto("/executions")
        assert answer is not None
        assert answer.status == 503
        text = await other.locator("body").inner_text()
        assert "database" in text.lower()
        assert "Traceback" not in text
        proxy.accept()
        await expect(page.locator(LIVE_TEXT)).to_have_text("live", timeout=60_000)
        await expect(page.locator("body")).not_to_have_class(re.compile("is-stale"))


NOTE_LONG_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => { for (const each of list.getEntries()) window.longTasks.push(each.duration); })
    .observe({ type: "longtask", buffered: false });
}"""


class Growth:
    """Memory, nodes and listeners of a page, and its tasks that block the browser."""

    def __init__(self, page: Page, client: CDPSession) -> None:
        self._page, self._client = page, client

    @classmethod
    async def of(cls, page: Page) -> Growth:
        client = await page.context.new_cdp_session(page)
        await client.send("Performance.enable")
        return cls(page, client)

    async def measure(self) -> dict[str, float]:
        """Return the smallest values after several collections: one alone leaves what the last update used."""
        found: dict[str, float] = {}
        for _ in range(4):
            await self._page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 50))")
            await self._client.send("HeapProfiler.collectGarbage")
            for each in (await self._client.send("Performance.getMetrics"))["metrics"]:
                found[each["name"]] = min(each["value"], found.get(each["name"], each["value"]))
        return found

    async def check(self, before: dict[str, float], megabytes: float) -> None:
        after = await self.measure()
        assert after["JSHeapUsedSize"] - before["JSHeapUsedSize"] < megabytes * 1_000_000
        for name in ("Nodes", "JSEventListeners"):
            assert after[name] <= before[name] * 1.02 + 20, (name, before[name], after[name])
        long_tasks = await self._page.evaluate("window.longTasks")
        assert max(long_tasks, default=0) <= times(2000, in_a_proof=100), long_tasks


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_c59_page_that_is_updated_as_often_as_in_an_hour_does_not_grow(site: Site) -> None:
    """An hour of an execution page has about 3,600 updates; fewer of them show the growth of each.

    The page applies two answers of the server alternately, without further requests: only the browser can grow.
    """
    id = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{id}")
    growth = await Growth.of(page)

    async def update(count: int) -> None:
        await page.evaluate(
            """async (count) => {
              const live = await import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"));
              const names = ["head", "steps", "inspector", "nav"];
              const ask = window.fetch;
              const answers = [];
              for (const tab of ["log", "attempts"]) {
                const headers = { Accept: "text/html", "Tenuto-Parts": names.join() };
                const answer = await ask(`${location.pathname}?tab=${tab}`, { headers });
                answers.push({ text: await answer.text(), headers: answer.headers });
              }
              let current;
              window.fetch = async () => new Response(current.text, { headers: current.headers });
              for (let number = 0; number < count; number += 1) {
                current = answers[number % 2];
                const done = new Promise((resolve) =>
                  document.addEventListener("tenuto:updated", resolve, { once: true }));
                live.visit(location.href, names, true);
                await done;
              }
              window.fetch = ask;
            }""",
            count,
        )

    await update(20)
    await page.evaluate(NOTE_LONG_TASKS)
    before = await growth.measure()
    await update(times(200, in_a_proof=3600))
    await growth.check(before, times(1, in_a_proof=5))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_c59_live_page_of_a_running_execution_does_not_grow(site: Site) -> None:
    """Some seconds of real updates, ten minutes in a proof."""
    site.hold_talks()
    id = await site.run("Talk")
    page = await site.open(f"/executions/{id}?tab=attempts")
    await expect(page.get_by_role("row", name="Left")).to_contain_text("Running")
    growth = await Growth.of(page)
    updates: list[str] = []
    page.on("response", lambda each: updates.append(each.url) if "tenuto-parts" in each.request.headers else None)
    await eventually(lambda: len(updates) >= 3, 30)
    await page.evaluate(NOTE_LONG_TASKS)
    before = await growth.measure()
    count = len(updates) + times(8, in_a_proof=300)
    await eventually(lambda: len(updates) >= count, times(60, in_a_proof=800))
    await growth.check(before, 5)
