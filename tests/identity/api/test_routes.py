"""Routes ``/api/v1/identity/…``: every response is checked against the OpenAPI document by the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.api.application import add_middleware, create_api
from tenuto.api.openapi import openapi_document
from tenuto.model.actors import Role
from tests.api.conftest import HOST, ApiClient, assert_problem
from tests.identity.site import PEOPLE, Site, open_site

BASE = "/api/v1/identity"


@pytest.fixture
async def site(url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(url, tmp_path) as site:
        await site.apply(site.definitions())
        yield site


@pytest.fixture
async def service(site: Site) -> AsyncIterator[ApiClient]:
    app = site.app
    keys = {role: (await app.api_keys.create(role.key, role))[1] for role in Role}
    api = create_api(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
        yield ApiClient(app, api, keys, client)


async def synchronise(site: Site) -> None:
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")


async def test_routes_declare_examples_and_unique_operation_ids(service: ApiClient) -> None:
    document = openapi_document(service.api)
    own = {path: methods for path, methods in document["paths"].items() if path.startswith(BASE)}
    assert len(own) == 19
    for path, methods in own.items():
        for method, operation in methods.items():
            assert operation["operationId"].startswith("identity_"), (path, method)
            assert operation["tags"] == ["identity"]
    assert service.app.extension_registry.failures == []


async def test_run_is_started_once_per_idempotency_key_and_listed_with_items(service: ApiClient, site: Site) -> None:
    path = f"{BASE}/run-profiles/HR/Full%20Import/run"
    key = {"Idempotency-Key": "night-1"}
    first = await service.post(path, Role.OPERATOR, headers=key)
    again = await service.post(path, Role.OPERATOR, headers=key)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    await site.app.wait(UUID(first.json()["task_id"]), 60)
    (run,) = (await service.get_json(f"{BASE}/runs?system=HR"))["items"]
    assert (run["profile"], run["state"]) == ("Full Import", "completed")
    assert (await service.get_json(f"{BASE}/runs/{run['id']}"))["counts"] == run["counts"]
    pages = await read_pages(service, f"{BASE}/runs/{run['id']}/items", 3)
    assert [len(page) for page in pages] == [3, 1]
    assert [item["number"] for page in pages for item in page] == ["1", "2", "3", "4"]


async def test_systems_objects_identities_and_exports_are_listed(service: ApiClient, site: Site) -> None:
    await synchronise(site)
    systems = {each["name"]: each for each in (await service.get_json(f"{BASE}/systems"))["items"]}
    assert systems["HR"]["object_count"] == 4
    assert systems["AD"]["export_count"] == 4
    details = await service.get_json(f"{BASE}/systems/HR")
    assert details["definition"]["connector"] == "csv"
    assert "Full Sync" in details["run_profiles"]
    pages = await read_pages(service, f"{BASE}/objects?system=HR", 3)
    assert [each["anchor"] for page in pages for each in page] == ["1001", "1002", "1003", "1004"]
    (grace,) = (await service.get_json(f"{BASE}/objects?text=1002&joined=true"))["items"]
    assert grace["reference_values"] == {"manager": ["1001"]}
    (found,) = (await service.get_json(f"{BASE}/identities?text=hopper"))["items"]
    assert found["id"] == grace["metaverse_id"]
    assert found["systems"] == ["AD", "HR", "LDAP"]
    assert await service.get_json(f"{BASE}/identities/{found['id']}") == found
    exports = (await service.get_json(f"{BASE}/pending-exports?system=AD&state=pending"))["items"]
    assert len(exports) == 4
    assert {each["kind"] for each in exports} == {"create"}


async def test_identity_is_explained_with_its_history(service: ApiClient, site: Site) -> None:
    await synchronise(site)
    (found,) = (await service.get_json(f"{BASE}/identities?text=turing"))["items"]
    explained = await service.get_json(f"{BASE}/identities/{found['id']}/explain")
    assert explained["id"] == found["id"]
    assert {each["system"] for each in explained["targets"]} == {"AD", "LDAP"}
    same = await service.get_json(f"{BASE}/explain?system=HR&anchor=1003")
    assert same["attributes"] == explained["attributes"]
    pages = await read_pages(service, f"{BASE}/identities/{found['id']}/history", 1)
    changes = [each for page in pages for each in page]
    assert {each["profile"] for each in changes} == {"Full Import", "Full Sync"}
    assert len({(each["run_id"], each["item_number"], each["subject"]) for each in changes}) == len(changes)


async def test_hold_is_shown_and_approved_with_a_reason(service: ApiClient, site: Site) -> None:
    many = [f"{n},First{n},Last{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(2000, 2030)]
    site.write_hr(*PEOPLE, *many)
    await synchronise(site)
    assert_problem(await service.get(f"{BASE}/systems/HR/held"), 404, "identity.hold.missing")
    site.write_hr(*PEOPLE)
    await site.run("HR", "Full Import")
    held = await service.get_json(f"{BASE}/systems/HR/held", role=Role.VIEWER)
    assert len(held["objects"]) == 20
    assert held["guards"][0]["affected"] == 30
    path = f"{BASE}/systems/HR/approve"
    assert_problem(await service.post(path, json={"reason": " "}), 422, "identity.hold.reason_missing")
    denied = await service.post(path, Role.OPERATOR, json={"reason": "closed"})
    assert_problem(denied, 403, "auth.role.insufficient")
    approved = await service.post(path, Role.EDITOR, json={"reason": "the branch was closed"})
    assert approved.json()["task_id"] is not None


async def test_refused_exports_are_retried(service: ApiClient, site: Site) -> None:
    site.ad.behave(refuse={"*": "no"})
    await synchronise(site)
    await site.run("AD", "Export")
    (first, *_) = (await service.get_json(f"{BASE}/pending-exports?system=AD"))["items"]
    path = f"{BASE}/pending-exports/retry"
    one = await service.post(path, Role.OPERATOR, json={"system": "AD", "object_id": first["object_id"]})
    assert one.json() == {"retried": 1}
    rest = await service.post(path, Role.OPERATOR, json={"system": "AD", "reason": "repaired"})
    assert rest.json() == {"retried": 3}
    assert_problem(await service.post(path, json={"system": "Nowhere"}), 404, "identity.system.not_found")


async def test_system_is_disabled_cleared_and_deleted(service: ApiClient, site: Site) -> None:
    await synchronise(site)
    assert (await service.post(f"{BASE}/systems/LDAP/disable", Role.EDITOR)).json() == {"changed": True}
    assert (await service.post(f"{BASE}/systems/LDAP/disable", Role.EDITOR)).json() == {"changed": False}
    assert (await service.post(f"{BASE}/systems/LDAP/enable", Role.EDITOR)).json() == {"changed": True}
    assert_problem(await service.post(f"{BASE}/systems/HR/clear", Role.EDITOR), 403, "auth.role.insufficient")
    assert (await service.post(f"{BASE}/systems/HR/clear")).status_code == 200
    assert (await service.delete(f"{BASE}/systems/LDAP")).status_code == 200
    assert_problem(await service.delete(f"{BASE}/systems/Nowhere"), 404, "identity.system.not_found")


async def test_sensitive_values_are_shown_to_administrators_only(service: ApiClient, site: Site) -> None:
    text = site.definitions().replace("title: text,", "title: {type: text, sensitive: true},")
    await site.apply(text)
    await synchronise(site)
    (run, *_) = (await service.get_json(f"{BASE}/runs?system=HR"))["items"]
    for path in (
        "/objects",
        "/identities",
        "/pending-exports",
        "/explain?system=HR&anchor=1003",
        "/identities/{id}/explain",
        "/identities/{id}/history",
        f"/runs/{run['id']}/items",
    ):
        (found,) = (await service.get_json(f"{BASE}/identities?text=turing"))["items"]
        address = BASE + path.format(id=found["id"])
        seen = {role: json.dumps(await service.get_json(address, role=role)) for role in (Role.EDITOR, Role.ADMIN)}
        assert "Fellow" not in seen[Role.EDITOR], path
        assert "Fellow" in seen[Role.ADMIN] or path.startswith("/runs"), path


@pytest.mark.parametrize("path", ["/systems/X", "/runs/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1", "/identities/99"])
async def test_unknown_objects_are_answered_with_404(service: ApiClient, path: str) -> None:
    response = await service.get(BASE + path)
    assert response.status_code == 404
    assert response.json()["code"].endswith("not_found")


async def test_every_route_requires_a_role(service: ApiClient) -> None:
    routes = [
        context.route
        for context in iter_route_contexts(service.api.routes)
        if isinstance(context.route, ApiRoute) and (context.path or "").startswith(BASE)
    ]
    assert len(routes) == 20
    assert all(route.required_role is not None for route in routes)
    assert_problem(await service.get(f"{BASE}/systems", None), 401, "auth.missing")


async def read_pages(service: ApiClient, path: str, limit: int) -> list[list[dict[str, Any]]]:
    """Read a list page by page."""
    pages: list[list[dict[str, Any]]] = []
    after = ""
    while True:
        joiner = "&" if "?" in path else "?"
        page = await service.get_json(f"{path}{joiner}limit={limit}{after}")
        pages.append(page["items"])
        if page["next"] is None:
            return [each for each in pages if each]
        after = f"&after={page['next']}"
