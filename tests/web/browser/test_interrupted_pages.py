"""Pages that cannot be updated: after the end of a session, while paused, and when their object is removed."""

from __future__ import annotations

import re

from playwright.async_api import Locator, Page, expect

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tests.web.browser.conftest import Site

LIVE_TEXT = "[data-live-text]"
PAUSED = re.compile("^paused, as of")


async def log_in_over_page(page: Page, key: str) -> None:
    login = page.get_by_role("dialog", name="You are logged out")
    await login.get_by_label("Login link or API key").fill(key)
    await page.keyboard.press("Enter")
    await expect(login).to_be_hidden()


async def pause(page: Page) -> Locator:
    await page.locator("[data-live-indicator]").click()
    text = page.locator(LIVE_TEXT)
    await expect(text).to_have_text(PAUSED)
    return text


async def test_paused_page_shows_the_part_of_a_link_that_needed_a_login(site: Site) -> None:
    execution = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{execution}?tab=log")
    live_text = await pause(page)
    site.expect_problems("status of 401")
    await site.app.api_keys.revoke("operator")
    await page.get_by_role("link", name="Input", exact=True).click()
    _, key = await site.app.api_keys.create("ben", Role.OPERATOR, is_person=True)
    await log_in_over_page(page, key)
    await expect(page.locator(".tabs [aria-current]")).to_contain_text("Input")
    await expect(page.locator("header [data-account]")).to_have_text("ben · operator")
    await expect(live_text).to_have_text(PAUSED)


async def test_paused_page_offers_the_login_that_an_action_needs(site: Site) -> None:
    page = await site.open("/schedules")
    live_text = await pause(page)
    site.expect_problems("status of 401")
    await site.app.api_keys.revoke("operator")
    run = page.get_by_role("row", name="Nightly sync").get_by_role("button", name="Run now")
    await run.click()
    _, key = await site.app.api_keys.create("ben", Role.OPERATOR, is_person=True)
    await log_in_over_page(page, key)
    await run.click()
    await expect(page.get_by_role("status").get_by_role("link", name="Open").first).to_be_visible()
    await expect(live_text).to_have_text(PAUSED)


async def test_page_that_a_login_with_a_lower_role_may_not_see_says_so(site: Site) -> None:
    page = await site.open("/keys", Role.ADMIN)
    await expect(page.locator(LIVE_TEXT)).to_have_text("live")
    site.expect_problems("status of 401", "status of 403", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    await site.app.api_keys.create("ana", Role.ADMIN)  # the last key of an admin cannot be revoked
    await site.app.api_keys.revoke("admin")
    await log_in_over_page(page, site.keys[Role.VIEWER])
    await expect(page.locator(LIVE_TEXT)).to_have_text(re.compile(r"^No longer allowed for \d+ s$"))
    await expect(page.locator("body")).to_have_class(re.compile("is-stale"))


async def test_paused_page_reports_a_failed_part_and_stays_paused(site: Site) -> None:
    execution = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{execution}?tab=log")
    live_text = await pause(page)
    paused = await live_text.inner_text()
    site.expect_problems("net::ERR_FAILED")
    await page.route("**/executions/**", lambda route: route.abort())
    await page.get_by_role("link", name="Input", exact=True).click()
    await expect(page.locator(".toast.is-error")).to_contain_text("The server cannot be reached")
    assert await live_text.inner_text() == paused
    await page.unroute("**/executions/**")
    await page.get_by_role("link", name="Input", exact=True).click()
    await expect(page.locator(".tabs [aria-current]")).to_contain_text("Input")
    assert await live_text.inner_text() == paused


async def test_page_of_a_removed_schedule_says_so_until_it_exists_again(site: Site) -> None:
    definition = schedule_definition("Audit", manual(), [[Step.job(site.app.jobs.jobs_by_name["quick"])]])
    await site.app.schedules.apply([definition])
    page = await site.open("/schedules/Audit")
    await expect(page.locator(LIVE_TEXT)).to_have_text("live")
    site.expect_problems("status of 404")
    await site.app.schedules.delete("Audit")
    await expect(page.locator(LIVE_TEXT)).to_have_text(re.compile(r"^No longer found for \d+ s$"))
    await expect(page.locator("body")).to_have_class(re.compile("is-stale"))
    await site.app.schedules.apply([definition])
    await expect(page.locator(LIVE_TEXT)).to_have_text("live")
    await expect(page.locator("body")).not_to_have_class(re.compile("is-stale"))
