"""Entries that are moved while a real slapd is read, or out of what is read; connections after an early end."""

from __future__ import annotations

import base64
import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    ConnectorContext,
    ConnectorError,
    ConnectorKind,
    DeletedObject,
    ImportedObject,
    ReadEvent,
    ReadScope,
    Watermark,
    WatermarkLost,
    WriteChange,
)
from tenuto_identity.connectors.ldap.connector import LDAP, LdapConnector
from tenuto_identity.connectors.ldap.delta import methods
from tenuto_identity.connectors.ldap.entries import EntryReader, merge_ranges
from tenuto_identity.connectors.ldap.protocol import ber, controls
from tenuto_identity.connectors.ldap.protocol.client import Entry, Reply, Search
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.connectors.ldap.settings import LdapSettings
from tenuto_identity.model.schema import Attribute, ContainerSelection, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp
from tenuto_identity.model.values import DataType
from tests.identity.ldap import test_active_directory as domain_controller
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, Slapd
from tests.identity.ldap.test_conformance import PERSON
from tests.identity.ldap.test_nightly_run import _master_key, definitions, directory_system
from tests.identity.ldap.test_reading import GROUP, Open, _Relay, names, open_connector, read
from tests.identity.ldap.test_writing import create, update, write
from tests.identity.scenario_site import NIGHT, Site

__all__ = ["_master_key", "open_connector"]  # fixtures


def units(ad: Administrator, *unit_names: str) -> list[str]:
    """Create containers below the suffix; return their names."""
    for name in unit_names:
        ad.add(f"ou={name},{ad.suffix}", "organizationalUnit")
    return [f"ou={name},{ad.suffix}" for name in unit_names]


# --- moved while reading --------------------------------------------------------------------------------------------


def test_full_read_of_two_bases_has_an_entry_that_is_moved_into_the_one_that_was_read(
    open_connector: Open, ad: Administrator
) -> None:
    first, second = units(ad, "first", "second")
    unit = f"ou=unit,{second}"
    ad.add(unit, "organizationalUnit")
    ad.person("a", first)
    ad.person("b", second)
    ad.person("mover", second)
    ad.person("child", unit)
    events = open_connector(base=[first, second], concurrency=1).read(ReadScope((PERSON,)), None)
    found = [next(events)]
    ad.rename(f"cn=mover,{second}", "cn=mover", first)
    ad.rename(unit, "ou=unit", first)
    found += list(events)
    assert set(names(found)) == {"a", "b", "child", "mover"}
    assert {each.address for each in found if isinstance(each, ImportedObject)} >= {
        f"cn=mover,{first}",
        f"cn=child,ou=unit,{first}",
    }


