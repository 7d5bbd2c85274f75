"""Checks C10 to C22 of the dashboard: the page of an execution while it runs and after its end."""

from __future__ import annotations

import asyncio
import re
import time
from uuid import UUID

from playwright.async_api import FloatRect, expect

from tenuto import Step, every
from tenuto.model.access.actors import Actor, ActorType, Role
from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site, within

ANA = Actor(ActorType.USER, None, "ana")
LOG = "t-log .log > div"
NO_BOX: FloatRect = {"x": 0, "y": 0, "width": 0, "height": 0}


RANKS = {"waiting": 0, "scheduled": 1, "queued": 1, "running": 2, "completed": 3}
READ_STATES = """() => [...document.querySelectorAll("tr[data-key^=s] .status")].map(
  (each) => each.textContent.trim().toLowerCase().match(/^[a-z]+/)[0])"""


async def test_c10_run_now_opens_a_page_that_follows_every_change(site: Site) -> None:
    talk = site.app.jobs.jobs_by_name["talk"]
    names = [["Import"], ["Sync"], ["AD - Export", "LDAP - Export"], ["AD - Confirm", "LDAP - Confirm"]]
    groups = [[Step.job(talk, 1.0, name=name) for name in group] for group in names]
    site.app.schedule("Night", every("1d"), groups)
    await site.app.schedules.deploy()
    site.hold_talks()
    page = await site.open("/schedules")
    await (
        page.get_by_role("row", name="Night", exact=True)
        .or_(page.get_by_role("row").filter(has=page.get_by_role("link", name="Night", exact=True)))
        .get_by_role("button", name="Run now")
        .click()
    )
    await page.get_by_role("status").get_by_role("link", name="Open").click()
    rail = page.get_by_role("list", name="Step groups").get_by_role("listitem")
    await expect(rail).to_have_count(4)
    await expect(page.locator("tr[data-key^=s]")).to_have_count(6)
    for number in (1, 2, 3):
        await expect(rail.nth(number)).to_contain_text(f"Waiting for group {number}")
    id = UUID(page.url.rpartition("/")[2])
    stored: dict[tuple[int, int], float] = {}
    shown: dict[tuple[int, int], float] = {}

    def note(seen: dict[tuple[int, int], float], states: list[str]) -> None:
        """Keep the instant at which each step has reached each rank."""
        now = time.monotonic()
        for step, state in enumerate(states):
            for rank in range(RANKS[state] + 1):
                seen.setdefault((step, rank), now)

    site.release_talks()
    while len(shown) < 6 * 4:
        record = await site.app.executions.get(id)
        note(stored, [each.state for each in record.steps])
        note(shown, await page.evaluate(READ_STATES))
        await asyncio.sleep(0.1)  # the sampling interval of the check
    delays = sorted(at - stored[each] for each, at in shown.items())
    assert delays[int(len(delays) * 0.95)] <= within(2.0) / 1000, delays
    await expect(page.locator("[data-part=head] .status").first).to_have_text("Completed")


async def test_c12_figures_and_bars_equal_the_timeline(site: Site) -> None:
    id = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{id}")
    timeline = await site.app.executions.timeline(id)
    for group in timeline.groups:
        for step in group.steps:
            row = page.locator(f"tr[data-key=s{step.number + 1}]")
            last = step.attempts[-1]
            assert last.duration_seconds is not None
            bars = row.locator("svg.bars a")
            await expect(bars).to_have_count(len(step.attempts))
            area = await row.locator("svg.bars").bounding_box()
            assert area is not None
            start = float(await page.locator("t-gantt").get_attribute("data-start") or 0)
            span = float(await page.locator("t-gantt").get_attribute("data-span") or 1)
            for index, attempt in enumerate(step.attempts):
                assert attempt.started_at is not None
                assert attempt.ended_at is not None
                box = await bars.nth(index).bounding_box()
                assert box is not None
                left = (attempt.started_at.timestamp() * 1000 - start) / span * area["width"]
                width = (attempt.ended_at - attempt.started_at).total_seconds() * 1000 / span * area["width"]
                assert abs(box["x"] - area["x"] - left) <= 1.5
                assert abs(box["width"] - max(width, 4)) <= 1.5


