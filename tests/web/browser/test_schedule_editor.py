"""The editor of schedules: preview while typing, errors at their fields, moving of steps, YAML, saving, conflicts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tenuto import Step, Tenuto
from tenuto.api.bodies.definition_bodies import schedule_to_fields
from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.model.access.actors import Role
from tenuto.model.triggers import cron
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres import migrator
from tenuto.postgres.migrator import Component
from tenuto.settings import load_settings
from tenuto.testing import TimeMachine
from tenuto_identity.extension import Identity
from tests.web.browser.conftest import Site, running_site, within

EXAMPLE = Path(__file__).parents[3] / "examples" / "nightly_hr_sync"
READ = """async () => {
  const forms = await import(document.querySelector("script[src*=editor]").src.replace("editor.js", "forms.js"));
  const definition = forms.read(document.querySelector("t-editor"));
  definition.steps = definition.steps.map((group) => group.length === 1 ? group[0] : group);
  return definition;
}"""
"""Returns the definition that the fields of the page describe."""


@pytest_asyncio.fixture(loop_scope="session")
async def identity_site(
    url: str, tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """The services with the extension whose step kind the example uses."""
    monkeypatch.setenv("TENUTO_DISABLED_EXTENSIONS", "notifications")
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    await migrator.migrate(await app.open(), Component("identity", Identity().migrations()))
    async with running_site(app, browser) as found:
        yield found


async def wait_for_check(page: Page) -> None:
    """Wait until the server has answered for the present fields."""
    async with page.expect_response(lambda response: "/schedules/check" in response.url):
        await page.locator("t-editor").evaluate("each => each.dispatchEvent(new Event('input', {bubbles: true}))")
    await expect(page.locator("[data-checked]")).not_to_be_empty()


async def test_c33_trigger_is_explained_while_typing(site: Site) -> None:
    page = await site.open("/schedules/new", Role.EDITOR)
    await page.get_by_label("Time zone", exact=True).and_(page.locator("[name=zone]")).last.fill("Europe/Berlin")
    line = page.get_by_label("Cron line")
    async with page.expect_response(
        lambda each: "/schedules/check" in each.url and "30 2" in (each.request.post_data or "")
    ):
        await line.fill("30 2 * * *")
    preview = page.get_by_role("region", name="Preview")
    await expect(preview).to_contain_text("Every day at 02:30, Europe/Berlin")
    explained = await site.app.schedules.explain(cron("30 2 * * *", zone="Europe/Berlin"))
    assert len(explained.clock_changes) == 2
    shown = await preview.locator("td:first-child time").evaluate_all("all => all.map(each => each.dateTime)")
    assert [datetime.fromisoformat(each) for each in shown] == list(explained.next_runs)
    await expect(preview.get_by_role("columnheader")).to_have_text(["Europe/Berlin", "Europe/London", "Starts"])
    text = await preview.inner_text()
    for change in explained.clock_changes:
        assert change.message[1:] in text
    assert text.count("01:30 GMT") == 5


async def test_c33_preview_equals_the_command_line_and_the_ledger_of_later_runs(
    url: str, tmp_path: Path, browser: Browser
) -> None:
    line, zone = "30 1 * * *", "Europe/London"
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))

    @app.job
    async def quick() -> None:
        pass

    command = [sys.executable, "-m", "tenuto", "cron", "explain", line, "--zone", zone, "-o", "json"]
    explained = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    runs = [datetime.fromisoformat(each) for each in json.loads(explained.stdout)["next_runs"]]
    effects = (await app.schedules.explain(cron(line, zone=zone))).clock_changes
    assert len(effects) == 2
    async with running_site(app, browser, services=False) as site:
        page = await site.open("/login", Role.EDITOR)
        await page.context.add_cookies([{"name": "tenuto_zone", "value": "Asia/Kathmandu", "url": site.address}])
        await page.goto("/schedules/new")
        await page.locator("[name=zone]").last.fill(zone)
        await page.get_by_label("Cron line").fill("")
        await page.get_by_label("Cron line").press_sequentially(line)
        preview = page.get_by_role("region", name="Preview")
        await expect(preview).to_contain_text("Every day at 01:30", timeout=within(0.6))
        await expect(preview.get_by_role("columnheader")).to_have_text([zone, "Asia/Kathmandu", "Starts"])
        shown = await preview.locator("td:first-child time").evaluate_all("all => all.map(each => each.dateTime)")
        assert [datetime.fromisoformat(each) for each in shown] == runs
        text = await preview.inner_text()
        for effect in effects:
            assert effect.message[1:] in text

        async def pass_time(name: str, start: datetime, end: datetime) -> list[datetime]:
            """Return the due instants in the ledger of a new schedule after the clock has passed them."""
            async with TimeMachine(app, start=start) as machine:
                await app.schedules.apply([schedule_definition(name, cron(line, zone=zone), [Step.job(quick)])])
                await machine.advance_to(end)
                return sorted(each.due_at for each in await app.schedules.ledger(name))

        now = (await app.open()).clock.now()
        assert await pass_time("Next runs", now, runs[-1]) == runs
        for number, effect in enumerate(effects):
            begin, end = (effect.at + timedelta(hours=hours) for hours in (-6, 6))
            [due] = await pass_time(f"Clock change {number}", begin, end)
            if "does not exist" in effect.message:
                assert f"it runs once, at {due.astimezone(ZoneInfo(zone)):%H:%M}" in effect.message
            else:
                assert "it runs once, the first time" in effect.message
                assert due == effect.at - timedelta(minutes=30), "the first of the two"


async def test_c34_errors_are_shown_at_their_fields(site: Site) -> None:
    page = await site.open("/schedules/Month%20end/edit", Role.EDITOR)
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.get_by_label("Cron", exact=True).check()
    line = page.get_by_label("Cron line")
    for text, reason, remedy in (
        ("0 0 30 2 *", "would never run", "Choose a day that those months have"),
        ("* * *", "has 3 fields instead of five", "Write minute, hour"),
    ):
        await line.fill(text)
        error = page.locator(".field", has=line).locator(".field-error")
        await expect(error).to_contain_text(reason)
        await expect(error).to_contain_text(remedy)
        await expect(line).to_have_attribute("aria-invalid", "true")
        assert await line.get_attribute("aria-describedby") == await error.get_attribute("id")
    await line.fill("0 0 1 * *")
    await page.get_by_role("button", name="Close job broken").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Job", exact=True).fill("nothing")
    await dialog.get_by_label("Job", exact=True).press("Enter")
    await expect(dialog).to_be_hidden()
    card = page.locator(".step-card").nth(1)
    await expect(card).to_contain_text("No job named 'nothing' is registered")
    save = page.get_by_role("button", name="Save…")
    await expect(save).to_have_attribute("aria-disabled", "true")
    await save.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog").get_by_label("Job", exact=True)).to_be_focused()
    assert (await site.app.schedules.get("Month end")).version == 1


async def test_schedule_editor_submits_stored_definition_if_unchanged(site: Site) -> None:
    steps: list[Step | list[Step]] = [
        Step.job(site.app.jobs.jobs_by_name["quick"], 3, name="Import", timeout="30m", max_attempts=7),
        [
            Step.of("http.call", {"url": {"secret": "hr/url"}, "headers": {"a": "b"}, "timeout": 3.5}, name="Call"),
            Step.of("log.append", {"message": "two\nlines", "fields": None}, name="Note", continue_on_failure=True),
        ],
        Step.schedule("Talk", name="Then talk"),
    ]
    site.app.schedule(
        "Mixed", cron("0 6 * * mon-fri", zone="Europe/London"), steps, misfire={"policy": "all", "max_runs": 3}
    )
    await site.app.schedules.deploy()
    page = await site.open("/schedules/Mixed/edit", Role.EDITOR)
    stored = schedule_to_fields((await site.app.schedules.get("Mixed")).definition)
    assert await page.evaluate(READ) == {name: value for name, value in stored.items() if value != ""}
    await page.get_by_role("button", name="Save…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Nothing has changed.")


async def test_c36_cards_and_yaml_never_disagree(site: Site) -> None:
    page = await site.open("/schedules/Month%20end/edit", Role.EDITOR)
    first = await page.evaluate(READ)
    cards = page.locator(".step-card")
    await cards.nth(1).drag_to(cards.nth(0))
    await expect(page.locator(".column")).to_have_count(2)
    await wait_for_check(page)
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.locator(".step-card", has_text="Close").get_by_role("button", name="Move to a later group").click()
    await expect(page.locator(".column")).to_have_count(3)
    assert await page.evaluate(READ) == first
    await page.get_by_role("button", name="YAML").click()
    area = page.get_by_label("Definition as YAML").and_(page.locator("textarea"))
    await expect(area).to_be_visible()
    text = await area.input_value()
    assert parse_document("x.yaml", text.encode()).value == first
    await area.fill(text.replace("name: Close", "name: Close books\n    timeout: abc"))
    await expect(page.get_by_text("steps[1].timeout: Timeout 'abc' is not a duration")).to_be_visible()
    await area.fill(text.replace("name: Close", "name: Close books\n    timeout: 90"))
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.get_by_role("button", name="YAML").click()
    await expect(page.locator(".step-card").nth(1)).to_contain_text("Close books")
    expected = json.loads(json.dumps(first))
    expected["steps"][1] |= {"name": "Close books", "timeout": 90}
    assert await page.evaluate(READ) == expected
    await page.get_by_role("button", name="YAML").click()
    await area.fill("name: [")
    await page.get_by_role("button", name="YAML").click()
    await expect(area).to_be_visible()
    await expect(page.locator("[data-yaml] .field-error")).to_contain_text("Line 2: not valid YAML")


async def test_saving_with_a_reason_and_conflict_of_versions(site: Site) -> None:
    page, other = [await site.open("/schedules/Month%20end/edit", Role.EDITOR) for _ in range(2)]
    await page.get_by_role("textbox", name="Description").fill("of every month")
    await wait_for_check(page)
    await page.get_by_role("button", name="Save…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("+ of every month")
    await dialog.get_by_label("Reason (optional)").fill("asked by ben")
    await dialog.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/schedules/Month%20end")
    [version, *_] = await site.app.schedules.versions("Month end")
    assert (version.version, version.reason, version.actor.name) == (2, "asked by ben", "editor")
    [entry] = await site.app.audit.list("action:schedule.change")
    assert (entry.actor_name, entry.reason) == ("editor", "asked by ben")
    await other.get_by_role("textbox", name="Description").fill("another text")
    await wait_for_check(other)
    await other.get_by_role("button", name="Save…").click()
    await other.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(other.get_by_role("alert")).to_contain_text("has version 2, not 1")
    await expect(other.get_by_role("link", name="See what changed")).to_be_visible()
    await expect(other.get_by_role("textbox", name="Description")).to_have_value("another text")
    assert (await site.app.schedules.get("Month end")).version == 2
    site.expect_problems("status of 409")


async def tab_to(page: Page, name: str, *, limit: int = 60) -> None:
    """Press Tab until the element with this accessible name has the focus."""
    for _ in range(limit):
        await page.keyboard.press("Tab")
        found = await page.evaluate(
            """() => {
              const each = document.activeElement;
              const [label] = each.labels ?? [];
              const text = label?.querySelector(".label")?.firstChild?.textContent ?? label?.textContent;
              return (each.ariaLabel ?? text ?? each.textContent).trim();
            }"""
        )
        if found == name:
            return
    raise AssertionError(f"{name} cannot be reached")


async def type_into(page: Page, name: str, text: str) -> None:
    await tab_to(page, name)
    await page.keyboard.press("Control+a")
    await page.keyboard.insert_text(text)


async def test_c35_nightly_hr_sync_is_built_with_the_keyboard(identity_site: Site) -> None:
    site = identity_site
    document = parse_document("nightly.yaml", (EXAMPLE / "nightly.yaml").read_bytes())
    [declared] = parse_schedules([document])
    wanted: dict[str, Any] = document.value["schedules"][0]
    systems = type(document)(document.name, {**document.value, "schedules": []}, document.line_numbers)
    await apply(site, systems)
    page = await site.open("/schedules/new", Role.EDITOR)
    await type_into(page, "Name", wanted["name"])
    await type_into(page, "Description", wanted["description"])
    await type_into(page, "Cron line", wanted["cron"])
    await type_into(page, "Time zone", wanted["zone"])
    groups = [each if isinstance(each, list) else [each] for each in wanted["steps"]]
    for number, group in enumerate(groups):
        for place, step in enumerate(group):
            if number == place == 0:
                await tab_to(page, "New stepjob")
                await page.keyboard.press("Enter")
            elif place == 0:
                await page.locator("h1").evaluate("each => { each.tabIndex = -1; each.focus(); }")
                await tab_to(page, "+ Group")
                await page.keyboard.press("Enter")
            else:
                await page.locator(f".column:nth-child({number + 1}) .column-head h3").evaluate(
                    "each => { each.tabIndex = -1; each.focus(); }"
                )
                await tab_to(page, "Add a parallel step")
                await page.keyboard.press("Enter")
            await expect(page.locator("dialog[open]")).to_be_visible()
            await type_into(page, "Name", step["name"])
            await tab_to(page, "Runs")
            await page.keyboard.type("run_profile")
            await expect(page.locator("dialog[open] [name=kind]")).to_have_value("run_profile")
            await expect(page.locator("dialog[open]").get_by_label("System")).to_be_visible()
            await type_into(page, "System", step["arguments"]["system"])
            await type_into(page, "Profile", step["arguments"]["profile"])
            if step.get("continue_on_failure"):
                await tab_to(page, "Continue with the next group if it fails")
                await page.keyboard.press("Space")
            await page.keyboard.press("Escape")
            await expect(page.locator("dialog[open]")).to_have_count(0)
    await wait_for_check(page)
    await expect(page.get_by_text("No errors")).to_be_visible()
    await page.locator("h1").evaluate("each => { each.tabIndex = -1; each.focus(); }")
    await tab_to(page, "Save…")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Create")).to_be_visible()
    await tab_to(page, "Create")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/schedules/Nightly%20HR%20Sync")
    stored = await site.app.schedules.get("Nightly HR Sync")
    assert stored.definition == site.app.schedules.resolve_steps(declared.definition)


async def apply(site: Site, document: Any) -> None:
    await site.app.plans.apply(await site.app.plans.plan(read_declarations([document])))
