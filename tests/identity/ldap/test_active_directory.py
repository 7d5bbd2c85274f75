"""Active Directory: values and deltas against replies written by hand. `test_samba.py` uses a domain controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from tenuto_identity.connectors.contract import (
    ConnectorError,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadScope,
    ReadWarning,
    WatermarkLost,
    WriteChange,
    WriteRequest,
)
from tenuto_identity.connectors.ldap.delta import methods
from tenuto_identity.connectors.ldap.directory import AD_CAPABILITY, Directory
from tenuto_identity.connectors.ldap.entries import encode_value, merge_masked, merge_ranges
from tenuto_identity.connectors.ldap.export import DirectoryWriter
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.protocol import ber, controls
from tenuto_identity.connectors.ldap.protocol.client import (
    Code,
    Delete,
    Entry,
    Modify,
    ModifyDn,
    Reply,
    Request,
    Search,
)
from tenuto_identity.connectors.ldap.schema_parser import DirectorySchema
from tenuto_identity.connectors.ldap.settings import LdapSettings
from tenuto_identity.model.schema import Attribute, ContainerSelection, ObjectType, Writable
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Equality, EqualityKind

BASE = "DC=ad,DC=test"
GUIDS = [UUID(f"{number:08x}-1111-2222-3333-444444444444") for number in range(10)]
INVOCATION = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
USER = ObjectType(
    "user",
    anchor="objectGUID",
    attributes={
        "objectGUID": Attribute("objectGUID", DataType.GUID, writable=Writable.NO),
        "cn": Attribute("cn"),
        "member": Attribute("member", DataType.REFERENCE, multi=True, to="user"),
        "userAccountControl": Attribute(
            "userAccountControl", DataType.INTEGER, equality=Equality(EqualityKind.MASK, bits=0x2)
        ),
    },
    address_is_dn=True,
)
Answer = Callable[[Any], Reply]


class ScriptedClient:
    """Plays the replies of a domain controller: each answer is given to the requests that it matches."""

    def __init__(self, answers: Sequence[tuple[Callable[[Any], bool], Reply | Answer]], usn: int = 200) -> None:
        self.requests: list[Request] = []
        self.usn = usn
        self.host = b"dc1.ad.test"
        self._answers = answers

    def send(self, request: Request) -> int:
        self.requests.append(request)
        return len(self.requests) - 1

    def receive(self, message_number: int) -> Reply:
        request = self.requests[message_number]
        if isinstance(request, Search) and request.base == "":
            return Reply(0, entries=[Entry("", self._root())])
        if isinstance(request, Search) and request.base == "CN=NTDS Settings":
            return Reply(0, entries=[Entry(request.base, {"invocationId": [INVOCATION.bytes_le]})])
        for matches, answer in self._answers:
            if matches(request):
                return answer(request) if callable(answer) else answer
        return Reply(0)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _root(self) -> Mapping[str, Sequence[bytes]]:
        return {
            "supportedCapabilities": [AD_CAPABILITY.encode()],
            "supportedControl": [controls.PAGED_RESULTS.encode(), controls.DIRSYNC.encode()],
            "namingContexts": [BASE.encode(), f"CN=Configuration,{BASE}".encode()],
            "defaultNamingContext": [BASE.encode()],
            "highestCommittedUSN": [str(self.usn).encode()],
            "dsServiceName": [b"CN=NTDS Settings"],
            "dnsHostName": [self.host],
        }


def user(number: int, **more: Sequence[bytes]) -> Entry:
    return Entry(
        f"CN=u{number},OU=people,{BASE}",
        {"objectGUID": [GUIDS[number].bytes_le], "cn": [f"u{number}".encode()], **more},
    )


def reader(client: ScriptedClient, **settings: Any) -> DirectoryReader:
    directory = Directory(LdapSettings.model_validate({"url": "ldaps://dc1.ad.test", **settings}), None, client)
    return DirectoryReader(directory, ReadScope((USER,)), DirectorySchema((), ()))


def has(text: str) -> Callable[[Any], bool]:
    return lambda request: isinstance(request, Search) and text in request.filter


def test_full_read_decodes_guids_and_reads_ranged_attributes_to_the_end() -> None:
    first = user(1, **{"member": [], "member;range=0-1": [b"CN=a", b"CN=b"]})

    def more(request: Search) -> Reply:
        (name,) = request.attributes
        assert name in ("member;range=2-*", "member;range=4-*")
        is_last = name == "member;range=4-*"
        delivered = {"member;range=4-*": [b"CN=e"]} if is_last else {"member;range=2-3": [b"CN=c", b"CN=d"]}
        return Reply(0, entries=[Entry(first.dn, delivered)])

    client = ScriptedClient(
        [
            (lambda request: any(";range=" in each for each in getattr(request, "attributes", ())), more),
            (has("objectClass=user"), Reply(0, entries=[first])),
        ]
    )
    found, _ = list(reader(client).read_all())
    assert isinstance(found, ImportedObject)
    assert found.anchor == str(GUIDS[1])
    assert found.cells["member"] == ("CN=a", "CN=b", "CN=c", "CN=d", "CN=e")
    assert all(controls.DOMAIN_SCOPE in [c.oid for c in each.controls] for each in client.requests if _is_read(each))


def _shows_deleted(request: Request) -> bool:
    return controls.SHOW_DELETED in [each.oid for each in request.controls]


def _is_read(request: Request) -> bool:
    return isinstance(request, Search) and request.base.endswith(BASE)


def test_ranged_attribute_that_ends_early_is_an_error() -> None:
    with pytest.raises(ConnectorError, match="returned 2 values and then none") as cut:
        merge_ranges(Entry("CN=g", {"member;range=0-1": [b"a", b"b"]}), lambda name: {})
    assert cut.value.code == "incomplete"


def test_usn_delta_finds_changes_deletions_and_objects_below_changed_containers() -> None:
    unit = Entry(f"OU=people,{BASE}", {})
    client = ScriptedClient(
        [
            (_shows_deleted, Reply(0, entries=[user(1), user(3, isDeleted=[b"TRUE"]), user(4), user(5)])),
            (has("objectGUID="), Reply(0, entries=[user(5)])),
            (has("organizationalUnit"), Reply(0, entries=[unit])),
            (has("uSNChanged"), Reply(0, entries=[user(1)])),
            (lambda request: getattr(request, "base", "") == unit.dn, Reply(0, entries=[user(1), user(2)])),
        ]
    )
    source = reader(client)
    client.usn = 150
    watermark = methods.current_watermark(source.directory, source.scope)
    assert watermark == {
        "method": "usn",
        "bases": [BASE],
        "usn": 150,
        "host": "dc1.ad.test",
        "invocation": str(INVOCATION),
    }
    client.usn = 200
    events = list(methods.read_changes(source, watermark))
    found = [each.anchor for each in events if isinstance(each, ImportedObject)]
    assert found == [str(GUIDS[1]), str(GUIDS[2]), str(GUIDS[5])]  # 5 was moved between two searches
    # 4 was moved out of the scope.
    assert [each.anchor for each in events if isinstance(each, DeletedObject)] == [str(GUIDS[3]), str(GUIDS[4])]
    (changed,) = (each for each in client.requests if _shows_deleted(each) and has("uSNChanged")(each))
    assert "(uSNChanged>=151)" in changed.filter  # type: ignore[union-attr]
    assert not [each for each in events if isinstance(each, ReadWarning)]


def _no_deleted_objects(answer: Reply) -> ScriptedClient:
    """A domain controller whose answer for the container of deleted objects is this one."""
    return ScriptedClient([(lambda request: getattr(request, "base", "") == f"CN=Deleted Objects,{BASE}", answer)])


@pytest.mark.parametrize("answer", [Reply(Code.NO_SUCH_OBJECT), Reply(Code.INSUFFICIENT_ACCESS), Reply(0)])
def test_usn_delta_warns_without_the_right_to_read_deleted_objects(answer: Reply) -> None:
    source = reader(_no_deleted_objects(answer))
    watermark = methods.current_watermark(source.directory, source.scope)
    assert watermark is not None
    events = list(methods.read_changes(source, watermark))
    (warning,) = (each for each in events if isinstance(each, ReadWarning))
    assert (warning.code, warning.is_error) == ("no_deletions", False)
    assert f"CN=Deleted Objects,{BASE}" in warning.message
    assert "List Contents" in warning.message

    methods.check(source.directory, source.scope.types)  # `auto`: the delta warns
    chosen = reader(_no_deleted_objects(answer), delta="usn")
    with pytest.raises(ConnectorError, match="Deleted Objects") as refused:
        methods.check(chosen.directory, chosen.scope.types)
    assert refused.value.code == "delta"
    readable = reader(_no_deleted_objects(Reply(0, entries=[Entry(f"CN=Deleted Objects,{BASE}", {})])), delta="usn")
    methods.check(readable.directory, readable.scope.types)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "dc2.ad.test"},
        {"invocation": str(GUIDS[0])},
        {"usn": 500},
        {"method": "dirsync"},
        {"bases": [f"OU=people,{BASE}"]},
    ],
)
def test_usn_watermark_of_another_domain_controller_or_other_bases_is_lost(change: dict[str, Any]) -> None:
    source = reader(ScriptedClient([]))
    watermark = {**(methods.current_watermark(source.directory, source.scope) or {}), **change}
    with pytest.raises(WatermarkLost):
        list(methods.read_changes(source, watermark))


@pytest.mark.parametrize("unit", [f"OU=team,OU=people,{BASE}", f"OU=team,{BASE}"], ids=["inside", "outside"])
@pytest.mark.parametrize("method", ["usn", "dirsync"])
def test_delta_reports_a_container_that_is_moved_out_of_what_is_read(method: str, unit: str) -> None:
    classes = [b"top", b"organizationalUnit"]
    moved = Entry(unit, {"objectGUID": [GUIDS[7].bytes_le], "objectClass": classes, "name": [b"team"]})
    reply = ber.sequence(ber.integer(0), ber.integer(0), ber.octets(b"c1"))
    with_cookie = Reply(0, entries=[moved], controls={controls.DIRSYNC: reply})
    client = ScriptedClient(
        [
            (lambda request: any(each.oid == controls.DIRSYNC for each in request.controls), with_cookie),
            (_shows_deleted, Reply(0, entries=[moved])),
            (lambda request: getattr(request, "base", "") == unit, Reply(0, entries=[moved])),
        ]
    )
    source = reader(client, delta=method)
    source = DirectoryReader(
        source.directory,
        ReadScope((USER,), containers=(ContainerSelection(f"OU=people,{BASE}"),)),
        source.schema,
    )
    watermark = methods.current_watermark(source.directory, source.scope)
    assert watermark is not None
    *_, complete = methods.read_changes(source, watermark)
    assert isinstance(complete, ReadComplete)
    assert complete.may_have_moved_containers is (unit == f"OU=team,{BASE}")


def test_dirsync_reads_all_parts_and_the_current_state_by_guid() -> None:
    def answer(request: Search) -> Reply:
        (control,) = (each for each in request.controls if each.oid == controls.DIRSYNC)
        _, _, cookie = ber.decode_one(control.value or b"", ber.SEQUENCE).children()
        parts = {
            b"": ([user(1), user(2)], b"c1", 0),
            b"c1": ([user(1)], b"c2", 1),
            b"c2": ([user(2, isDeleted=[b"TRUE"])], b"c3", 0),
        }
        entries, following, more = parts[cookie.content]
        value = ber.sequence(ber.integer(more), ber.integer(0), ber.octets(following))
        return Reply(0, entries=entries, controls={controls.DIRSYNC: value})

    client = ScriptedClient(
        [
            (lambda request: any(each.oid == controls.DIRSYNC for each in request.controls), answer),
            (has("objectGUID="), Reply(0, entries=[user(1)])),
        ]
    )
    source = reader(client, delta="dirsync")
    watermark = methods.current_watermark(source.directory, source.scope)
    assert watermark is not None
    events = list(methods.read_changes(source, watermark))
    assert [each.anchor for each in events if isinstance(each, ImportedObject)] == [str(GUIDS[1])]
    assert [each.anchor for each in events if isinstance(each, DeletedObject)] == [str(GUIDS[2])]
    asked = [each for each in client.requests if any(c.oid == controls.DIRSYNC for c in each.controls)]
    assert {"cn", "member"} <= set(asked[-1].attributes)  # type: ignore[union-attr]  # others are not reported
    (search,) = (each for each in client.requests if has("objectGUID=")(each))
    assert GUIDS[1].bytes_le[:1].hex() in search.filter  # type: ignore[union-attr]


def test_writes_name_the_entry_by_guid_and_keep_other_bits_of_user_account_control() -> None:
    current = user(1, userAccountControl=[b"66048"])
    client = ScriptedClient(
        [(lambda request: isinstance(request, Search), Reply(0, entries=[current]))],
    )
    directory = Directory(LdapSettings.model_validate({"url": "ldaps://dc1.ad.test"}), None, client)
    writer = DirectoryWriter(directory, [USER], DirectorySchema((), ()))
    update = WriteRequest(
        ExportKind.UPDATE,
        "user",
        str(GUIDS[1]),
        current.dn,
        (
            WriteChange("address", ChangeOp.RENAME, (f"CN=new,OU=people,{BASE}",)),
            WriteChange("cn", ChangeOp.SET, ("new",)),
            WriteChange("userAccountControl", ChangeOp.SET, (514,)),
        ),
    )
    delete = WriteRequest(ExportKind.DELETE, "user", str(GUIDS[2]), f"CN=u2,{BASE}")
    assert all(each.is_ok for each in writer.write([update, delete]))
    sent = [each for each in client.requests if isinstance(each, Modify | ModifyDn | Delete)]
    assert {each.dn for each in sent} == {f"<GUID={GUIDS[1]}>", f"<GUID={GUIDS[2]}>"}
    (modify,) = (each for each in sent if isinstance(each, Modify))
    assert [(each.attribute, each.values) for each in modify.modifications] == [("userAccountControl", (b"66050",))]


@pytest.mark.parametrize("code", [Code.BUSY, Code.UNAVAILABLE, Code.TIME_LIMIT_EXCEEDED, Code.REFERRAL])
def test_write_that_the_server_did_not_decide_fails_the_run(code: Code) -> None:
    client = ScriptedClient([(lambda request: isinstance(request, Delete), Reply(code, "later"))])
    directory = Directory(LdapSettings.model_validate({"url": "ldaps://dc1.ad.test"}), None, client)
    writer = DirectoryWriter(directory, [USER], DirectorySchema((), ()))
    with pytest.raises(ConnectorError, match="did not execute"):
        writer.write([WriteRequest(ExportKind.DELETE, "user", str(GUIDS[2]), f"CN=u2,{BASE}")])


def test_delete_that_the_server_refuses_to_find_is_not_reported_as_done() -> None:
    answers = [
        (lambda request: isinstance(request, Delete), Reply(Code.ASSERTION_FAILED, "assertion failed")),
        (lambda request: isinstance(request, Search), Reply(0, entries=[user(2)])),
    ]
    directory = Directory(LdapSettings.model_validate({"url": "ldaps://dc1.ad.test"}), None, ScriptedClient(answers))
    writer = DirectoryWriter(directory, [USER], DirectorySchema((), ()))
    (result,) = writer.write([WriteRequest(ExportKind.DELETE, "user", str(GUIDS[2]), f"CN=u2,{BASE}")])
    assert (result.is_ok, result.error) == (False, "moved")


@pytest.mark.parametrize(
    "code", [Code.SIZE_LIMIT_EXCEEDED, Code.TIME_LIMIT_EXCEEDED, Code.ADMIN_LIMIT_EXCEEDED, Code.BUSY]
)
def test_search_that_is_not_complete_fails_the_read(code: Code) -> None:
    client = ScriptedClient([(has("objectClass=user"), Reply(code, entries=[user(1)]))])
    events = []
    with pytest.raises(ConnectorError) as failed:
        events += list(reader(client).read_all())
    assert (failed.value.code, events) == ("incomplete", [])


def test_values_of_active_directory() -> None:
    guid = USER.attributes["objectGUID"]
    assert encode_value(str(GUIDS[1]), guid) == GUIDS[1].bytes_le
    assert merge_masked(66048, 514, 0x2) == 66050
    assert merge_masked(66050, 512, 0x2) == 66048
    instant = Attribute("t", DataType.DATETIME)
    assert encode_value("2026-01-31T08:00:00Z", instant) == b"20260131080000Z"
    assert encode_value(True, Attribute("b", DataType.BOOLEAN)) == b"TRUE"
