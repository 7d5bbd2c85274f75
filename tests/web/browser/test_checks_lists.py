"""Checks C23 to C32 of the dashboard: filters, selection, row menus and bulk operations of lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from playwright.async_api import Page, Route, expect

from tenuto import Tenuto
from tenuto.model.access.actors import Role
from tests.support.repetition_counts import times
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site
from tests.web.browser.test_accessibility import find_violations

ROWS = "[data-part=list] tr[data-key]"


async def listed_ids(page: Page) -> list[str]:
    found: list[str] = await page.locator(ROWS).evaluate_all("all => all.map((row) => row.dataset.key)")
    return found


async def hold(app: Tenuto, count: int) -> None:
    """Enqueue tasks in a paused queue, so that they wait."""
    await app.pause_queue("held", "server down")
    await app.bulk_enqueue("held", [{"number": number} for number in range(count)])


async def open_filter(page: Page) -> Any:
    await page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Filter")
    await expect(field).to_be_focused()
    return field


OTHER_ACTIVITIES = """
INSERT INTO tenuto.activities
SELECT (jsonb_populate_record(NULL::tenuto.activities,
        to_jsonb(one) || jsonb_build_object('id', made.id, 'task_id', made.id, 'name', 'other-' || made.n % 500))).*
FROM (SELECT * FROM tenuto.activities WHERE name = 'quick' LIMIT 1) AS one,
     (SELECT n, gen_random_uuid() AS id FROM generate_series(1, $1::integer) AS n) AS made