async def test_c15_log_lines_appear_in_order_while_the_attempt_runs(site: Site) -> None:
    id = await site.run("Talk")
    page = await site.open(f"/executions/{id}?step=1&tab=log")
    await expect(page.locator(LOG).first).to_contain_text("line 0", timeout=20_000)
    await expect(page.locator(LOG).last).to_contain_text(re.compile(r"line ([3-9]|1\d)"), timeout=20_000)
    follow = page.get_by_label("Follow")
    await expect(follow).to_be_checked()
    await site.app.executions.wait(id, 30)
    await expect(page.locator(LOG)).to_have_count(20, timeout=20_000)
    texts = await page.locator(f"{LOG} bdi").all_inner_texts()
    assert texts == [f"line {number}" for number in range(20)]


async def test_c15_scrolling_up_stops_following_and_f_resumes_it(site: Site) -> None:
    id = await site.run("Chatter", wait=True)
    page = await site.open(f"/executions/{id}?tab=log")
    box, follow = page.locator("t-log .log"), page.get_by_label("Follow")
    await expect(page.locator(LOG)).to_have_count(500)
    await expect(follow).to_be_checked()
    await box.evaluate("box => { box.scrollTop = 300; }")
    await expect(follow).not_to_be_checked()
    await page.locator("#main").focus()
    await page.keyboard.press("f")
    await expect(follow).to_be_checked()
    at_end = "box => box.scrollHeight - box.scrollTop - box.clientHeight < 24"
    await eventually(lambda: box.evaluate(at_end), what="the end of the log is shown")


async def test_log_has_find_levels_wrap_and_older_lines(site: Site) -> None:
    id = await site.run("Chatter", wait=True)
    page = await site.open(f"/executions/{id}?tab=log")
    await page.keyboard.press("/")
    find = page.get_by_label("Find in the log")
    await expect(find).to_be_focused()
    await page.keyboard.type("number 140")
    found = page.locator("[data-log-found]")
    await expect(found).to_have_text("10 of 10")  # 1400 to 1409
    await page.keyboard.press("Enter")
    await expect(found).to_have_text("9 of 10")
    await page.keyboard.press("Escape")
    await page.get_by_label("Level").select_option("warning")
    assert set(await page.locator(f"{LOG}:visible > span").all_inner_texts()) == {"warning"}
    await page.get_by_label("Level").select_option("")
    long = page.locator(LOG).last
    high = (await long.bounding_box() or NO_BOX)["height"]
    await page.get_by_label("Wrap").uncheck()
    assert (await long.bounding_box() or NO_BOX)["height"] < high
    await page.locator("t-log .log").evaluate("box => { box.scrollTop = 0; }")
    await expect(page.locator(LOG)).to_have_count(1000, timeout=20_000)
    await eventually(lambda: page.locator("t-log .log").evaluate("box => box.scrollTop > 1000"))
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download raw text").click()
    assert (await download.value).suggested_filename.endswith(".txt")


LIVE_LOG_WRITES = """SELECT n_tup_ins + n_tup_upd + n_tup_del AS writes FROM pg_stat_user_tables
WHERE schemaname = 'tenuto' AND relname = 'live_logs'"""


async def test_c16_closed_log_is_no_longer_written(site: Site) -> None:
    site.hold_talks()
    id = await site.run("Talk")
    page = await site.open(f"/executions/{id}?step=1&tab=log")
    await expect(page.locator(LOG).first).to_be_visible(timeout=20_000)
    database = await site.app.open()

    async def count_writes() -> int:
        return int(await database.fetch_value(LIVE_LOG_WRITES))

    await eventually(count_writes, 20, what="the statistics show that the open log is written")
    await page.goto("/queues")

    async def is_empty() -> bool:
        return bool(await database.fetch_value("SELECT count(*) = 0 FROM tenuto.live_logs"))

    await eventually(is_empty, 40)

    async def is_quiet() -> bool:
        """Sessions report what they wrote within seconds; the open log was written twice per second."""
        before = await count_writes()
        await asyncio.sleep(times(3, in_a_proof=20))
        return await count_writes() == before

    await eventually(is_quiet, 30)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert (await site.app.executions.get(id)).state == "in_progress", "the attempt still writes lines"


