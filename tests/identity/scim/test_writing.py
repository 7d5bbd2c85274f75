"""Writing to a SCIM service: bodies and patches, repeated and uncertain requests, versions, busy servers, dialects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    WriteChange,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import Value
from tests.identity.scim.conftest import WORK_MAIL
from tests.identity.scim.service import ENTERPRISE, USER, Gateway, Received, Reply, Tenant, without_features

Open = Callable[..., Connector]
SET, ADD, REMOVE, CLEAR = ChangeOp.SET, ChangeOp.ADD, ChangeOp.REMOVE, ChangeOp.CLEAR
MANAGER = f"{ENTERPRISE}:manager"


def change(attribute: str, op: ChangeOp, *values: Value) -> WriteChange:
    return WriteChange(attribute, op, values)


def create_user(name: str, *changes: WriteChange, uncertain: bool = False) -> WriteRequest:
    every = (change("userName", SET, name), *changes)
    return WriteRequest(ExportKind.CREATE, "User", None, name, every, uncertain)


def create_group(name: str, *members: str, uncertain: bool = False) -> WriteRequest:
    changes = [change("displayName", SET, name)]
    if members:
        changes.append(change("members", SET, *members))
    return WriteRequest(ExportKind.CREATE, "Group", None, name, tuple(changes), uncertain)


def update(type_name: str, anchor: str, *changes: WriteChange, uncertain: bool = False) -> WriteRequest:
    return WriteRequest(ExportKind.UPDATE, type_name, anchor, "", changes, uncertain)


def write(connector: Connector, request: WriteRequest) -> WriteResult:
    (result,) = connector.write([request])
    return result


def write_ok(connector: Connector, request: WriteRequest) -> str:
    result = write(connector, request)
    assert result.is_ok, result
    assert result.anchor is not None
    return result.anchor


def operations(gateway: Gateway) -> list[Any]:
    """Return the operations of each PATCH."""
    return [body["Operations"] for _, _, body in gateway.sent("PATCH")]


# --- bodies and patches ---------------------------------------------------------------------------------------------


def test_scim_create_sends_one_resource_with_complex_and_extension_attributes(
    gateway: Gateway, open_scim: Open
) -> None:
    connector = open_scim(gateway.url)
    boss = write_ok(connector, create_user("boss"))
    write_ok(
        connector,
        create_user(
            "ada",
            change("name.familyName", SET, "Lovelace"),
            change("active", SET, True),
            change("roles", SET, "a", "b"),
            change(WORK_MAIL, SET, "ada@example.org"),
            change(f"{ENTERPRISE}:department", SET, "Research"),
            change(MANAGER, SET, boss),
        ),
    )
    assert gateway.sent("POST")[1] == (
        "POST",
        "/Users",
        {
            "schemas": [USER, ENTERPRISE],
            "userName": "ada",
            "name": {"familyName": "Lovelace"},
            "active": True,
            "roles": [{"value": "a"}, {"value": "b"}],
            "emails": [{"type": "work", "value": "ada@example.org"}],
            ENTERPRISE: {"department": "Research", "manager": {"value": boss}},
        },
    )
    assert not gateway.sent("PATCH", "PUT")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (change("title", SET, "Admiral"), {"op": "replace", "path": "title", "value": "Admiral"}),
        (change("title", CLEAR), {"op": "remove", "path": "title"}),
        (change("active", SET, False), {"op": "replace", "path": "active", "value": False}),
        (change("name.familyName", SET, "X"), {"op": "replace", "path": "name.familyName", "value": "X"}),
        (change("roles", ADD, "c"), {"op": "add", "path": "roles", "value": [{"value": "c"}]}),
        (change("roles", REMOVE, 'a"'), {"op": "remove", "path": 'roles[value eq "a\\""]'}),
        (change(MANAGER, SET, "x1"), {"op": "replace", "path": MANAGER, "value": {"value": "x1"}}),
        (change(MANAGER, CLEAR), {"op": "remove", "path": MANAGER}),
        (WriteChange("address", ChangeOp.RENAME, ("eve",)), {"op": "replace", "path": "userName", "value": "eve"}),
    ],
)
def test_scim_change_is_one_operation_of_one_patch(
    gateway: Gateway, open_scim: Open, changed: WriteChange, expected: dict[str, Any]
) -> None:
    connector = open_scim(gateway.url)
    anchor = write_ok(connector, create_user("ada", change("roles", SET, 'a"', "b"), change("title", SET, "Fellow")))
    write_ok(connector, update("User", anchor, changed))
    assert operations(gateway) == [[expected]]
    assert not gateway.sent("PUT")


def test_scim_element_of_a_list_is_added_changed_and_removed_beside_the_others(
    gateway: Gateway, open_scim: Open
) -> None:
    home = {"value": "home@example.org", "type": "home"}
    anchor = gateway.tenant.add_user("ada", emails=[home])
    connector = open_scim(gateway.url)

    def mails() -> list[Any]:
        found: list[Any] = gateway.tenant.users()["ada"].get("emails", [])
        return sorted(found, key=str)

    write_ok(connector, update("User", anchor, change(WORK_MAIL, SET, "a@example.org")))
    assert mails() == sorted([home, {"type": "work", "value": "a@example.org"}], key=str)
    write_ok(connector, update("User", anchor, change(WORK_MAIL, SET, "b@example.org")))
    assert mails() == sorted([home, {"type": "work", "value": "b@example.org"}], key=str)
    write_ok(connector, update("User", anchor, change(WORK_MAIL, CLEAR)))
    write_ok(connector, update("User", anchor, change(WORK_MAIL, CLEAR)))
    assert mails() == [home]
    assert all("if-match" in each.headers for each in gateway.received if each.method == "PATCH")


def test_a63_scim_members_are_added_and_removed_and_never_replaced(gateway: Gateway, open_scim: Open) -> None:
    tenant = gateway.tenant
    ids = [tenant.add_user(f"u{number}") for number in range(4)]
    connector = open_scim(gateway.url)
    group = write_ok(connector, create_group("team", ids[0]))
    write_ok(connector, update("Group", group, change("members", ADD, ids[1])))
    write_ok(connector, update("Group", group, change("members", REMOVE, ids[0])))
    write_ok(connector, update("Group", group, change("members", SET, ids[1], ids[2], ids[3])))
    assert {each["value"] for each in tenant.groups()["team"]["members"]} == set(ids[1:])
    added, removed, both = operations(gateway)
    assert added == [{"op": "add", "path": "members", "value": [{"value": ids[1]}]}]
    assert removed == [{"op": "remove", "path": f'members[value eq "{ids[0]}"]'}]
    assert both == [{"op": "add", "path": "members", "value": [{"value": ids[2]}, {"value": ids[3]}]}]


def test_scim_large_group_is_written_in_parts(gateway: Gateway, open_scim: Open) -> None:
    tenant = gateway.tenant
    ids = [tenant.add_user(f"u{number}") for number in range(5)]
    connector = open_scim(gateway.url, max_values=2)
    group = write_ok(connector, create_group("team", *ids))
    assert {each["value"] for each in tenant.groups()["team"]["members"]} == set(ids)
    sizes = [[len(each["value"]) for each in part] for part in operations(gateway)]
    assert sizes == [[2], [1]]
    write_ok(connector, update("Group", group, change("members", REMOVE, *ids[:3])))
    assert [len(part) for part in operations(gateway)[2:]] == [2, 1]


@pytest.mark.parametrize("refusal", [Reply(400), Reply(429, None, {"Retry-After": "600"})], ids=["refused", "busy"])
def test_scim_large_group_keeps_its_id_if_a_later_part_is_not_accepted(
    gateway: Gateway, open_scim: Open, refusal: Reply
) -> None:
    ids = [gateway.tenant.add_user(f"u{number}") for number in range(3)]
    gateway.behaviour = lambda request: refusal if request.method == "PATCH" else None
    connector = open_scim(gateway.url, max_values=2)
    group = write_ok(connector, create_group("team", *ids))
    gateway.behaviour = lambda _: None
    write_ok(connector, update("Group", group, change("members", SET, *ids)))  # what the confirmation leads to
    assert {each["value"] for each in gateway.tenant.groups()["team"]["members"]} == set(ids)


def test_scim_values_of_read_only_attributes_are_refused(tenant: Tenant, open_scim: Open) -> None:
    result = write(open_scim(tenant.url), create_user("ada", change("id", SET, "1")))
    assert (result.outcome, result.error) == (WriteOutcome.REFUSED, "not_writable")
    assert not tenant.users()


# --- repeated, uncertain and refused requests -----------------------------------------------------------------------


def test_a63_scim_existing_user_is_found_ignoring_case(tenant: Tenant, open_scim: Open) -> None:
    anchor = tenant.add_user("Ada", title="Fellow")
    connector = open_scim(tenant.url)
    same = write(connector, create_user("ADA", change("title", SET, "Fellow")))
    assert (same.is_ok, same.anchor, same.address) == (True, anchor, "Ada")
    other = write(connector, create_user("ada", change("title", SET, "Director")))
    assert (other.outcome, other.error) == (WriteOutcome.REFUSED, "exists")
    assert len(tenant.users()) == 1


def test_scim_group_is_created_once_although_the_server_accepts_two_of_a_name(tenant: Tenant, open_scim: Open) -> None:
    connector = open_scim(tenant.url)
    results = connector.write([create_group("team"), create_group("team"), create_group("other")])
    assert [each.is_ok for each in results] == [True, True, True]
    assert results[0].anchor == results[1].anchor
    assert len(tenant.all("/Groups")) == 2


def test_scim_create_whose_answer_is_lost_is_not_repeated(gateway: Gateway, open_scim: Open) -> None:
    lost = threading.Event()

    def behave(request: Received) -> Reply | None:
        if request.method == "POST" and not lost.is_set():
            lost.set()
            return Reply(0, drops=True)
        return None

    gateway.behaviour = behave
    result = write(open_scim(gateway.url), create_user("ada", change("title", SET, "Fellow")))
    assert result.is_ok
    assert result.anchor == gateway.tenant.users()["ada"]["id"]
    assert len(gateway.sent("POST")) == 1, "the second attempt reads first"


def test_scim_group_whose_first_part_was_written_is_completed(gateway: Gateway, open_scim: Open) -> None:
    tenant = gateway.tenant
    ids = [tenant.add_user(f"u{number}") for number in range(3)]
    team = {"schemas": [], "displayName": "team", "members": [{"value": ids[0]}]}
    anchor = tenant.call("POST", "/Groups", team)["id"]
    connector = open_scim(gateway.url, max_values=1)
    assert write(connector, create_group("team", *ids)).error == "exists", "it may be the group of someone else"
    assert write_ok(connector, create_group("team", *ids, uncertain=True)) == anchor
    assert {each["value"] for each in tenant.groups()["team"]["members"]} == set(ids)


def test_scim_value_that_is_there_already_is_not_added_by_an_uncertain_request(
    gateway: Gateway, open_scim: Open
) -> None:
    anchor = gateway.tenant.add_user("ada", roles=[{"value": "a", "display": "Role A"}])
    connector = open_scim(gateway.url)
    write_ok(connector, update("User", anchor, change("roles", ADD, "a"), uncertain=True))
    assert gateway.tenant.users()["ada"]["roles"] == [{"value": "a", "display": "Role A"}]
    assert not gateway.sent("PATCH")


def test_scim_removal_that_the_server_refuses_because_it_is_done_succeeds(gateway: Gateway, open_scim: Open) -> None:
    anchor = gateway.tenant.add_user("ada", title="Fellow")

    def behave(request: Received) -> Reply | None:
        body = request.body or {}
        if any(each["op"] == "remove" for each in body.get("Operations", ())):
            return Reply(400, {"status": "400", "scimType": "noTarget"})
        return None

    gateway.behaviour = behave
    connector = open_scim(gateway.url)
    write_ok(connector, update("User", anchor, change("roles", REMOVE, "gone"), change("title", SET, "Director")))
    assert gateway.tenant.users()["ada"]["title"] == "Director"
    refused = write(connector, update("User", anchor, change("title", CLEAR)))
    assert refused.error == "refused", "the title is there, so the refusal is real"


def test_a63_scim_delete_of_a_missing_resource_succeeds(tenant: Tenant, open_scim: Open) -> None:
    connector = open_scim(tenant.url)
    anchor = tenant.add_user("ada")
    tenant.add_user("grace")
    for _ in range(2):
        write_ok(connector, WriteRequest(ExportKind.DELETE, "User", anchor, "ada"))
    assert set(tenant.users()) == {"grace"}
    # An object whose create was uncertain has no anchor yet.
    assert write(connector, WriteRequest(ExportKind.DELETE, "User", None, "GRACE")).is_ok
    assert write(connector, WriteRequest(ExportKind.DELETE, "User", None, "nobody")).is_ok
    assert not tenant.users()


def test_scim_refusals_have_the_text_of_the_server(gateway: Gateway, open_scim: Open) -> None:
    connector = open_scim(gateway.url)
    first = gateway.tenant.add_user("ada")
    gateway.tenant.add_user("grace")
    missing = write(connector, update("User", "nobody", change("title", SET, "x")))
    assert (missing.error, "nobody" in (missing.text or "")) == ("missing_object", True)
    assert write(connector, update("User", first, change("userName", SET, "grace"))).error == "exists"
    gateway.behaviour = lambda request: (
        Reply(403, {"detail": "read-only tenant"}) if request.method == "PATCH" else None
    )
    refused = write(connector, update("User", first, change("title", SET, "x")))
    assert (refused.error, "read-only tenant" in (refused.text or "")) == ("refused", True)
    gateway.behaviour = lambda request: Reply(502) if request.method == "PATCH" else None
    with pytest.raises(ConnectorError) as failed:
        write(connector, update("User", first, change("title", SET, "x")))
    assert failed.value.code == "unreachable"


def test_scim_server_that_is_killed_while_it_is_written_to_fails_the_write(gateway: Gateway, open_scim: Open) -> None:
    connector = open_scim(gateway.url, concurrency=1)
    write_ok(connector, create_user("u0"))
    server = gateway.tenant.server

    def behave(request: Received) -> Reply | None:
        if request.method == "POST" and request.body["userName"] == "u2":
            server.kill()
        return None

    gateway.behaviour = behave
    try:
        with pytest.raises(ConnectorError) as failed:
            connector.write([create_user(f"u{number}") for number in range(1, 6)])
        assert failed.value.code == "unreachable"
        assert [body["userName"] for _, _, body in gateway.sent("POST")] == ["u0", "u1", "u2"], "the rest is not sent"
    finally:
        server.ensure_running()
    gateway.behaviour = lambda _: None
    results = connector.write([create_user(f"u{number}", uncertain=True) for number in range(1, 6)])
    assert all(each.is_ok for each in results)
    assert set(gateway.tenant.users()) == {f"u{number}" for number in range(1, 6)}


# --- versions, busy servers, dialects -------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [(), ("patch",)], ids=["patch", "put"])
def test_scim_change_of_another_program_in_between_is_not_overwritten(
    gateway: Gateway, open_scim: Open, absent: tuple[str, ...]
) -> None:
    anchor = gateway.tenant.add_user("ada", roles=[{"value": "a"}])
    interfering = 1
    announced = without_features(*absent)

    def behave(request: Received) -> Reply | None:
        nonlocal interfering
        if request.method in ("PUT", "PATCH") and interfering:
            interfering -= 1
            body = {"schemas": [USER], "userName": "ada", "title": "new", "roles": [{"value": "b"}]}
            gateway.tenant.call("PUT", f"/Users/{anchor}", body)
        return announced(request)

    gateway.behaviour = behave
    write_ok(open_scim(gateway.url), update("User", anchor, change("roles", SET, "c")))
    found = gateway.tenant.users()["ada"]
    assert (found["title"], found["roles"]) == ("new", [{"value": "c"}])
    assert all("if-match" in each.headers for each in gateway.received if each.method in ("PUT", "PATCH"))


def test_scim_server_without_patch_gets_the_whole_resource(gateway: Gateway, open_scim: Open) -> None:
    gateway.behaviour = without_features("patch", "etag")
    anchor = gateway.tenant.add_user("ada", nickName="kept", emails=[{"value": "home", "type": "home"}])
    connector = open_scim(gateway.url)
    changes = (
        change("title", SET, "Fellow"),
        change(WORK_MAIL, SET, "w"),
        change(f"{ENTERPRISE}:department", SET, "R"),
    )
    for _ in range(2):
        write_ok(connector, update("User", anchor, *changes))
    found = gateway.tenant.users()["ada"]
    assert (found["nickName"], found["title"], found[ENTERPRISE]["department"]) == ("kept", "Fellow", "R")
    assert {each["value"] for each in found["emails"]} == {"home", "w"}
    assert len(gateway.sent("PUT")) == 1, "the second update changes nothing"
    assert not gateway.sent("PATCH")


def test_scim_request_to_a_server_that_is_busy_for_too_long_is_repeated_later(
    gateway: Gateway, open_scim: Open
) -> None:
    gateway.behaviour = lambda request: (
        Reply(429, {"status": "429"}, {"Retry-After": "600"})
        if request.method == "POST" and request.body["userName"] == "busy"
        else None
    )
    results = open_scim(gateway.url).write([create_user("a"), create_user("busy"), create_user("b")])
    assert [each.outcome for each in results] == [WriteOutcome.OK, WriteOutcome.MISSING, WriteOutcome.OK]
    assert results[1].error == "busy"


def test_scim_create_that_a_busy_server_has_executed_is_not_repeated(gateway: Gateway, open_scim: Open) -> None:
    members = [gateway.tenant.add_user(f"u{number}") for number in range(5)]

    def behave(request: Received) -> Reply | None:
        """Create the group, and answer as a gateway whose time is over."""
        if request.method == "POST" and len(gateway.sent("POST")) == 1:
            gateway.tenant.call("POST", "/Groups", request.body)
            return Reply(503, {"status": "503"}, {"Retry-After": "0"})
        return None

    gateway.behaviour = behave
    anchor = write_ok(open_scim(gateway.url, max_values=3), create_group("Research", *members))
    assert len(gateway.sent("POST")) == 1
    (group,) = gateway.tenant.all("/Groups")
    assert group["id"] == anchor
    assert {each["value"] for each in group["members"]} == set(members)


@pytest.mark.parametrize("status", [429, 503])
def test_scim_create_that_a_busy_server_has_not_executed_is_repeated(
    gateway: Gateway, open_scim: Open, status: int
) -> None:
    def behave(request: Received) -> Reply | None:
        if request.method == "POST" and len(gateway.sent("POST")) == 1:
            return Reply(status, {"status": str(status)}, {"Retry-After": "0"})
        return None

    gateway.behaviour = behave
    write_ok(open_scim(gateway.url), create_group("Research"))
    assert [each["displayName"] for each in gateway.tenant.all("/Groups")] == ["Research"]


def test_scim_write_of_a_cancelled_run_ends_its_wait_and_sends_nothing_more(gateway: Gateway, open_scim: Open) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return True

    gateway.behaviour = lambda request: (
        Reply(503, {"status": "503"}, {"Retry-After": "3000"}) if request.method == "POST" else None
    )
    connector = open_scim(gateway.url, max_wait_seconds=3_600, concurrency=1, wait=wait)
    results = connector.write([create_group("Research"), create_group("Engineering")])
    assert [(each.outcome, each.error) for each in results] == [(WriteOutcome.MISSING, "busy")] * 2
    assert waits == [3_000.0]
    assert len(gateway.sent("POST")) == 1


def test_scim_bulk_request_carries_out_what_needs_one_request_for_each_object(
    gateway: Gateway, open_scim: Open
) -> None:
    tenant = gateway.tenant
    connector = open_scim(gateway.url, bulk=True)
    names = ("a", "b", "BULK", "c")
    tenant.add_user("bulk", title="of another program")
    created = connector.write([create_user(name, change("title", SET, f"bulkId:{name}")) for name in names[:2]])
    assert [path for _, path, _ in gateway.sent("POST")] == ["/Users", "/Users"], "such a text is not a reference"
    assert {each["title"] for each in tenant.users().values() if each["userName"] in "ab"} == {"bulkId:a", "bulkId:b"}
    gateway.received.clear()
    requests = [
        update("User", created[0].anchor or "", change("title", SET, "one")),
        create_user("BULK", change("title", SET, "ours")),
        WriteRequest(ExportKind.DELETE, "User", created[1].anchor, "b"),
        create_user("c", change("title", SET, "three")),
        create_group("team"),
    ]
    results = connector.write(requests)
    assert [each.error for each in results] == [None, "exists", None, None, None]
    assert {name: each.get("title") for name, each in tenant.users().items()} == {
        "a": "one",
        "bulk": "of another program",
        "c": "three",
    }
    assert results[3].anchor == tenant.users()["c"]["id"]
    sent = [(path, len(body.get("Operations", ()))) for _, path, body in gateway.sent("POST", "PATCH", "DELETE")]
    assert sorted(sent) == [("/Bulk", 4), ("/Groups", 0), ("/Users", 0)], "only the refused create is sent again"


def test_scim_bulk_request_whose_answer_is_lost_creates_nothing_twice(gateway: Gateway, open_scim: Open) -> None:
    gateway.behaviour = lambda request: Reply(0, drops=True) if request.path == "/Bulk" else None
    results = open_scim(gateway.url, bulk=True).write([create_user(name) for name in ("a", "b", "c")])
    users = gateway.tenant.users()
    assert [each.anchor for each in results] == [users[name]["id"] for name in ("a", "b", "c")]
    assert [path for _, path, _ in gateway.sent("POST")] == ["/Bulk"], "the users are found, and not created again"


def test_scim_bulk_requests_are_as_large_as_the_server_allows(gateway: Gateway, open_scim: Open) -> None:
    limits = {"bulk": {"supported": True, "maxOperations": 2, "maxPayloadSize": 100_000}, "patch": {"supported": True}}
    gateway.behaviour = lambda request: Reply(200, limits) if request.path == "/ServiceProviderConfig" else None
    results = open_scim(gateway.url, bulk=True).write([create_user(f"u{number}") for number in range(5)])
    assert all(each.is_ok for each in results)
    assert [len(body["Operations"]) for _, _, body in gateway.sent("POST")] == [2, 2, 1]


def test_scim_dialects_change_the_form_of_requests(gateway: Gateway, open_scim: Open) -> None:
    ids = [gateway.tenant.add_user(f"u{number}") for number in range(2)]
    group = write_ok(open_scim(gateway.url), create_group("team", ids[0]))
    gateway.behaviour = lambda request: Reply(204) if request.method == "PATCH" else None
    entra = open_scim(gateway.url, dialect="entra")
    write_ok(entra, update("Group", group, change("members", REMOVE, ids[0]), change("members", ADD, ids[1])))
    assert operations(gateway) == [
        [
            {"op": "Remove", "path": "members", "value": [{"value": ids[0]}]},
            {"op": "Add", "path": "members", "value": [{"value": ids[1]}]},
        ]
    ]
    okta = open_scim(gateway.url, dialect="okta")
    write_ok(okta, update("User", ids[0], change("title", SET, "Fellow")))
    assert gateway.tenant.users()["u0"]["title"] == "Fellow"
    assert len(gateway.sent("PUT")) == 1
