"""Acceptance checks of access: login, links from other sites, people, invitations and sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, expect

from tenuto.model.access.actors import Role
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site, within
from tests.web.browser.test_accessibility import find_violations


@asynccontextmanager
async def foreign_site(body: str) -> AsyncIterator[str]:
    """Serve one page at another site: ``localhost`` instead of ``127.0.0.1``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = f"<!doctype html><title>foreign</title>{body}".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "localhost", 0)
    try:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def open_without_login(site: Site, path: str) -> Page:
    context = await site.new_context()
    # Without a zone, the first page would load a second time with that of the browser.
    await context.add_cookies([{"name": "tenuto_zone", "value": "Europe/London", "url": site.address}])
    page = await context.new_page()
    await page.goto(path)
    return page


async def test_c1_link_leads_to_the_requested_page_after_the_login(site: Site) -> None:
    execution = await site.run("Talk")
    wanted = f"/executions/{execution}?step=3&tab=log"
    page = await open_without_login(site, wanted)
    assert page.url.startswith(f"{site.address}/login?next=")
    link = await site.app.api_keys.create_link("operator")
    await page.goto(f"/login?link={link}")
    async with page.expect_response(lambda each: each.request.method == "POST") as posted:
        await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"**{wanted}")
    assert page.url == site.address + wanted
    cookie = (await (await posted.value).all_headers())["set-cookie"].lower()
    assert all(each in cookie for each in ("httponly", "samesite=lax", "path=/"))
    await expect(page.get_by_role("link", name="Log", exact=True)).to_have_attribute("aria-current", "true")


async def test_c2_link_from_another_site_opens_the_page(site: Site) -> None:
    execution = await site.run("Nightly sync", wait=True)
    page = await site.open("/", Role.VIEWER)
    async with foreign_site(f'<a href="{site.address}/executions/{execution}">execution</a>') as address:
        await page.goto(address)
        await page.get_by_role("link", name="execution").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Nightly sync")
    site.expect_problems("request to http://localhost", "favicon")


async def test_c3_another_site_can_change_and_frame_nothing(site: Site) -> None:
    execution = await site.run("Talk")
    page = await site.open("/", Role.OPERATOR)
    url = f"{site.address}/api/v1/executions/{execution}/cancel"
    body = f"""<form id="f" method="post" action="{url}" target="result"></form><iframe name="result"></iframe>
      <iframe id="framed" src="{site.address}/"></iframe>"""
    statuses: list[int] = []
    page.on("response", lambda each: statuses.append(each.status) if each.url == url else None)
    async with foreign_site(body) as address:
        await page.goto(address)
        await page.evaluate("document.querySelector('#f').submit()")
        await eventually(lambda: _is(len(statuses) == 1))
        refused = await page.evaluate(
            "url => fetch(url, {method: 'POST', credentials: 'include'}).then(() => 'sent', () => 'blocked')", url
        )
        assert refused == "blocked"
        framed = page.frames[-1]
        assert await framed.locator("nav.sidebar").count() == 0
    assert {*statuses} <= {401, 403}  # SameSite=Lax keeps the cookie from a form of another site
    await page.goto("/")
    own = await page.evaluate("url => fetch(url, {method: 'POST'}).then((each) => each.status)", url)
    assert own == 403  # without the header of our pages
    assert [each for each in await site.app.audit.list() if each.action == "execution.cancel"] == []
    assert (await site.app.executions.get(execution)).cancelled_at is None
    site.expect_problems("request to http://localhost", "favicon", "403", "Framing", "CORS", "Failed to load resource")
    site.expect_problems("incomplete request for a change: POST /api/v1/executions/")


async def _is(value: bool) -> bool:
    return value


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "javascript:alert(1)", "https://evil.example"])
async def test_c4_login_never_leads_to_another_site(site: Site, target: str) -> None:
    page = await open_without_login(site, f"/login?next={target.replace('%', '%25')}")
    await page.get_by_label("Login link or API key").fill(site.keys[Role.VIEWER])
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{site.address}/")
    await page.context.add_cookies(
        [{"name": "tenuto_next", "value": "%2F%2Fevil.example", "url": f"{site.address}/login"}]
    )
    await page.goto(f"/login?link={await site.app.api_keys.create_link('viewer')}")
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{site.address}/")