async def test_c17_paused_queue_is_explained_and_resumed_from_the_page(site: Site) -> None:
    await site.app.acting_as(ANA, source="test").pause_queue("ldap", "server down")
    site.hold_talks()
    id = await site.run("Limited")
    page = await site.open(f"/executions/{id}")
    card = page.get_by_role("region", name="Why is it waiting?")
    await expect(card).to_contain_text("ana", timeout=20_000)
    await expect(card).to_contain_text("server down")
    titles = await card.locator("time").evaluate_all("all => all.map((each) => each.title)")
    assert titles
    assert all("Europe/London" in title for title in titles)
    await card.get_by_role("button", name="Resume").first.click()
    await expect(page.get_by_role("row", name="First")).to_contain_text("Running", timeout=20_000)
    await expect(card).to_be_hidden(timeout=20_000)


async def test_c18_wait_for_a_limit_grows_and_names_the_holder(site: Site) -> None:
    await site.app.limit_queue("ldap", 1)
    site.hold_talks()
    id = await site.run("Limited")
    page = await site.open(f"/executions/{id}")
    waiting = page.locator("tr[data-key^=s]", has_text="Queued")
    await expect(waiting).to_have_count(1, timeout=20_000)
    name = await waiting.locator("a.step").inner_text()
    lead = waiting.locator("rect.fill-wait")
    before = (await lead.bounding_box() or NO_BOX)["width"]
    holder = page.get_by_role("region", name="Why is it waiting?").get_by_role("link", name="Open holder").first
    await expect(holder).to_be_visible()

    async def has_grown() -> bool:
        box = await page.locator("tr[data-key^=s]", has_text=name).locator("rect.fill-wait").bounding_box()
        return box is not None and box["width"] > before

    await eventually(has_grown)
    site.release_talks()
    await site.app.executions.wait(id, 30)
    timeline = await site.app.executions.timeline(id)
    waited = max(step.attempts[-1].wait_seconds or 0 for step in timeline.groups[0].steps)
    await expect(page.locator("[data-part=head] .status").first).to_have_text("Completed", timeout=20_000)
    shown = await page.locator("tr[data-key^=s]", has_text=name).locator("td.num").first.inner_text()
    assert abs(float(shown.removesuffix(" s")) - waited) <= 0.1


async def test_c20_cancellation_says_its_effect_and_is_recorded_with_the_reason(site: Site) -> None:
    site.hold_talks()
    id = await site.run("Talk")
    page = await site.open(f"/executions/{id}")
    await expect(page.get_by_role("row", name="Left")).to_contain_text("Running", timeout=20_000)
    await page.keyboard.press("c")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(
        "1 steps that have not started are removed, 1 running steps are asked to stop."
    )
    await dialog.get_by_label("Reason (optional)").fill("supplier down")
    await dialog.get_by_role("button", name="Cancel the execution").click()
    head = page.locator("[data-part=head]")
    await expect(head.locator(".status").first).to_have_text("Cancelled", timeout=20_000)
    await expect(head).to_contain_text("Cancelled byoperator")
    await expect(head).to_contain_text("supplier down")
    [entry] = await site.app.audit.list("action:execution.cancel")
    assert (entry.actor_name, entry.reason) == ("operator", "supplier down")
    assert entry.source.startswith("127.0.0.1")
    await expect(page.get_by_role("list", name="Step groups").get_by_role("listitem").nth(1)).not_to_contain_text(
        "Waiting"
    )


async def test_c20_execution_is_stopping_until_its_steps_have_ended(site: Site) -> None:
    stubborn = site.app.jobs.jobs_by_name["stubborn"]
    site.app.schedule("Stubborn", every("1d"), [Step.job(stubborn, name="Hold"), Step.job(stubborn, name="Later")])
    await site.app.schedules.deploy()
    site.hold_talks()
    id = await site.run("Stubborn")
    page = await site.open(f"/executions/{id}")
    watched = await site.open(f"/executions/{id}", Role.VIEWER)
    await expect(page.get_by_role("row", name="Hold")).to_contain_text("Running", timeout=20_000)
    await page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason (optional)").fill("supplier down")
    await dialog.get_by_role("button", name="Cancel the execution").click()
    status = watched.locator("[data-part=head] .status").first
    await expect(status).to_have_text("Stopping", timeout=within(2.0))
    await expect(page.get_by_role("button", name="Cancel…")).to_be_enabled()
    site.release_talks()
    await expect(status).to_have_text("Cancelled", timeout=within(2.0))
    await expect(watched.get_by_role("row", name="Later")).to_contain_text("Cancelled")
    await expect(watched.locator("[data-part=head]")).to_contain_text("supplier down")
    answer = await watched.request.get(f"/api/v1/history?target=execution:{id}")
    assert answer.ok, "a viewer may read who did what with an execution, and why"
    [entry] = [each for each in (await answer.json())["items"] if each["action"] == "execution.cancel"]
    assert (entry["actor_name"], entry["reason"]) == ("operator", "supplier down")
    assert "source" not in entry, "addresses are for admins"


