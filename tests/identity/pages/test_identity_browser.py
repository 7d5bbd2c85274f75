"""The identity pages in the browser: accessibility, and actions through their dialogs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tenuto import Tenuto
from tenuto.model.access.actors import Role
from tenuto.postgres import scratch_databases
from tenuto.settings import load_settings
from tests.conftest import database_name
from tests.identity.pages.populated_site import Populated
from tests.web.browser.conftest import Site, needs_browser, running_site
from tests.web.browser.test_accessibility import find_unvisited_pages, find_violations_of_all

pytestmark = [*needs_browser(), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(populated: Populated, browser: Browser) -> AsyncIterator[Site]:
    app = Tenuto(settings=load_settings(database=populated.url, home=populated.home))
    async with running_site(app, browser, services=False, keys=populated.keys) as found:
        yield found


def one_of_each(populated: Populated) -> list[str]:
    """Return the address of a page of each template."""
    return [
        "/identity/systems", "/identity/systems/HR", "/identity/runs", f"/identity/runs/{populated.import_id}",
        "/identity/exports?errors=only", "/identity/held",
        "/identity/previews", f"/identity/previews/{populated.preview_id}?system=AD",
        "/identity/identities?q=a", f"/identity/identities/{populated.hostile_id}",
        "/identity/objects?joined=no", "/identity/objects/AD/stray%2F1", "/identity/rules",
        f"/executions/{populated.execution_id}?step=3&tab=panel",
    ]  # fmt: skip


@pytest.mark.timeout(240)
async def test_identity_pages_have_no_violation_in_both_themes_and_widths(site: Site, populated: Populated) -> None:
    addresses = one_of_each(populated)
    assert [each for each in find_unvisited_pages(site, addresses) if each.startswith("/identity")] == []
    page = await site.open("/account", Role.ADMIN)
    assert await find_violations_of_all(page, addresses) == {}


async def test_run_profile_starts_and_approval_of_a_hold_asks_for_a_reason(site: Site) -> None:
    page = await site.open("/identity/systems/AD", Role.EDITOR)
    await page.get_by_role("row", name="Full Import").get_by_role("button", name="Run").click()
    await expect(page.locator("#toasts")).to_contain_text("Full Import of AD was started.")
    [entry] = await site.app.audit.list("action:identity.run.start by:editors")
    assert entry.target == "AD"

    await page.goto("/identity/held")
    await page.get_by_role("button", name="Approve…").click()
    dialog = page.locator("#action-dialog")
    await expect(dialog).to_contain_text("17 of 29 (58.62 %) of person would be deleted")
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog).to_be_visible()  # the reason is required
    await dialog.get_by_role("button", name="Keep as it is").click()
    await expect(dialog).to_be_hidden()
    assert await site.app.audit.list("action:identity.hold.approve") == []


@pytest_asyncio.fixture(loop_scope="session")
async def own_site(server: str, populated: Populated, browser: Browser) -> AsyncIterator[Site]:
    """A site with a copy of the database, for a test that changes what other tests look at."""
    name = database_name("identity_approval")
    source = urlsplit(populated.url).path.removeprefix("/")
    url = await scratch_databases.copy_database(server, source, name, by_file_copy=True)
    app = Tenuto(settings=load_settings(database=url, home=populated.home))
    async with running_site(app, browser, services=False, keys=populated.keys) as found, app.worker():
        yield found
    await scratch_databases.drop_database(server, name)


async def test_hold_is_approved_in_the_browser_with_a_reason(own_site: Site) -> None:
    page = await own_site.open("/identity/held", Role.EDITOR)
    await page.get_by_role("button", name="Approve…").click()
    dialog = page.locator("#action-dialog")
    await dialog.get_by_role("textbox").fill("The department was closed")
    await dialog.get_by_role("button", name="Approve").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("[data-part=holds]")).to_contain_text("No system is on hold.", timeout=20_000)
    [entry] = await own_site.app.audit.list("action:identity.hold.approve")
    assert (entry.target, entry.reason, entry.actor_type) == ("HR", "The department was closed", "user")
    deleted = await own_site.app.extensions.identity.objects(system="HR", state="obsolete")
    assert len(deleted) == 17


async def test_identity_pages_are_readable_and_filterable_without_scripts(site: Site, populated: Populated) -> None:
    page = await site.open("/identity/identities", Role.VIEWER, java_script_enabled=False)
    await page.get_by_label("Name contains").fill("lovelace")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**/identity/identities?q=lovelace**")
    await page.get_by_role("link", name="Ada Lovelace").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Ada Lovelace")
    row = page.get_by_role("row", name="login")
    await expect(row).to_contain_text("HR by HR people in")
