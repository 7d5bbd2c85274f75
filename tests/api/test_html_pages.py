"""The pages a browser is shown: a one-time link opens a session by a button, once, and nothing on them runs."""

from __future__ import annotations

import base64
import hashlib
import re
from uuid import UUID

import httpx2

from tenuto.api.auth import COOKIE
from tenuto.model.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.store.access.api_keys import SQL
from tests.api.conftest import HOST, Api, problem

OWN = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}


def page(answer: httpx2.Response, status: int = 200) -> str:
    """A page that cannot do anything but be read and sent back to us."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "<script" not in answer.text
    assert " style=" not in answer.text
    return answer.text


async def test_a_one_time_link_opens_a_session_by_its_button_and_once(service: Api) -> None:
    link = await service.app.keys.link("operator")
    client = service.client
    for _ in range(3):  # a mail program looks ahead, and so does a browser
        shown = page(await client.get("/login", params={"link": link}))
    await client.head("/login", params={"link": link})
    assert f'<input type="hidden" name="link" value="{link}">' in shown
    assert '<form method="post" action="/login">' in shown

    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for headers in (foreign, {"Origin": "null"}):
        problem(await client.post("/login", data={"link": link}, headers=headers), 403)
    done = await client.post("/login", data={"link": link}, headers=OWN)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    cookie = done.headers["set-cookie"].lower()
    assert all(each in cookie for each in (f"{COOKIE}=tns_", "httponly", "samesite=strict", "path=/"))

    start = page(await client.get("/"))
    assert "operator" in start
    for path in re.findall(r'href="([^"]+)"', start):
        assert (await client.get(path)).status_code == 200, path
    docs = page(await client.get("/docs"))
    assert "/api/v1/schedules/{name}/preview" in docs
    assert "/login" not in docs
    assert "session.open" in [entry["action"] for entry in await service.app.audit.list()]

    problem(await client.post("/logout", headers=foreign), 403)
    left = await client.post("/logout", headers=OWN)
    assert (left.status_code, left.headers["location"]) == (303, "/")
    client.cookies.clear()
    client.cookies.set(COOKIE, done.cookies[COOKIE])
    assert "not logged in" in page(await client.get("/"))
    problem(await client.get("/docs"), 401)
    client.cookies.clear()

    used = await client.post("/login", data={"link": link}, headers=OWN)
    assert "has been followed" in page(used, 401)
    assert "set-cookie" not in used.headers
    assert "tenuto login" in used.text


async def test_a_link_that_is_too_old_or_no_link_at_all_says_so(service: Api) -> None:
    client = service.client
    old = await service.app.keys.link("viewer")
    await (await service.app.open()).all("UPDATE tenuto.sessions SET expires_at = now() - interval '1 second'")
    for link in (old, "", "nothing", "tnl_" + "x" * 43, '"><script>alert(1)</script>', "\x00", "é" * 60):
        answer = await client.post("/login", data={"link": link}, headers=OWN)
        assert "too old" in page(answer, 401), link
    for body in (b"a&" * 20, b"link=x&" * 20, b"\xff" * 3000, b"%"):  # what no form of ours sends
        assert "too old" in page(await client.post("/login", content=body, headers=OWN), 401), body
    hostile = page(await client.get("/login", params={"link": '"><img src=x onerror=alert(1)>{{7*7}}'}))
    assert "<img" not in hostile
    assert "49" not in hostile
    assert "<input name" in page(await client.get("/login"))
    assert "not logged in" in page(await client.get("/"))
    for _ in range(20):
        last = await client.post("/login", data={"link": "nothing"}, headers=OWN)
    assert "too many" in page(last, 429)
    assert last.headers["retry-after"] == "60"


async def test_a_browser_without_a_login_is_sent_to_it_and_from_there_back(service: Api) -> None:
    client, looks = service.client, {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for cookies in ({}, {COOKIE: "tns_long-gone"}):
        client.cookies = httpx2.Cookies(cookies)
        sent = await client.get("/docs", headers=looks)
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Fdocs")
    client.cookies.clear()
    asked = page(await client.get(sent.headers["location"], headers=looks))
    assert '<input type="hidden" name="next" value="/docs">' in asked
    form = {"link": await service.app.keys.link("viewer"), "next": "/docs"}
    done = await client.post("/login", data=form, headers=OWN)
    assert (done.status_code, done.headers["location"]) == (303, "/docs")
    assert "What can be asked here" in page(await client.get("/docs", headers=looks))


async def test_a_program_without_a_key_is_refused_and_sent_nowhere(service: Api) -> None:
    client, looks = service.client, {"Accept": "text/html"}
    for headers in ({}, {"Accept": "application/json"}, {**looks, "Authorization": "Bearer nothing"}):
        problem(await client.get("/docs", headers=headers), 401)
    problem(await client.get("/api/v1/schedules", headers=looks), 401)
    problem(await client.post("/logout", headers=looks), 401)


async def test_a_login_leads_to_pages_of_our_own_only(service: Api) -> None:
    client = service.client
    for place in (
        "//evil.example",
        "https://evil.example/docs",
        "/\\evil.example",
        "/docs/../x",
        '/docs"><b>',
        "x\r\ny",
    ):
        asked = page(await client.get("/login", params={"next": place}))
        assert 'name="next"' not in asked, place
        form = {"link": await service.app.keys.link("viewer"), "next": place}
        done = await client.post("/login", data=form, headers=OWN)
        assert (done.status_code, done.headers["location"]) == (303, "/"), place


async def test_lists_go_on_beyond_their_first_page(service: Api, db: Database) -> None:
    await db.all(
        "INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, revoked_at, revoked_by)"
        " SELECT gen_random_uuid(), 'key-' || n % 300, 'p' || n, '', 'viewer', now(), 'test',"
        " CASE WHEN n > 300 THEN now() END, CASE WHEN n > 300 THEN 'test' END FROM generate_series(1, 600) AS n"
    )
    await db.all(
        "INSERT INTO tenuto.manifest_groups (name, priority, enabled, changed_at, changed_by)"
        " SELECT 'group-' || n, 0, true, now(), 'test' FROM generate_series(1, 1100) AS n"
    )
    for path, total in (("/api/v1/keys", 600 + len(Role)), ("/api/v1/manifest-groups", 1100)):
        found, after = [], None
        while True:
            told = await service.read(path, params={"limit": 250, **({"after": after} if after else {})})
            found += [each.get("id") or each["name"] for each in told["items"]]
            after = told["next"]
            if after is None:
                break
        assert (len(found), len(set(found))) == (total, total), path
    changed = await service.put("/api/v1/manifest-groups/zzz", json={"max_active": 3})
    assert (changed.status_code, changed.json()["max_active"]) == (200, 3)
    assert (await service.read("/api/v1/manifest-groups/zzz"))["name"] == "zzz"
    problem(await service.get("/api/v1/manifest-groups/none"), 404)
    problem(await service.get("/api/v1/keys", params={"after": "WzEsMiwzXQ"}), 422)


async def test_changes_go_on_beyond_their_first_page_and_steps_are_told_alone(service: Api) -> None:
    schedule = {"name": "s", "steps": [{"job": "double", "input": {"n": 1}}, {"job": "boom"}]}
    assert (await service.post("/api/v1/schedules", json=schedule)).status_code == 201
    manifest = {"external_id": "m", "job": "double", "on_demand": True}
    assert (await service.post("/api/v1/manifests", json=manifest)).status_code == 201
    for number in range(4):
        given = {"description": f"the {number}th"}
        for path, body in (("/api/v1/schedules/s", schedule), ("/api/v1/manifests/m", manifest)):
            assert (await service.put(path, json={**body, **given})).status_code == 200, path
    for path in ("/api/v1/schedules/s/versions", "/api/v1/manifests/m/versions"):
        first = await service.read(path, params={"limit": 3})
        rest = await service.read(path, params={"limit": 3, "after": first["next"]})
        assert [each["version"] for each in (*first["items"], *rest["items"])] == [5, 4, 3, 2, 1], path
        assert rest["next"] is None
        problem(await service.get(path, params={"after": "WzEsMl0"}), 422)
    run = (await service.post("/api/v1/schedules/s/run")).json()["execution_id"]
    steps = (await service.read(f"/api/v1/executions/{run}/steps"))["items"]
    assert [step["target"] for step in steps] == ["double", "boom"]


async def test_with_a_key_its_sessions_end_by_index(db: Database) -> None:
    async def plan(connection: Connection) -> str:
        await connection.execute("SET LOCAL enable_seqscan = off")
        return str(await connection.fetch("EXPLAIN " + SQL.end_sessions_of.replace("$1", f"'{UUID(int=7)}'::uuid")))

    assert "sessions_of_key" in await db.transaction(plan)
