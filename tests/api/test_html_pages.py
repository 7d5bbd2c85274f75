"""HTML pages: login by a one-time link, redirects, and no active content; long lists in pages."""

from __future__ import annotations

import base64
import hashlib
import re
from uuid import UUID

import httpx2

from tenuto.api.auth import SESSION_COOKIE
from tenuto.model.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.store.access.api_keys import SQL
from tests.api.conftest import HOST, ApiClient, assert_problem

OWN_ORIGIN = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}


def assert_page(response: httpx2.Response, status: int = 200) -> str:
    """Check that a response is a page without scripts that can submit to our own origin only; return its text."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    (style,) = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert response.headers["cache-control"] == "no-store"
    assert "<script" not in response.text
    assert " style=" not in response.text
    return response.text


async def test_login_link_opens_a_session_once_by_its_button(service: ApiClient) -> None:
    link = await service.app.api_keys.create_link("operator")
    client = service.client
    for _ in range(3):  # mail programs and browsers prefetch
        shown = assert_page(await client.get("/login", params={"link": link}))
    await client.head("/login", params={"link": link})
    assert f'<input type="hidden" name="link" value="{link}">' in shown
    assert '<form method="post" action="/login">' in shown

    cross_site = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for headers in (cross_site, {"Origin": "null"}):
        assert_problem(await client.post("/login", data={"link": link}, headers=headers), 403, "auth.csrf")
    done = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    cookie = done.headers["set-cookie"].lower()
    assert all(each in cookie for each in (f"{SESSION_COOKIE}=tns_", "httponly", "samesite=strict", "path=/"))

    start = assert_page(await client.get("/"))
    assert "operator" in start
    for path in re.findall(r'href="([^"]+)"', start):
        assert (await client.get(path)).status_code == 200, path
    docs = assert_page(await client.get("/docs"))
    assert "/api/v1/schedules/{name}/preview" in docs
    assert "/login" not in docs
    assert "session.open" in [entry.action for entry in await service.app.audit.list()]

    assert_problem(await client.post("/logout", headers=cross_site), 403)
    left = await client.post("/logout", headers=OWN_ORIGIN)
    assert (left.status_code, left.headers["location"]) == (303, "/")
    client.cookies.clear()
    client.cookies.set(SESSION_COOKIE, done.cookies[SESSION_COOKIE])
    assert "not logged in" in assert_page(await client.get("/"))
    assert_problem(await client.get("/docs"), 401)
    client.cookies.clear()

    used = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
    assert_page(used, 401)
    assert "set-cookie" not in used.headers
    assert "tenuto login" in used.text


async def test_login_page_refuses_expired_and_malformed_links(service: ApiClient) -> None:
    client = service.client
    old = await service.app.api_keys.create_link("viewer")
    await (await service.app.open()).fetch_all("UPDATE tenuto.sessions SET expires_at = now() - interval '1 second'")
    for link in (old, "", "nothing", "tnl_" + "x" * 43, '"><script>alert(1)</script>', "\x00", "é" * 60):
        response = await client.post("/login", data={"link": link}, headers=OWN_ORIGIN)
        assert "not logged in" in assert_page(response, 401), link
    for body in (b"a&" * 20, b"link=x&" * 20, b"\xff" * 3000, b"%"):  # not one of our forms
        assert "not logged in" in assert_page(await client.post("/login", content=body, headers=OWN_ORIGIN), 401), body
    hostile = assert_page(await client.get("/login", params={"link": '"><img src=x onerror=alert(1)>{{7*7}}'}))
    assert "<img" not in hostile
    assert "49" not in hostile
    assert "<input name" in assert_page(await client.get("/login"))
    assert "not logged in" in assert_page(await client.get("/"))
    for _ in range(20):
        last = await client.post("/login", data={"link": "nothing"}, headers=OWN_ORIGIN)
    assert "too many" in assert_page(last, 429)
    assert last.headers["retry-after"] == "60"


async def test_browser_without_session_is_redirected_to_login_and_back(service: ApiClient) -> None:
    client, html = service.client, {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for cookies in ({}, {SESSION_COOKIE: "tns_long-gone"}):
        client.cookies = httpx2.Cookies(cookies)
        redirect = await client.get("/docs", headers=html)
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/login?next=%2Fdocs")
    client.cookies.clear()
    asked = assert_page(await client.get(redirect.headers["location"], headers=html))
    assert '<input type="hidden" name="next" value="/docs">' in asked
    form = {"link": await service.app.api_keys.create_link("viewer"), "next": "/docs"}
    done = await client.post("/login", data=form, headers=OWN_ORIGIN)
    assert (done.status_code, done.headers["location"]) == (303, "/docs")
    assert "API overview" in assert_page(await client.get("/docs", headers=html))


async def test_program_without_key_is_refused_without_redirect(service: ApiClient) -> None:
    client, html = service.client, {"Accept": "text/html"}
    for headers in ({}, {"Accept": "application/json"}, {**html, "Authorization": "Bearer nothing"}):
        assert_problem(await client.get("/docs", headers=headers), 401)
    assert_problem(await client.get("/api/v1/schedules", headers=html), 401)
    assert_problem(await client.post("/logout", headers=html), 401)


async def test_login_redirects_to_own_pages_only(service: ApiClient) -> None:
    client = service.client
    for target in (
        "//evil.example",
        "https://evil.example/docs",
        "/\\evil.example",
        "/docs/../x",
        '/docs"><b>',
        "x\r\ny",
    ):
        asked = assert_page(await client.get("/login", params={"next": target}))
        assert 'name="next"' not in asked, target
        form = {"link": await service.app.api_keys.create_link("viewer"), "next": target}
        done = await client.post("/login", data=form, headers=OWN_ORIGIN)
        assert (done.status_code, done.headers["location"]) == (303, "/"), target


async def test_api_pages_through_long_lists(service: ApiClient, db: Database) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, revoked_at, revoked_by)"
        " SELECT gen_random_uuid(), 'key-' || n % 300, 'p' || n, '', 'viewer', now(), 'test',"
        " CASE WHEN n > 300 THEN now() END, CASE WHEN n > 300 THEN 'test' END FROM generate_series(1, 600) AS n"
    )
    await db.fetch_all(
        "INSERT INTO tenuto.manifest_groups (name, priority, enabled, changed_at, changed_by)"
        " SELECT 'group-' || n, 0, true, now(), 'test' FROM generate_series(1, 1100) AS n"
    )
    for path, total in (("/api/v1/keys", 600 + len(Role)), ("/api/v1/manifest-groups", 1100)):
        found, after = [], None
        while True:
            page = await service.get_json(path, params={"limit": 250, **({"after": after} if after else {})})
            found += [each.get("id") or each["name"] for each in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert (len(found), len(set(found))) == (total, total), path
    changed = await service.put("/api/v1/manifest-groups/zzz", json={"max_active": 3})
    assert (changed.status_code, changed.json()["max_active"]) == (200, 3)
    assert (await service.get_json("/api/v1/manifest-groups/zzz"))["name"] == "zzz"
    assert_problem(await service.get("/api/v1/manifest-groups/none"), 404)
    assert_problem(await service.get("/api/v1/keys", params={"after": "WzEsMiwzXQ"}), 422)


async def test_api_pages_through_versions_and_lists_steps_alone(service: ApiClient) -> None:
    schedule = {"name": "s", "steps": [{"job": "double", "input": {"n": 1}}, {"job": "boom"}]}
    assert (await service.post("/api/v1/schedules", json=schedule)).status_code == 201
    manifest = {"external_id": "m", "job": "double", "on_demand": True}
    assert (await service.post("/api/v1/manifests", json=manifest)).status_code == 201
    for number in range(4):
        change = {"description": f"the {number}th"}
        for path, body in (("/api/v1/schedules/s", schedule), ("/api/v1/manifests/m", manifest)):
            assert (await service.put(path, json={**body, **change})).status_code == 200, path
    for path in ("/api/v1/schedules/s/versions", "/api/v1/manifests/m/versions"):
        first = await service.get_json(path, params={"limit": 3})
        rest = await service.get_json(path, params={"limit": 3, "after": first["next"]})
        assert [each["version"] for each in (*first["items"], *rest["items"])] == [5, 4, 3, 2, 1], path
        assert rest["next"] is None
        assert_problem(await service.get(path, params={"after": "WzEsMl0"}), 422)
    run = (await service.post("/api/v1/schedules/s/run")).json()["execution_id"]
    steps = (await service.get_json(f"/api/v1/executions/{run}/steps"))["items"]
    assert [step["target"] for step in steps] == ["double", "boom"]


async def test_sessions_of_a_revoked_key_are_found_by_index(db: Database) -> None:
    async def plan(connection: Connection) -> str:
        await connection.execute("SET LOCAL enable_seqscan = off")
        return str(await connection.fetch("EXPLAIN " + SQL.end_sessions_of_key.replace("$1", f"'{UUID(int=7)}'::uuid")))

    assert "sessions_of_key" in await db.transaction(plan)