async def test_invited_person_logs_in_and_is_named_in_the_audit_log(site: Site) -> None:
    admin = await site.open("/keys", Role.ADMIN)
    await admin.get_by_role("button", name="Invite a person…").click()
    dialog = admin.locator("#action-dialog")
    await dialog.get_by_label("Name, as the audit log will show it").fill("ana")
    await dialog.get_by_label("Role").select_option("operator")
    await dialog.get_by_role("button", name="Create the invitation").click()
    shown = await admin.locator(".toast p").last.text_content() or ""
    [url] = re.findall(r"http\S+", shown)
    row = admin.get_by_role("region", name="Invitations").get_by_role("row", name="ana")
    await expect(row).to_contain_text("Open")

    page = await open_without_login(site, url)
    await page.get_by_role("button", name="Accept the invitation").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Welcome, ana")
    assert await find_violations(page) == []
    key = await page.locator(".secret-text").text_content() or ""
    await page.get_by_role("link", name="Open the dashboard").click()
    await expect(page.get_by_role("button", name="ana · operator")).to_be_visible()
    await page.goto("/schedules")
    run = page.locator('button[data-operation="schedules_run"]').first
    await run.dispatch_event("click")

    async def is_recorded() -> bool:
        found = await site.app.audit.list("action:schedule.run")
        return [(each.actor_type, each.actor_name) for each in found] == [("user", "ana")]

    await eventually(is_recorded)
    await expect(row).to_contain_text("Accepted")
    site.expect_problems("status of 401")  # an invitation works once
    again = await open_without_login(site, url)
    await again.get_by_role("button", name="Accept the invitation").click()
    await expect(again.get_by_role("alert")).to_contain_text("was accepted or revoked")
    other = await open_without_login(site, "/login")
    await other.get_by_label("Login link or API key").fill(key)
    await other.get_by_role("button", name="Log in").click()
    await expect(other.get_by_role("button", name="ana · operator")).to_be_visible()


async def test_sessions_are_ended_by_their_owner_and_by_an_admin(site: Site) -> None:
    first = await site.open("/account", Role.VIEWER)
    second = await site.open("/account", Role.VIEWER)
    await first.reload()
    site.expect_problems("status of 401")  # pages of ended sessions may fetch before they show the login
    table = first.get_by_role("table", name="Open browser sessions")
    await expect(table.get_by_role("row")).to_have_count(3)
    await expect(table.get_by_text("this browser")).to_have_count(1)
    other = table.get_by_role("row").filter(has_text="Chrome on Linux").filter(has_not_text="this browser")
    await other.get_by_role("button", name="End…").click()
    await first.locator("#action-dialog").get_by_role("button", name="End the session").click()
    await expect(table.get_by_role("row")).to_have_count(2)
    await second.goto("/account")
    await second.wait_for_url("**/login?next=**")

    admin = await site.open("/keys", Role.ADMIN)
    sessions = admin.get_by_role("table", name="Open browser sessions")
    row = sessions.get_by_role("row").filter(has_text="viewer")
    await row.get_by_role("button", name="End…").click()
    await admin.locator("#action-dialog").get_by_role("button", name="End the session").click()
    await expect(row).to_have_count(0)
    found = await site.app.audit.list("action:session.end")
    assert {(each.actor_name, each.target) for each in found} == {("viewer", "viewer"), ("admin", "viewer")}
    await first.goto("/executions")
    await first.wait_for_url("**/login?next=**")


async def test_initial_key_shows_a_notice(site: Site) -> None:
    database = await site.app.open()
    await database.fetch_all("UPDATE tenuto.api_keys SET kind = 'initial' WHERE name = 'admin'")
    page = await site.open("/", Role.ADMIN)
    await expect(page.get_by_role("note").first).to_contain_text("You act with the initial key")
    assert await find_violations(page) == []
    page = await site.open("/", Role.VIEWER)
    await expect(page.get_by_text("You act with the initial key")).to_have_count(0)


async def test_c71_page_continues_after_a_login_in_the_dialog_when_the_key_is_revoked(site: Site) -> None:
    await site.app.pause_queue("held", "server down")
    page = await site.open("/queues/held", Role.EDITOR)
    await expect(page.locator("[data-live-text]")).to_have_text("live")
    await page.get_by_role("button", name="Limit…").click()
    field = page.locator("#action-dialog input").first
    await field.fill("3")
    site.expect_problems("401", "Failed to load resource", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    await site.app.api_keys.revoke("editor")
    login = page.get_by_role("dialog", name="You are logged out")
    await expect(login).to_be_visible(timeout=within(2.0))
    await expect(page.get_by_role("heading", level=1, include_hidden=True)).to_contain_text("Queue held")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    await site.app.resume_queue("held")
    await login.get_by_label("Login link or API key").fill("tnt_wrong_key")
    await page.keyboard.press("Enter")
    await expect(login.get_by_role("alert")).to_contain_text("not valid")
    assert await find_violations(page) == []
    assert [each for each in sent if not each.endswith("/login")] == [], "without a session the page asks for nothing"
    await expect(page.locator("[data-part=head]")).to_contain_text("server down")

    _, key = await site.app.api_keys.create("ben", Role.EDITOR, is_person=True)
    await login.get_by_label("Login link or API key").fill(key)
    await page.keyboard.press("Enter")
    await expect(login).to_be_hidden()
    await expect(page.locator("[data-part=head]")).not_to_contain_text("server down", timeout=within(2.0))
    await expect(page.locator("[data-live-text]")).to_have_text("live")
    await expect(page.locator("header [data-account]")).to_have_text("ben · editor")
    await expect(field).to_have_value("3")
    await page.get_by_role("dialog").get_by_role("button", name="Set the limit").click()
    await expect(page.locator("[data-part=head]")).to_contain_text("of at most 3")
    [entry] = await site.app.audit.list("action:queue.limit")
    assert entry.actor_name == "ben"
