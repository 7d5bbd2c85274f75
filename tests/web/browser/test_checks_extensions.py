"""Acceptance checks of extensions: the sample extension and a broken one in the browser, without a change in `web`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto_inventory.extension import Inventory
from tests.support.waiting import eventually
from tests.web.broken_extension import Broken
from tests.web.browser.conftest import Site, make_app, running_site
from tests.web.browser.test_accessibility import find_violations


@pytest_asyncio.fixture(loop_scope="session")
async def site(url: str, tmp_path: Path, browser: Browser) -> AsyncIterator[Site]:
    """The installation of the other browser tests with two extensions."""
    app = make_app(url, tmp_path, extensions=[Inventory(), Broken()])
    await app.migrate()
    await app.extensions.inventory.add("bolt", level=100)
    await app.extensions.inventory.add("nut", level=0, stock=5)
    order = Step.of("inventory.order", {"item": "bolt", "quantity": 7}, name="Order bolts")
    app.schedule("Restock", manual(), [order])
    async with running_site(app, browser, for_persons=True) as found:
        yield found


async def test_c72_extension_has_a_page_a_panel_and_a_search(site: Site) -> None:
    page = await site.open("/inventory/items", Role.EDITOR)
    await expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="Items")).to_have_attribute(
        "aria-current", "page"
    )
    bolt = page.get_by_role("row", name="bolt")
    await expect(bolt).to_contain_text("0")
    execution = await site.run("Restock", wait=True)
    await expect(bolt).to_contain_text("7")  # live, by the topic of the extension

    await page.get_by_label("Stock").select_option("sufficient")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**/inventory/items?stock=sufficient")
    await expect(page.get_by_role("row", name="nut")).to_be_visible()
    await expect(bolt).to_have_count(0)

    await page.goto(f"/executions/{execution}?step=1")
    await page.get_by_role("link", name="Order", exact=True).click()
    await expect(page.get_by_text("Quantity")).to_be_visible()
    await page.wait_for_url("**tab=panel**")

    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name="Page, action, name or id")).to_be_focused()
    await page.keyboard.type("nut")
    await page.get_by_role("option", name="nut Item").click()
    await page.wait_for_url("**/inventory/items/nut")
    await expect(page.get_by_role("heading", level=1)).to_have_text("nut")


async def test_c72_action_of_an_extension_asks_for_a_reason_and_is_audited(site: Site) -> None:
    page = await site.open("/inventory/items/nut", Role.EDITOR)
    await page.get_by_role("button", name="Remove…").click()
    dialog = page.locator("#action-dialog")
    await expect(dialog).to_contain_text("The item and its orders are deleted. 5 are in stock.")
    await dialog.get_by_role("button", name="Remove the item").click()
    await expect(dialog).to_be_visible()  # the reason is required
    await dialog.get_by_label("Reason").fill("sold out")
    await dialog.get_by_role("button", name="Remove the item").click()
    await expect(dialog).to_be_hidden()
    [entry] = await site.app.audit.list("action:inventory.item.remove")
    assert (entry.actor_type, entry.actor_name, entry.target, entry.reason) == ("user", "editor", "nut", "sold out")
    await page.goto("/inventory/items")

    viewer = await site.open("/inventory/items", Role.OPERATOR)
    button = viewer.get_by_role("row", name="bolt").get_by_role("button", name="Remove…")
    await expect(button).to_be_disabled()
    await expect(button).to_have_attribute("title", "Requires the role editor")
    site.expect_problems("404")  # the page of the removed item


async def test_c72_broken_extension_is_a_card_and_the_page_works(site: Site) -> None:
    page = await site.open("/", Role.VIEWER)
    card = page.get_by_role("region", name="Broken template")
    await expect(card).to_contain_text("The extension broken cannot show this")
    await expect(page.get_by_role("region", name="Low stock")).to_contain_text("bolt: 0 of 100")
    await expect(page.get_by_role("heading", name="Next runs")).to_be_visible()
    await page.goto("/broken/raises")
    await expect(page.get_by_role("note")).to_contain_text("The extension broken cannot show this: RuntimeError")
    await page.get_by_role("link", name="Executions").first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Executions")
    site.expect_problems("500")


async def test_c67_inline_code_of_an_extension_is_blocked(site: Site) -> None:
    page = await site.open("/broken/inline", Role.VIEWER)
    assert await page.evaluate("window.__x") is None
    assert await page.locator("#styled").evaluate("each => getComputedStyle(each).color") != "rgb(1, 2, 3)"

    async def is_reported() -> bool:
        return any("Content Security Policy" in each for each in site.problems)

    await eventually(is_reported)
    site.expect_problems("Content Security Policy")


@pytest.mark.timeout(180)
async def test_c61_pages_of_extensions_and_access_have_no_violation(site: Site) -> None:
    await site.app.invitations.create("ana", Role.VIEWER)
    execution = await site.run("Restock", wait=True)
    addresses = [
        "/", "/inventory/items", "/inventory/items?stock=low", "/inventory/items/bolt", "/broken/raises", "/keys",
        "/account", f"/executions/{execution}?step=1&tab=panel",
    ]  # fmt: skip
    violations: dict[str, list[str]] = {}
    for width in (1280, 390):
        for theme in ("light", "dark"):
            page = await site.open("/", Role.ADMIN, width=width, theme=theme)
            for address in addresses:
                await page.goto(address)
                if found := await find_violations(page):
                    violations[f"{width} {theme} {address}"] = found
                if width == 390 and await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    violations[f"scrolls {theme} {address}"] = ["wider than the screen"]
    site.expect_problems("500")
    assert violations == {}
