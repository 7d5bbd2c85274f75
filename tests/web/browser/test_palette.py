"""The search palette: keyboard, objects by name and id, actions with the role they need, accessibility."""

from __future__ import annotations

from playwright.async_api import expect

from tenuto.model.access.actors import Role
from tests.web.browser.conftest import Site
from tests.web.browser.test_accessibility import find_violations


async def test_c69_palette_opens_pages_and_objects_by_name_and_id(site: Site) -> None:
    started = await site.run("Month end", wait=True)
    page = await site.open("/")
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Page, action, name or id")
    await expect(field).to_be_focused()
    await field.fill("dead")
    await expect(page.get_by_role("option").first).to_contain_text("Dead letters")
    await field.fill("month")
    await expect(page.get_by_role("option", name="Month end")).to_contain_text("Schedule")
    assert await find_violations(page) == []
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/schedules/Month%20end")
    await page.keyboard.press("Control+k")
    await field.fill(str(started)[:18])
    await expect(page.get_by_role("option").first).to_contain_text("Execution")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/executions/{started}")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("option", name="Recent · Schedules")).to_contain_text("Month end")


async def test_c69_palette_runs_actions_of_the_page_and_names_missing_roles(site: Site) -> None:
    page = await site.open("/schedules/Talk")
    await page.get_by_role("button", name="Search or run a command").click()
    field = page.get_by_role("combobox", name="Page, action, name or id")
    await field.fill("disable")
    await expect(page.get_by_role("option").first).to_contain_text("Action")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Disable")).to_be_visible()
    await page.keyboard.press("Escape")
    viewer = await site.open("/schedules/Talk", Role.VIEWER, width=390, theme="dark")
    await viewer.keyboard.press("Control+k")
    await viewer.get_by_role("combobox", name="Page, action, name or id").fill("disable")
    option = viewer.get_by_role("option").first
    await expect(option).to_contain_text("Requires the role")
    assert await option.get_attribute("aria-disabled") == "true"
    await viewer.keyboard.press("Enter")
    await expect(viewer.get_by_role("listbox")).to_be_visible()
    assert await find_violations(viewer) == []
    await viewer.keyboard.press("Escape")
    await expect(viewer.get_by_role("listbox")).to_be_hidden()
