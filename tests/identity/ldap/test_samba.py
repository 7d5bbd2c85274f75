"""Active Directory: the connector against a Samba domain controller. `scripts/samba` starts it and runs these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from uuid import UUID

import ldap3
import pytest
import yaml

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorContext,
    ConnectorError,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadScope,
    WatermarkLost,
    WriteChange,
    WriteRequest,
)
from tenuto_identity.model.decoding import Decoding, decode_object
from tenuto_identity.model.definitions.system_definitions import parse_system
from tenuto_identity.model.schema import ContainerSelection, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tests.identity.ldap.test_nightly_run import _master_key
from tests.identity.scenario_site import Site

__all__ = ["_master_key"]  # a fixture

URL = os.environ.get("TENUTO_SAMBA_URL")
PASSWORD = os.environ.get("TENUTO_SAMBA_PASSWORD", "")
DOMAIN = "DC=samba,DC=test"
ADMINISTRATOR = f"CN=Administrator,CN=Users,{DOMAIN}"
DISABLED_ACCOUNT = 514
ENABLED_BIT = 0x2
pytestmark = [
    pytest.mark.samba,
    pytest.mark.skipif(URL is None, reason="no domain controller is running: run scripts/samba as root"),
]
_number = count(1)


RAW: dict[str, dict[str, Any]] = {
    "user": {
        "objectGUID": {"type": "guid", "writable": False},
        "cn": "text",
        "sAMAccountName": "text",
        "title": "text",
        "manager": {"type": "reference", "to": "user"},
        "userAccountControl": "integer",
        "accountExpires": "integer",
    },
    "group": {
        "objectGUID": {"type": "guid", "writable": False},
        "cn": "text",
        "sAMAccountName": "text",
        "member": {"type": "reference", "to": "user", "multi": True},
    },
}
"""Attributes of the types, as a definition file declares them."""


def object_types() -> dict[str, ObjectType]:
    """Return the types with the preset of Active Directory."""
    types = [{"name": name, "preset": "ad", "anchor": "objectGUID", "attributes": each} for name, each in RAW.items()]
    return dict(parse_system({"name": "AD", "connector": "ldap", "types": types}).types)


TYPES = object_types()
USER, GROUP = TYPES["user"], TYPES["group"]


class DomainController:
    """An administrator, and connectors, in a container of their own."""

    def __init__(self) -> None:
        assert URL is not None
        tls = ldap3.Tls(ca_certs_file=os.environ["TENUTO_SAMBA_CA"])
        self.admin: Any = ldap3.Connection(
            ldap3.Server(URL, tls=tls, get_info=ldap3.NONE),
            ADMINISTRATOR,
            PASSWORD,
            auto_bind=ldap3.AUTO_BIND_TLS_BEFORE_BIND,
            check_names=False,
            raise_exceptions=True,
        )
        self.unit = f"OU=unit{next(_number)},{DOMAIN}"
        self.prefix = f"t{next(_number)}"
        self.admin.add(self.unit, "organizationalUnit")
        self._opened: list[Connector] = []

    def open(self, types: Sequence[ObjectType] = (USER, GROUP), **settings: Any) -> Connector:
        context = ConnectorContext(tuple(types), secrets={"bind": PASSWORD})
        chosen = {
            "url": URL,
            "ca_file": os.environ["TENUTO_SAMBA_CA"],
            "bind_dn": ADMINISTRATOR,
            "password": {"secret": "bind"},
            "base": DOMAIN,
            "types": {"user": {"filter": "(objectCategory=person)"}},
            **settings,
        }
        self._opened.append(registry.open_connector("ldap", chosen, context))
        return self._opened[-1]

    def add_user(self, name: str, container: str | None = None, **attributes: Any) -> str:
        dn = f"CN={name},{container or self.unit}"
        self.admin.add(dn, "user", {"sAMAccountName": f"{self.prefix}{name}", **attributes})
        return dn

    def add_group(self, name: str, members: Sequence[str]) -> str:
        dn = f"CN={name},{self.unit}"
        self.admin.add(dn, "group", {"sAMAccountName": f"{self.prefix}{name}"})
        for start in range(0, len(members), 500):
            self.admin.modify(dn, {"member": [(ldap3.MODIFY_ADD, list(members[start : start + 500]))]})
        return dn

    def raw(self, dn: str, attribute: str) -> bytes:
        self.admin.search(dn, "(objectClass=*)", ldap3.BASE, attributes=[attribute])
        return bytes(self.admin.response[0]["raw_attributes"][attribute][0])

    def guid(self, dn: str) -> str:
        return str(UUID(bytes_le=self.raw(dn, "objectGUID")))

    def scope(self, *types: ObjectType) -> ReadScope:
        return ReadScope(types or (USER, GROUP), containers=(ContainerSelection(self.unit),))

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self.admin.unbind()


@pytest.fixture
def dc() -> Iterator[DomainController]:
    controller = DomainController()
    yield controller
    controller.close()


def read(connector: Connector, scope: ReadScope, since: Any = None) -> list[Any]:
    events = list(connector.read(scope, since))
    assert isinstance(events[-1], ReadComplete)
    return events[:-1]


def by_name(events: Sequence[Any]) -> dict[str, ImportedObject]:
    return {str(each.cells["cn"][0]): each for each in events if isinstance(each, ImportedObject)}


def deleted(events: Sequence[Any]) -> set[str]:
    return {each.anchor for each in events if isinstance(each, DeletedObject)}


# --- reading --------------------------------------------------------------------------------------------------------


def test_samba_discovery_finds_types_anchors_and_containers(dc: DomainController) -> None:
    connector = dc.open()
    connector.check()
    found = connector.discover()
    user = next(each for each in found.types if each.name == "user")
    assert user.anchor == "objectGUID"
    assert user.attributes["manager"].is_reference
    assert dc.unit in {each.address for each in found.containers}
    missing = ObjectType("user", "objectGUID", {**USER.attributes, "shoeSize": USER.attributes["title"]})
    with pytest.raises(ConnectorError, match="shoeSize"):
        dc.open([missing]).check()


def test_samba_full_import_reads_all_pages_with_guid_anchors(dc: DomainController) -> None:
    names = [f"u{number}" for number in range(25)]
    for name in names:
        dc.add_user(name, title=f"title of {name}")
    found = by_name(read(dc.open(page_size=10), dc.scope(USER)))
    assert sorted(found) == sorted(names)
    assert found["u7"].anchor == dc.guid(f"CN=u7,{dc.unit}")
    assert found["u7"].address == f"CN=u7,{dc.unit}"
    assert found["u7"].cells["title"] == ("title of u7",)
    assert int(found["u7"].cells["userAccountControl"][0]) & ENABLED_BIT


def test_samba_group_with_more_members_than_a_range_is_read_to_the_end(dc: DomainController) -> None:
    members = [dc.add_user(f"m{number}") for number in range(1600)]
    dc.add_group("large", members)
    (group,) = read(dc.open(), dc.scope(GROUP))
    assert sorted(group.cells["member"]) == sorted(members)


# --- deltas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["usn", "dirsync"])
def test_samba_delta_finds_new_changed_moved_and_deleted_objects(dc: DomainController, method: str) -> None:
    inner = f"OU=inner,{dc.unit}"
    dc.admin.add(inner, "organizationalUnit")
    for name in ("kept", "changed", "gone", "renamed"):
        dc.add_user(name)
    dc.add_user("below", inner)
    guids = {name: dc.guid(f"CN={name},{dc.unit}") for name in ("gone", "renamed", "changed")}
    connector = dc.open(delta=method)
    connector.check()
    scope = dc.scope()
    since = connector.watermark(scope)
    assert deleted(read(connector, scope, since)) & set(guids.values()) == set()
    dc.add_user("new")
    dc.admin.modify(f"CN=changed,{dc.unit}", {"title": [(ldap3.MODIFY_REPLACE, ["chief"])]})
    dc.admin.modify_dn(f"CN=renamed,{dc.unit}", "CN=other")
    dc.admin.modify_dn(inner, "OU=moved")
    dc.admin.delete(f"CN=gone,{dc.unit}")
    events = read(connector, scope, since)
    found = by_name(events)
    assert set(found) == {"new", "changed", "other", "below"}
    assert found["changed"].cells["title"] == ("chief",)
    assert found["other"].anchor == guids["renamed"]
    assert found["below"].address == f"CN=below,OU=moved,{dc.unit}"
    assert guids["gone"] in deleted(events)
    assert deleted(events).isdisjoint({guids["renamed"], guids["changed"]})
    following = dc.open(delta=method)
    assert by_name(read(following, scope, following.watermark(scope))) == {}


def test_samba_dirsync_delta_ends_with_the_watermark_of_the_next_one(dc: DomainController) -> None:
    for number in range(5):
        dc.add_user(f"p{number}")
    connector, scope = dc.open(delta="dirsync"), dc.scope()
    since = connector.watermark(scope)
    for name in ("p1", "p2"):
        dc.admin.modify(f"CN={name},{dc.unit}", {"title": [(ldap3.MODIFY_REPLACE, ["chief"])]})
        *changed, complete = connector.read(scope, since)
        assert isinstance(complete, ReadComplete)
        assert set(by_name(changed)) == {name}
        since = complete.watermark
    *nothing, _ = connector.read(scope, since)
    assert nothing == []


@pytest.mark.parametrize("method", ["usn", "dirsync"])
def test_samba_delta_reports_a_container_that_is_moved_out_of_the_selection(dc: DomainController, method: str) -> None:
    inner = f"OU=inner {method},{dc.unit}"
    dc.admin.add(inner, "organizationalUnit")
    dc.add_user("below", inner)
    connector, scope = dc.open(delta=method), dc.scope()
    since = connector.watermark(scope)
    assert set(by_name(read(connector, scope))) == {"below"}
    root = dc.unit.partition(",")[2]
    name = f"OU={dc.prefix}{method}"
    dc.admin.modify_dn(inner, name)
    dc.admin.modify_dn(f"{name},{dc.unit}", name, new_superior=root)
    try:
        *events, complete = connector.read(scope, since)
        assert isinstance(complete, ReadComplete)
        assert complete.may_have_moved_containers
        assert by_name(events) == {}
    finally:
        dc.admin.modify_dn(f"{name},{root}", name, new_superior=dc.unit)


def test_samba_values_that_the_server_changes_are_confirmed(dc: DomainController) -> None:
    """A44: what the server stores satisfies the comparison by which an import confirms an export."""
    connector = dc.open([USER])
    address = f"CN=Ada,{dc.unit}"
    changes = sets(cn="Ada", sAMAccountName=f"{dc.prefix}ada", userAccountControl=DISABLED_ACCOUNT, accountExpires=0)
    write(connector, WriteRequest(ExportKind.CREATE, "user", None, address, changes))
    (found,) = read(connector, dc.scope(USER))
    stored = decode_object(USER, found.cells, Decoding()).attributes
    for change in changes:
        equality = USER.attributes[change.attribute].equality
        assert equality.keys(stored[change.attribute]) == equality.keys(change.values), change.attribute


def test_samba_usn_watermark_of_another_controller_is_lost(dc: DomainController) -> None:
    connector = dc.open()
    since = connector.watermark(dc.scope())
    assert since is not None
    assert since["method"] == "usn"
    assert UUID(since["invocation"]).int
    with pytest.raises(WatermarkLost):
        read(connector, dc.scope(), {**since, "invocation": str(UUID(int=1))})


@pytest.mark.parametrize("change", ["delete", "rename", "move"])
def test_samba_member_change_leaves_the_group_out_of_the_usn_delta(dc: DomainController, change: str) -> None:
    """A66: the group has other members, and its uSNChanged is the same; so a delta must not be the only source."""
    inner = f"OU=inner,{dc.unit}"
    dc.admin.add(inner, "organizationalUnit")
    first, second = dc.add_user("first"), dc.add_user("second")
    group = dc.add_group("team", [first, second])
    before = dc.raw(group, "uSNChanged")
    connector = dc.open()
    since = connector.watermark(dc.scope())
    if change == "delete":
        dc.admin.delete(first)
    elif change == "rename":
        dc.admin.modify_dn(first, "CN=other")
    else:
        dc.admin.modify_dn(first, "CN=first", new_superior=inner)
    assert dc.raw(group, "uSNChanged") == before
    assert "team" not in by_name(read(connector, dc.scope(), since))
    (found,) = read(connector, dc.scope(GROUP))
    expected = {"delete": [], "rename": [f"CN=other,{dc.unit}"], "move": [f"CN=first,{inner}"]}[change]
    assert sorted(found.cells["member"]) == sorted([*expected, second])


def definitions(dc: DomainController, method: str) -> str:
    """Return the definitions of the domain as one system without rules."""
    types = [{"name": name, "preset": "ad", "anchor": "objectGUID", "attributes": each} for name, each in RAW.items()]
    settings = {
        "url": URL,
        "ca_file": os.environ["TENUTO_SAMBA_CA"],
        "bind_dn": ADMINISTRATOR,
        "password": {"secret": "bind"},
        "base": DOMAIN,
        "types": {"user": {"filter": "(objectCategory=person)"}},
        "delta": method,
    }
    profiles = [{"name": "Full Import", "kind": "full_import"}, {"name": "Delta Import", "kind": "delta_import"}]
    system = {
        "name": "AD", "connector": "ldap", "settings": settings, "types": types, "containers": [dc.unit],
        "run_profiles": profiles,
    }  # fmt: skip
    return yaml.safe_dump({"systems": [system]})


@pytest.mark.parametrize("method", ["usn", "dirsync"])
async def test_a66_samba_delta_import_corrects_groups_whose_members_were_deleted_or_renamed(
    dc: DomainController, site: Site, method: str
) -> None:
    members = [dc.add_user(f"u{number}") for number in range(1, 9)]
    dc.add_group("team", members)
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(definitions(dc, method))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 9
    dc.admin.delete(members[1])
    dc.admin.modify_dn(members[5], "CN=v6")
    done = await site.run("AD", "Delta Import")
    assert done.state == "completed", done
    (group,) = await site.app.extensions.identity.objects(system="AD", type="group")
    left = [each for each in members if each not in (members[1], members[5])]
    assert sorted(group.reference_values["member"]) == sorted([*left, f"CN=v6,{dc.unit}"])
    assert (await site.run("AD", "Delta Import")).items == []


# --- writing --------------------------------------------------------------------------------------------------------


def write(connector: Connector, *requests: WriteRequest) -> list[Any]:
    results = connector.write(requests)
    assert [each.text for each in results if not each.is_ok] == []
    return results


def sets(**values: Any) -> tuple[WriteChange, ...]:
    return tuple(WriteChange(name, ChangeOp.SET, (value,)) for name, value in values.items())


def test_samba_export_creates_moves_disables_and_deletes_by_guid(dc: DomainController) -> None:
    connector = dc.open(create_containers=True)
    address = f"CN=Ada,OU=Research,{dc.unit}"
    changes = sets(cn="Ada", sAMAccountName=f"{dc.prefix}ada", userAccountControl=DISABLED_ACCOUNT)
    (created,) = write(connector, WriteRequest(ExportKind.CREATE, "user", None, address, changes))
    assert created.anchor == dc.guid(address)
    control = int(dc.raw(address, "userAccountControl"))
    assert control & ENABLED_BIT
    # The server keeps bits that no client sent (such as "no password needed", 32); an export keeps them, too.
    dc.admin.modify(address, {"userAccountControl": [(ldap3.MODIFY_REPLACE, [str(control | 0x10000)])]})
    # An administrator moves the entry; the export still finds it, by its GUID.
    dc.admin.modify_dn(address, "CN=Ada", new_superior=dc.unit)
    moved = f"CN=Ada Lovelace,OU=Engineering,{dc.unit}"
    update = (
        WriteChange("address", ChangeOp.RENAME, (moved,)),
        *sets(cn="Ada Lovelace", title="Director", userAccountControl=DISABLED_ACCOUNT),
    )
    write(connector, WriteRequest(ExportKind.UPDATE, "user", created.anchor, address, update))
    assert dc.guid(moved) == created.anchor
    assert dc.raw(moved, "title") == b"Director"
    assert int(dc.raw(moved, "userAccountControl")) & 0x10002 == 0x10002
    write(connector, WriteRequest(ExportKind.DELETE, "user", created.anchor, moved))
    write(connector, WriteRequest(ExportKind.DELETE, "user", created.anchor, moved))  # may be repeated
    assert by_name(read(connector, dc.scope(USER))) == {}


def test_samba_account_is_a_dn_or_a_principal_name_and_needs_tls(dc: DomainController) -> None:
    dc.open(bind_dn="Administrator@samba.test").check()
    with pytest.raises(ConnectorError) as refused:
        dc.open(tls="none").check()
    assert PASSWORD not in str(refused.value)


def test_samba_export_changes_members_by_single_values(dc: DomainController) -> None:
    first, second = dc.add_user("first"), dc.add_user("second")
    group = dc.add_group("team", [first])
    connector = dc.open()
    changes = (
        WriteChange("member", ChangeOp.ADD, (second,)),
        WriteChange("member", ChangeOp.REMOVE, (first,)),
    )
    request = WriteRequest(ExportKind.UPDATE, "group", dc.guid(group), group, changes)
    write(connector, request)
    write(connector, request)  # may be repeated
    (found,) = read(connector, dc.scope(GROUP))
    assert found.cells["member"] == (second,)
