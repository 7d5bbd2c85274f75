"""Versions, history, comparison and run forms of definitions, manifest editor, edit-and-retry of dead letters."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from playwright.async_api import Dialog, expect

from tenuto.model.access.actors import Actor, ActorType, Role
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site
from tests.web.browser.test_accessibility import find_violations
from tests.web.browser.test_checks_work import fail
from tests.web.browser.test_schedule_editor import tab_to


async def edit_description(site: Site, text: str, reason: str) -> None:
    """Change a schedule as ana."""
    acting = site.app.acting_as(Actor(ActorType.USER, None, "ana"), source="test")
    stored = await acting.schedules.get("Month end")
    await acting.schedules.edit("Month end", replace(stored.definition, description=text), reason=reason)


async def test_c37_versions_show_who_when_why_and_the_difference(site: Site) -> None:
    await site.app.schedules.deploy()
    await edit_description(site, "first text", "asked by ben")
    await edit_description(site, "second text", "typo")
    page = await site.open("/schedules/Month%20end?tab=versions", Role.EDITOR)
    row = page.get_by_role("row", name="asked by ben")
    await expect(row).to_contain_text("ana")
    await expect(row).to_contain_text("2")
    difference = page.get_by_role("region", name="Version 2 → 3")
    await expect(difference).to_contain_text("- first text")
    await expect(difference).to_contain_text("+ second text")
    await page.get_by_label("from version").select_option("1")
    await page.get_by_role("button", name="Compare").click()
    await expect(page.get_by_role("region", name="Version 1 → 3")).to_contain_text("+ second text")
    await page.get_by_label("from version").select_option("2")
    await page.get_by_role("button", name="Compare").click()
    await page.get_by_role("button", name="Restore version 2…").click()
    await page.get_by_role("dialog").get_by_label("Reason (optional)").fill("as before")
    await page.get_by_role("button", name="Restore", exact=True).click()
    await expect(page.locator(".toast")).to_contain_text("Version 2 was restored.")
    stored = await site.app.schedules.get("Month end")
    assert (stored.version, stored.definition.description) == (4, "first text")
    await page.goto("/schedules/Month%20end?tab=history")
    rows = page.locator("tbody tr")
    await expect(rows.nth(0)).to_contain_text("editor")
    await expect(rows.nth(0)).to_contain_text("as before")
    await rows.nth(1).locator("summary").click()
    await expect(rows.nth(1)).to_contain_text("+ second text")
    viewer = await site.open("/schedules/Month%20end?tab=history", Role.VIEWER)
    await expect(viewer.locator("tbody tr").first).to_contain_text("as before")


async def test_schedule_is_run_with_other_arguments(site: Site) -> None:
    await site.app.schedules.deploy()
    page = await site.open("/schedules/Nightly%20sync")
    await page.get_by_role("button", name="Run with…").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_label("N", exact=True)
    await expect(field).to_have_value("1")
    await field.fill("many")
    async with page.expect_request("**/run") as sent:
        await dialog.get_by_role("button", name="Run now").click()
    assert (await sent.value).post_data_json == {"arguments": {"Import": {"n": "many"}}}
    await expect(dialog.locator(".field-error", has_text="valid integer")).to_be_visible()
    await field.fill("5")
    await dialog.get_by_role("button", name="Run now").click()
    await page.locator(".toast").get_by_role("link", name="Open").click()
    await page.wait_for_url("**/executions/*")
    execution = UUID(page.url.rpartition("/")[2])
    await site.app.executions.wait(execution, 30)
    [step, *_] = (await site.app.executions.get(execution)).steps
    assert step.activity_id is not None
    assert (await site.app.activity(step.activity_id)).input == {"n": 5}
    site.expect_problems("status of 422")


async def test_c42_dead_letter_is_edited_and_retried(site: Site) -> None:
    await site.app.manifests.deploy()
    await site.app.bulk_enqueue("bills", [{"number": 17}])

    async def is_dead() -> bool:
        return bool(await site.app.dead_letters.list())

    await eventually(is_dead, timeout=20)
    [letter] = await site.app.dead_letters.list()
    page = await site.open(f"/dead-letters/{letter.id}")
    await page.get_by_role("button", name="Edit and retry…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("textbox", name="Number required")).to_have_value("17")
    await dialog.get_by_role("button", name="Edit as JSON").click()
    area = dialog.get_by_label("Input JSON")
    submit = dialog.get_by_role("button", name="Retry with this input")
    await area.fill('{"number": ')
    await submit.click()
    await expect(dialog.locator(".field-error").first).to_contain_text("This is not valid JSON")
    await expect(area).to_be_focused()
    await area.fill('{"number": "seventeen"}')
    await submit.click()
    await expect(dialog.locator(".field-error").first).to_contain_text("Input should be a valid integer")
    await area.fill('{"number": 18}')
    await dialog.get_by_role("button", name="Edit as fields").click()
    await expect(dialog.get_by_role("textbox", name="Number required")).to_have_value("18")
    await dialog.get_by_label("Note (optional)").fill("address looked up")
    await submit.click()
    await expect(page.locator(".toast")).to_contain_text("A new task was created.")
    await page.reload()
    await expect(page.get_by_text("address looked up").first).to_be_visible()
    changed = page.get_by_role("group", name="Old and new input")
    await expect(changed).to_contain_text('-  "number": 17')
    await expect(changed).to_contain_text('+  "number": 18')
    site.expect_problems("status of 422")


async def test_c62_dead_letter_is_edited_and_retried_by_keyboard_alone(site: Site) -> None:
    await fail(site, "bills", 1)
    [letter] = await site.app.dead_letters.list()
    page = await site.open(f"/dead-letters/{letter.id}")
    dialog = page.get_by_role("dialog")

    async def press(name: str) -> None:
        """Reach a control, whose focus is visible, and press Enter."""
        await tab_to(page, name)
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", name
        await page.keyboard.press("Enter")

    async def submit(text: str) -> None:
        await page.keyboard.press("Control+a")
        await page.keyboard.type(text)
        await press("Retry with this input")

    await press("Edit and retry…")
    await expect(dialog).to_be_visible()
    await press("Edit as JSON")
    area = dialog.get_by_label("Input JSON")
    for _ in range(20):
        if await area.evaluate("each => each === document.activeElement"):
            break
        await page.keyboard.press("Tab")
    await expect(area).to_be_focused()
    await submit('{"number": ')
    await expect(dialog.locator(".field-error").first).to_contain_text("This is not valid JSON")
    await expect(area).to_be_focused()
    await submit('{"number": "seventeen"}')
    error = dialog.locator(".field-error").first
    await expect(error).to_contain_text("Input should be a valid integer")
    assert await area.get_attribute("aria-describedby") == await error.get_attribute("id"), "it stands at the field"
    await expect(area).to_be_focused()
    await submit('{"number": 18}')
    await expect(page.locator(".toast")).to_contain_text("A new task was created.")
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("button", name="Edit and retry…")).to_be_disabled()
    assert await page.evaluate("document.activeElement !== document.body"), "the focus is not lost"
    site.expect_problems("status of 422")


async def test_ended_task_is_run_again_with_another_input(site: Site) -> None:
    task = await site.app.enqueue(site.app.jobs.jobs_by_name["quick"], 3)
    page = await site.open(f"/tasks/{task.id}")
    await page.get_by_role("button", name="Run again…").click(timeout=20_000)
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("N", exact=True)).to_have_value("3")
    await dialog.get_by_label("N", exact=True).fill("8")
    await dialog.get_by_role("button", name="Run the job").click()
    await page.locator(".toast").get_by_role("link", name="Open").click()
    await page.wait_for_url(lambda address: not address.endswith(str(task.id)))
    [first, *_] = await site.app.attempts(UUID(page.url.rpartition("/")[2]))
    assert first.input == {"n": 8}


async def test_editor_asks_before_changes_are_lost(site: Site) -> None:
    await site.app.schedules.deploy()
    page = await site.open("/schedules/Month%20end/edit", Role.EDITOR)
    asked: list[str] = []

    async def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        await dialog.dismiss()

    page.on("dialog", stay)
    await page.get_by_role("textbox", name="Description").press_sequentially("changed")
    await page.get_by_role("link", name="Overview").click(no_wait_after=True)
    await eventually(lambda: asked == ["beforeunload"], timeout=10)
    await expect(page.get_by_role("textbox", name="Description")).to_have_value("changed")
    await page.get_by_role("link", name="Discard").click()
    await page.wait_for_url("**/schedules/Month%20end")
    assert asked == ["beforeunload"]


async def test_execution_is_compared_with_the_last_success(site: Site) -> None:
    await site.app.schedules.deploy()
    done = await site.run("Nightly sync", wait=True)
    await edit_nightly(site)
    later = await site.run("Nightly sync", wait=True)
    page = await site.open(f"/executions/{later}")
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("link", name="Compare with the last success").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Compare Nightly sync")
    assert await page.locator("#other-id").input_value() == str(done)
    rows = page.get_by_role("table").get_by_role("row")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(2)).to_contain_text("3 attempts")
    await expect(page.get_by_role("region", name="Definition")).to_contain_text("+ for the comparison")
    timelines = [await site.app.executions.timeline(each) for each in (later, done)]
    ran = [sum(bar.duration_seconds or 0 for bar in each.groups[1].steps[0].attempts) for each in timelines]
    difference = await rows.nth(2).locator("td").nth(4).inner_text()
    assert (difference == "same") == (abs(ran[0] - ran[1]) < 0.05)


async def edit_nightly(site: Site) -> None:
    stored = await site.app.schedules.get("Nightly sync")
    await site.app.schedules.edit("Nightly sync", replace(stored.definition, description="for the comparison"))


async def test_manifest_is_created_and_edited(site: Site) -> None:
    page = await site.open("/manifests/new", Role.EDITOR)
    await page.get_by_label("External id").fill("numbers")
    await page.get_by_label("Cron", exact=True).check()
    await page.get_by_label("Cron line").fill("0 6 * * 1")
    await page.get_by_role("combobox", name="Job").fill("quick")
    await page.get_by_role("combobox", name="Job").press("Tab")
    await page.get_by_label("N", exact=True).fill("many")
    error = page.locator(".field", has=page.get_by_label("N", exact=True)).locator(".field-error")
    await expect(error).to_contain_text("valid integer")
    await page.get_by_label("N", exact=True).fill("4")
    await expect(page.get_by_role("region", name="Preview")).to_contain_text("Every Monday at 06:00")
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.get_by_role("button", name="Save…").click()
    await page.get_by_label("Reason (optional)").fill("new report")
    await page.get_by_role("button", name="Create").click()
    await page.wait_for_url("**/manifests/numbers")
    stored = await site.app.manifests.get("numbers")
    assert (dict(stored.manifest.properties), stored.manifest.trigger.kind) == ({"n": 4}, "cron")
    await page.get_by_role("link", name="Edit").click()
    await page.get_by_label("Attempts", exact=True).fill("4")
    await page.get_by_role("button", name="YAML").click()
    area = page.locator("[data-yaml-text]")
    await expect(area).to_be_visible()
    text = await area.input_value()
    assert "max_attempts: 4" in text
    await area.fill(text.replace("n: 4", "n: 5"))
    await page.get_by_role("button", name="YAML").click()
    await expect(page.get_by_label("N", exact=True)).to_have_value("5")
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.get_by_role("button", name="Save…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await page.wait_for_url("**/manifests/numbers")
    stored = await site.app.manifests.get("numbers")
    assert (stored.version, dict(stored.manifest.properties)) == (2, {"n": 5})
    assert stored.manifest.policy.retry.max_attempts == 4
    await page.goto("/manifests/numbers?tab=versions")
    await expect(page.get_by_role("region", name="Version 1 → 2")).to_contain_text("4 attempts")


async def test_c8_viewer_sees_disabled_actions_with_their_role(site: Site) -> None:
    await site.app.schedules.deploy()
    await site.app.manifests.deploy()
    for address, role in (
        ("/schedules/new", "editor"),
        ("/schedules/Month%20end/edit", "editor"),
        ("/manifests/bills/edit", "editor"),
    ):
        page = await site.open(address, Role.VIEWER)
        save = page.get_by_role("button", name="Save…")
        await expect(save).to_be_disabled()
        await expect(save).to_have_attribute("title", f"Requires the role {role}")
        await page.context.close()


async def test_c68_definitions_can_be_read_without_scripts(site: Site) -> None:
    await site.app.schedules.deploy()
    page = await site.open("/schedules/Month%20end/edit", Role.EDITOR, java_script_enabled=False)
    await expect(page.get_by_text("Changes need scripts.")).to_be_visible()
    await expect(page.get_by_role("button", name="Close job broken")).to_be_visible()
    await expect(page.get_by_role("region", name="Preview")).to_contain_text("Every 24 h")
    await page.goto("/schedules/Month%20end?tab=versions")
    await expect(page.get_by_role("row", name="declared in code")).to_be_visible()


@pytest.mark.timeout(240)
async def test_c61_pages_of_definitions_have_no_violation(site: Site) -> None:
    await site.app.schedules.deploy()
    await site.app.manifests.deploy()
    first, second = [await site.run("Nightly sync", wait=True) for _ in range(2)]
    await edit_description(site, "changed", "asked by ben")
    addresses = (
        "/schedules/new",
        "/schedules/Month%20end/edit",
        "/schedules/Month%20end?tab=versions",
        "/schedules/Month%20end?tab=history",
        "/manifests/new?job=quick",
        "/manifests/bills/edit",
        "/manifests/bills?tab=versions",
        f"/executions/compare?a={second}&b={first}",
    )
    violations: dict[str, list[str]] = {}
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        page = await site.open("/", Role.ADMIN, width=width, theme=theme)
        for address in addresses:
            await page.goto(address)
            if "edit" in address or "new" in address:
                await expect(page.locator("[data-checked]")).not_to_be_empty()
            found = await find_violations(page)
            if address.endswith("end/edit"):
                await page.locator(".step-open").first.click()
                found += await find_violations(page)
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append("scrolls horizontally")
            if found:
                violations[f"{width} {theme} {address}"] = found
        await page.goto("/schedules/Nightly%20sync")
        await page.get_by_role("button", name="Run with…").click()
        if found := await find_violations(page):
            violations[f"{width} {theme} run dialog"] = found
    assert violations == {}
