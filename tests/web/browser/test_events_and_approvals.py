"""Events and approvals in the browser: the pages follow what happens, and a person acts on it."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tenuto import Step, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tests.web.browser.conftest import Site


async def test_event_for_a_waiting_task_is_sent_from_its_row(site: Site) -> None:
    page = await site.open("/events")
    waits, sent = page.get_by_role("region", name="Tasks that wait"), page.get_by_role("region", name="Sent events")
    await expect(waits).to_contain_text("No task waits for an event")
    task = await site.app.enqueue(site.app.jobs.jobs_by_name["await_payment"], order="order-17")
    row = waits.get_by_role("row", name="await_payment")
    await expect(row).to_contain_text("order-17")

    await row.get_by_role("button", name="Send…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Payload").fill('{"amount": 120}')
    await dialog.get_by_role("button", name="Send the event").click()
    await expect(sent.get_by_role("row", name="invoice.paid")).to_contain_text("Delivered")
    await expect(row).to_have_count(0)
    assert (await site.app.wait(task, timeout=30)).output == {"amount": 120}
    await sent.get_by_role("link", name="invoice.paid").click()
    await expect(page.get_by_role("group", name="Payload")).to_contain_text('"amount": 120')


async def test_event_for_which_no_task_waits_is_kept(site: Site) -> None:
    page = await site.open("/events")
    await page.get_by_role("button", name="Send an event…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("feed/ready")
    await dialog.get_by_role("button", name="Send the event").click()
    await expect(page.get_by_role("row", name="feed/ready")).to_contain_text("Kept for a wait")
    [event] = await site.app.events.list()
    assert (event.name, event.key, event.payload, event.sender_name) == ("feed/ready", "", None, "operator")


async def test_approval_appears_is_decided_and_the_execution_continues(site: Site) -> None:
    quick = site.app.jobs.jobs_by_name["quick"]
    gate = Step.approval("Deploy to production?", role="operator", count=1, name="go live")
    await site.app.schedules.apply([schedule_definition("Release", manual(), [gate, Step.job(quick)])])
    overview = await site.open("/")
    page = await site.open("/approvals")
    await expect(page.get_by_text("No step has requested an approval")).to_be_visible()
    id = await site.run("Release")
    row = page.get_by_role("row", name="Deploy to production?")
    await expect(row).to_contain_text("Pending")
    card = overview.get_by_role("region", name="Waiting for approval")
    await expect(card).to_contain_text("Deploy to production?")
    await expect(overview.get_by_role("region", name="Needs attention")).not_to_contain_text("Deploy to production?")

    execution = await site.open(f"/executions/{id}")
    await expect(execution.get_by_role("heading", level=2, name="go live")).to_be_visible()
    await execution.get_by_role("link", name="Decide").click()
    await execution.get_by_role("button", name="Approve…").click()
    dialog = execution.get_by_role("dialog")
    await dialog.get_by_label("Reason (optional)").fill("tests are green")
    await dialog.get_by_role("button", name="Approve").click()
    await expect(execution.get_by_role("row", name="operator")).to_contain_text("tests are green")
    await expect(row).to_contain_text(re.compile("Approved"))
    await expect(card).to_have_count(0)
    assert (await site.app.executions.wait(id, 30)).state == "completed"
