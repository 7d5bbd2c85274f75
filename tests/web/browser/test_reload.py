"""Development of the dashboard: an open page is loaded again after a change of a template or script."""

from __future__ import annotations

import os
import time

from playwright.async_api import expect

from tenuto.model.access.actors import Role
from tenuto.web.assets import FOLDER
from tenuto.web.server import web_server
from tests.web.browser.conftest import Site


async def test_open_page_is_loaded_again_after_a_change_of_a_script(site: Site) -> None:
    script = FOLDER / "js" / "app.js"
    before = script.stat()
    async with web_server(site.app, port=0, reload=True) as address:
        context = await site.browser.new_context(base_url=address, timezone_id="Europe/London")
        # Without a zone, the first page would load a second time with that of the browser.
        await context.add_cookies([{"name": "tenuto_zone", "value": "Europe/London", "url": address}])
        page = await context.new_page()
        await page.goto("/login")
        await page.get_by_label("Login link or API key").fill(site.keys[Role.VIEWER])
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("html")).to_have_attribute("data-code", str(newest_code_change()))
        await page.evaluate("document.body.dataset.kept = ''")
        try:
            os.utime(script, (time.time() + 60, time.time() + 60))
            await expect(page.locator("body")).not_to_have_attribute("data-kept", "", timeout=15_000)
            await expect(page.locator("html")).to_have_attribute("data-code", str(newest_code_change()))
        finally:
            os.utime(script, (before.st_atime, before.st_mtime))
        await page.close()


def newest_code_change() -> int:
    files = [*FOLDER.rglob("*.js"), *FOLDER.rglob("*.svg"), *(FOLDER.parent / "templates").rglob("*.html")]
    return max(file.stat().st_mtime_ns for file in files)
