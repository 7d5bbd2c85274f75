"""Routes ``/api/v1/identity/…``: every response is checked against the OpenAPI document by the client."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import yaml
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.api.application import add_middleware, create_api
from tenuto.api.openapi import openapi_document
from tenuto.model.access.actors import Role
from tenuto_identity.list_views import HISTORY, IDENTITIES, ITEMS, OBJECTS, PENDING_EXPORTS, RUNS, SYSTEMS
from tenuto_identity.operations.operation_group import hide_change
from tests.api.conftest import HOST, ApiClient, assert_problem
from tests.identity.scenario_site import PEOPLE, Site, open_site

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
    assert len(own) == 37
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
    assert (await service.get_json(f"{BASE}/runs?state=failed"))["items"] == []
    assert (await service.get_json(f"{BASE}/runs?state=completed"))["items"] == [run]
    items = f"{BASE}/runs/{run['id']}/items"
    assert len((await service.get_json(f"{items}?change=Added"))["items"]) == 4
    assert (await service.get_json(f"{items}?change=Updated"))["items"] == []
    assert (await service.get_json(f"{items}?error=unhandled"))["items"] == []
    (change,) = (await service.get_json(f"{items}/2/changes"))["items"]
    assert (change["item_number"], change["diff"]["first"]) == ("2", [[], ["Grace"]])
    (system, *_) = (await service.get_json(f"{BASE}/systems/HR"))["system"]["recent_runs"]
    assert (system["id"], system["profile"], system["state"]) == (run["id"], "Full Import", "completed")


async def test_lists_of_identity_as_csv_have_the_columns_of_the_command_line(service: ApiClient, site: Site) -> None:
    await synchronise(site)
    (identity, *_) = (await service.get_json(f"{BASE}/identities"))["items"]
    (run, *_) = (await service.get_json(f"{BASE}/runs"))["items"]
    lists = {
        "systems": SYSTEMS,
        "runs": RUNS,
        f"runs/{run['id']}/items": ITEMS,
        "objects": OBJECTS,
        "identities": IDENTITIES,
        f"identities/{identity['id']}/history": HISTORY,
        "pending-exports": PENDING_EXPORTS,
    }
    for path, view in lists.items():
        items = (await service.get_json(f"{BASE}/{path}"))["items"]
        response = await service.get(f"{BASE}/{path}", headers={"Accept": "text/csv"})
        header, *rows = csv.reader(response.text.splitlines())
        assert header == view.csv_header()
        assert 0 < len(rows) == len(items), path


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
    assert {each["metaverse_id"] for each in exports} >= {found["id"]}
    assert (await service.get_json(f"{BASE}/pending-exports?errors=true"))["items"] == []


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
    other = await service.post(path, Role.EDITOR, json={"reason": "closed", "run_id": str(uuid4())})
    assert_problem(other, 409, "identity.hold.changed")
    body = {"run_id": held["run_id"]}
    approved = await service.post(path, Role.EDITOR, json=body, headers={"X-Reason": "the branch was closed"})
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


def test_hidden_change_shows_neither_values_nor_references() -> None:
    change = {"attribute": "manager", "op": "set", "values": ["6"], "references": [6], "observed": ["7"]}
    hidden = hide_change(change, frozenset({"manager"}))
    assert hidden == {
        "attribute": "manager", "op": "set", "values": ["***"], "references": ["***"], "observed": ["***"],
    }  # fmt: skip
    assert hide_change(change, frozenset({"mail"})) == change


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


@pytest.mark.parametrize("path", ["/pending-exports?errors=true", "/explain?system=HR&anchor=1003"])
async def test_error_of_a_pending_export_that_quotes_a_sensitive_value_is_shown_to_administrators_only(
    service: ApiClient, site: Site, path: str
) -> None:
    await site.apply(site.definitions().replace("title: text,", "title: {type: text, sensitive: true},"))
    site.ad.behave(refuse={"*": "the title 'Fellow' is too short"})
    await synchronise(site)
    await site.run("AD", "Export")
    found = {role: json.dumps(await service.get_json(BASE + path, role=role)) for role in (Role.EDITOR, Role.ADMIN)}
    assert "too short" in found[Role.ADMIN]
    assert "too short" not in found[Role.EDITOR]
    assert '"error": "***"' in found[Role.EDITOR]


async def test_history_hides_attributes_that_the_definitions_do_not_know_any_more(
    service: ApiClient, site: Site
) -> None:
    sensitive = site.definitions().replace("title: text,", "title: {type: text, sensitive: true},")
    await site.apply(sensitive)
    await synchronise(site)
    (alan,) = (await service.get_json(f"{BASE}/identities?text=turing"))["items"]
    (grace,) = (await service.get_json(f"{BASE}/identities?text=hopper"))["items"]
    site.write_hr(*(each for each in PEOPLE if "Turing" not in each))
    await synchronise(site)
    # LDAP still has an attribute of that name, which is not sensitive there.
    removed = sensitive.replace("title: {type: text, sensitive: true},", "")
    await site.apply(removed.replace("department, title,", "department,").replace("[mail, title", "[mail"))
    for path, value in (
        (f"/identities/{alan['id']}/explain", "Fellow"),
        ("/explain?system=HR&anchor=1003", "Fellow"),
        (f"/identities/{alan['id']}/history", "Fellow"),
        (f"/identities/{grace['id']}/history", "Engineer"),
    ):
        for role in (Role.VIEWER, Role.EDITOR, Role.ADMIN):
            found = await service.get_json(BASE + path, role=role)
            text = json.dumps(found).replace("Engineering", "")
            assert (value in text) is (role is Role.ADMIN), (path, role)
            assert ("***" in text) is (role is not Role.ADMIN), (path, role)
            assert "@example.org" in text, "attributes that the definitions know are shown"


async def test_preview_is_started_once_per_idempotency_key_and_lists_items_and_requests(
    service: ApiClient, site: Site
) -> None:
    await synchronise(site)
    key, body = {"Idempotency-Key": "preview-1"}, {"system": "AD", "profile": "Export"}
    first = await service.post(f"{BASE}/previews", Role.OPERATOR, json=body, headers=key)
    again = await service.post(f"{BASE}/previews", Role.OPERATOR, json=body, headers=key)
    assert first.json() == again.json()
    id = first.json()["preview_id"]
    await site.app.wait(UUID(id), 60)
    record = await service.get_json(f"{BASE}/previews/{id}")
    assert record["steps"][0]["requests"] == 7
    assert [each["id"] for each in (await service.get_json(f"{BASE}/previews"))["items"]] == [id]
    pages = await read_pages(service, f"{BASE}/previews/{id}/requests?system=AD", 4)
    assert [len(page) for page in pages] == [4, 3]
    assert {each["kind"] for each in pages[0]} == {"create"}
    items = await read_pages(service, f"{BASE}/previews/{id}/items", 4)
    assert [each["change"] for page in items for each in page] == ["Exported"] * 4
    assert site.ad.requests() == []


async def test_preview_of_changed_definitions_is_refused_with_the_field_at_fault(
    service: ApiClient, site: Site
) -> None:
    rule = {"name": "HR people in", "in": {"system": "HR", "type": "person", "to": "person"}, "map": {"x": "first"}}
    body = {"system": "HR", "profile": "Full Sync", "definitions": {"sync_rules": [rule]}}
    refused = await service.post(f"{BASE}/previews", Role.EDITOR, json=body)
    assert refused.status_code == 422
    assert "sync_rules[0]" in refused.text
    assert_problem(await service.post(f"{BASE}/previews", json={}), 422, "identity.preview.subject_missing")
    assert_problem(await service.post(f"{BASE}/previews", json={"schedule": "X"}), 404, "schedule.not_found")
    assert_problem(await service.post(f"{BASE}/previews", Role.VIEWER, json={}), 403, "auth.role.insufficient")


async def test_preview_of_changed_definitions_needs_the_role_that_applies_them(service: ApiClient, site: Site) -> None:
    system = {"name": "Other", "connector": "csv", "settings": {"path": str(site.hr)}, "run_profiles": []}
    whole = yaml.safe_load(site.definitions())
    for definitions in ({"systems": [system]}, whole, {}):
        body = {"system": "HR", "profile": "Full Sync", "definitions": definitions}
        for role in (Role.VIEWER, Role.OPERATOR):
            assert_problem(await service.post(f"{BASE}/previews", role, json=body), 403, "auth.role.insufficient")
    assert (await service.get_json(f"{BASE}/previews"))["items"] == []
    body = {"system": "HR", "profile": "Full Sync", "definitions": whole}
    started = await service.post(f"{BASE}/previews", Role.EDITOR, json=body)
    assert (await site.app.wait(UUID(started.json()["preview_id"]), 60)).state == "completed"


@pytest.mark.parametrize("declared_by", ["live", "preview"])
async def test_values_of_a_preview_with_definitions_are_shown_to_administrators_only(
    service: ApiClient, site: Site, declared_by: str
) -> None:
    sensitive = site.definitions().replace("title: text,", "title: {type: text, sensitive: true},")
    if declared_by == "live":
        await site.apply(sensitive)
    await synchronise(site)
    definitions = yaml.safe_load(site.definitions() if declared_by == "live" else sensitive)
    out = definitions["sync_rules"][1]["map"]
    out["sn"] = "title"  # the value of a sensitive attribute in another one, and in the address
    out["address"] = {"value": 'dn("cn", display + " " + title, "ou=people,dc=ad,dc=test")'}
    schedule = yaml.safe_load("""
