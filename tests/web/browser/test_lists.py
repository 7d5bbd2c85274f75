"""Lists: numbers on chips, usual durations, order of claims, filters of ledger and logs, row menus, comparison."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from playwright.async_api import expect

from tests.web.browser.conftest import Site
from tests.web.browser.test_checks_lists import ROWS, hold, listed_ids


async def test_chips_show_capped_numbers_and_follow_changes(site: Site) -> None:
    for schedule in ("Nightly sync", "Month end", "Month end"):
        await site.run(schedule, wait=True)
    page = await site.open("/executions")
    filters = page.get_by_role("navigation", name="Filters")
    for name in ("All 3", "Running 0", "Failed 2", "Completed 1", "Last 24 h 3"):
        await expect(filters.get_by_role("link", name=name, exact=True)).to_be_visible()
    await site.run("Month end", wait=True)
    await expect(filters.get_by_role("link", name="Failed 3", exact=True)).to_be_visible()
    await filters.get_by_role("link", name="Failed 3").click()
    await page.wait_for_url("**/executions?q=state%3Afailed")
    await expect(page.locator(ROWS)).to_have_count(3)
    await hold(site.app, 10_050)
    await page.goto("/tasks")
    filters = page.get_by_role("navigation", name="Filters")
    await expect(filters.get_by_role("link", name="Queued 10,000+", exact=True)).to_be_visible()
    await expect(filters.get_by_role("link", name="Running 0", exact=True)).to_be_visible()
    await page.goto("/activities")
    filters = page.get_by_role("navigation", name="Filters")
    expected = await site.app.count_activities("state:failed")
    await expect(filters.get_by_role("link", name=f"Failed {expected.count}", exact=True)).to_be_visible()
    long_ones = filters.get_by_role("link", name="Longer than 30 s")
    await expect(long_ones).to_have_text("Longer than 30 s")  # no index supports it, so it is not counted


async def test_execution_is_measured_against_the_usual_duration(site: Site) -> None:
    await site.run("Nightly sync", wait=True)
    running = await site.run("Talk")
    page = await site.open("/executions")
    row = page.get_by_role("row", name="Nightly sync")
    await expect(row.get_by_role("img", name="usually")).to_be_visible()
    [usual] = (await site.app.executions.usual_seconds([(await site.app.schedules.get("Nightly sync")).id])).values()
    shown = await row.locator(".pace rect").nth(1).get_attribute("width")
    assert shown == "50.0%", f"the only completed execution is the median of {usual} s"
    first = page.locator(f'tr[data-key="{running}"]')
    await expect(first.get_by_role("img", name="usually")).to_have_count(0)  # none has completed yet
    await site.app.executions.wait(running, 30)
    second = await site.run("Talk")
    bar = page.locator(f'tr[data-key="{second}"] [data-pace]')
    await expect(bar).to_be_visible()
    before = await bar.get_attribute("width")
    await expect(bar).not_to_have_attribute("width", before or "")  # it grows while it runs
    await site.app.executions.cancel(second)


async def test_queued_tasks_are_listed_in_the_order_of_claims(site: Site) -> None:
    app = site.app
    await app.pause_queue("held", "server down")
    held = app.jobs.jobs_by_name["held"]
    for number, priority in ((1, 0), (2, 5), (3, 0), (4, -5), (5, 5)):
        await app.enqueue(held.using(priority=priority), number)
    await app.enqueue(held.using(run_at=datetime.now(UTC) + timedelta(hours=1)), 6)
    expected = [str(each.id) for each in await app.tasks.next_to_claim("queue:held")]
    page = await site.open("/tasks?q=queue:held")
    await expect(page.locator(ROWS)).to_have_count(6)
    await page.get_by_role("link", name="In claim order").click()
    await page.wait_for_url("**order=claim")
    assert await listed_ids(page) == expected
    priorities = await page.locator(f"{ROWS} td[data-label=priority]").all_inner_texts()
    assert [text or "0" for text in priorities] == ["5", "5", "0", "0", "-5"]
    await app.bulk_enqueue("held", [{"number": number} for number in range(60)])
    await page.reload()
    seen = await listed_ids(page)
    await page.get_by_role("link", name="Next").click()
    await page.wait_for_url("**after=**")
    seen += await listed_ids(page)
    assert seen == [str(each.id) for each in await app.tasks.next_to_claim("queue:held", limit=100)]


async def test_ledger_and_logs_are_filtered(site: Site) -> None:
    app = site.app
    await site.run("Nightly sync", wait=True)
    await site.run("Chatter", wait=True)
    for number in range(3):
        await app.logs.append("orders", f"order {number} {'refused' if number == 1 else 'taken'}")
    await app.logs.append("night", "quiet")
    page = await site.open("/ledger")
    await expect(page.locator(ROWS)).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type('schedule:"Nightly sync" decision:fired')
    await page.keyboard.press("Enter")
    await expect(page.locator(ROWS)).to_have_count(1)
    assert await listed_ids(page) == [str(each.id) for each in await app.schedules.ledger("Nightly sync")]
    await page.goto("/ledger?q=decision:missed")
    await expect(page.locator("[data-part=list]")).to_contain_text("Nothing matches")
    await page.goto("/logs")
    await expect(page.locator(ROWS)).to_have_count(2)
    await page.get_by_role("searchbox", name="Search logs").fill("ORD")
    await page.keyboard.press("Enter")
    await expect(page.locator(ROWS)).to_have_count(1)
    await page.get_by_role("link", name="orders").click()
    await expect(page.locator(ROWS)).to_have_count(3)
    await page.get_by_role("searchbox").or_(page.get_by_role("combobox", name="Filter log entries")).fill("refused")
    await page.keyboard.press("Enter")
    await expect(page.locator(ROWS)).to_have_count(1)
    await expect(page.locator(ROWS)).to_contain_text("order 1 refused")
    assert page.url.endswith("/logs/orders?q=refused")
    found = await app.logs.read("orders", "refused")
    assert [str(each.id) for each in found] == await listed_ids(page)


async def test_row_menus_lead_to_what_belongs_to_the_row(site: Site) -> None:
    app = site.app
    await hold(app, 2)
    shot = await app.one_shots.create(
        datetime.now(UTC) + timedelta(hours=1), "log.append", {"message": "x"}, tags=["later"]
    )
    page = await site.open("/one-shots")
    open_menu = page.locator(".row-menu:popover-open")
    for path, row, entries in (
        ("/one-shots", "log.append", ("Open", "Why is it not running?", "Tagged later")),
        ("/manifests", "bills", ("Open", "Edit", "Open tasks", "Dead letters", "Batches")),
        ("/queues", "held", ("Open", "Waiting tasks in claim order", "Running tasks")),
        ("/workers", "", ("Its tasks", "Its past attempts", "Queue default")),
    ):
        await page.goto(path)
        button = page.locator(ROWS).filter(has_text=row).get_by_role("button", name="Actions of").first
        if path == "/workers":
            button = page.locator(ROWS).filter(has_text="0 of").get_by_role("button", name="Actions of").first
        await button.click()
        for entry in entries:
            await expect(open_menu.get_by_role("link", name=entry, exact=True)).to_be_visible()
    await page.goto("/queues")
    await page.locator(ROWS).filter(has_text="held").get_by_role("button", name="Actions of held").click()
    await page.get_by_role("link", name="Waiting tasks in claim order").click()
    await expect(page.locator(ROWS)).to_have_count(2)
    await page.goto("/one-shots")
    await page.locator(ROWS).get_by_role("link").first.focus()
    await page.keyboard.press(".")
    await expect(open_menu.get_by_role("link", name="Open", exact=True)).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/tasks/{shot.id}")


async def test_two_selected_executions_are_compared(site: Site) -> None:
    first, second = [await site.run("Nightly sync", wait=True) for _ in range(2)]
    await site.run("Chatter", wait=True)
    page = await site.open("/executions?q=schedule:%22Nightly+sync%22")
    compare = page.get_by_role("link", name="Compare the two")
    await page.get_by_role("checkbox", name="Select Nightly sync").first.check()
    await expect(page.get_by_role("region", name="Selected executions")).to_contain_text("1 selected")
    await expect(compare).to_be_hidden()
    await page.get_by_role("checkbox", name="Select Nightly sync").last.check()
    await compare.click()
    await page.wait_for_url(f"**/executions/compare?a={first}&b={second}")
    await expect(page.get_by_role("rowheader", name="Import")).to_be_visible()
