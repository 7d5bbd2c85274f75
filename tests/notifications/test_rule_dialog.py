"""Notification pages in the browser: the dialog of rules with errors at their field, and accessibility."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tenuto import Tenuto
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tests.web.browser.conftest import Site, browser, needs_browser, running_site
from tests.web.browser.test_accessibility import find_unvisited_pages, find_violations, find_violations_of_all

__all__ = ["browser"]

pytestmark = [pytest.mark.slow, *needs_browser(), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(url: str, tmp_path: Path, browser: Browser) -> AsyncIterator[Site]:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    async with running_site(app, browser, services=False) as found:
        yield found


@pytest.mark.timeout(240)
async def test_notification_pages_have_no_violation_in_both_themes_and_widths(site: Site) -> None:
    rules = site.app.extensions.notifications
    channel = {"kind": "webhook", "url": "http://127.0.0.1:9/hook"}
    await rules.create(
        {"name": "nights", "event": "execution.failed", "channel": channel, "filter": "schedule:~nightly"}
    )
    await rules.create({"name": "idle", "event": "approvals.requested", "channel": channel, "enabled": False})
    await rules.test("nights")
    await rules.silence("nights", "2h", reason="maintenance")
    addresses = [
        "/notifications/rules",
        "/notifications/rules/nights",
        "/notifications/rules/idle",
        "/notifications/deliveries",
        "/notifications/deliveries?rule=idle",
        "/notifications/silences",
    ]
    assert [each for each in find_unvisited_pages(site, addresses) if each.startswith("/notifications")] == []
    page = await site.open("/account", Role.ADMIN)
    assert await find_violations_of_all(page, addresses) == {}
    await page.goto(addresses[0])
    await page.get_by_role("button", name="New rule…").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await find_violations(page, place="#action-dialog") == []


async def test_rule_is_created_and_edited_with_the_fields_of_its_channel(site: Site) -> None:
    rules = site.app.extensions.notifications
    await site.app.secrets.set("chat", "https://example.org/hook")
    page = await site.open("/notifications/rules", Role.ADMIN)
    site.expect_problems("status of 422")
    await page.get_by_role("button", name="New rule…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("nights")
    await dialog.get_by_label("Only events that match").fill("colour:red")
    await expect(dialog.get_by_label("Secret with the address")).to_be_hidden()
    await dialog.get_by_label("Send by").select_option("Slack")
    await expect(dialog.get_by_label("Address", exact=True)).to_be_hidden()
    await dialog.get_by_label("Secret with the address").fill("chat")
    await dialog.get_by_text("Grouping and quiet time").click()
    await expect(dialog.get_by_label("Time zone of the quiet time")).to_be_hidden()
    await dialog.get_by_label("Combine events of").fill("5m")
    await dialog.get_by_label("Quiet from").fill("22:00")
    await dialog.get_by_label("Quiet until").fill("07:00")
    await expect(dialog.get_by_label("Time zone of the quiet time")).to_have_value("Europe/London")
    await dialog.get_by_role("button", name="Create").click()
    wrong = dialog.get_by_label("Only events that match")
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await wrong.fill("schedule:~nightly")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("row", name="nights")).to_contain_text("schedule:~nightly")
    created = (await rules.get("nights")).definition
    assert created["channel"] == {"kind": "slack", "url": {"secret": "chat"}}
    assert created["group"] == {"window": 300.0}
    assert created["quiet"] == {"start": "22:00", "end": "07:00", "zone": "Europe/London"}

    await page.get_by_role("row", name="nights").get_by_role("link", name="nights").click()
    await page.get_by_role("button", name="Edit…").click()
    await expect(dialog.get_by_label("Send by")).to_have_value("slack")
    await dialog.get_by_text("Grouping and quiet time").click()
    await expect(dialog.get_by_label("Combine events of")).to_have_value("5m")
    await dialog.get_by_label("Send by").select_option("E-mail")
    await dialog.get_by_label("Recipients").fill("ana@example.org, ben@example.org")
    await dialog.get_by_label("Quiet from").fill("")
    await dialog.get_by_label("Quiet until").fill("")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("region", name="Rule")).to_contain_text("ben@example.org")
    edited = (await rules.get("nights")).definition
    assert edited["channel"] == {"kind": "email", "to": ["ana@example.org", "ben@example.org"]}
    assert "quiet" not in edited


async def test_rule_beyond_the_fields_keeps_what_they_do_not_show(site: Site) -> None:
    channel = {"kind": "webhook", "url": "http://127.0.0.1:9/hook", "headers": {"X-Team": "ops"}}
    quiet = {"start": "22:00", "end": "07:00", "days": ["mon"]}
    rule = {"name": "detailed", "event": "task.failed", "channel": channel, "quiet": quiet}
    await site.app.extensions.notifications.create(rule)
    page = await site.open("/notifications/rules/detailed", Role.ADMIN)
    await page.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Only events that match").fill("queue:mail")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("region", name="Rule")).to_contain_text("queue:mail")
    found = (await site.app.extensions.notifications.get("detailed")).definition
    assert (found["channel"], found["quiet"], found["filter"]) == (channel, quiet, "queue:mail")