schedules:
  - name: Sync and export
    trigger: manual
    steps:
      - [{name: sync, kind: run_profile, arguments: {system: HR, profile: Full Sync}}]
      - [{name: export, kind: run_profile, arguments: {system: AD, profile: Export}}]
""")
    body = {"schedule": "Sync and export", "definitions": {**definitions, **schedule}}
    started = await service.post(f"{BASE}/previews", Role.EDITOR, json=body)
    assert started.status_code == 200, started.text
    id = started.json()["preview_id"]
    assert (await site.app.wait(UUID(id), 60)).state == "completed"
    for role in Role:
        paths = [f"{BASE}/previews/{id}{path}" for path in ("", "/items", "/requests")]
        record, items, requests = [await service.get_json(path, role=role) for path in paths]
        assert [step["status"] for step in record["steps"]] == ["completed", "completed"]
        shown = json.dumps([record, items, requests])
        assert ("Fellow" in shown) is (role is Role.ADMIN), (role, shown)
        assert ("turing" in shown.lower()) is (role is Role.ADMIN), (role, shown)
        assert len(requests["items"]) >= 4


async def test_system_is_checked_discovered_and_shows_schema_and_watermarks(service: ApiClient, site: Site) -> None:
    assert_problem(await service.get(f"{BASE}/systems/HR/schema"), 404, "identity.schema.missing")
    for what in ("check", "discover"):
        started = await service.post(f"{BASE}/systems/HR/{what}", Role.OPERATOR)
        assert (await site.app.wait(UUID(started.json()["task_id"]), 60)).state == "completed"
    schema = await service.get_json(f"{BASE}/systems/HR/schema")
    assert schema["types"][0]["name"] == "person"
    assert (await service.get_json(f"{BASE}/systems/HR/watermarks"))["items"] == []
    await site.run("AD", "Full Import")
    (mark,) = (await service.get_json(f"{BASE}/systems/AD/watermarks"))["items"]
    assert mark["value"] == {"sequence": 0}
    rules = (await service.get_json(f"{BASE}/rules"))["items"]
    assert [each["name"] for each in rules] == ["AD people out", "HR people in", "LDAP people out"]
    assert (await service.get_json(f"{BASE}/templates"))["items"] == []


async def test_object_is_synchronised_disconnected_joined_and_forgotten(service: ApiClient, site: Site) -> None:
    body = {"system": "HR", "anchor": "1001"}
    started = await service.post(f"{BASE}/objects/sync", Role.OPERATOR, json=body)
    assert (await site.app.wait(UUID(started.json()["task_id"]), 60)).state == "completed"
    (found,) = (await service.get_json(f"{BASE}/identities"))["items"]
    join = {**body, "identity": found["id"]}
    denied = await service.post(f"{BASE}/objects/unjoin", Role.OPERATOR, json=body)
    assert_problem(denied, 403, "auth.role.insufficient")
    gone = (await service.post(f"{BASE}/objects/unjoin", Role.EDITOR, json=body)).json()
    assert (gone["metaverse_id"], gone["pinned"]) == (None, True)
    assert gone["delete_after"] is not None
    back = (await service.post(f"{BASE}/objects/join", Role.EDITOR, json=join)).json()
    assert back["metaverse_id"] == found["id"]
    free = (await service.post(f"{BASE}/objects/unpin", Role.EDITOR, json=body)).json()
    assert free["pinned"] is False
    path = f"{BASE}/identities/{found['id']}/forget"
    assert_problem(await service.post(path, Role.EDITOR, json={"reason": "x"}), 403, "auth.role.insufficient")
    assert_problem(await service.post(path, json={"reason": " "}), 422, "identity.forget.reason_missing")
    assert (await service.post(path, json={"reason": "request"})).json()["item_count"] > 0
    assert_problem(
        await service.post(f"{BASE}/identities/999/forget", json={"reason": "x"}), 404, "identity.identity.not_found"
    )


@pytest.mark.parametrize("path", ["/systems/X", "/runs/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1", "/identities/99"])
async def test_unknown_objects_are_answered_with_404(service: ApiClient, path: str) -> None:
    response = await service.get(BASE + path)
    assert response.status_code == 404
    assert response.json()["code"].endswith("not_found")


ROLES = {
    "viewer": ("identity_systems_list", "identity_previews_get", "identity_objects_list", "identity_rules_list"),
    "operator": (
        "identity_run_profiles_run", "identity_previews_create", "identity_pending_exports_retry",
        "identity_systems_check", "identity_systems_discover", "identity_objects_sync",
    ),
    "editor": (
        "identity_systems_approve", "identity_systems_enable", "identity_systems_disable", "identity_objects_join",
        "identity_objects_unjoin", "identity_objects_unpin",
    ),
    "admin": ("identity_systems_clear", "identity_systems_delete", "identity_identities_forget"),
}  # fmt: skip


async def test_a62_each_route_is_refused_to_roles_below_its_own(service: ApiClient) -> None:
    document = openapi_document(service.api)
    refused = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if not path.startswith(BASE):
                continue
            expected = next((role for role, ids in ROLES.items() if operation["operationId"] in ids), "viewer")
            assert operation["x-role"] == expected, operation["operationId"]
            address = path.replace("{id}", "1").replace("{name}", "HR").replace("{system}", "HR")
            address = address.replace("{profile}", "Export")
            for role in Role:
                if role < Role[expected.upper()]:
                    send = service.post if method == "post" else service.delete
                    assert_problem(await send(address, role), 403, "auth.role.insufficient")
                    refused += 1
    assert refused == 6 + 2 * 6 + 3 * 3


async def test_system_that_has_changed_since_it_was_read_is_not_deleted(service: ApiClient) -> None:
    shown = await service.get(f"{BASE}/systems/LDAP")
    version = shown.json()["system"]["version"]
    assert shown.headers["etag"] == f'"v{version}"'
    refused = await service.delete(f"{BASE}/systems/LDAP", headers={"If-Match": f'"v{version + 1}"'})
    assert_problem(refused, 409, "definition.version_conflict")
    invalid = await service.delete(f"{BASE}/systems/LDAP", headers={"If-Match": "x"})
    assert_problem(invalid, 422, "request.if_match.invalid")
    deleted = await service.delete(f"{BASE}/systems/LDAP", headers={"If-Match": shown.headers["etag"]})
    assert deleted.status_code == 200, deleted.text


async def test_attribute_flows_are_paged_and_filtered(service: ApiClient) -> None:
    pages = await read_pages(service, f"{BASE}/attribute-flows?type=person", 5)
    names = [each["attribute"] for page in pages for each in page]
    assert len(pages) > 1
    assert names == sorted(set(names))
    assert {"display", "manager"} <= set(names)
    of_ldap = (await service.get_json(f"{BASE}/attribute-flows?system=LDAP"))["items"]
    assert {target["system"] for each in of_ldap for target in each["targets"]} >= {"LDAP"}
    assert "manager" not in {each["attribute"] for each in of_ldap}


async def test_every_route_requires_a_role(service: ApiClient) -> None:
    routes = [
        context.route
        for context in iter_route_contexts(service.api.routes)
        if isinstance(context.route, ApiRoute) and (context.path or "").startswith(BASE)
    ]
    assert len(routes) == 39
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
