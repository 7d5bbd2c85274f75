"""Actions of the pages of manifests, jobs, one-shots, keys and secrets, as an admin performs them in the browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tenuto.model.access.actors import Role
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site

pytestmark = pytest.mark.usefixtures("master_key")


async def submit(page: Page, button: str, **fields: str) -> str:
    """Open the dialog of an action, fill in its fields by name, submit it, and return the message."""
    await page.get_by_role("button", name=button).first.click()
    dialog = page.locator("#action-dialog")
    for name, value in fields.items():
        field = dialog.locator(f"[name={name}]")
        if await field.evaluate("each => each.localName") == "select":
            await field.select_option(value)
        else:
            await field.fill(value)
    await dialog.locator("button.primary").click()
    await expect(dialog).to_be_hidden()
    return await page.locator(".toast p").last.text_content() or ""


async def test_key_is_created_rotated_and_revoked(site: Site) -> None:
    page = await site.open("/keys", Role.ADMIN)
    shown = await submit(page, "New key…", name="ana", role="operator")
    text = shown.removeprefix("Key created: ")
    assert (await site.app.api_keys.authenticate(text)) is not None
    row = page.get_by_role("row", name="ana")
    await expect(row).to_be_visible()
    await row.get_by_role("button", name="Rotate…").click()
    await page.locator("#action-dialog button.primary").click()
    await expect(page.locator(".toast").last).to_contain_text("New key: tnt_")
    await expect(page.locator("tr", has_text="ana")).to_have_count(2)
    valid = page.locator("tr", has_text="ana").filter(has_text="Valid")
    await expect(valid).to_have_count(1)
    await valid.get_by_role("button", name="Revoke…").click()
    await page.locator("#action-dialog button.primary").click()
    await expect(page.locator("#action-dialog")).to_be_hidden()
    await expect(valid).to_have_count(0)


async def test_secret_is_set_replaced_and_deleted_with_its_exact_value(site: Site) -> None:
    page = await site.open("/secrets", Role.ADMIN)
    async with page.expect_request("**/api/v1/secrets/**") as sent:
        message = await submit(page, "New secret…", name="hr/database", value=" pass word ")
    assert message == "The secret has version 1."
    assert (await sent.value).post_data_json == {"value": " pass word "}
    await page.reload()
    assert await submit(page, "Replace…", value="another") == "The secret has version 2."
    await page.get_by_role("button", name="Delete…").click()
    await page.locator("#action-dialog button.primary").click()
    await expect(page.get_by_text("No secret is stored.")).to_be_visible()
    assert await site.app.secrets.list() == []


async def test_manifest_job_and_one_shot_are_run(site: Site) -> None:
    page = await site.open("/jobs/quick", Role.ADMIN)
    await page.get_by_role("button", name="Run…").click()
    await page.get_by_role("dialog").get_by_label("N", exact=True).fill("7")
    await page.get_by_role("button", name="Run the job").click()
    await expect(page.locator(".toast").last).to_contain_text("The task was enqueued.")
    await page.get_by_role("link", name="Open").click()
    await expect(page.get_by_text("Completed").first).to_be_visible(timeout=20_000)
    await page.goto("/one-shots")
    assert await submit(page, "New one-shot…", tags="a, b") == "The one-shot was created."
    [created] = await site.app.one_shots.list()
    assert list(created.tags) == ["a", "b"]
    await page.goto("/manifests/bills")
    await page.get_by_role("button", name="Run…").click()
    await page.get_by_role("dialog").get_by_role("textbox", name="Number required").fill("5")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".toast").last).to_contain_text("The run was enqueued.")

    async def has_run() -> bool:
        return any("customer 5" in str(each) for each in await site.app.activities(limit=20))

    await eventually(has_run, timeout=20)
    await page.goto("/audit")
    assert "Sound: true" in await verify(page)


async def verify(page: Page) -> str:
    await page.get_by_role("button", name="Verify the chain").click()
    toast = page.locator(".toast p").last
    await expect(toast).to_contain_text("links verified")
    return await toast.text_content() or ""


async def test_rate_of_a_manifest_group_is_set_and_removed(site: Site) -> None:
    await site.app.manifests.change_group("imports", max_active=4)
    page = await site.open("/manifests", Role.ADMIN)
    row = page.locator("tr", has_text="imports").filter(has=page.get_by_role("button", name="Change…")).first
    for rate, stored in (("30/m", "30/m"), ("", None)):
        await row.get_by_role("button", name="Change…").click()
        dialog = page.locator("#action-dialog")
        await dialog.locator("[name=rate_limit]").fill(rate)
        await dialog.locator("button.primary").click()
        await expect(dialog).to_be_hidden()
        group = await site.app.manifests.group("imports")
        assert (group.rate_limit, group.max_active) == (stored, 4)
        await page.reload()