def test_delta_of_two_bases_has_an_entry_that_is_moved_back_while_it_is_looked_up(
    open_connector: Open, ad: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = units(ad, "first", "second")
    uuid = ad.person("mover", second)
    connector = open_connector(base=[first, second], delta="accesslog")
    watermark = connector.watermark(ReadScope((PERSON,)))
    ad.modify(f"cn=mover,{second}", title=["x"])
    from tenuto_identity.connectors.ldap.directory import Directory

    searched = Directory.search_pages

    def search_pages(directory: Directory, search: Search) -> Iterator[Sequence[Entry]]:
        """Move the entry after the first base was searched."""
        yield from searched(directory, search)
        if search.base == first and uuid in search.filter:
            ad.rename(f"cn=mover,{second}", "cn=mover", first)
            monkeypatch.undo()

    monkeypatch.setattr(Directory, "search_pages", search_pages)
    events = read(connector, watermark)
    assert names(events) == ["mover"]
    assert not [each for each in events if isinstance(each, DeletedObject) and each.anchor == uuid]


@pytest.mark.parametrize("change", ["moved", "changed", "deleted", "moved to a sibling of the base"])
def test_ldap_delta_with_a_filter_finds_an_entry_that_is_changed_after_it_was_looked_up(
    slapd: Slapd, ad: Administrator, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, second = units(ad, "first", "second")
    ad.add(f"ou=unit,{first}", "organizationalUnit")
    uuid, other = ad.person("mover", first, title=["x"]), ad.person("other", first, title=["x"])
    chosen = slapd.settings("ad", base=[first], delta="accesslog", types={PERSON.name: {"filter": "(title=x)"}})
    connector = registry.open_connector("ldap", chosen, ConnectorContext((PERSON,), secrets={"bind": PASSWORD}))
    watermark = connector.watermark(ReadScope((PERSON,)))
    for name in ("mover", "other"):
        ad.modify(f"cn={name},{first}", sn=["new"])
    from tenuto_identity.connectors.ldap.full_import import DirectoryReader

    looked_up = DirectoryReader.find_by_uuid

    def find_by_uuid(reader: DirectoryReader, identifiers: Sequence[str]) -> Iterator[tuple[Entry, str]]:
        """Change the entry after it was looked up."""
        for entry, identifier in looked_up(reader, identifiers):
            if identifier == uuid:
                monkeypatch.undo()
                if change == "deleted":
                    ad.delete(f"cn=mover,{first}")
                elif change == "changed":
                    ad.modify(f"cn=mover,{first}", title=["y"])
                else:
                    ad.rename(f"cn=mover,{first}", "cn=mover", f"ou=unit,{first}" if change == "moved" else second)
            yield entry, identifier

    monkeypatch.setattr(DirectoryReader, "find_by_uuid", find_by_uuid)
    with closing(connector):
        events = read(connector, watermark)
    found = {each.anchor: each.address for each in events if isinstance(each, ImportedObject)}
    deleted = [each.anchor for each in events if isinstance(each, DeletedObject)]
    if change == "moved":
        assert (found, deleted) == ({uuid: f"cn=mover,ou=unit,{first}", other: f"cn=other,{first}"}, [])
    else:
        assert (found, deleted) == ({other: f"cn=other,{first}"}, [uuid])


class _Mover(LdapConnector):
    """Reads a directory, and moves an entry when the first object has been read."""

    move: Any = None

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        events = super().read(scope, since)
        if scope.anchors is None and _Mover.move is not None:
            yield next(events)
            move, _Mover.move = _Mover.move, None
            move()
        yield from events


@pytest.fixture
def mover(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Mover]]:
    kind = replace(LDAP, open=_Mover)
    monkeypatch.setitem(registry._BUILT_IN, "ldap", kind)
    assert isinstance(kind, ConnectorKind)
    yield _Mover
    _Mover.move = None


def system(slapd: Slapd, *containers: str, **settings: Any) -> str:
    """Return the definitions of one directory."""
    found = directory_system(slapd, "AD", "ad", {"cn": "text", "sn": "text", "title": "text"})
    found["settings"].update(settings)
    found["containers"] = list(containers)
    return yaml.safe_dump({"systems": [found]})


@pytest.mark.parametrize("has_position", [True, False], ids=["syncprov", "no syncprov"])
async def test_import_neither_deletes_nor_refuses_an_entry_that_is_moved_between_two_searches(
    site: Site,
    slapd: Slapd,
    ad: Administrator,
    mover: type[_Mover],
    monkeypatch: pytest.MonkeyPatch,
    has_position: bool,
) -> None:
    first, second = units(ad, "first", "second")
    for name, container in (("a", first), ("b", second), ("mover", second)):
        ad.person(name, container)
    if not has_position:  # as a server without contextCSN
        monkeypatch.setattr("tenuto_identity.connectors.ldap.directory.Directory.context_csn", lambda *_: [])
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(system(slapd, base=[first, second], concurrency=1))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 3

    mover.move = lambda: ad.rename(f"cn=mover,{second}", "cn=mover", first)  # into what was read: seen by no search
    done = await site.run("AD", "Full Import")
    assert (done.changes, done.errors) == (["Updated"], [])
    assert await site.count("connector_objects", f"address = 'cn=mover,{first}' AND state = 'normal'") == 1

    mover.move = lambda: ad.rename(f"cn=mover,{first}", "cn=mover", second)  # out of what was read: seen twice
    done = await site.run("AD", "Full Import")
    assert (set(done.changes), done.errors) == ({"Updated"}, [])
    assert await site.count("connector_objects", "state = 'normal'") == 3
    assert await site.count("connector_objects", f"address = 'cn=mover,{second}'") == 1


# --- moved out of reach ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_delta_import_deletes_what_left_the_selection_and_keeps_what_was_deselected(
    site: Site, slapd: Slapd, ad: Administrator, delta: str
) -> None:
    first, second, other = units(ad, "first", "second", "other")
    for name, container in (("stays", first), ("leaves", first), ("frozen", second), ("fired", first)):
        ad.person(name, container, title="staff")
    await site.app.secrets.set("bind", PASSWORD)
    types = {"inetOrgPerson": {"filter": "(title=staff)"}}
    await site.apply(system(slapd, first, second, delta=delta, types=types))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 4
    await site.apply(system(slapd, first, delta=delta, types=types))
    ad.modify(f"cn=frozen,{second}", sn=["changed"])
    ad.rename(f"cn=leaves,{first}", "cn=leaves", other)
    ad.modify(f"cn=fired,{first}", title=["former"])  # does not satisfy the filter any more
    done = await site.run("AD", "Delta Import")
    assert (done.changes, {each["display"] for each in done.items}) == (["Deleted"] * 2, {"fired", "leaves"})
    ad.delete(f"cn=frozen,{second}")
    assert (await site.run("AD", "Delta Import")).changes == []
    assert await site.count("connector_objects") == 2


