"""Acceptance check C73: the tour of the demo is watched in a browser, live, and its ledger balances."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.tour import jobs, processes, tour
from examples.tour.view import SilentPresenter
from playwright.async_api import Browser, Page, expect

from tenuto.postgres import embedded_server
from tests.web.browser.test_checks_services import LIVE_TEXT, log_in_by_link


class LinkPresenter(SilentPresenter):
    """Keeps the link that the tour prints."""

    def __init__(self) -> None:
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def link(self, label: str, address: str) -> None:
        self.address.set_result(address)


@pytest.fixture
def tour_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home directory of a tour with small numbers."""
    for name, number in {"BATCH_SIZE": 60, "REPORT_COUNT": 6, "INVOICE_COUNT": 40}.items():
        monkeypatch.setattr(tour, name, number)
    for module in (processes, tour):
        monkeypatch.setattr(module, "PACE", 0.4)
    home = Path(tempfile.mkdtemp(prefix="tnt-tour-", dir="/tmp"))
    home.chmod(0o755)
    monkeypatch.setattr(jobs.app, "settings", jobs.app.settings.model_copy(update={"home": home, "database": None}))
    yield home
    embedded_server.stop_server(home)
    shutil.rmtree(home, ignore_errors=True)


class WatchedTour(tour.Tour):
    """Waits at the end of each scene until the viewer has seen it."""

    def __init__(self, home: Path, presenter: LinkPresenter) -> None:
        super().__init__(home, presenter)
        self.ended_scenes = asyncio.Queue[asyncio.Event]()

    async def _outcome(self, line: str) -> None:
        seen = asyncio.Event()
        await self.ended_scenes.put(seen)
        await seen.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c73_pages_of_the_tour_are_live_and_its_ledger_balances(tour_home: Path, browser: Browser) -> None:
    presenter = LinkPresenter()
    shown = WatchedTour(tour_home, presenter)
    problems: list[str] = []
    running = asyncio.create_task(shown.run())

    async def wait_for_scene() -> asyncio.Event:
        scene = asyncio.create_task(shown.ended_scenes.get())
        either: set[asyncio.Future[Any]] = {running, scene}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        assert scene.done(), running
        return scene.result()

    try:
        either: set[asyncio.Future[Any]] = {running, presenter.address}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        assert presenter.address.done(), running
        activities = await log_in_by_link(browser, presenter.address.result())
        activities.on("pageerror", lambda error: problems.append(str(error)))
        await activities.goto("/activities")
        executions, letters, batches, workers = [
            await open_beside(activities, path) for path in ("/executions", "/dead-letters", "/batches", "/workers")
        ]
        # None of the pages is loaded again: what they show arrives while they are open.
        for page, texts in (
            (executions, ["Nightly HR Sync", "Completed"]),
            (activities, ["fetch_rates", "Completed"]),
            (letters, ["resolved", "the tour"]),
            (batches, ["60", "Completed"]),
            (workers, ["Dead"]),
            (activities, ["send_invoice"]),
        ):
            seen = await wait_for_scene()
            for text in texts:
                await expect(page.locator("main")).to_contain_text(text, timeout=60_000)
            seen.set()
        ledger = await running
        assert (ledger.balances, ledger.lost, ledger.doubled) == (True, 0, 0)
        assert problems == []
    finally:
        running.cancel()
        await asyncio.wait({running})
        for context in browser.contexts:
            await context.close()
        shown.stop()


async def open_beside(page: Page, path: str) -> Page:
    """Open another page in the same browser profile."""
    other = await page.context.new_page()
    await other.goto(path)
    await expect(other.locator(LIVE_TEXT)).to_have_text("live")
    return other
