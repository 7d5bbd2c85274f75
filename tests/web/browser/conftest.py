"""The dashboard in Debian's chromium against real services: web service, worker and scheduler on a fresh database.

One browser serves all tests of a process, and each test has separate profiles. A browser belongs to the event loop in
which it was started, so these tests and their sites run in the loop of the session.

Every check also passes only without an error on the console, without a violation of the content security policy and
without a request to another origin. Every change that a page asks for goes to the API or to a form of the login, with
an idempotency key if it is a POST, and leaves one audit entry (check C70). How fast pages follow changes is measured by
the benchmark `dashboard`; the time limits here are those of a busy machine, and those of the checks in `scripts/proofs`
(`within`).
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import pytest_asyncio
from fastapi import FastAPI
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    async_playwright,
    expect,
)

from tenuto import Context, RetryPolicy, Step, Tenuto, every
from tenuto.extension import Extension
from tenuto.jobs.registry import JobWithContext
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tenuto.web import server
from tenuto.web.application import create_web_application
from tests.support.repetition_counts import times

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed: apt-get install chromium"
HERE = Path(__file__).parent
REFRESH = """() => import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"))
  .then((live) => live.refresh())"""
"""Fetches all parts of a page again."""

expect.set_options(timeout=20_000)  # for a busy machine; five seconds otherwise


def within(seconds: float) -> float:
    """Return the time limit of a check in milliseconds: the stated one in a proof, that of a busy machine otherwise."""
    return times(20_000, in_a_proof=round(seconds * 1000))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder without a browser; fail where the browser is required."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        for mark in needs_browser():
            item.add_marker(mark)
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def needs_browser() -> list[pytest.MarkDecorator]:
    """Return the marks of tests that need a browser, also of those in other folders."""
    is_missing = CHROMIUM is None and not os.environ.get("TENUTO_REQUIRE_BROWSER")
    return [pytest.mark.browser, *([pytest.mark.skip(reason=MISSING)] if is_missing else [])]


class SampleApp(Tenuto):
    """An app whose job `talk` runs for some seconds, or while the test holds it, but not longer than the test."""

    holds_talks = False
    is_closing = False


FORMS = {"/login", "/logout", "/approve"}
"""Addresses of forms that change something without scripts."""
QUERIES = (
    "/check",
    "/explain",
    "/preview",
    "/selections",
    "/plans",
    "/convert",
    "/session",
    "/invitations/accept",
    "/login",
)
"""Endings of addresses that are asked by POST, but change nothing."""


@dataclass
class Site:
    """A running installation and a browser that is logged in to it."""

    app: Tenuto
    browser: Browser
    keys: dict[Role, str]
    address: str = ""
    api: FastAPI = field(init=False)
    """The web application that answers, whose counts of event streams the checks compare."""
    problems: list[str] = field(default_factory=list)
    """What the browser reported on any page: errors of scripts, responses from 400 on, requests to other sites."""
    expected_problems: list[str] = field(default_factory=list)
    changes: list[Response] = field(default_factory=list)
    """Responses to all requests of pages that are not GET."""
    _server: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start_server(self) -> None:
        """Start the web service; after `stop_server`, at the same address."""

        def create(app: Tenuto, *, reload: bool = False) -> FastAPI:
            self.api = create_web_application(app, reload=reload)
            return self.api

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "create_web_application", create)
            running = server.web_server(self.app, port=urlsplit(self.address).port or 0)
            self.address = await self._server.enter_async_context(running)

    async def stop_server(self) -> None:
        """Stop the web service; open event streams end."""
        await self._server.aclose()

    @property
    def stream_count(self) -> int:
        """Number of event streams that the web service holds."""
        return int(self.api.state.event_streams.total())

    async def run(self, schedule: str, *, wait: bool = False) -> UUID:
        """Run a schedule, and wait for its end if asked to."""
        started = (await self.app.schedules.run(schedule)).execution_id
        assert started is not None
        if wait:
            await self.app.executions.wait(started, 30)
        return started

    def hold_talks(self) -> None:
        """Let the jobs `talk` run until `release_talks`: their duration could be shorter than that of the test."""
        assert isinstance(self.app, SampleApp)
        self.app.holds_talks = True

    def release_talks(self) -> None:
        assert isinstance(self.app, SampleApp)
        self.app.holds_talks = False

    async def open(
        self, path: str, role: Role = Role.OPERATOR, *, width: int = 1280, theme: str = "light", **options: Any
    ) -> Page:
        """Open a page in a new browser profile, logged in with this role."""
        height = 800 if width > 500 else 844
        context = await self.new_context(viewport={"width": width, "height": height}, **options)
        url = self.address
        await context.add_cookies(
            [
                {"name": "tenuto_theme", "value": theme, "url": url},
                {"name": "tenuto_zone", "value": "Europe/London", "url": url},
            ]
        )
        page = await context.new_page()
        await self.log_in(context, role)
        await page.goto(path)
        return page

    async def new_context(self, **options: Any) -> BrowserContext:
        """Return a new browser profile, whose pages are observed."""
        context = await self.browser.new_context(base_url=self.address, timezone_id="Europe/London", **options)
        context.set_default_timeout(20_000)
        context.on("console", self._note_console)
        context.on("weberror", lambda error: self.problems.append(str(error.error)))
        context.on("request", self._note_request)
        context.on("response", self._note_response)
        return context

    async def log_in(self, context: BrowserContext, role: Role) -> None:
        """Send the form of the login page, without loading it: `test_checks_access` tests the page itself."""
        headers = {"Origin": self.address, "Sec-Fetch-Site": "same-origin"}
        response = await context.request.post(
            "/login", form={"credential": self.keys[role]}, headers=headers, max_redirects=0
        )
        assert response.status == 303, await response.text()

    def expect_problems(self, *texts: str) -> None:
        """Allow reports of the browser that contain one of the texts, at any time of the test.

        The browser reports every response from 400 on as an error. The report may arrive after the response was
        handled, so a test cannot wait for it and remove it.
        """
        self.expected_problems.extend(texts)

    @property
    def unexpected_problems(self) -> list[str]:
        return [each for each in self.problems if not any(text in each for text in self.expected_problems)]

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" or "Content Security Policy" in message.text:
            self.problems.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.address, "blob:", "about:")):
            self.problems.append(f"request to {request.url}")
        elif request.method != "GET":
            path, headers = self._path(request), request.headers
            is_complete = "idempotency-key" in headers or request.method != "POST"
            if path not in FORMS and not (path.startswith("/api/") and "tenuto-page" in headers and is_complete):
                self.problems.append(f"incomplete request for a change: {request.method} {path}")

    def _note_response(self, response: Response) -> None:
        if response.request.method != "GET" and response.url.startswith(self.address):
            self.changes.append(response)

    def _path(self, request: Request) -> str:
        return request.url.removeprefix(self.address).partition("?")[0]

    async def note_unrecorded_changes(self) -> None:
        """Note the changes that pages have made and that did not leave exactly one audit entry."""
        done = [each for each in self.changes if each.status < 400]
        if not done:
            return
        ids = {each.headers["x-request-id"]: f"{each.request.method} {self._path(each.request)}" for each in done}
        rows = await (await self.app.open()).fetch_all(
            "SELECT request_id, count(*) AS count FROM tenuto.audit WHERE request_id = ANY($1) GROUP BY 1", list(ids)
        )
        counts = {row["request_id"]: row["count"] for row in rows}
        for id, change in ids.items():
            if not change.endswith(QUERIES) and counts.get(id, 0) != 1:
                self.problems.append(f"{change} left {counts.get(id, 0)} audit entries")


def add_jobs_with_texts(app: Tenuto) -> None:
    """Add jobs that log, return and raise what they are given."""

    @app.job
    async def echo(ctx: Context, text: str) -> str:
        ctx.log.info("%s", text)
        print(text)
        ctx.progress(1, 2, text[:200])
        return text

    @app.job
    async def shout(ctx: Context, text: str, size: int) -> None:
        """Log and print one line of this size."""
        line = (text * (size // len(text) + 1))[:size]
        ctx.log.warning("%s", line)
        print(line)

    @app.job(max_attempts=1)
    async def blow(text: str) -> None:
        raise ValueError(text)


def add_talk(app: SampleApp) -> JobWithContext[..., Any]:
    """Add a job that logs and reports progress for some seconds, or while the test holds it."""

    @app.job
    async def talk(ctx: Context, seconds: float = 4.0) -> None:
        for number in count():
            if app.is_closing or (number >= seconds * 5 and not app.holds_talks):
                return
            ctx.log.info("line %d", number)
            ctx.progress(min(number, seconds * 5), seconds * 5)
            await asyncio.sleep(0.2)

    return talk


def add_stubborn(app: SampleApp) -> None:
    """Add a job that does not end when it is asked to stop, while the test holds the jobs `talk`."""

    @app.job(max_attempts=1)
    async def stubborn() -> None:
        for _ in count():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                for _ in count():
                    if app.is_closing or not app.holds_talks:
                        raise
                    await asyncio.sleep(0.05)
            if app.is_closing:
                return


def make_app(url: str, home: Path, extensions: Sequence[Extension] = ()) -> Tenuto:
    """Return an app with jobs that succeed, are retried, fail and take a while."""
    app = SampleApp(settings=load_settings(database=url, home=home), extensions=list(extensions))

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

    talk = add_talk(app)
    add_stubborn(app)

    @app.job(max_attempts=1)
    async def bill(number: int) -> None:
        raise ValueError(f"no address for customer {number}")

    @app.job(max_attempts=1)
    async def report(number: int) -> None:
        raise KeyError("template")

    @app.job
    async def chatter(ctx: Context) -> None:
        for number in range(1500):
            write = ctx.log.warning if number % 100 == 0 else ctx.log.info
            write("number %d%s", number, " and more" * 60 * (number == 1499))

    @app.job(queue="held")
    async def held(number: int) -> None:
        pass

    @app.job
    async def await_payment(ctx: Context, order: str) -> dict[str, int]:
        paid: dict[str, int] = await ctx.wait_for_event("invoice.paid", key=order, timeout="1d")
        return paid

    add_jobs_with_texts(app)
    app.schedule("Nightly sync", every("1h"), [Step.job(quick, name="Import"), Step.job(flaky, name="Sync")])
    app.schedule("Month end", every("1d"), [Step.job(quick), Step.job(broken, name="Close"), Step.job(talk)])
    app.schedule("Talk", every("1d"), [[Step.job(talk, name="Left"), Step.job(quick, name="Right")], Step.job(talk)])
    app.schedule("Parent", every("1d"), [Step.job(quick, name="Prepare"), Step.schedule("Talk", name="Child")])
    app.schedule(
        "Limited",
        every("1d"),
        [
            [Step.job(talk, 2.0, name="First", queue="ldap"), Step.job(talk, 2.0, name="Second", queue="ldap")],
            Step.job(quick, name="Last"),
        ],
    )
    app.schedule("Chatter", every("1d"), [Step.job(chatter)])
    app.schedule("Wide", every("1d"), [[Step.job(quick, name=f"step {number}") for number in range(120)]])
    app.manifest("bills", bill, on_demand=True)
    app.manifest("reports", report, on_demand=True)
    app.manifest("paid", quick, on_demand=True)
    app.manifest("held", held, on_demand=True)
    return app


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser of this process."""
    assert CHROMIUM is not None, MISSING
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


