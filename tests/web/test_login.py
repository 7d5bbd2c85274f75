"""Login by a one-time link or a key, redirects to the requested page, cookies, and the path prefix."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tenuto.api.security.authentication import SESSION_COOKIE
from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tenuto.web.rendering import CONTENT_SECURITY_POLICY
from tests.api.conftest import ApiClient, assert_problem, running_api
from tests.web.conftest import HTML, OWN_ORIGIN, get_page, log_in

CROSS_SITE = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


def assert_page(response: httpx2.Response, status: int = 200) -> str:
    """Check that a response is a page without inline code; return its text."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["cache-control"] == "no-store"
    assert "<style" not in response.text
    assert " style=" not in response.text
    return response.text


async def test_login_link_opens_a_session_once_by_its_button(service: ApiClient) -> None:
    link = await service.app.api_keys.create_link("operator")
    client = service.client
    for _ in range(3):  # mail programs and browsers prefetch
        shown = assert_page(await client.get("/login", params={"link": link}))
    await client.head("/login", params={"link": link})
    assert f'<input type="hidden" name="link" value="{link}">' in shown
    assert '<form method="post" action="/login"' in shown

    for headers in (CROSS_SITE, {"Origin": "null"}):
        assert_problem(await client.post("/login", data={"link": link}, headers=headers), 403, "auth.csrf")
    done = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    cookie = done.headers["set-cookie"].lower()
    assert all(each in cookie for each in (f"{SESSION_COOKIE}=tns_", "httponly", "samesite=lax", "path=/"))

    assert "operator" in assert_page(await client.get("/", headers=HTML))
    docs = assert_page(await client.get("/docs", headers=HTML))
    assert "/api/v1/schedules/{name}/preview" in docs
    assert "session.open" in [entry.action for entry in await service.app.audit.list()]

    assert_problem(await client.post("/logout", headers=CROSS_SITE), 403)
    left = await client.post("/logout", headers=OWN_ORIGIN)
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    client.cookies.clear()
    client.cookies.set(SESSION_COOKIE, done.cookies[SESSION_COOKIE])
    assert_problem(await client.get("/docs"), 401)
    client.cookies.clear()

    used = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
    assert_page(used, 401)
    assert "set-cookie" not in used.headers
    assert "tenuto login" in used.text


async def test_login_page_accepts_a_key_and_a_pasted_link(service: ApiClient) -> None:
    client = service.client
    for credential in (
        service.keys[Role.EDITOR],
        f"http://localhost/login?link={await service.app.api_keys.create_link('editor')}",
    ):
        done = await client.post("/login", data={"credential": f" {credential} "}, headers=OWN_ORIGIN)
        assert done.status_code == 303, done.text
        assert "editor" in assert_page(await client.get("/", headers=HTML))
        client.cookies.clear()
    await service.app.api_keys.revoke("editor")
    refused = await client.post("/login", data={"credential": service.keys[Role.EDITOR]}, headers=OWN_ORIGIN)
    assert "not valid" in assert_page(refused, 401)


async def test_login_page_refuses_expired_and_malformed_links(service: ApiClient) -> None:
    client = service.client
    old = await service.app.api_keys.create_link("viewer")
    await (await service.app.open()).fetch_all("UPDATE tenuto.sessions SET expires_at = now() - interval '1 second'")
    for link in (old, "", "nothing", "tnl_" + "x" * 43, '"><script>alert(1)</script>', "\x00", "é" * 60):
        response = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
        assert "not logged in" in assert_page(response, 401), link
    for body in (b"a&" * 20, b"link=x&" * 20, b"\xff" * 5000, b"%"):  # not one of our forms
        assert "not logged in" in assert_page(await client.post("/login", content=body, headers=OWN_ORIGIN), 401), body
    hostile = assert_page(await client.get("/login", params={"link": '"><img src=x onerror=alert(1)>{{7*7}}'}))
    assert "<img" not in hostile
    assert "49" not in hostile
    assert 'name="credential"' in assert_page(await client.get("/login"))
    for _ in range(20):
        last = await client.post("/login", data={"link": "nothing"}, headers=OWN_ORIGIN)
    assert "too many" in assert_page(last, 429)
    assert last.headers["retry-after"] == "60"


