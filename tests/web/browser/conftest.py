"""The dashboard in Debian's chromium against real services: web service, worker and scheduler on a fresh database.

Every check also passes only without an error on the console, without a violation of the content security policy and
without a request to another origin.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright

from tenuto import Context, RetryPolicy, Step, Tenuto, every
from tenuto.model.actors import Role
from tenuto.settings import load_settings
from tenuto.web.server import web_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed: apt-get install chromium"
HERE = Path(__file__).parent
REFRESH = """() => import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"))
  .then((live) => live.refresh())"""
"""Fetches all parts of a page again."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder without a browser; fail where the browser is required."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.browser)
        if CHROMIUM is None and not os.environ.get("TENUTO_REQUIRE_BROWSER"):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@dataclass
class Site:
    """A running installation and a browser that is logged in to it."""

    app: Tenuto
    address: str
    browser: Browser
    keys: dict[Role, str]
    problems: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    async def run(self, schedule: str, *, wait: bool = False) -> UUID:
        """Run a schedule, and wait for its end if asked to."""
        started = (await self.app.schedules.run(schedule)).execution_id
        assert started is not None
        if wait:
            await self.app.executions.wait(started, 30)
        return started

    async def open(
        self, path: str, role: Role = Role.OPERATOR, *, width: int = 1280, theme: str = "light", **options: Any
    ) -> Page:
        """Open a page in a new browser profile, logged in with this role."""
        height = 800 if width > 500 else 844
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, base_url=self.address, timezone_id="Europe/London", **options
        )
        self.contexts.append(context)
        url = self.address
        await context.add_cookies(
            [
                {"name": "tenuto_theme", "value": theme, "url": url},
                {"name": "tenuto_zone", "value": "Europe/London", "url": url},
            ]
        )
        page = await context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._note_request)
        await page.goto("/login")
        await page.get_by_label("Login link or API key").fill(self.keys[role])
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url("**/")
        if path != "/":
            await page.goto(path)
        return page

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" or "Content Security Policy" in message.text:
            self.problems.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.address, "blob:", "about:")):
            self.problems.append(f"request to {request.url}")


def make_app(url: str, home: Path) -> Tenuto:
    """Return an app with jobs that succeed, are retried, fail and take a while."""
    app = Tenuto(settings=load_settings(database=url, home=home))

    @app.job
    async def quick(n: int = 1) -> int:
        return n

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=1.0, jitter=0.0))
    async def flaky(ctx: Context) -> str:
        ctx.log.info("attempt %d", ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("the server does not respond")
        return "done"

    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("the ledger does not balance")

    @app.job
    async def talk(ctx: Context, seconds: float = 4.0) -> None:
        for number in range(int(seconds * 5)):
            ctx.log.info("line %d", number)
            ctx.progress(number, seconds * 5)
            await asyncio.sleep(0.2)

    @app.job(max_attempts=1)
    async def bill(number: int) -> None:
        raise ValueError(f"no address for customer {number}")

    app.schedule("Nightly sync", every("1h"), [Step.job(quick, name="Import"), Step.job(flaky, name="Sync")])
    app.schedule("Month end", every("1d"), [Step.job(quick), Step.job(broken, name="Close"), Step.job(talk)])
    app.schedule("Talk", every("1d"), [[Step.job(talk, name="Left"), Step.job(quick, name="Right")], Step.job(talk)])
    app.manifest("bills", bill, on_demand=True)
    return app


@pytest.fixture
async def site(url: str, tmp_path: Path) -> AsyncIterator[Site]:
    assert CHROMIUM is not None, MISSING
    app = make_app(url, tmp_path)
    keys = {role: (await app.api_keys.create(role.key, role))[1] for role in Role}
    async with (
        app.scheduler(),
        app.worker(),
        web_server(app, port=0) as address,
        async_playwright() as playwright,
    ):
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        found = Site(app, address, browser, keys)
        try:
            yield found
        finally:
            for context in found.contexts:
                await context.close()
            await browser.close()
    await app.close()
    assert found.problems == []
