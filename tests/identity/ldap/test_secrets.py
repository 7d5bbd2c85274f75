"""Acceptance scenario A58: the password of a directory is in nothing that Tenuto stores, logs, shows or answers."""

from __future__ import annotations

import logging
from typing import Any

import httpx2
import pytest

from tenuto.api.application import add_middleware
from tenuto.api.openapi import openapi_document
from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tests.api.conftest import HOST, ApiClient
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, Slapd
from tests.identity.ldap.test_nightly_run import _master_key, definitions
from tests.identity.scenario_site import Site
from tests.web.conftest import get_page, log_in

__all__ = ["_master_key"]  # a fixture

WRONG = "wrong canary password"
CANARIES = (PASSWORD, WRONG)
PAGES = (
    "/identity/systems/AD",
    "/identity/runs",
    "/identity/previews",
    "/identity/rules",
    "/identity/exports",
    "/audit",
)


async def test_a58_password_of_a_directory_is_in_no_table_log_preview_or_answer(
    site: Site, slapd: Slapd, ad: Administrator, ldap: Administrator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(definitions(site, slapd))
    await site.nightly()
    identity = site.app.extensions.identity
    await site.app.wait(await identity.preview(system="AD", profile="Full Import"), 60)
    await site.app.wait(await identity.check("AD"), 60)
    await site.app.secrets.set("bind", WRONG)
    failed = await site.run("AD", "Full Import")
    assert failed.state == "failed"
    assert "invalid credentials (49)" in (failed.error or "")
    await site.app.wait(await identity.preview(system="AD", profile="Full Import"), 60)
    assert (await site.app.wait(await identity.check("AD"), 60)).state == "failed"

    found = {**await stored_texts(site), **await answers(site), "log": caplog.text}
    for place, text in found.items():
        for canary in CANARIES:
            assert canary not in text, place
    assert "run started" in found["log"]
    assert '"secret":"bind"' in found["/api/v1/identity/systems/AD"], "the name of the secret is shown"


async def stored_texts(site: Site) -> dict[str, str]:
    """Return all rows as text, as a dump has them, by table."""
    database = await site.database()
    tables = await database.fetch_all(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname LIKE 'tenuto%'"
    )
    found: dict[str, str] = {}
    for table in tables:
        name = table["name"]
        found[name] = str(await database.fetch_value(f"SELECT coalesce(string_agg(t::text, ' '), '') FROM {name} AS t"))
    assert found["tenuto_identity.runs"]
    return found


async def answers(site: Site) -> dict[str, str]:
    """Return what an administrator gets from each list of the API, of the runs, and from the pages."""
    _, key = await site.app.api_keys.create("canary", Role.ADMIN, is_person=True)
    api = create_web_application(site.app)
    transport = httpx2.ASGITransport(app=add_middleware(site.app, api), client=("127.0.0.1", 50000))
    headers = {"Authorization": f"Bearer {key}"}
    found: dict[str, str] = {}
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
        document = openapi_document(api)
        paths: list[str] = [
            path
            for path, methods in document["paths"].items()
            if "get" in methods and "{" not in path and not _is_stream(methods["get"])
        ]
        paths += ["/api/v1/identity/systems/AD", "/api/v1/identity/explain?system=HR&anchor=1001"]
        for run in await site.app.extensions.identity.runs():
            paths += [f"/api/v1/identity/runs/{run.id}", f"/api/v1/identity/runs/{run.id}/items"]
            paths += [f"/api/v1/activities/{run.id}", f"/api/v1/activities/{run.id}/log"]
        for preview in await site.app.extensions.identity.previews():
            paths += [f"/api/v1/identity/previews/{preview.id}{part}" for part in ("", "/items", "/requests")]
        for path in paths:
            answer = await client.get(path, headers=headers)
            assert answer.status_code < 500, (path, answer.text)
            found[path] = answer.text
        service = ApiClient(site.app, api, {Role.ADMIN: key}, client)
        await log_in(service, Role.ADMIN)
        for path in PAGES:
            found[path] = (await get_page(service, path)).text
    assert len(found) > 40
    return found


def _is_stream(operation: dict[str, Any]) -> bool:
    return "text/event-stream" in str(operation)
