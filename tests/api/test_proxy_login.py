"""Login by the header of a proxy: only from trusted addresses, with mapped roles, protected like a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenuto import Tenuto
from tenuto.api.security.proxy_login import check_proxy_login, find_role
from tenuto.errors import Invalid
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tenuto.web.server import web_server
from tests.api.conftest import assert_problem
from tests.support.errors import raises_code

PROXY: dict[str, Any] = {
    "web_behind_proxy": True, "web_proxies": "127.0.0.1", "web_user_header": "X-User", "web_role_header": "X-Groups",
    "web_roles": "ops=operator,chiefs=admin",
}  # fmt: skip
ANA = {"X-User": "ana@example.org", "X-Groups": "staff, ops"}


@asynccontextmanager
async def running(url: str, home: Path, **settings: Any) -> AsyncIterator[tuple[Tenuto, httpx2.AsyncClient]]:
    """Run the real server; its peers have the address 127.0.0.1."""
    app = Tenuto(settings=load_settings(database=url, home=home, **{**PROXY, **settings}))
    async with web_server(app, port=0) as address, httpx2.AsyncClient(base_url=address) as client:
        yield app, client
    await app.close()


async def test_user_header_of_a_trusted_proxy_names_the_user(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as (app, client):
        own = await client.get("/api/v1/session", headers=ANA)
        assert own.json() == {"name": "ana@example.org", "role": "operator", "session": True}
        page = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1"}
        done = await client.post("/api/v1/queues/mail/pause", headers={**ANA, **page, "X-Forwarded-For": "10.9.8.7"})
        assert done.status_code == 204, done.text
        [entry] = await app.audit.list(limit=1)
        assert (entry.actor_type, entry.actor_id, entry.actor_name, entry.source) == (
            "user", "ana@example.org", "ana@example.org", "10.9.8.7",
        )  # fmt: skip
        account = await client.get("/account", headers={**ANA, "Accept": "text/html"})
        assert "by the proxy in front of this service" in account.text
        assert (await client.get("/api/v1/account/sessions", headers=ANA)).json() == {"items": []}
        assert_problem(await client.get("/api/v1/keys", headers=ANA), 403, "auth.role.insufficient")
        unknown = await client.get("/api/v1/session", headers={"X-User": "zoe", "X-Groups": "staff"})
        assert_problem(unknown, 403, "auth.proxy_user.no_role")


@pytest.mark.parametrize("proxies", ["10.1.2.3", "192.168.0.0/16,::1"])
async def test_user_header_counts_only_from_a_trusted_address(url: str, tmp_path: Path, proxies: str) -> None:
    async with running(url, tmp_path, web_proxies=proxies) as (_, client):
        for forwarded in ({}, {"X-Forwarded-For": proxies.partition("/")[0]}):
            refused = await client.get("/api/v1/session", headers={**ANA, **forwarded})
            assert_problem(refused, 401, "auth.missing")


async def test_ambiguous_or_unusable_user_headers_name_no_user(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as (_, client):
        two = [("X-User", "ana"), ("X-User", "ben"), ("X-Groups", "chiefs")]
        assert_problem(await client.get("/api/v1/session", headers=two), 401, "auth.missing")
        for user in ("", "x" * 201, "a\u202eb".encode()):
            headers = [(b"X-User", user if isinstance(user, bytes) else user.encode()), (b"X-Groups", b"chiefs")]
            assert_problem(await client.get("/api/v1/session", headers=headers), 401, "auth.missing")
        named = await client.get("/api/v1/session", headers=[(b"X-User", "Zoë".encode()), (b"X-Groups", b"ops")])
        assert named.json()["name"] == "Zoë"


async def test_user_of_a_proxy_is_protected_from_other_sites(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as (app, client):
        foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Tenuto-Page": "1"}
        for headers in (foreign, {"Tenuto-Page": "1"}, {"Origin": "null", "Tenuto-Page": "1"}):
            refused = await client.post("/api/v1/queues/mail/pause", headers={**ANA, **headers})
            assert_problem(refused, 403, "auth.csrf")
        own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        assert_problem(await client.post("/api/v1/queues/mail/pause", headers={**ANA, **own}), 403, "auth.csrf")
        assert await app.audit.list() == []


async def test_api_key_has_priority_over_the_user_of_a_proxy(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as (app, client):
        _, key = await app.api_keys.create("ci", Role.VIEWER)
        own = await client.get("/api/v1/session", headers={**ANA, "Authorization": f"Bearer {key}"})
        assert own.json() == {"name": "ci", "role": "viewer", "session": False}
        wrong = await client.get("/api/v1/session", headers={**ANA, "Authorization": "Bearer nothing"})
        assert_problem(wrong, 401, "auth.invalid")


async def test_other_schemes_of_authorization_are_ignored(url: str, tmp_path: Path) -> None:
    basic = {"Authorization": "Basic YW5hOnBhc3N3b3Jk"}
    async with running(url, tmp_path) as (app, client):
        for _ in range(50):  # more than the failed authentications that an address may have
            own = await client.get("/api/v1/session", headers={**ANA, **basic})
            assert own.json() == {"name": "ana@example.org", "role": "operator", "session": True}
            assert_problem(await client.get("/api/v1/session", headers=basic), 401, "auth.missing")
        assert_problem(await client.get("/api/v1/session", headers={"Authorization": "Bearer x"}), 401, "auth.invalid")
        page = await client.get("/account", headers={**ANA, **basic, "Accept": "text/html"})
        assert "by the proxy in front of this service" in page.text
        login = await client.get("/account", headers={**basic, "Accept": "text/html"}, follow_redirects=False)
        assert (login.status_code, "/login" in login.headers["location"]) == (303, True)
        _, key = await app.api_keys.create("ben", Role.VIEWER)
        caller = await app.api_keys.authenticate(key)
        assert caller is not None
        opened = await app.api_keys.open_session(caller)
        assert opened is not None
        own = await client.get("/api/v1/session", headers={**basic, "Cookie": f"tenuto_session={opened[0]}"})
        assert own.json()["name"] == "ben", "a session counts beside them"


def test_roles_of_a_proxy_user_are_mapped() -> None:
    mapped = load_settings(**PROXY)
    assert find_role(mapped, ["staff"]) is None
    assert find_role(mapped, ["staff", "ops"]) == Role.OPERATOR
    assert find_role(mapped, ["ops", "chiefs"]) == Role.ADMIN
    assert find_role(mapped, ["admin"]) is None  # only the mapping counts
    plain = load_settings(**{**PROXY, "web_roles": "", "web_user_role": "viewer"})
    assert find_role(plain, []) == Role.VIEWER
    assert find_role(plain, ["editor"]) == Role.EDITOR
    fixed = load_settings(**{**PROXY, "web_role_header": None, "web_roles": "", "web_user_role": "operator"})
    assert find_role(fixed, ["admin"]) == Role.OPERATOR


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"web_proxies": ""}, "web.proxy_login.untrusted"),
        ({"web_proxies": "*"}, "web.proxy_login.untrusted"),
        ({"web_behind_proxy": False}, "web.proxy_login.untrusted"),
        ({"web_role_header": None}, "web.proxy_login.no_role"),
    ],
)
def test_proxy_login_without_known_proxies_or_roles_is_refused(change: dict[str, Any], code: str) -> None:
    with raises_code(code, Invalid):
        check_proxy_login(load_settings(**{**PROXY, **change}))


@pytest.mark.parametrize(
    "change",
    [{"web_roles": "ops=chief"}, {"web_roles": "admin"}, {"web_user_header": "Cookie"}, {"web_user_header": "a b"}],
)
def test_unusable_settings_of_the_proxy_login_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        load_settings(**{**PROXY, **change})