async def test_browser_without_session_is_redirected_to_login_and_back(service: ApiClient) -> None:
    client = service.client
    target = "/executions?state=failed&schedule=a%20b"
    for cookies in ({}, {SESSION_COOKIE: "tns_long-gone"}):
        client.cookies = httpx2.Cookies(cookies)
        redirect = await client.get(target, headers=HTML)
        assert redirect.status_code == 303
        assert parse_qs(urlsplit(redirect.headers["location"]).query)["next"] == [target]
    client.cookies.clear()
    asked = assert_page(await client.get(redirect.headers["location"], headers=HTML))
    assert 'name="next" value="/executions?state=failed&amp;schedule=a%20b"' in asked
    form = {"link": await service.app.api_keys.create_link("viewer"), "next": target}
    done = await client.post("/login", data=form, headers=OWN_ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, target)


async def test_program_without_key_is_refused_without_redirect(service: ApiClient) -> None:
    client, html = service.client, {"Accept": "text/html"}
    for headers in ({}, {"Accept": "application/json"}, {**html, "Authorization": "Bearer nothing"}):
        assert_problem(await client.get("/docs", headers=headers), 401)
    assert_problem(await client.get("/api/v1/schedules", headers=html), 401)
    assert_problem(await client.post("/logout", headers=html), 401)


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example/docs",
        "javascript:alert(1)",
        "/\\evil.example",
        "/docs/../x",
        '/docs"><b>',
        "x\r\ny",
        "/api/v1/executions",
    ],
)
async def test_login_redirects_to_own_pages_only(service: ApiClient, target: str) -> None:
    client = service.client
    asked = assert_page(await client.get("/login", params={"next": target}))
    assert 'name="next"' not in asked
    form = {"link": await service.app.api_keys.create_link("viewer"), "next": target}
    done = await client.post("/login", data=form, headers=OWN_ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_change_by_a_session_needs_the_header_of_our_pages(service: ApiClient) -> None:
    await log_in(service, Role.OPERATOR)
    path = "/api/v1/queues/mail/pause"
    assert_problem(await service.client.post(path, headers=OWN_ORIGIN), 403, "auth.csrf")
    assert_problem(await service.client.post(path, headers={**CROSS_SITE, "Tenuto-Page": "1"}), 403, "auth.csrf")
    headers = {**OWN_ORIGIN, "Tenuto-Page": "1", "X-Reason": "UTF-8''Serverausfall%20%E2%80%93%20M%C3%BCnchen"}
    done = await service.client.post(path, headers=headers)
    assert done.status_code == 204, done.text
    assert (await service.app.audit.list())[0].reason == "Serverausfall – München"


async def test_pages_work_below_a_path_prefix(url: str, tmp_path: Path) -> None:
    async with running_api(url, tmp_path, create_web_application, web_path="/ops/tenuto") as service:
        client = service.client
        redirect = await client.get("/executions?state=failed", headers=HTML)
        assert redirect.headers["location"] == "/ops/tenuto/login?next=%2Fexecutions%3Fstate%3Dfailed"
        done = await client.post(
            "/login", data={"credential": service.keys[Role.VIEWER], "next": "/executions"}, headers=OWN_ORIGIN
        )
        assert done.headers["location"] == "/ops/tenuto/executions"
        assert "path=/ops/tenuto;" in done.headers["set-cookie"].lower()
        service.client.cookies.set(SESSION_COOKIE, done.cookies[SESSION_COOKIE])
        page = (await get_page(service, "/executions")).text
        for attribute in ("href", "src", "action"):
            for found in page.split(f' {attribute}="')[1:]:
                assert found.startswith(("/ops/tenuto/", "#")), found[:80]
        assert (await client.get("http://localhost/executions")).status_code == 404
        assert (await client.get("http://localhost/healthz")).status_code == 200
