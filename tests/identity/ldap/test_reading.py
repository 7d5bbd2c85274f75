"""Reading a real slapd: connection and TLS, discovery, complete and partial reads, changes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tenuto.errors import Invalid, MissingExtra
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
)
from tenuto_identity.connectors.ldap.directory import open_client
from tenuto_identity.connectors.ldap.settings import LdapSettings
from tenuto_identity.model.schema import Attribute, ContainerScope, ContainerSelection, ObjectType, Writable
from tenuto_identity.model.values import DataType
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, READER_PASSWORD, SIZE_LIMIT, Slapd
from tests.identity.ldap.test_conformance import PERSON

GROUP = ObjectType(
    "groupOfNames",
    anchor="entryUUID",
    attributes={
        "entryUUID": Attribute("entryUUID", DataType.GUID, writable=Writable.NO),
        "cn": Attribute("cn"),
        "member": Attribute("member", DataType.REFERENCE, multi=True, to="inetOrgPerson"),
    },
    address_is_dn=True,
)
ENTITY = ObjectType("person", "entryUUID", {"entryUUID": PERSON.attributes["entryUUID"], "cn": Attribute("cn")})
READER = {"page_size": 20, "bind_dn": "cn=reader,dc=ad,dc=test", "password": {"secret": "reader"}}
Open = Callable[..., Connector]


@pytest.fixture
def open_connector(slapd: Slapd, ad: Administrator) -> Iterator[Open]:
    opened: list[Connector] = []

    def opener(
        types: Sequence[ObjectType] = (PERSON,), containers: Sequence[ContainerSelection] = (), **settings: Any
    ) -> Connector:
        secrets = {"bind": PASSWORD, "reader": READER_PASSWORD, "empty": ""}
        context = ConnectorContext(tuple(types), secrets=secrets, containers=tuple(containers))
        opened.append(registry.open_connector("ldap", slapd.settings("ad", **settings), context))
        return opened[-1]

    yield opener
    for each in opened:
        each.close()


def names(events: Sequence[Any]) -> list[str]:
    return sorted(str(each.cells["cn"][0]) for each in events if isinstance(each, ImportedObject))


def read(connector: Connector, since: Any = None, types: Sequence[ObjectType] = (PERSON,), **scope: Any) -> list[Any]:
    events = list(connector.read(ReadScope(tuple(types), **scope), since))
    assert isinstance(events[-1], ReadComplete)
    return events[:-1]


# --- connection -----------------------------------------------------------------------------------------------------


def test_tls_is_verified_by_default_with_ldaps_and_starttls(slapd: Slapd, open_connector: Open) -> None:
    open_connector(url=slapd.tls_url).check()
    open_connector(url=slapd.url).check()
    for url in (slapd.tls_url, slapd.url):
        with pytest.raises(ConnectorError, match="certificate") as refused:
            open_connector(url=url, ca_file=None).check()
        assert refused.value.code == "certificate"
        with pytest.raises(ConnectorError) as other_host:
            open_connector(url=url.replace("localhost", "127.0.0.1")).check()
        assert other_host.value.code == "certificate"
        open_connector(url=url, ca_file=None, verify_certificate=False).check()
    open_connector(tls="none").check()


def test_server_without_starttls_is_named(open_connector: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        message = connection.recv(1000)
                        number = message[2 : 4 + message[3]]  # ldap3 counts messages in the process: one byte or two
                        # An extended response with protocolError: the server does not know the operation.
                        refusal = number + b"\x78\x07\x0a\x01\x02\x04\x00\x04\x00"
                        connection.sendall(b"\x30" + bytes([len(refusal)]) + refusal)
                        while connection.recv(1000):  # the client ends the connection
                            pass

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        url = f"ldap://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectorError, match="refuses StartTLS") as refused:
            open_connector(url=url).check()
        assert (refused.value.code, "ldaps://" in str(refused.value.remedy)) == ("tls", True)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_check_names_a_selected_container_that_does_not_exist(open_connector: Open) -> None:
    containers = (ContainerSelection("ou=people,dc=ad,dc=test"), ContainerSelection("ou=peeple,dc=ad,dc=test"))
    with pytest.raises(ConnectorError, match="ou=peeple") as missing:
        open_connector(containers=containers).check()
    assert missing.value.code == "missing_container"


def test_wrong_and_empty_passwords_are_refused_without_their_value(slapd: Slapd, open_connector: Open) -> None:
    with pytest.raises(ConnectorError, match="refuses the account") as refused:
        open_connector(bind_dn="cn=reader,dc=ad,dc=test").check()
    assert refused.value.code == "bind_refused"
    assert PASSWORD not in str(refused.value)
    with pytest.raises(ConnectorError, match="is empty") as empty:
        open_connector(password={"secret": "empty"})
    assert empty.value.code == "password_missing"
    with slapd.stopped(), pytest.raises(ConnectorError, match="cannot be reached") as unreachable:
        open_connector().check()
    assert unreachable.value.code == "unreachable"


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({"url": "http://host"}, "url", "ldaps://HOST"),
        ({"url": "ldap://host:x"}, "url", "not a number"),
        ({"url": "ldap://me:secret@host"}, "url", "bind_dn"),
        ({"bind_dn": "cn=a"}, "", "only one of bind_dn and password"),
        ({"password": "plain"}, "password", "takes the name of a secret"),
        ({"base": "people"}, "base", "TYPE=VALUE"),
        ({"types": {"person": {"filter": "uid=a"}}}, "types.person.filter", "parentheses"),
        ({"types": {"person": {"filter": "(a=b)(c=d)"}}}, "types.person.filter", "parentheses"),
        ({"types": {"person": {"object_class": "a)(b"}}}, "types.person.object_class", "object class"),
        ({"pagesize": 3}, "pagesize", "page_size"),
        ({"delta": "magic"}, "delta", "syncrepl"),
    ],
)
def test_invalid_settings_name_the_setting(settings: dict[str, Any], field: str, text: str) -> None:
    kind = registry.find_connector("ldap")
    with pytest.raises(Invalid) as refused:
        registry.parse_settings(kind, {"url": "ldaps://host", **settings})
    assert refused.value.field == (f"settings.{field}" if field else "settings")
    assert text in f"{refused.value.message} {refused.value.remedy}"


@pytest.mark.parametrize(("library", "extra"), [("auto", "identity"), ("ldap3", "identity"), ("python-ldap", "ldap")])
def test_missing_library_names_the_install_command(monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    monkeypatch.setattr("tenuto_identity.connectors.ldap.directory.find_spec", lambda name: None)
    monkeypatch.setattr("tenuto.extras.find_spec", lambda name: None)
    settings = LdapSettings.model_validate({"url": "ldap://localhost", "library": library})
    with pytest.raises(MissingExtra, match=rf"pip install 'tenuto\[{extra}\]'"):
        open_client(settings, None)


@pytest.mark.parametrize("installed", ["ldap3", "python-ldap"])
def test_python_ldap_is_preferred_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    pytest.importorskip("_ldap", reason="python-ldap is not installed")
    from tenuto_identity.connectors.ldap.protocol import ldap3_client, python_ldap_client

    if installed == "ldap3":
        monkeypatch.setattr(
            "tenuto_identity.connectors.ldap.directory.find_spec", lambda name: None if name == "_ldap" else name
        )
    opened: list[str] = []
    monkeypatch.setattr(ldap3_client, "open_client", lambda *_: opened.append("ldap3"))
    monkeypatch.setattr(python_ldap_client, "open_client", lambda *_: opened.append("python-ldap"))
    open_client(LdapSettings.model_validate({"url": "ldap://localhost"}), None)
    assert opened == [installed]


# --- discovery ------------------------------------------------------------------------------------------------------


def test_discovery_finds_types_partitions_and_containers(open_connector: Open, ad: Administrator) -> None:
    ad.add(f"ou=Research,{ad.people}", "organizationalUnit")
    schema = open_connector(base=[]).discover()
    assert schema.partitions == ("dc=ad,dc=test",)  # the account may not read the others
    containers = {each.address: each.parent for each in open_connector().discover().containers}
    assert containers == {
        "dc=ad,dc=test": None,
        "ou=people,dc=ad,dc=test": "dc=ad,dc=test",
        f"ou=Research,{ad.people}": ad.people,
    }
    person = {each.name: each for each in schema.types}["inetOrgPerson"]
    assert person.anchor == "entryUUID"
    kinds = {name: (each.type.value, each.multi) for name, each in person.attributes.items()}
    assert kinds["manager"] == ("reference", True)
    assert kinds["jpegPhoto"] == ("binary", True)
    assert kinds["employeeNumber"] == ("text", False)
    assert kinds["entryUUID"] == ("guid", False)
    assert person.attributes["entryUUID"].writable is Writable.NO
    assert "userPassword" not in kinds


def test_selected_attribute_that_the_schema_lacks_fails_before_reading(open_connector: Open) -> None:
    wrong = ObjectType("inetOrgPerson", "entryUUID", {**PERSON.attributes, "shoeSize": Attribute("shoeSize")})
    with pytest.raises(ConnectorError, match="shoeSize") as missing:
        read(open_connector([wrong]), types=[wrong])
    assert missing.value.code == "missing_attribute"
    alias = ObjectType("inetOrgPerson", "entryUUID", {**PERSON.attributes, "surname": Attribute("surname")})
    open_connector([alias]).check()


# --- complete reads -------------------------------------------------------------------------------------------------


def test_a28_paged_read_is_complete_and_a_size_limit_is_an_error(open_connector: Open, ad: Administrator) -> None:
    count = SIZE_LIMIT + 15
    for number in range(count):
        ad.person(f"p{number}")
    assert len(read(open_connector(**READER))) == count
    with pytest.raises(ConnectorError, match="size limit") as limited:
        read(open_connector(**READER, paged=False))
    assert limited.value.code == "incomplete"


def test_a29_unreadable_container_is_an_error(open_connector: Open, ad: Administrator) -> None:
    secret = f"ou=secret,{ad.suffix}"
    ad.add(secret, "organizationalUnit")
    ad.person("hidden", secret)
    containers = (ContainerSelection(secret),)
    assert names(read(open_connector(), containers=containers)) == ["hidden"]
    with pytest.raises(ConnectorError, match="may not read it") as missing:
        read(open_connector(**READER), containers=containers)
    assert missing.value.code == "missing_container"


def test_referral_in_the_tree_is_an_error(open_connector: Open, ad: Administrator) -> None:
    ad.connection.add(
        f"ou=elsewhere,{ad.suffix}", ["referral", "extensibleObject"], {"ref": "ldap://other.test/ou=elsewhere"}
    )
    with pytest.raises(ConnectorError, match=r"referrals to other servers: ldap://other\.test"):
        read(open_connector())
    ad.connection.delete(f"ou=elsewhere,{ad.suffix}", controls=[("2.16.840.1.113730.3.4.2", True, None)])


def test_containers_and_types_are_read_once_each_on_several_connections(
    open_connector: Open, ad: Administrator
) -> None:
    research, old = f"ou=Research,{ad.people}", f"ou=old,ou=Research,{ad.people}"
    for container in (research, old):
        ad.add(container, "organizationalUnit")
    for name, container in (("a", ad.people), ("b", research), ("c", old)):
        ad.person(name, container)
    ad.add(f"cn=plain,{ad.people}", "person", sn="plain")
    ad.add(f"cn=group,{ad.people}", "groupOfNames", member=[f"cn=a,{ad.people}"])
    connector = open_connector([ENTITY, PERSON, GROUP])
    events = read(connector, types=[ENTITY, PERSON, GROUP])
    types = {each.cells["cn"][0]: each.type for each in events}
    person = "inetOrgPerson"
    assert types == {
        "a": person, "b": person, "c": person, "plain": "person", "reader": "person", "clerk": "person",
        "group": "groupOfNames",
    }  # fmt: skip
    assert len(events) == len(types)

    def select(*selections: ContainerSelection) -> list[str]:
        return names(read(connector, containers=selections))

    level = ContainerScope.ONE_LEVEL
    assert select(ContainerSelection(ad.people)) == ["a", "b", "c"]
    assert select(ContainerSelection(ad.people), ContainerSelection(research, False)) == ["a"]
    assert select(ContainerSelection(ad.people, scope=level), ContainerSelection(old)) == ["a", "c"]
    assert select(ContainerSelection(ad.people), ContainerSelection(old, False)) == ["a", "b"]
    assert names(read(connector, partition=research)) == ["b", "c"]


def test_failure_of_one_of_several_searches_fails_the_read(open_connector: Open, ad: Administrator) -> None:
    containers = (ContainerSelection(ad.people), ContainerSelection(f"ou=missing,{ad.suffix}"))
    with pytest.raises(ConnectorError, match="ou=missing"):
        read(open_connector(), containers=containers)


@pytest.mark.parametrize("after", [0, 11])
def test_lost_connection_while_pages_are_read_is_an_error(
    slapd: Slapd, open_connector: Open, ad: Administrator, after: int
) -> None:
    for number in range(25):
        ad.person(f"p{number}")
    ad.close()
    with _Relay(slapd.port) as relay:
        connector = open_connector(url=f"ldap://localhost:{relay.port}", page_size=5)
        events = connector.read(ReadScope((PERSON,)), None)
        seen = [next(events) for _ in range(after + 1)]
        relay.cut()
        with pytest.raises(ConnectorError) as lost:
            seen += list(events)
        assert lost.value.code == "unreachable"
        assert not any(isinstance(each, ReadComplete) for each in seen)


class _Relay:
    """Forwards one connection after another to the server, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._hangs = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> _Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._hangs:
                    sink.sendall(data)

    def hang(self) -> None:
        """Forward nothing any more, and keep the connections open."""
        self._hangs = True

    def drop(self) -> None:
        """End the connections of now; further ones are accepted."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


# --- changes --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["accesslog", "syncrepl"])
def delta(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a25_delta_has_each_changed_entry_once_with_its_current_name(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    unit, other = f"ou=unit,{ad.people}", f"ou=other,{ad.suffix}"
    for container in (unit, other):
        ad.add(container, "organizationalUnit")
    uuids = {name: ad.person(name) for name in ("stays", "changed", "gone", "renamed", "both")}
    uuids["child"] = ad.person("child", unit)
    uuids["mover"] = ad.person("mover")
    connector = open_connector(delta=delta)
    scope: dict[str, Any] = {"containers": (ContainerSelection(ad.people),)}
    watermark = connector.watermark(ReadScope((PERSON,), **scope))
    assert read(connector, watermark, **scope) == []

    uuids["new"] = ad.person("new")
    uuids["brief"] = ad.person("brief")
    ad.delete(f"cn=brief,{ad.people}")
    ad.person("foreign", other)
    ad.modify(f"cn=changed,{ad.people}", title=["x"])
    ad.delete(f"cn=gone,{ad.people}")
    ad.rename(f"cn=renamed,{ad.people}", "cn=another")
    ad.rename(f"cn=both,{ad.people}", "cn=both two")
    ad.modify(f"cn=both two,{ad.people}", title=["y"])
    ad.rename(unit, "ou=unit two")
    events = read(connector, watermark, **scope)
    found = {each.anchor: each for each in events if isinstance(each, ImportedObject)}
    assert len(found) == sum(isinstance(each, ImportedObject) for each in events)
    assert {each.address.removesuffix(f",{ad.people}") for each in found.values()} == {
        "cn=new", "cn=changed", "cn=another", "cn=both two", "cn=child,ou=unit two",
    }  # fmt: skip
    assert found[uuids["both"]].cells["title"] == ("y",)
    deleted = {each.anchor for each in events if isinstance(each, DeletedObject)}
    assert uuids["gone"] in deleted
    assert deleted & set(uuids.values()) <= {uuids["gone"], uuids["brief"]}  # others were never in the scope
    watermark = connector.watermark(ReadScope((PERSON,), **scope))
    assert read(connector, watermark, **scope) == []

    ad.rename(f"cn=mover,{ad.people}", "cn=mover", other)
    left = [each.anchor for each in read(connector, watermark, **scope) if isinstance(each, DeletedObject)]
    assert left == [uuids["mover"]]


def test_delta_of_two_bases_does_not_delete_an_entry_that_was_moved_between_them(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    staff, external = f"ou=staff,{ad.suffix}", f"ou=external,{ad.suffix}"
    for container in (staff, external):
        ad.add(container, "organizationalUnit")
    uuids = {name: ad.person(name, staff) for name in ("mover", "gone")}
    connector = open_connector(delta=delta, base=[staff, external])
    watermark = connector.watermark(ReadScope((PERSON,)))
    ad.rename(f"cn=mover,{staff}", "cn=mover", external)
    ad.delete(f"cn=gone,{staff}")
    events = read(connector, watermark)
    assert names(events) == ["mover"]
    assert {each.anchor for each in events if isinstance(each, DeletedObject)} == {uuids["gone"]}


def test_a26_log_that_does_not_reach_back_is_a_lost_watermark(open_connector: Open, ad: Administrator) -> None:
    connector = open_connector(delta="accesslog")
    ad.person("a")
    watermark: Any = connector.watermark(ReadScope((PERSON,)))
    (log, newest), *_ = watermark["logs"].items()
    early = {**watermark, "logs": {log: {server: f"2000{csn[4:]}" for server, csn in newest.items()}}}
    with pytest.raises(WatermarkLost, match="begins at"):
        read(connector, early)
    late = {**watermark, "logs": {log: {server: f"3000{csn[4:]}" for server, csn in newest.items()}}}
    with pytest.raises(WatermarkLost, match="ends before"):
        read(connector, late)
    with pytest.raises(WatermarkLost, match="syncrepl"):
        read(open_connector(delta="syncrepl"), watermark)


def test_a26_refresh_beyond_the_session_log_is_a_lost_watermark(open_connector: Open, ad: Administrator) -> None:
    connector = open_connector(delta="syncrepl")
    ad.person("a")
    old = {"method": "syncrepl", "cookies": {ad.suffix: "rid=000,csn=20000101000000.000000Z#000000#000#000000"}}
    with pytest.raises(WatermarkLost, match="sessionlog"):
        read(connector, old)


def test_modify_timestamp_finds_changes_and_warns_about_deletions(open_connector: Open, ad: Administrator) -> None:
    connector = open_connector(delta="modify_timestamp")
    ad.person("a")
    watermark = connector.watermark(ReadScope((PERSON,)))
    ad.person("b")
    warning, *events = read(connector, watermark)
    assert warning.code == "no_deletions"
    assert "b" in names(events)


def test_auto_prefers_syncrepl_and_uses_the_log_without_it(open_connector: Open, ad: Administrator) -> None:
    connector = open_connector()
    watermark = connector.watermark(ReadScope((PERSON,)))
    assert watermark is not None
    assert watermark["method"] == "syncrepl"
    assert open_connector(delta="none").watermark(ReadScope((PERSON,))) is None


def test_delta_whose_method_does_not_fit_the_anchor_does_not_begin(open_connector: Open, ad: Administrator) -> None:
    by_uid = replace(PERSON, anchor="uid", attributes={"uid": Attribute("uid"), "cn": Attribute("cn")})
    for name in ("stays", "gone"):
        ad.person(name, uid=name)
    connector = open_connector([by_uid])
    connector.check()  # full imports need no other anchor
    watermark = connector.watermark(ReadScope((by_uid,)))
    ad.delete(f"cn=gone,{ad.people}")
    text = "delta syncrepl needs the anchor entryUUID, and the type inetOrgPerson has uid"
    with pytest.raises(WatermarkLost, match=f"{text}; choose that anchor, or delta: none"):
        read(connector, watermark, [by_uid])
    assert names(read(connector, None, [by_uid])) == ["stays"]  # what an import does then

    explicit = open_connector([by_uid], delta="syncrepl")
    for begin in (explicit.check, lambda: read(explicit, watermark, [by_uid])):
        with pytest.raises(ConnectorError, match=text) as refused:
            begin()
        assert (refused.value.code, refused.value.remedy) == ("delta", "choose that anchor, or delta: none")


def test_delta_reports_a_container_that_is_moved_out_of_the_selection(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    unit = f"ou=unit,{ad.people}"
    ad.add(unit, "organizationalUnit")
    ad.person("child", unit)
    connector = open_connector(delta=delta)
    scope = ReadScope((PERSON,), containers=(ContainerSelection(ad.people),))
    watermark = connector.watermark(scope)
    ad.modify(f"cn=child,{unit}", title=["x"])
    assert not _completed(connector, scope, watermark).may_have_moved_containers
    ad.rename(unit, "ou=unit", ad.suffix)
    assert _completed(connector, scope, watermark).may_have_moved_containers


def _completed(connector: Connector, scope: ReadScope, since: Any) -> ReadComplete:
    *_, complete = connector.read(scope, since)
    assert isinstance(complete, ReadComplete)
    return complete