"""


async def test_c23_activities_of_a_rare_name_are_found(site: Site) -> None:
    await site.run("Nightly sync", wait=True)
    database = await site.app.open()
    others = times(2_000, in_a_proof=1_000_000)
    for _ in range(0, others, 2_000):
        await database.fetch_all(OTHER_ACTIVITIES, 2_000)
    page = await site.open("/activities?q=name:flaky")
    await expect(page.locator(ROWS)).to_have_count(3)
    assert await listed_ids(page) == [str(each.id) for each in await site.app.activities("name:flaky")]


async def test_c24_filter_is_typed_with_suggestions_by_keyboard_alone(site: Site) -> None:
    await site.run("Month end", wait=True)
    page = await site.open("/activities")
    field = await open_filter(page)
    await page.keyboard.type("sta")
    await expect(page.get_by_role("option").first).to_contain_text("state:")
    assert await find_violations(page) == []
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(field).to_have_value("state:")
    await page.keyboard.type("fai")
    await expect(page.get_by_role("option")).to_have_text(["failedoutcome"])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(field).to_have_value("state:failed ")
    await page.keyboard.type("name:bro")
    await expect(page.get_by_role("option")).to_contain_text(["broken"])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Tab")
    await page.keyboard.type("ran:<30s")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/activities?q=state%3Afailed+name%3Abroken+ran%3A%3C30s")
    chips = page.get_by_role("navigation", name="Filters").get_by_role("link", name="Remove the filter")
    await expect(chips).to_have_text(["state:failed ×", "name:broken ×", "ran:<30s ×"])
    expected = await site.app.activities("state:failed name:broken ran:<30s")
    assert [str(each.id) for each in expected] == await listed_ids(page)
    await expect(page.locator("[data-part=head]")).to_contain_text("1 ended attempts")
    await expect(field).to_be_focused()
    await chips.first.click()
    await page.wait_for_url("**/activities?q=name%3Abroken+ran%3A%3C30s")
    await page.go_back()
    await expect(page.locator("#filter-field")).to_have_value("state:failed name:broken ran:<30s")


async def test_c24_count_of_many_matches_is_capped(site: Site) -> None:
    await hold(site.app, 10_050)
    page = await site.open("/tasks")
    await expect(page.locator("[data-part=head]")).to_contain_text("10,000+ open")


async def test_c25_unknown_key_is_marked_and_the_nearest_one_offered(site: Site) -> None:
    await site.run("Month end", wait=True)
    page = await site.open("/executions")
    await expect(page.locator(ROWS)).to_have_count(1)
    await open_filter(page)
    await page.keyboard.type("stat:failed")
    await expect(page.get_by_role("option")).to_contain_text(["state:"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("did you mean state?")
    await expect(page.locator(".chip.is-wrong")).to_have_text("stat:failed")
    await expect(page.locator(ROWS)).to_have_count(0)
    await expect(page.locator("[data-part=list]")).to_contain_text("The filter is not valid")
    await page.get_by_role("link", name="Use state instead").click()
    await expect(page.locator(ROWS)).to_have_count(1)
    site.expect_problems("status of 422")


async def test_c26_back_returns_to_the_same_rows_position_and_focus(site: Site) -> None:
    await hold(site.app, 120)
    page = await site.open("/tasks")
    for name in ("Older", "Older", "Newest", "Older"):
        async with page.expect_navigation():
            await page.get_by_role("link", name=name, exact=name == "Newest").click()
    assert "after=" in page.url
    before = await listed_ids(page)
    link = page.locator(f"{ROWS} th a").nth(30)
    await page.locator(f"{ROWS} input").nth(29).check()
    await link.scroll_into_view_if_needed()
    top = await page.evaluate("scrollY")
    await link.click()
    await page.wait_for_url("**/tasks/**")
    await page.go_back()
    await expect(page.locator(ROWS)).to_have_count(50)
    assert await listed_ids(page) == before
    await expect(link).to_be_focused()
    await expect(page.locator(f"{ROWS} input").nth(29)).to_be_checked()
    await expect(page.get_by_role("region", name="Selected tasks")).to_contain_text("1 selected")
    await page.wait_for_function("top => Math.abs(scrollY - top) < 40", arg=top)


async def test_c27_paging_shows_each_row_once_while_rows_are_inserted(site: Site) -> None:
    await hold(site.app, times(230, in_a_proof=20_000))
    database = await site.app.open()
    existing = {str(row["id"]) for row in await database.fetch_all("SELECT id FROM tenuto.tasks")}
    page = await site.open("/tasks")
    seen = await listed_ids(page)
    while await page.get_by_role("link", name="Older").count():
        await hold(site.app, 1)
        async with page.expect_navigation():
            await page.get_by_role("link", name="Older").click()
        seen += await listed_ids(page)
    assert len(seen) == len(set(seen))
    assert existing <= set(seen)


async def test_c28_new_rows_are_announced_while_the_list_is_used(site: Site) -> None:
    await site.run("Month end", wait=True)
    page = await site.open("/executions")
    await page.keyboard.press("j")
    await expect(page.locator(f"{ROWS} th a").first).to_be_focused()
    before = await listed_ids(page)
    for _ in range(2):
        await site.run("Nightly sync", wait=True)
    await expect(page.get_by_role("button", name="2 new ▲")).to_be_visible(timeout=20_000)
    assert await listed_ids(page) == before
    await page.get_by_role("button", name="2 new ▲").click()
    await expect(page.locator(ROWS)).to_have_count(3)
    assert (await listed_ids(page))[2] == before[0]


async def select_by_keyboard(page: Page, rows: Sequence[int]) -> None:
    """Select the first and the last of these rows as a range."""
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    for _ in range(rows[1] - rows[0]):
        await page.keyboard.press("j")
    await page.keyboard.press("Shift+X")


async def test_c29_all_matching_tasks_are_cancelled_and_later_ones_left(site: Site) -> None:
    await hold(site.app, 1204)
    page = await site.open("/tasks?q=state:queued")
    await select_by_keyboard(page, (0, 1))
    bar = page.get_by_role("region", name="Selected tasks")
    await expect(bar).to_contain_text("2 selected")
    assert await find_violations(page) == []
    asked: asyncio.Future[Route] = asyncio.get_running_loop().create_future()
    await page.route("**/operations/preview", lambda route: asked.set_result(route))
    await bar.get_by_role("button", name="Select all 1,204 matching").click()
    request = await asked
    await expect(bar.get_by_role("button", name="Cancel…")).to_be_disabled()  # it would act on two rows
    await request.continue_()
    await expect(bar).to_contain_text("1,204 selected")
    await bar.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Cancel 1,204 tasks")
    await expect(dialog).to_contain_text("state is queued")
    await hold(site.app, 10)
    await dialog.get_by_label("Reason (optional)").fill("supplier down")
    submit = dialog.get_by_role("button", name="Cancel 1,204 tasks")
    await dialog.get_by_label("Type 1204 to confirm").fill("12")
    await submit.click()
    await expect(dialog.get_by_role("alert")).to_have_text("Type the number 1204.")
    await dialog.get_by_label("Type 1204 to confirm").fill("1204")
    await submit.click()
    await page.get_by_role("status").get_by_role("link", name="Open").click()
    head = page.locator("[data-part=head]")
    await expect(head).to_contain_text("Completed", timeout=60_000)
    [operation] = await site.app.bulk_operations.list()
    assert operation.item_count == 1204
    assert operation.succeeded_count + operation.failed_count + operation.skipped_count == 1204
    assert (operation.reason, operation.actor_name) == ("supplier down", "operator")
    await expect(head).to_contain_text("Arrived later, not touched10")
    assert (await site.app.count_tasks("state:queued")).count == 10


async def test_c29_selected_rows_alone_are_cancelled(site: Site) -> None:
    await hold(site.app, 5)
    page = await site.open("/tasks")
    chosen = (await listed_ids(page))[1:3]
    for id in chosen:
        await page.locator(f"tr[data-key='{id}'] input").check()
    bar = page.get_by_role("region", name="Selected tasks")
    await bar.get_by_role("button", name="Cancel…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 2 tasks").click()
    await expect(page.locator(ROWS)).to_have_count(3, timeout=20_000)
    assert not set(chosen) & set(await listed_ids(page))
    await expect(bar).to_be_hidden()
    [operation] = await site.app.bulk_operations.list()
    assert (operation.item_count, operation.description) == (2, "2 selected tasks")


async def test_c31_bulk_operation_is_aborted_and_keeps_its_counts(site: Site) -> None:
    await hold(site.app, 5000)
    page = await site.open("/tasks?q=state:queued")
    await page.locator("[data-pick-all]").check()
    bar = page.get_by_role("region", name="Selected tasks")
    await bar.get_by_role("button", name="Select all 5,000 matching").click()
    await expect(bar).to_contain_text("5,000 selected")
    await bar.get_by_role("button", name="Cancel…").click()
    await page.get_by_label("Type 5000 to confirm").fill("5000")
    database = await site.app.open()
    async with database.connection() as connection, connection.transaction():
        # The operation waits for this task, so that it has not ended before it is aborted.
        await connection.execute("SELECT FROM tenuto.tasks ORDER BY id LIMIT 1 FOR UPDATE")
        await page.get_by_role("button", name="Cancel 5,000 tasks").click()
        await expect(page.get_by_role("status").get_by_role("link", name="Open")).to_be_visible()
        [operation] = await site.app.bulk_operations.list()
        await page.goto(f"/operations/{operation.id}")
        await page.get_by_role("button", name="Abort…").click()
        await page.get_by_role("button", name="Abort the operation").click()

        async def abort_waits() -> bool:
            """The operation waits for the locked task, and its abort for the operation."""
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(await connection.fetchval(waiting) >= 2)

        await eventually(abort_waits, 30)
    await expect(page.locator("[data-part=head]")).to_contain_text("aborted by operator", timeout=20_000)
    ended = await site.app.bulk_operations.get(operation.id)
    assert ended.succeeded_count + ended.remaining_count == 5000
    assert (await site.app.count_tasks("state:queued")).count == ended.remaining_count > 0


async def test_c32_viewer_sees_the_role_that_a_bulk_action_needs(site: Site) -> None:
    await hold(site.app, 2)
    page = await site.open("/tasks", Role.VIEWER)
    await page.locator("[data-pick-all]").check()
    bar = page.get_by_role("region", name="Selected tasks")
    await expect(bar).to_contain_text("Requires the role operator")
    await expect(bar.get_by_role("button", name="Cancel…")).to_be_disabled()
    status = await page.evaluate(
        """() => fetch("/api/v1/operations", {method: "POST", body: JSON.stringify({kind: "task.cancel"}),
          headers: {"Content-Type": "application/json", "Tenuto-Page": "1"}}).then((response) => response.status)"""
    )
    assert status == 403
    site.expect_problems("status of 403", "incomplete request for a change: POST /api/v1/operations")


async def test_row_menu_opens_by_key_with_every_action_of_the_row(site: Site) -> None:
    started = await site.run("Month end", wait=True)
    page = await site.open("/executions")
    await page.keyboard.press("j")
    await page.keyboard.press(".")
    menu = page.locator(f"#menu-{started}")
    await expect(menu).to_be_visible()
    await expect(menu.get_by_role("link", name="Open", exact=True)).to_be_focused()
    assert await find_violations(page) == []
    pause = menu.get_by_role("button", name="Pause…")
    await expect(pause).to_be_disabled()
    assert await pause.get_attribute("title") == "It has ended"
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("link", name="Month end")).to_be_focused()
    await page.keyboard.press("r")
    await expect(page.get_by_role("dialog")).to_contain_text("A new execution of Month end starts at group 2")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/executions/{started}")


async def test_action_in_a_row_menu_returns_the_focus_to_the_row(site: Site) -> None:
    site.hold_talks()
    started = await site.run("Talk")
    page = await site.open("/executions")
    await page.get_by_role("button", name="Actions of Talk").click()
    await page.locator(f"#menu-{started}").get_by_role("button", name="Pause…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause the execution").click()
    await expect(page.get_by_role("button", name="Actions of Talk")).to_be_focused()

    async def is_paused() -> bool:
        return (await site.app.executions.get(started)).paused_at is not None

    await eventually(is_paused)


async def test_views_are_saved_in_the_browser_under_a_name(site: Site) -> None:
    page = await site.open("/executions?q=state:failed%20started:%3E1d")
    await page.get_by_role("button", name="Save as a view…").click()
    await page.get_by_label("Name of the view").fill("Failed today")
    await page.keyboard.press("Enter")
    await page.goto("/executions")
    await page.get_by_role("link", name="★ Failed today").click()
    await page.wait_for_url("**/executions?q=state%3Afailed%20started%3A%3E1d")
    await page.get_by_role("button", name="Forget the view Failed today").click()
    await expect(page.get_by_role("link", name="★ Failed today")).to_have_count(0)


async def test_lists_show_nothing_yet_nothing_matches_and_not_allowed_differently(site: Site) -> None:
    page = await site.open("/executions", Role.VIEWER)
    await expect(page.locator("[data-part=list]")).to_contain_text("Nothing has run yet.")
    await expect(page.locator("[data-part=list]").get_by_role("link", name="Open the schedules")).to_be_visible()
    await page.goto("/executions?q=error:~nothing")
    shown = page.locator("[data-part=list]")
    await expect(shown).to_contain_text("Nothing matches: error contains nothing, among the newest 100,000.")
    await shown.get_by_role("link", name="Widen to the newest 1,000,000").click()
    await expect(shown).to_contain_text("among the newest 1,000,000.")
    await shown.get_by_role("link", name="Clear the filter").click()
    await page.wait_for_url("**/executions")
    await page.goto("/keys")
    await expect(page.get_by_role("main")).to_contain_text("admin")
    site.expect_problems("status of 403")


async def test_single_key_shortcuts_can_be_switched_off_and_never_act_in_a_field(site: Site) -> None:
    await hold(site.app, 2)
    page = await site.open("/tasks")
    await open_filter(page)
    await page.keyboard.type("xjk")
    await expect(page.locator("#filter-field")).to_have_value("xjk")
    await page.goto("/tasks")
    await page.get_by_role("button", name="operator · operator").click()
    await page.get_by_label("Single-key shortcuts").uncheck()
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    assert await page.evaluate("document.activeElement.closest('tr')") is None