async def test_export_sends_nothing_to_containers_that_are_not_selected(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    await site.app.secrets.set("bind", PASSWORD)
    found = yaml.safe_load(definitions(site, slapd))
    found["systems"][1]["containers"] = [f"ou=Research,{ad.people}"]
    await site.apply(yaml.safe_dump(found))
    for system_name, profile in NIGHT[:2]:
        await site.run(system_name, profile)
    done = await site.run("AD", "Export")
    assert (set(done.changes), set(done.errors)) == ({"Exported"}, {"out_of_reach"})
    assert all(f"ou=Research,{ad.people}" in each for each in ad.entries())
    (message,) = {each["message"] for each in done.items if each["error"] and "Grace" in (each["display"] or "")}
    assert "containers" in message


async def test_full_import_keeps_what_is_below_a_base_that_is_not_read_any_more(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    first, second = units(ad, "first", "second")
    for name, container in (("a", first), ("b", second)):
        ad.person(name, container)
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(system(slapd, base=[first, second]))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 2
    await site.apply(system(slapd, base=[first]))
    done = await site.run("AD", "Full Import")
    assert (done.state, done.changes) == ("completed", [])
    assert await site.count("connector_objects", "state = 'normal'") == 2


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_delta_import_keeps_what_is_below_a_base_that_is_not_read_any_more(
    site: Site, slapd: Slapd, ad: Administrator, delta: str
) -> None:
    first, second = units(ad, "first", "second")
    for name, container in (("a", first), ("b", second)):
        ad.person(name, container)
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(system(slapd, base=[first, second], delta=delta))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 2
    await site.apply(system(slapd, base=[first], delta=delta))
    ad.modify(f"cn=b,{second}", sn=["changed"])
    assert (await site.run("AD", "Delta Import")).changes == []


@pytest.mark.parametrize("delta", ["accesslog", "modify_timestamp", "syncrepl"])
def test_ldap_delta_after_a_change_of_the_bases_is_a_lost_watermark(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    first, second = units(ad, "first", "second")
    watermark = open_connector(base=[first], delta=delta).watermark(ReadScope((PERSON,)))
    assert read(open_connector(base=[first], delta=delta), watermark) is not None
    with pytest.raises(WatermarkLost, match="the bases are"):
        read(open_connector(base=[first, second], delta=delta), watermark)


# --- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
def test_delta_with_small_pages_reads_below_renamed_containers(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    parents = units(ad, *(f"u{number}" for number in range(6)))
    for parent in parents:
        for number in range(3):
            ad.person(f"{parent[3:5]}p{number}", parent)
    connector = open_connector(delta=delta, page_size=2)
    watermark = connector.watermark(ReadScope((PERSON,)))
    for number, parent in enumerate(parents):
        ad.rename(parent, f"ou=v{number}")
    assert len(names(read(connector, watermark))) == 18


def test_read_that_ends_early_leaves_no_page_behind(open_connector: Open, ad: Administrator) -> None:
    for number in range(12):
        ad.person(f"p{number}")
    connector = open_connector(page_size=3)
    events = connector.read(ReadScope((PERSON,)), None)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert len(read(connector)) == 12


# --- connections ----------------------------------------------------------------------------------------------------


def open_sockets() -> set[str]:
    gc.collect()
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = str(each.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def test_errors_and_early_ends_leave_no_connection_open(slapd: Slapd, open_connector: Open, ad: Administrator) -> None:
    for unit in units(ad, "one", "two", "three"):
        for number in range(9):
            ad.person(f"p{number}", unit)
    selected = tuple(ContainerSelection(f"ou={each},{ad.suffix}") for each in ("one", "two", "three"))
    before = open_sockets()
    for settings in (
        {"bind_dn": "cn=reader,dc=ad,dc=test"},
        {"ca_file": None},
        {"url": slapd.tls_url, "ca_file": None},
    ):
        with pytest.raises(ConnectorError):
            open_connector(**settings).check()
    assert open_sockets() == before
    connector = open_connector(page_size=2)
    events = connector.read(ReadScope((PERSON,), selected), None)
    next(events)
    events.close()  # type: ignore[attr-defined]
    with pytest.raises(ConnectorError):
        read(connector, containers=(*selected, ContainerSelection(f"ou=missing,{ad.suffix}")))
    connector.close()
    assert open_sockets() == before


@pytest.mark.timeout(60)
def test_end_of_a_read_on_several_connections_does_not_wait_for_a_server_that_hangs(
    slapd: Slapd, open_connector: Open, ad: Administrator
) -> None:
    for unit in units(ad, "one", "two"):
        for number in range(9):
            ad.person(f"p{number}", unit)
    selected = tuple(ContainerSelection(f"ou={each},{ad.suffix}") for each in ("one", "two"))
    with _Relay(slapd.port) as relay:
        connector = open_connector(
            url=f"ldap://localhost:{relay.port}", page_size=1, connect_timeout_seconds=1, timeout_seconds=600
        )
        events = connector.read(ReadScope((PERSON,), selected), None)
        next(events)
        relay.hang()
        closing = threading.Thread(target=events.close)  # type: ignore[attr-defined]
        closing.start()
        closing.join(50)
        assert not closing.is_alive()
        connector.close()


# --- attribute options ----------------------------------------------------------------------------------------------


def test_values_with_a_language_are_other_attributes_unless_the_definition_names_them(
    open_connector: Open, ad: Administrator
) -> None:
    attributes = {**PERSON.attributes, "description;lang-de": Attribute("description;lang-de")}
    both = ObjectType("inetOrgPerson", "entryUUID", attributes, address_is_dn=True)
    ad.person("a", **{"description": "plain", "description;lang-de": "deutsch", "description;lang-fr": "français"})
    (found,) = read(open_connector())
    assert found.cells["description"] == ("plain",)
    connector = open_connector([both])
    (found,) = read(connector, types=[both])
    assert (found.cells["description"], found.cells["description;lang-de"]) == (("plain",), ("deutsch",))
    (made,) = write(connector, create(f"cn=b,{ad.people}", sn="b", **{"description;lang-de": "neu"}))
    write(connector, update(made, WriteChange("description;lang-de", ChangeOp.SET, ("neuer",))))
    assert ad.entries()[f"cn=b,{ad.people}"]["description;lang-de"] == ["neuer"]
    ad.person("c", **{"description;lang-fr": "seul"})
    assert {each.address[3]: each.cells.get("description") for each in read(connector, types=[both])} == {
        "a": ("plain",), "b": None, "c": None,
    }  # fmt: skip


def test_certificates_are_written_and_read_with_the_option_binary(
    slapd: Slapd, open_connector: Open, ad: Administrator
) -> None:
    pem = x509.load_pem_x509_certificate(slapd.certificate.read_bytes())
    der = pem.public_bytes(serialization.Encoding.DER)
    attributes = {**PERSON.attributes, "userCertificate": Attribute("userCertificate", DataType.BINARY, multi=True)}
    person = ObjectType("inetOrgPerson", "entryUUID", attributes, address_is_dn=True)
    connector = open_connector([person])
    value = base64.b64encode(der).decode()
    (made,) = write(connector, create(f"cn=a,{ad.people}", sn="a", userCertificate=value))
    (found,) = read(connector, types=[person])
    assert found.cells["userCertificate"] == (der,)
    write(connector, update(made, WriteChange("userCertificate", ChangeOp.ADD, (value,))))  # it is there already
    write(connector, update(made, WriteChange("userCertificate", ChangeOp.REMOVE, (value,))))
    (found,) = read(connector, types=[person])
    assert "userCertificate" not in found.cells


def test_ranged_values_of_an_attribute_with_an_option_are_complete() -> None:
    entry = Entry("cn=a", {"userCertificate;binary;range=0-0": [b"a"]})
    rest = {"userCertificate;binary;range=1-*": [b"b"]}
    assert merge_ranges(entry, {"userCertificate;binary;range=1-*": rest}.__getitem__).attributes == {
        "userCertificate;binary": [b"a", b"b"]
    }


def test_placeholder_of_a_class_below_group_of_names_is_not_imported() -> None:
    schema = DirectorySchema(
        (), ["( 2.5.6.9 NAME 'groupOfNames' SUP top STRUCTURAL )", "( 1.2.3 NAME 'team' SUP groupOfNames STRUCTURAL )"]
    )
    team = replace(GROUP, name="team")
    reader = EntryReader(team, LdapSettings.model_validate({"url": "ldaps://host"}), schema)
    entry = Entry("cn=t", {"member": [b"cn=tenuto-placeholder", b"cn=a"]})
    assert reader.read(entry).cells["member"] == ("cn=a",)


# --- DirSync --------------------------------------------------------------------------------------------------------


def test_dirsync_watermark_keeps_one_part_of_the_directory_in_memory() -> None:
    live: list[int] = []

    def answer(request: Search) -> Reply:
        live.append(sum(isinstance(each, Entry) for each in gc.get_objects()))
        (control,) = (each for each in request.controls if each.oid == controls.DIRSYNC)
        _, _, cookie = ber.decode_one(control.value or b"", ber.SEQUENCE).children()
        number = int(cookie.content or b"0")
        value = ber.sequence(ber.integer(number < 9), ber.integer(0), ber.octets(str(number + 1)))
        entries = [domain_controller.user(each % 10) for each in range(100)]
        return Reply(0, entries=entries, controls={controls.DIRSYNC: value})

    client = domain_controller.ScriptedClient(
        [(lambda request: any(each.oid == controls.DIRSYNC for each in request.controls), answer)]
    )
    source = domain_controller.reader(client, delta="dirsync")
    watermark = methods.current_watermark(source.directory, source.scope)
    assert watermark is not None
    assert base64.b64decode(watermark["cookies"][domain_controller.BASE]) == b"10"
    assert max(live) - live[0] <= 200
