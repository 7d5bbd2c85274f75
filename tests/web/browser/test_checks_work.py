"""Checks C39 to C49 of the dashboard: schedules, zones, dead letters, batches, one-shots, queues and workers."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import expect

from tenuto.model.access.actors import Actor, ActorType, Role
from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import REFRESH, Site

KATHMANDU = ZoneInfo("Asia/Kathmandu")
ANA = Actor(ActorType.USER, None, "ana")


async def fail(site: Site, manifest: str, count: int) -> UUID:
    """Make dead letters with one kind of failure."""
    before = (await site.app.dead_letters.count()).count
    batch = await site.app.bulk_enqueue(manifest, [{"number": number} for number in range(count)])

    async def have_failed() -> bool:
        return (await site.app.dead_letters.count()).count == before + count

    await eventually(have_failed, 30)
    return batch.id


async def test_c6_work_without_a_worker_needs_attention_until_one_starts(site: Site) -> None:
    page = await site.open("/")
    await site.app.enqueue(site.app.jobs.jobs_by_name["quick"].using(queue="nobody"), 1)
    attention = page.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("nobody", timeout=20_000)
    command = await attention.get_by_role("button", name="Copy command").get_attribute("data-copy")
    assert command is not None
    assert command.startswith("tenuto worker")
    async with site.app.worker(queues=["nobody"]):
        await expect(page.get_by_text("nobody")).to_have_count(0, timeout=20_000)


async def test_c38_timeline_shows_executions_coming_runs_and_conflicts(site: Site) -> None:
    app = site.app
    await asyncio.gather(*[site.run(schedule, wait=True) for schedule in ("Nightly sync", "Limited", "Talk")])
    await app.limit_queue("ldap", 1)
    page = await site.open("/timeline?window=6h")
    gantt = page.locator("t-gantt")
    start, span = [int(await gantt.get_attribute(f"data-{name}") or "0") / 1000 for name in ("start", "span")]
    for execution in await app.executions.list():
        bar = page.locator(f'svg a[href="/executions/{execution.id}"] rect').last
        at, width, whole = await bar.evaluate(
            """each => [each.getBoundingClientRect().x - each.ownerSVGElement.getBoundingClientRect().x,
              each.getBoundingClientRect().width, each.ownerSVGElement.getBoundingClientRect().width]"""
        )
        assert execution.ended_at is not None
        seconds = (execution.ended_at - execution.started_at).total_seconds()
        assert abs(at - (execution.started_at.timestamp() - start) / span * whole) <= 1
        assert abs(width - seconds / span * whole) <= 1
    end = datetime.fromtimestamp(start + span, UTC)
    coming = await app.reports.upcoming(end=end, schedules=["Nightly sync"])
    lane = page.get_by_role("row", name="Nightly sync")
    assert await lane.locator("rect.plan").count() == coming.schedules[0].run_count
    await page.goto("/timeline?window=3d")
    limited = page.get_by_role("row", name="Limited")
    await expect(limited.locator("rect.conflict").first).to_be_attached()
    conflicts = page.get_by_role("region", name="Conflicts and clock changes")
    await expect(conflicts).to_contain_text("ldap")


async def test_c39_schedule_is_disabled_from_the_timeline(site: Site) -> None:
    page = await site.open("/timeline")
    lane = page.get_by_role("row", name="Nightly sync")
    await expect(lane.locator("rect.plan").first).to_be_attached()
    await lane.get_by_role("button", name="Actions of Nightly sync").click()
    await page.get_by_role("button", name="Disable…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason (optional)").fill("audit")
    await dialog.get_by_role("button", name="Disable").click()
    await expect(lane.locator("rect.plan")).to_have_count(0, timeout=20_000)
    [entry] = await site.app.audit.list("action:schedule.disable")
    assert (entry.actor_name, entry.reason) == ("operator", "audit")


async def test_c40_every_instant_is_in_the_chosen_zone(site: Site) -> None:
    id = await site.run("Month end", wait=True)
    await site.app.pause_queue("mail", "server down")
    page = await site.open("/", Role.ADMIN)
    await page.get_by_role("button", name="Europe/London").click()
    await page.get_by_label("Time zone of all times").fill("Asia/Kathmandu")
    async with page.expect_navigation():
        await page.get_by_role("button", name="Use this zone").click()
    for path in ("/", "/timeline", f"/executions/{id}", "/schedules", "/one-shots", "/ledger", "/audit", "/queues"):
        await page.goto(path)
        await expect(page.get_by_role("button", name="Asia/Kathmandu")).to_be_visible()
        shown = await page.locator("main time").evaluate_all("all => all.map((each) => [each.dateTime, each.title])")
        for instant, title in shown:
            local = datetime.fromisoformat(instant).astimezone(KATHMANDU)
            assert title.endswith("(Asia/Kathmandu)"), (path, title)
            assert f"{local:%H:%M:%S} +0545" in title, (path, title, instant)


async def test_c41_dead_letters_are_grouped_by_failure(site: Site) -> None:
    await fail(site, "bills", 9)
    await fail(site, "reports", 2)
    page = await site.open("/dead-letters")
    groups = page.get_by_role("table", name="Open dead letters by kind of failure").locator("tbody tr")
    await expect(groups).to_have_count(2)
    await expect(groups.nth(0)).to_contain_text("9")
    await expect(groups.nth(0)).to_contain_text("no address for customer")
    await expect(groups.nth(0).get_by_role("link", name="bills")).to_be_visible()
    await expect(groups.nth(1)).to_contain_text("2")
    await expect(groups.nth(0).get_by_role("img", name="9 in the last 24 hours")).to_be_visible()
    await expect(page.locator("[data-part=groups]")).to_contain_text("11 awaiting intervention")


async def test_c43_retry_of_a_group_leaves_later_dead_letters(site: Site) -> None:
    await fail(site, "reports", 39)
    page = await site.open("/dead-letters")
    await page.get_by_role("button", name="Retry 39…").click()
    await fail(site, "reports", 3)
    [worker] = [each for each in await site.app.workers() if each.service == "worker"]
    await site.app.drain_worker(worker.name)  # what is retried fails again otherwise
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await page.get_by_role("status").get_by_role("link", name="Open").click()
    head = page.locator("[data-part=head]")
    await expect(head).to_contain_text("Succeeded39", timeout=20_000)
    await expect(head).to_contain_text("Arrived later, not touched3", timeout=20_000)
    await page.goto("/dead-letters")
    await expect(page.locator("[data-part=groups]")).to_contain_text("3 awaiting intervention")


@pytest.fixture
def notes_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_DEAD_LETTER_NOTE_REQUIRED", "true")


async def test_c44_note_is_required_where_the_setting_says_so(notes_required: None, site: Site) -> None:
    await fail(site, "reports", 1)
    [letter] = await site.app.dead_letters.list()
    page = await site.open(f"/dead-letters/{letter.id}")
    await page.get_by_role("button", name="Acknowledge…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Acknowledge").click()
    await expect(dialog.get_by_label("Note")).to_be_focused()
    assert (await site.app.dead_letters.get(letter.id)).state == "awaiting_intervention"
    await dialog.get_by_label("Note").fill("template added")
    await dialog.get_by_role("button", name="Acknowledge").click()
    await expect(page.locator("[data-part=head]")).to_contain_text("template added")
    await page.goto("/dead-letters?q=state:acknowledged")
    await expect(page.locator("[data-part=list] tr[data-key]")).to_have_count(1)


async def test_c45_empty_list_names_the_last_resolution(site: Site) -> None:
    page = await site.open("/dead-letters")
    await expect(page.locator("[data-part=groups]")).to_contain_text("No dead letters.")
    await fail(site, "reports", 1)
    [letter] = await site.app.dead_letters.list()
    await site.app.acting_as(ANA, source="test").dead_letters.acknowledge(letter.id, note="template added")
    await page.reload()
    await expect(page.locator("[data-part=groups]")).to_contain_text(
        re.compile(r"No dead letters\. The last one was resolved .* by ana\.")
    )


SIZE = times(400, in_a_proof=5000)
"""Items of a batch. The check asks for 5,000; so many only take longer."""


async def test_c46_batch_is_resumed_and_its_figures_always_add_up(site: Site) -> None:
    batch = await site.app.bulk_enqueue("bills", [{"number": number} for number in range(SIZE)])
    await site.app.batches.pause(batch.id)
    page = await site.open(f"/batches/{batch.id}")
    head = page.locator("[data-part=head]")

    async def figures() -> dict[str, int]:
        pairs = (
            await head.locator("dl")
            .last.locator("div")
            .evaluate_all("all => all.map((each) => [each.children[0].textContent, each.children[1].textContent])")
        )
        return {name: int(text.replace(",", "")) for name, text in pairs}

    await page.get_by_role("button", name="Resume").click()

    async def has_ended() -> bool:
        found = await figures()
        assert found["Completed"] + found["Failed"] + found["Cancelled"] + found["Open"] == SIZE
        return found["Open"] == 0

    await eventually(has_ended, times(30, in_a_proof=300))
    await expect(head).to_contain_text("Ended")
    failures = page.get_by_role("region", name="Failures by kind")
    await expect(failures.get_by_role("rowheader")).to_have_count(1)  # the failures differ by a number only
    await page.get_by_role("link", name="All", exact=True).click()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="CSV").click()
    lines = (await (await download.value).path()).read_text("utf-8").splitlines()
    assert len(lines) == SIZE + 1
    assert lines[0].startswith("key,state,")
    assert all(",failed," in line for line in lines[1:])
    await failures.get_by_role("link").click()
    await expect(page.locator("[data-part=list]")).to_contain_text(f"{SIZE:,} dead letters")


async def test_c47_one_shot_counts_down_and_completes(site: Site) -> None:
    page = await site.open("/one-shots")
    await page.get_by_role("button", name="New one-shot…").click()
    dialog = page.get_by_role("dialog")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    await dialog.get_by_label("Run at").fill(yesterday.isoformat())
    await dialog.get_by_role("button", name="Create the one-shot").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("in the past")
    assert await site.app.one_shots.list() == []
    await dialog.get_by_label("Run at").fill("in 4 s")
    await dialog.get_by_label("Payload").fill('{"message": "it runs"}')
    await dialog.get_by_role("button", name="Create the one-shot").click()
    row = page.locator("[data-part=list] tr[data-key]")
    await expect(row).to_contain_text("log.append")
    await expect(row.locator("time[data-age]")).to_have_count(1)
    await page.get_by_role("status").get_by_role("link", name="Open").click()
    await expect(page.locator("[data-part=head] .status").first).to_have_text("Completed", timeout=20_000)
    await page.goto("/logs/default")
    await expect(page.locator("[data-part=list]")).to_contain_text("it runs")
    await page.goto("/one-shots?q=state:completed")
    await expect(page.locator("[data-part=list] tr[data-key]")).to_have_count(1)


async def test_c48_pause_limit_and_resume_of_a_queue_show_in_a_second_browser(site: Site) -> None:
    first, second = await site.open("/queues/held"), await site.open("/queues/held", Role.VIEWER)
    await first.get_by_role("button", name="Pause…").click()
    await first.get_by_role("dialog").get_by_label("Reason (optional)").fill("no paper")
    await first.get_by_role("dialog").get_by_role("button", name="Pause the queue").click()
    head = second.locator("[data-part=head]")
    await expect(head).to_contain_text("Paused byoperator", timeout=20_000)
    await expect(head).to_contain_text("no paper")
    await site.app.limit_queue("held", 3)
    await expect(head).to_contain_text("of at most 3", timeout=20_000)
    task = await site.app.enqueue(site.app.jobs.jobs_by_name["held"], 1)
    third = await site.open(f"/tasks/{task.id}")
    await expect(third.get_by_role("region", name="Why is it not running?")).to_contain_text("no paper")
    await first.get_by_role("button", name="Resume").click()
    await expect(head).not_to_contain_text("no paper", timeout=20_000)
    await expect(third.locator("[data-part=head] .status").first).to_have_text("Completed", timeout=20_000)


async def test_c49_worker_is_drained_and_resumed(site: Site) -> None:
    await site.run("Limited")
    page = await site.open("/workers")
    row = page.get_by_role("table", name="Live processes").get_by_role("row").filter(has_text="of 100")
    await row.get_by_role("button", name="Drain…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    await expect(row).to_contain_text("Draining", timeout=20_000)
    waiting = await site.app.enqueue(site.app.jobs.jobs_by_name["quick"], 1)
    await expect(row).to_contain_text(re.compile(r"\b0 of \d+"), timeout=20_000)
    assert (await site.app.attempts(waiting.id))[-1].started_at is None
    await row.get_by_role("button", name="Resume").click()

    async def has_run() -> bool:
        return (await site.app.attempts(waiting.id))[-1].ended_at is not None

    await eventually(has_run, 20)
    await page.evaluate(REFRESH)