@pytest.fixture
def master_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Configure the key that encrypts secrets."""
    file = tmp_path / "master.key"
    file.write_text(base64.b64encode(os.urandom(32)).decode())
    file.chmod(0o600)
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(file))


@pytest_asyncio.fixture(loop_scope="session")
async def site(url: str, tmp_path: Path, browser: Browser) -> AsyncIterator[Site]:
    async with running_site(make_app(url, tmp_path), browser) as found:
        yield found


@asynccontextmanager
async def running_site(
    app: Tenuto,
    browser: Browser,
    *,
    for_persons: bool = False,
    services: bool = True,
    keys: dict[Role, str] | None = None,
) -> AsyncIterator[Site]:
    """Run all services of an app, or only the web service, with one key for each role; afterwards, check that the pages
    had no problem."""
    keys = keys or {role: (await app.api_keys.create(role.key, role, is_person=for_persons))[1] for role in Role}
    async with AsyncExitStack() as stack:
        if services:
            await stack.enter_async_context(app.scheduler())
            await stack.enter_async_context(app.worker(queues=["default", "ldap", "held"]))
        found = Site(app, browser, keys)
        stack.push_async_callback(found.stop_server)
        await found.start_server()
        try:
            yield found
        finally:
            for context in browser.contexts:
                await context.close()
            if isinstance(app, SampleApp):
                app.is_closing = True
        await found.note_unrecorded_changes()
    await app.close()
    assert found.unexpected_problems == []
