"""Reading a SCIM service: discovery, pages that shift, incomplete lists, deltas, credentials and addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Invalid, MissingExtra
from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    WatermarkLost,
)
from tenuto_identity.connectors.scim.client import Answer
from tenuto_identity.model.schema import Attribute, ObjectType, Writable
from tenuto_identity.model.values import DataType, EqualityKind
from tests.identity.scim.conftest import GROUP_TYPE, TYPES, USER_TYPE, WORK_MAIL
from tests.identity.scim.service import (
    ENTERPRISE,
    TOKEN,
    Gateway,
    Received,
    Reply,
    ScimServer,
    Tenant,
    settings,
    without_features,
)
from tests.support.certificates import create_certificate

Open = Callable[..., Connector]
USERS = ReadScope((USER_TYPE,))


def objects(events: Iterator[ReadEvent]) -> dict[str, ImportedObject]:
    return {each.address: each for each in events if isinstance(each, ImportedObject)}


def list_pages(count: int, size: int = 2, **changed: Any) -> Callable[[Received], Reply | None]:
    """Return a behaviour that answers lists by itself: ``count`` users in pages of ``size``."""

    def behave(request: Received) -> Reply | None:
        if request.path != "/Users":
            return None
        start = int(request.query.partition("startIndex=")[2].partition("&")[0])
        ids = list(range(1, count + 1))[start - 1 : start - 1 + size]
        users = [{"id": f"i{number}", "userName": f"u{number}"} for number in ids]
        return Reply(200, {"totalResults": count, "Resources": users, **changed})

    return behave


# --- discovery ------------------------------------------------------------------------------------------------------


def test_scim_discovery_names_types_attributes_and_references(tenant: Tenant, open_scim: Open) -> None:
    connector = open_scim(tenant.url, ())
    connector.check()
    types = {each.name: each for each in connector.discover().types}
    assert set(types) == {"User", "Group"}
    user = types["User"]
    assert (user.anchor, user.address) == ("id", "userName")
    assert user.attributes["id"].writable is Writable.NO
    assert user.attributes["userName"].equality.kind is EqualityKind.IGNORE_CASE
    assert user.attributes["active"].type is DataType.BOOLEAN
    assert user.attributes["meta.lastModified"].type is DataType.DATETIME
    assert user.attributes["emails"].multi
    assert not user.attributes["name.familyName"].multi
    assert user.attributes[f"{ENTERPRISE}:department"].type is DataType.TEXT
    manager, members = user.attributes[f"{ENTERPRISE}:manager"], types["Group"].attributes["members"]
    assert (manager.type, manager.to, manager.multi) == (DataType.REFERENCE, "User", False)
    assert (members.type, members.multi, members.writable) == (DataType.REFERENCE, True, Writable.YES)
    assert user.attributes["groups"].writable is Writable.NO
    assert "password" not in user.attributes


def test_scim_discovery_names_selected_types_and_paths_as_the_definition(tenant: Tenant, open_scim: Open) -> None:
    person = ObjectType("person", "id", {"id": Attribute("id"), WORK_MAIL: Attribute(WORK_MAIL)})
    connector = open_scim(tenant.url, (person,), types={"person": {"resource": "User"}})
    connector.check()
    (found,) = [each for each in connector.discover().types if each.name == "person"]
    assert not found.attributes[WORK_MAIL].multi
    assert found.attributes[f"{ENTERPRISE}:manager"].to == "person"


def test_scim_service_without_discovery_has_the_types_of_the_standard(gateway: Gateway, open_scim: Open) -> None:
    absent = ("/ServiceProviderConfig", "/ResourceTypes", "/Schemas")
    gateway.behaviour = lambda request: Reply(404, {"status": "404"}) if request.path in absent else None
    gateway.tenant.add_user("ada", emails=[{"value": "ada@example.org", "type": "work"}])
    connector = open_scim(gateway.url)
    connector.check()
    assert objects(connector.read(USERS, None))["ada"].cells[WORK_MAIL] == ("ada@example.org",)
    assert {each.name for each in connector.discover().types} == {"User", "Group"}


@pytest.mark.parametrize(
    ("name", "attribute", "code"),
    [
        ("name", Attribute("name"), "missing_attribute"),
        ("nonsense", Attribute("nonsense"), "missing_attribute"),
        ("title.part", Attribute("title.part"), "missing_attribute"),
        ("emails[type", Attribute("emails[type"), "missing_attribute"),
        ("password", Attribute("password"), "missing_attribute"),
        ("title", Attribute("title", multi=True), "attribute_form"),
    ],
)
def test_scim_check_refuses_attributes_that_the_service_does_not_have(
    tenant: Tenant, open_scim: Open, name: str, attribute: Attribute, code: str
) -> None:
    selected = ObjectType("User", "id", {"id": Attribute("id"), name: attribute})
    with pytest.raises(ConnectorError) as refused:
        open_scim(tenant.url, (selected,)).check()
    assert refused.value.code == code
    assert refused.value.remedy


def test_scim_check_refuses_unknown_types_and_other_anchors(tenant: Tenant, open_scim: Open) -> None:
    with pytest.raises(ConnectorError, match="no resource type 'Device'"):
        open_scim(tenant.url, (ObjectType("Device", "id", {"id": Attribute("id")}),)).check()
    with pytest.raises(ConnectorError, match="anchor userName"):
        open_scim(tenant.url, (ObjectType("User", "userName", {"userName": Attribute("userName")}),)).check()


# --- lists ----------------------------------------------------------------------------------------------------------


def test_scim_read_delivers_complex_lists_and_references(tenant: Tenant, open_scim: Open) -> None:
    boss = tenant.add_user("boss")
    tenant.add_user(
        "ada",
        active=False,
        name={"familyName": "Lovelace"},
        roles=[{"value": "b"}, {"value": "a", "primary": True}],
        emails=[{"value": "home@example.org", "type": "home"}, {"value": "ada@example.org", "type": "work"}],
        **{ENTERPRISE: {"department": "Research", "manager": {"value": boss}}},
    )
    team = tenant.call("POST", "/Groups", {"schemas": [], "displayName": "team", "members": [{"value": boss}]})
    found = objects(open_scim(tenant.url).read(ReadScope(TYPES), None))
    cells = found["ada"].cells
    assert cells["roles"] == ("a", "b")
    assert cells[WORK_MAIL] == ("ada@example.org",)
    assert cells["active"] == ("false",)
    assert cells["name.familyName"] == ("Lovelace",)
    assert (cells[f"{ENTERPRISE}:department"], cells[f"{ENTERPRISE}:manager"]) == (("Research",), (boss,))
    assert (found["team"].anchor, found["team"].cells["members"]) == (team["id"], (boss,))


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (list_pages(5, totalResults=9), "there are 9 resources, and sent 5"),
        (list_pages(5, totalResults=1), "there are 1 resources, and sent 2"),
        (list_pages(5, Resources=[{"id": "i1"}, {"id": "i2"}]), "ignores startIndex"),
        (list_pages(5, Resources=[{"id": "i1"}, {"id": "i1"}]), "twice"),
        (list_pages(5, Resources=[{"userName": "u"}]), "without an id"),
        (list_pages(5, totalResults=None), "not a list of resources"),
        (list_pages(5, size=1), "there are 5 resources, and sent 1"),
    ],
    ids=["too few", "too many", "no pages", "twice", "no id", "no total", "no progress"],
)
def test_a64_scim_list_that_is_not_complete_is_an_error(
    gateway: Gateway, open_scim: Open, behaviour: Callable[[Received], Reply | None], reason: str
) -> None:
    gateway.behaviour = behaviour
    events: list[ReadEvent] = []
    with pytest.raises(ConnectorError, match=reason):
        events.extend(open_scim(gateway.url, page_size=2).read(USERS, None))
    assert not any(isinstance(each, ReadComplete) for each in events)


@pytest.mark.parametrize("position", [3, 12, 21, 29], ids=lambda each: f"user {each}")
@pytest.mark.parametrize("change", ["delete", "create", "replace"])
def test_scim_list_that_shifts_between_pages_misses_and_doubles_nothing(
    gateway: Gateway, open_scim: Open, position: int, change: str
) -> None:
    """A resource is deleted, created, or both, anywhere in a list of three pages before the last page is read."""
    users = [f"i{number:03}" for number in range(1, 31)]
    done = False

    def behave(request: Received) -> Reply | None:
        nonlocal done
        if request.path != "/Users":
            return None
        start = int(request.query.partition("startIndex=")[2].partition("&")[0])
        if start > 10 and not done:
            done = True
            if change != "create":
                users.pop(position - 1)
            if change != "delete":
                users.insert(position, f"i{position:03}new")
        page = [{"id": each, "userName": each} for each in users[start - 1 : start + 9]]
        return Reply(200, {"totalResults": len(users), "Resources": page})

    before = set(users)
    gateway.behaviour = behave
    events = list(open_scim(gateway.url, page_size=10).read(USERS, None))
    read = [each.anchor for each in events if isinstance(each, ImportedObject)]
    assert len(read) == len(set(read)), "a user was yielded twice"
    assert before & set(users) <= set(read), "a user that was there all the time was missed"
    assert isinstance(events[-1], ReadComplete)


def test_scim_list_is_sorted_by_id_and_filtered_by_the_type(gateway: Gateway, open_scim: Open) -> None:
    gateway.tenant.add_user("ada", userType="Employee")
    gateway.tenant.add_user("bot", userType="Service")
    connector = open_scim(gateway.url, types={"User": {"filter": 'userType eq "Employee"'}})
    assert set(objects(connector.read(USERS, None))) == {"ada"}
    (listed,) = [each.query for each in gateway.received if each.path == "/Users"]
    assert "sortBy=id" in listed


def test_scim_server_that_is_killed_while_it_is_read_fails_the_read(gateway: Gateway, open_scim: Open) -> None:
    for number in range(6):
        gateway.tenant.add_user(f"u{number}")
    server, pages = gateway.tenant.server, 0

    def behave(request: Received) -> Reply | None:
        nonlocal pages
        pages += request.path == "/Users"
        if pages == 2:
            server.kill()
        return None

    gateway.behaviour = behave
    connector = open_scim(gateway.url, page_size=3)
    events: list[ReadEvent] = []
    try:
        with pytest.raises(ConnectorError) as failed:
            events.extend(connector.read(USERS, None))
        assert failed.value.code == "unreachable"
        assert len(events) == 3
    finally:
        server.ensure_running()
    gateway.behaviour = lambda _: None
    gateway.tenant.add_user("after")
    assert set(objects(connector.read(USERS, None))) == {"after"}, "the connector reconnects"


def test_scim_read_by_anchor_yields_the_resources_that_exist(tenant: Tenant, open_scim: Open) -> None:
    first = tenant.add_user("ada")
    tenant.add_user("grace")
    scope = ReadScope((USER_TYPE,), anchors=(first, "../Groups", "missing"))
    assert set(objects(open_scim(tenant.url).read(scope, None))) == {"ada"}


def test_scim_read_by_anchor_yields_an_object_as_the_type_whose_filter_it_satisfies(
    tenant: Tenant, open_scim: Open
) -> None:
    employee, service = (replace(USER_TYPE, name=name) for name in ("Employee", "Service"))
    chosen = {
        name: {"resource": "User", "filter": f'userType eq "{name}" or userType eq "{name} 2"'}
        for name in ("Employee", "Service")
    }
    ids = [
        tenant.add_user(name, userType=kind) for name, kind in (("ada", "Employee"), ("bot", "Service 2"), ("x", "X"))
    ]
    connector = open_scim(tenant.url, (employee, service), types=chosen)
    events = list(connector.read(ReadScope((employee, service), anchors=(*ids, 'a" or id pr', "missing")), None))
    found = [(each.type, each.address) for each in events if isinstance(each, ImportedObject)]
    assert found == [("Employee", "ada"), ("Service", "bot")]


def test_scim_read_by_anchor_yields_no_other_resource_of_a_server_that_ignores_the_filter(
    gateway: Gateway, open_scim: Open
) -> None:
    gateway.behaviour = list_pages(3, 3)
    connector = open_scim(gateway.url, types={"User": {"filter": "title pr"}})
    assert set(objects(connector.read(ReadScope((USER_TYPE,), anchors=("i2",)), None))) == {"u2"}


# --- delta ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [(), ("sort", "etag")], ids=["sorted", "not sorted"])
def test_scim_delta_reads_changes_and_warns_about_deletions(
    gateway: Gateway, open_scim: Open, absent: tuple[str, ...]
) -> None:
    gateway.behaviour = without_features(*absent)
    tenant = gateway.tenant
    ids = [tenant.add_user(f"u{number}") for number in range(5)]
    connector = open_scim(gateway.url)
    watermark = connector.watermark(USERS)
    assert watermark is not None
    assert not objects(connector.read(USERS, watermark)), "what the watermark knows is not read again"
    tenant.call("PUT", f"/Users/{ids[1]}", {"schemas": [], "userName": "u1", "title": "changed"})
    tenant.call("DELETE", f"/Users/{ids[2]}")
    tenant.add_user("new")
    events = list(connector.read(USERS, watermark))
    assert {each.address for each in events if isinstance(each, ImportedObject)} == {"u1", "new"}
    assert [each.code for each in events if isinstance(each, ReadWarning)] == ["no_deletions"]
    complete = events[-1]
    assert isinstance(complete, ReadComplete)
    assert complete.is_delta


def test_scim_delta_without_filters_is_a_lost_watermark(gateway: Gateway, open_scim: Open) -> None:
    connector = open_scim(gateway.url)
    watermark = connector.watermark(USERS)
    assert watermark is not None
    with pytest.raises(WatermarkLost, match="Group"):
        list(connector.read(ReadScope((GROUP_TYPE,)), watermark))
    gateway.behaviour = without_features("filter")
    with pytest.raises(WatermarkLost):
        list(open_scim(gateway.url).read(USERS, watermark))
    assert open_scim(gateway.url).watermark(USERS) is None
    with pytest.raises(ConnectorError, match="needs filters"):
        open_scim(gateway.url, delta="last_modified").check()


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "another"},
        {"types": {"User": {"filter": "title pr"}}},
        {"types": {"User": {"filter": "userName pr", "resource": "Group"}}},
        {},
    ],
    ids=["url", "filter", "resource", "nothing"],
)
def test_scim_delta_after_a_change_of_where_and_what_is_read_is_a_lost_watermark(
    scim_server: ScimServer, tenant: Tenant, open_scim: Open, changed: dict[str, Any]
) -> None:
    named = replace(USER_TYPE, attributes={"id": Attribute("id"), "externalId": Attribute("externalId")})
    scope = ReadScope((named,))
    chosen = {"types": {"User": {"filter": "userName pr"}}}
    watermark = open_scim(tenant.url, (named,), **chosen).watermark(scope)
    assert watermark is not None
    url = scim_server.new_tenant().url if "url" in changed else tenant.url
    later = open_scim(url, (named,), page_size=7, **{**chosen, "types": changed.get("types", chosen["types"])})
    if not changed:
        assert not objects(later.read(scope, watermark))
        return
    with pytest.raises(WatermarkLost, match="url, resource or filter of the type 'User' has changed"):
        list(later.read(scope, watermark))


# --- busy servers, credentials, addresses ---------------------------------------------------------------------------


def test_scim_read_waits_as_long_as_a_busy_server_asks(gateway: Gateway, open_scim: Open) -> None:
    gateway.tenant.add_user("ada")
    refusals = 1

    def behave(request: Received) -> Reply | None:
        nonlocal refusals
        if request.path == "/Users" and refusals:
            refusals -= 1
            return Reply(503, {"status": "503"}, {"Retry-After": "1"})
        return None

    gateway.behaviour = behave
    assert set(objects(open_scim(gateway.url).read(USERS, None))) == {"ada"}
    first, second = [each.at for each in gateway.received if each.path == "/Users"]
    assert second - first >= 1.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Wed, 18 Nov 2026 14:00:30 GMT", "date": "Wed, 18 Nov 2026 14:00:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 18 Nov 2026 13:00:00 GMT", "date": "Wed, 18 Nov 2026 14:00:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 18 Nov 2026 14:00:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_scim_client_reads_how_long_a_busy_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert Answer(429, headers=headers).retry_after() == seconds


def test_scim_server_that_is_busy_for_too_long_fails_the_read(gateway: Gateway, open_scim: Open) -> None:
    gateway.behaviour = lambda _: Reply(429, {"status": "429"}, {"Retry-After": "3600"})
    with pytest.raises(ConnectorError) as failed:
        open_scim(gateway.url).check()
    assert failed.value.code == "busy"
    assert len(gateway.received) == 1


def test_scim_credentials_are_sent_and_never_shown(gateway: Gateway, open_scim: Open) -> None:
    gateway.tenant.add_user("ada")
    with pytest.raises(ConnectorError) as failed:
        open_scim(gateway.url, secrets={"scim": "wrong-canary"}).check()
    assert failed.value.code == "unauthorized"
    assert "canary" not in str(failed.value)
    for empty in ("", "\n"):
        with pytest.raises(ConnectorError) as failed:
            open_scim(gateway.url, secrets={"scim": empty})
        assert failed.value.code == "password_missing"
    with pytest.raises(ConnectorError, match="characters that a token does not have"):
        open_scim(gateway.url, secrets={"scim": "two\nlines"})
    gateway.received.clear()
    gateway.behaviour = lambda _: Reply(401)
    with pytest.raises(ConnectorError):
        open_scim(gateway.url, token=None, user="tenuto", password={"secret": "scim"}).check()
    assert gateway.received[0].headers["authorization"] == "Basic dGVudXRvOnNjaW0tY2FuYXJ5LXRva2Vu"
    assert TOKEN == "scim-canary-token"


def test_scim_redirect_is_an_error_and_is_not_followed(gateway: Gateway, open_scim: Open) -> None:
    gateway.behaviour = lambda _: Reply(302, None, {"Location": f"{gateway.url}/elsewhere"})
    with pytest.raises(ConnectorError) as failed:
        open_scim(gateway.url).check()
    assert failed.value.code == "redirected"
    assert len(gateway.received) == 1


def test_scim_connector_calls_allowed_addresses_only(gateway: Gateway, open_scim: Open) -> None:
    with pytest.raises(ConnectorError) as refused:
        open_scim(gateway.url, allowed_hosts=()).check()
    assert refused.value.code == "address_not_allowed"
    assert "TENUTO_HTTP_ALLOWED_HOSTS" in str(refused.value)
    assert not gateway.received


def test_scim_certificate_is_verified_by_default(tenant: Tenant, open_scim: Open, tmp_path: Path) -> None:
    tenant.add_user("ada")
    certificate = create_certificate(tmp_path, "localhost")
    gateway = Gateway(tenant, certificate)
    options: dict[str, Any] = {"allow_unencrypted": False, "allowed_hosts": ("127.0.0.0/8", "::1/128")}
    try:
        with pytest.raises(ConnectorError, match="certificate") as failed:
            open_scim(gateway.url, **options).check()
        assert failed.value.code == "unreachable"
        by_address = gateway.url.replace("localhost", "127.0.0.1")
        with pytest.raises(ConnectorError, match="certificate"):
            open_scim(by_address, ca_file=str(certificate[0]), **options).check()
        assert not gateway.received
        open_scim(gateway.url, ca_file=str(certificate[0]), **options).check()
        open_scim(gateway.url, verify_certificate=False, **options).check()
        with pytest.raises(ConnectorError, match="cannot be read"):
            open_scim(gateway.url, ca_file=str(tmp_path / "missing.pem"), **options).check()
    finally:
        gateway.close()


def test_scim_answer_without_end_is_an_error(
    gateway: Gateway, open_scim: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto_identity.connectors.scim.client.MAX_RESPONSE_BYTES", 100_000)
    gateway.behaviour = lambda _: Reply(200, {"text": "x" * 200_000})
    with pytest.raises(ConnectorError) as failed:
        open_scim(gateway.url).check()
    assert failed.value.code == "too_large"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"allow_unencrypted": False}, "not encrypted"),
        ({"url": "ftp://example.org"}, "not the address of a SCIM service"),
        ({"url": "https://user:secret@example.org"}, "has an account"),
        ({"url": "https://example.org:port"}, "port that is not a number"),
        ({"user": "a"}, "only one of user and password"),
        ({"user": "a", "password": {"secret": "x"}}, "exclude each other"),
        ({"token": None, "user": "a:b", "password": {"secret": "x"}}, "colon"),
        ({"dialect": "other"}, "dialect"),
        ({"page_size": 1}, "page_size"),
        ({"tokn": "x"}, "tokn"),
    ],
)
def test_scim_settings_that_cannot_work_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        registry.parse_settings(registry.find_connector("scim"), {**settings("http://127.0.0.1"), **changed})


def test_scim_connector_without_its_package_names_the_command(open_scim: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.extras.find_spec", lambda _: None)
    with pytest.raises(MissingExtra) as missing:
        open_scim("http://127.0.0.1")
    assert missing.value.remedy == "pip install 'tenuto[identity]'"
