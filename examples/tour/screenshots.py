"""Pictures of the dashboard: overview and execution of the demo in light and dark, and an identity of an example.

Run with ``scripts/screenshots``. It starts ``tenuto up --demo`` in a temporary directory and needs Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from tenuto import Tenuto
from tenuto.definitions.document_parser import parse_document
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.plans import read_declarations
from tenuto.postgres import embedded_server
from tenuto.web.server import web_server

EXAMPLE = Path(__file__).resolve().parents[1] / "nightly_hr_sync"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTH, HEIGHT = 1280, 800
_START_SECONDS, _LIVE_MILLISECONDS = 120.0, 90_000
_LINK = re.compile(r"dashboard +(\S+?)/login\?link=(\S+)")
_SCHEDULE, _STEP = "Nightly HR Sync", "LDAP - Export"
_LOG_LINE = "entry 240 of 480"


@asynccontextmanager
async def running_demo(home: Path) -> AsyncIterator[tuple[str, str]]:
    """Run the demo in a directory; yield its address and the key of the administrator."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenuto", "up", "--demo", "--no-browser", "--home", str(home), "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            address = ""
            while not address:
                line = (await process.stderr.readline()).decode()
                if not line:
                    raise RuntimeError(f"the demo ended with exit code {await process.wait()}")
                if found := _LINK.search(line):
                    address = found[1]
        yield address, (home / "admin.key").read_text("ascii").strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        embedded_server.stop_server(home)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run Debian's chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


async def log_in(browser: Browser, address: str, key: str, theme: str) -> Page:
    """Return a page of a new browser profile, logged in."""
    context = await browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, base_url=address, timezone_id="Europe/London"
    )
    await context.add_cookies(
        [
            {"name": "tenuto_theme", "value": theme, "url": address},
            {"name": "tenuto_zone", "value": "Europe/London", "url": address},
        ]
    )
    page = await context.new_page()
    await page.goto("/login")
    await page.get_by_label("Login link or API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url("**/")
    return page


async def open_running_execution(page: Page) -> str:
    """Run a schedule, wait until the steps of its third group run, and return the address with one of them selected."""
    await page.goto("/schedules")
    row = page.get_by_role("row").filter(has_text=_SCHEDULE)
    await row.get_by_role("button", name="Run now").click()
    await page.goto("/executions?q=state:in_progress")
    running = page.get_by_role("row").filter(has_text=_SCHEDULE).first
    await running.get_by_role("link").first.click(timeout=_LIVE_MILLISECONDS)
    step = page.get_by_role("row").filter(has_text=_STEP)
    await step.get_by_text("Running").first.wait_for(timeout=_LIVE_MILLISECONDS)
    await step.get_by_role("link", name=_STEP).click()
    await page.get_by_text(_LOG_LINE).first.wait_for(timeout=_LIVE_MILLISECONDS)
    return page.url


async def take_pictures(home: Path, folder: Path) -> list[Path]:
    """Take all pictures; return their paths."""
    taken = []
    async with running_demo(home) as (address, key), chromium() as browser:
        pages = {theme: await log_in(browser, address, key, theme) for theme in ("light", "dark")}
        execution = await open_running_execution(pages["light"])
        for name, path in (("execution", execution), ("overview", "/")):
            for theme, page in pages.items():
                if page.url != path:
                    await page.goto(path)
                if name == "execution":
                    await page.get_by_text(_LOG_LINE).first.wait_for()
                file = folder / f"dashboard-{name}-{theme}.png"
                await page.screenshot(path=file)
                taken.append(file)
    return taken


async def take_identity_picture(home: Path, folder: Path) -> Path:
    """Run the first night of the example, change a title, and take the picture of the person."""
    (home / "files").mkdir()
    people = (EXAMPLE / "people.csv").read_text("utf-8")
    hr = home / "files" / "people.csv"
    hr.write_text(people, "utf-8")
    async with Tenuto(home=home) as app:
        declared = read_declarations([parse_document("nightly.yaml", (EXAMPLE / "nightly.yaml").read_bytes())])
        await app.plans.apply(await app.plans.plan(declared))
        _, key = await app.api_keys.create("ana", Role.ADMIN, is_person=True)
        async with app.worker(), web_server(app, port=0) as address, chromium() as browser:
            for _ in range(2):
                run = await app.schedules.run(_SCHEDULE)
                assert run.execution_id is not None
                await app.executions.wait(run.execution_id, _START_SECONDS)
                hr.write_text(people.replace("Architect", "Fellow"), "utf-8")
            page = await log_in(browser, address, key, "light")
            await page.goto("/identity/identities?q=perlman")
            await page.get_by_role("link", name="Radia Perlman").click()
            await page.get_by_role("heading", name="History").wait_for()
            file = folder / "dashboard-identity-light.png"
            await page.screenshot(path=file)
    embedded_server.stop_server(home)
    return file


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR", help="folder of the pictures")
    parser.add_argument("--identity-only", action="store_true", help="only the picture of an identity")
    parsed = parser.parse_args()
    folder = parsed.to
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="tenuto-pictures-", dir="/tmp"))
    home.chmod(0o755)  # as root, the server runs under another account, which needs access
    try:
        taken = asyncio.run(take_pictures(home, folder)) if not parsed.identity_only else []
        example = home / "example"
        example.mkdir(mode=0o755)
        for file in (*taken, asyncio.run(take_identity_picture(example, folder))):
            sys.stdout.write(f"{file} ({file.stat().st_size:,} bytes)\n")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
