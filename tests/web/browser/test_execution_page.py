"""The execution page in the browser: live progress, bars of all attempts, retry, focus that survives updates."""

from __future__ import annotations

from itertools import pairwise

from playwright.async_api import expect

from tenuto.model.access.actors import Role
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site


async def test_c13_every_attempt_has_its_bar_with_the_back_off_between_them(site: Site) -> None:
    started = await site.run("Nightly sync")
    page = await site.open(f"/executions/{started}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Nightly sync")
    await expect(page.get_by_role("list", name="Step groups").get_by_role("listitem")).to_have_count(2)
    row = page.get_by_role("row", name="Sync")
    await expect(row).to_contain_text("Completed, attempt 3 of 3", timeout=30_000)
    await expect(page.locator("[data-part=head] .status").first).to_have_text("Completed")
    await expect(page).to_have_title("● Nightly sync, completed · Tenuto")
    assert await row.locator("rect.fill-fail").count() >= 2
    assert await row.locator("rect.fill-done").count() >= 1
    await expect(row.locator("line.off")).to_have_count(2)
    record = await site.app.executions.timeline(started)
    attempts = record.groups[1].steps[0].attempts
    assert [str(each.state) for each in attempts] == ["failed", "failed", "completed"]
    span = float(await page.locator("t-gantt").get_attribute("data-span") or "0") / 1000
    ends = await row.locator("line.off").evaluate_all(
        "all => all.map((each) => parseFloat(each.getAttribute('x2')) - parseFloat(each.getAttribute('x1')))"
    )
    for share, (before, after) in zip(ends, pairwise(attempts), strict=True):
        assert before.ended_at is not None
        assert after.started_at is not None
        shown, waited = share * span / 100, (after.started_at - before.ended_at).total_seconds()
        assert 0.9 <= shown <= waited + 0.1, "a back-off of one second, not longer than the pause between the attempts"
    links = await row.locator("svg a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert [each.partition("attempt=")[2][:1] for each in links] == ["1", "2", "3"]
    widths = await row.locator("rect").evaluate_all("all => all.map((each) => each.getBoundingClientRect().width)")
    assert any(width >= 4 for width in widths)

    await row.get_by_role("link", name="Sync").click()
    await page.wait_for_url("**step=2")
    await page.get_by_role("link", name="Attempts 3").click()
    await expect(page.get_by_role("table", name="Attempts").get_by_role("row")).to_have_count(4)
    await page.go_back()
    await expect(page.locator(".tabs [aria-current]")).to_have_text("Log")


async def test_c11_updates_keep_selection_focus_log_position_and_elements(site: Site) -> None:
    site.hold_talks()
    started = await site.run("Talk")
    page = await site.open(f"/executions/{started}?step=1&tab=log")
    await page.set_viewport_size({"width": 1280, "height": 420})
    box = page.locator("t-log .log")
    await eventually(lambda: box.evaluate("box => box.scrollHeight > box.clientHeight + 60"), 60)
    await page.get_by_role("row", name="Right").get_by_text("Completed", exact=True).dblclick()
    await page.get_by_role("link", name="Left", exact=True).focus()
    await box.evaluate("box => { box.scrollTop = 20; }")
    await page.evaluate(
        """() => {
          window.kept = { focus: document.activeElement, row: document.activeElement.closest("tr"),
                          log: document.querySelector("t-log .log"), text: String(getSelection()) };
          window.updates = 0;
          document.addEventListener("tenuto:updated", () => { window.updates += 1; });
        }"""
    )
    assert await page.evaluate("window.kept.text.trim()") == "Completed"

    async def has_updates() -> bool:
        return bool(await page.evaluate("window.updates >= 5"))

    await eventually(has_updates, 60)
    assert await page.evaluate("document.activeElement === window.kept.focus && window.kept.focus.isConnected")
    assert await page.evaluate(
        "window.kept.row.isConnected && document.querySelector('t-log .log') === window.kept.log"
    )
    assert await page.evaluate("String(getSelection()) === window.kept.text")
    assert await box.evaluate("box => box.scrollTop") == 20
    await site.app.executions.cancel(started)


async def test_failed_execution_is_retried_from_its_page(site: Site) -> None:
    started = await site.run("Month end", wait=True)
    page = await site.open(f"/executions/{started}")
    await expect(page.locator("[data-part=head] .status").first).to_contain_text("Failed in group 2 of 3: Close")
    await expect(page.locator("ol.groups li").nth(2)).to_contain_text("Not run")
    await page.keyboard.press("r")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("starts at group 2")
    await dialog.get_by_label("Reason (optional)").fill("Konto ergänzt – München")
    await dialog.get_by_role("button", name="Retry").click()
    toast = page.get_by_role("status").get_by_role("link", name="Open")
    await toast.click()
    await page.wait_for_url(lambda url: str(started) not in url)
    await expect(page.locator("ol.groups li").first).to_contain_text("Completed earlier")
    entry = next(entry for entry in await site.app.audit.list() if entry.action == "execution.retry")
    assert (entry.reason, entry.actor_name) == ("Konto ergänzt – München", "operator")


async def test_viewer_sees_actions_disabled_with_the_role_they_need(site: Site) -> None:
    site.hold_talks()
    started = await site.run("Talk")
    page = await site.open(f"/executions/{started}", Role.VIEWER)
    button = page.get_by_role("button", name="Cancel…")
    await expect(button).to_be_disabled()
    assert await button.get_attribute("title") == "Requires the role operator"


async def test_link_to_a_step_survives_the_login(site: Site) -> None:
    started = await site.run("Nightly sync")
    page = await (await site.new_context()).new_page()
    target = f"/executions/{started}?step=2&tab=attempts"
    await page.goto(target)
    await page.wait_for_url("**/login?next=**")
    await page.get_by_label("Login link or API key").fill(site.keys[Role.VIEWER])
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{site.address}{target}")
    await expect(page.locator(".tabs [aria-current]")).to_contain_text("Attempts")
    await page.context.close()