async def test_c21_step_attempt_and_tab_are_in_the_address(site: Site) -> None:
    id = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{id}?step=2&attempt=1&tab=error")

    async def expect_shown(step: str, attempt: int, tab: str) -> None:
        await expect(page.locator("#inspector-title")).to_have_text(step)
        await expect(page.locator("[data-part=inspector] header")).to_contain_text(f"attempt {attempt} of")
        await expect(page.locator(".tabs [aria-current]")).to_contain_text(tab)

    await expect_shown("Sync", 1, "Error")
    await expect(page.locator("[data-part=inspector]")).to_contain_text("the server does not respond")
    await page.get_by_role("link", name="Input").click()
    await expect_shown("Sync", 1, "Input")
    await page.get_by_role("link", name="Import", exact=True).click()
    await expect_shown("Import", 1, "Log")
    await page.go_back()
    await expect_shown("Sync", 1, "Input")
    await page.go_back()
    await expect_shown("Sync", 1, "Error")
    await page.go_forward()
    await expect_shown("Sync", 1, "Input")
    await page.reload()
    await expect_shown("Sync", 1, "Input")


async def test_c22_step_that_runs_a_schedule_unfolds_to_its_groups(site: Site) -> None:
    id = await site.run("Parent")
    page = await site.open(f"/executions/{id}")
    button = page.get_by_role("button", name="Unfold")
    await button.click(timeout=20_000)
    rail = page.get_by_role("list", name="Step groups of Talk")
    await expect(rail.get_by_role("listitem")).to_have_count(2)
    await expect(rail.get_by_role("listitem").first).to_contain_text("Completed", timeout=20_000)
    await page.get_by_role("row", name="Talk").get_by_role("link", name="Talk").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Talk")
    assert page.url != f"{site.address}/executions/{id}"
    await page.go_back()
    await expect(page.get_by_role("list", name="Step groups of Talk")).to_be_visible()
    await page.get_by_role("button", name="Fold").click()
    await expect(page.get_by_role("list", name="Step groups of Talk")).to_be_hidden()


async def test_c14_old_execution_links_to_its_retry(site: Site) -> None:
    id = await site.run("Month end", wait=True)
    retried = await site.app.executions.retry(id)
    page = await site.open(f"/executions/{id}")
    link = page.locator("[data-part=head] dd", has=page.locator(f"a[href$='{retried}']"))
    await expect(link).to_be_visible()


async def test_wide_group_is_folded_with_find_and_windows(site: Site) -> None:
    id = await site.run("Wide", wait=True)
    page = await site.open(f"/executions/{id}")
    rows = page.locator("tr[data-key^=s]")
    await expect(page.get_by_text("completed 120")).to_be_visible()
    await page.get_by_role("link", name="Show steps").click()
    await expect(rows).to_have_count(100)
    await page.get_by_role("link", name="Next", exact=True).click()
    await expect(rows).to_have_count(20)
    await page.get_by_role("link", name="Previous", exact=True).click()
    await expect(rows).to_have_count(100)
    await page.get_by_label("Find a step in group 1").fill("step 117")
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("step 117")


async def test_inspector_can_be_widened(site: Site) -> None:
    id = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{id}", Role.VIEWER)
    inspector = page.locator("[data-part=inspector]")
    before = (await inspector.bounding_box() or NO_BOX)["width"]
    await page.get_by_role("button", name="Widen the inspector").click()

    async def is_wider() -> bool:
        return (await inspector.bounding_box() or NO_BOX)["width"] > before * 1.15

    await eventually(is_wider)
