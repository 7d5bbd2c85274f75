"""Writing to a real slapd: requests that can be repeated, renames, groups, containers, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tenuto_identity.connectors.contract import Connector, WriteChange, WriteOutcome, WriteRequest, WriteResult
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.directory import RootDse
from tenuto_identity.connectors.ldap.protocol.controls import ASSERTION
from tenuto_identity.model import dn
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Equality, EqualityKind
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import Slapd
from tests.identity.ldap.test_conformance import PERSON
from tests.identity.ldap.test_reading import GROUP, Open, _Relay, open_connector, read

__all__ = ["open_connector"]  # a fixture


def create(address: str, type_name: str = "inetOrgPerson", **values: Any) -> WriteRequest:
    changes = tuple(
        WriteChange(name, ChangeOp.SET, tuple(each) if isinstance(each, list) else (each,))
        for name, each in values.items()
    )
    return WriteRequest(ExportKind.CREATE, type_name, None, address, changes)


def update(made: WriteResult, *changes: WriteChange, type_name: str = "inetOrgPerson") -> WriteRequest:
    return WriteRequest(ExportKind.UPDATE, type_name, made.anchor, made.address or "", changes)


def rename(made: WriteResult, address: str, *changes: WriteChange) -> WriteRequest:
    return update(made, WriteChange("address", ChangeOp.RENAME, (address,)), *changes)


def write(connector: Connector, *requests: WriteRequest) -> list[WriteResult]:
    results = connector.write(requests)
    assert all(each.is_ok for each in results), results
    return results


def members(ad: Administrator, group: str) -> list[str]:
    return ad.entries("(objectClass=groupOfNames)")[group]["member"]


def test_a05_move_is_one_modrdn_and_one_modify_and_keeps_the_anchor(open_connector: Open, ad: Administrator) -> None:
    for name in ("Research", "Engineering"):
        ad.add(f"ou={name},{ad.people}", "organizationalUnit")
    connector = open_connector()
    (alan,) = write(connector, create(f"cn=Alan,ou=Research,{ad.people}", sn="Turing"))
    before = len(ad.log())
    target = f"cn=Alan,ou=Engineering,{ad.people}"
    (moved,) = write(connector, rename(alan, target, WriteChange("title", ChangeOp.SET, ("Fellow",))))
    assert moved.address == target
    assert ad.uuid(target) == alan.anchor
    assert [row["reqType"][0] for row in ad.log()[before:]] == ["modrdn", "modify"]
    assert [each for each in ad.log()[-1]["reqMod"] if each.startswith("title")] == ["title:= Fellow"]


def test_a06_missing_containers_are_reported_or_created_once(open_connector: Open, ad: Administrator) -> None:
    unit = f"ou=Compilers,ou=New,{ad.people}"
    before = len(ad.log("add"))
    (grace,) = write(open_connector(), create(f"cn=Grace,{ad.people}", sn="Hopper"))
    requests = [rename(grace, f"cn=Grace,{unit}"), create(f"cn=Edsger,{unit}", sn="Dijkstra")]
    for result in open_connector().write(requests):
        assert (result.outcome, result.error) == (WriteOutcome.MISSING, "missing_parent")
    write(open_connector(create_containers=True), *requests)
    assert set(ad.entries()) == {f"cn=Grace,{unit}", f"cn=Edsger,{unit}"}
    added = [row["reqDN"][0] for row in ad.log("add")[before:]]
    assert added.count(unit) == 1
    elsewhere = open_connector(create_containers=True, base=["dc=ad,dc=test", "dc=other"])
    (refused,) = elsewhere.write([create("cn=a,dc=other", sn="a")])
    assert refused.error == "refused"  # no database of the server has the name


def test_address_below_none_of_the_bases_is_refused_before_it_is_written(
    open_connector: Open, ad: Administrator
) -> None:
    other = f"ou=other,{ad.suffix}"
    ad.add(other, "organizationalUnit")
    connector = open_connector(base=ad.people)
    (made,) = write(connector, create(f"cn=a,{ad.people}", sn="a"))
    for request in (create(f"cn=b,{other}", sn="b"), rename(made, f"cn=a,{other}")):
        (result,) = connector.write([request])
        assert (result.outcome, result.error) == (WriteOutcome.REFUSED, "out_of_reach")
    assert set(ad.entries()) == {f"cn=a,{ad.people}"}


@pytest.fixture(params=["assertions", "no assertions"])
def assertions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the assertion control, which servers other than OpenLDAP may not have."""
    if request.param == "no assertions":
        monkeypatch.setattr(
            RootDse, "supports", lambda self, each: each != ASSERTION and each in self.all("supportedControl")
        )


@pytest.mark.usefixtures("assertions")
def test_entry_that_was_renamed_by_an_administrator_is_found_by_its_anchor(
    open_connector: Open, ad: Administrator
) -> None:
    connector = open_connector()
    first, second = write(connector, *(create(f"cn={name},{ad.people}", sn=name) for name in ("a", "b")))
    ad.rename(f"cn=a,{ad.people}", "cn=c")
    ad.rename(f"cn=b,{ad.people}", "cn=a")  # another entry has the address of the request now
    title = WriteChange("title", ChangeOp.SET, ("ours",))
    (found,) = write(connector, update(first, title))
    assert found.address == f"cn=c,{ad.people}"
    titles = {address: values.get("title") for address, values in ad.entries().items()}
    assert titles == {f"cn=c,{ad.people}": ["ours"], f"cn=a,{ad.people}": None}
    write(connector, WriteRequest(ExportKind.DELETE, "inetOrgPerson", first.anchor, first.address or ""))
    assert set(ad.entries()) == {f"cn=a,{ad.people}"}
    write(connector, rename(second, f"cn=d,{ad.people}"))
    (gone,) = connector.write([update(first, title)])
    assert (gone.outcome, gone.error) == (WriteOutcome.REFUSED, "missing_object")


@pytest.mark.usefixtures("assertions")
def test_export_changes_no_other_entry_that_has_the_address_of_a_deleted_one(
    open_connector: Open, ad: Administrator
) -> None:
    connector = open_connector()
    address, target = f"cn=a,{ad.people}", f"cn=b,{ad.people}"
    (made,) = write(connector, create(address, sn="ours"))
    ad.delete(address)
    foreign = ad.person("a", sn="foreign")
    for request in (update(made, WriteChange("title", ChangeOp.SET, ("ours",))), rename(made, target)):
        (refused,) = connector.write([request])
        assert (refused.outcome, refused.error) == (WriteOutcome.REFUSED, "missing_object")
    write(connector, WriteRequest(ExportKind.DELETE, "inetOrgPerson", made.anchor, address))  # it is deleted already
    assert {name: values.get("title") for name, values in ad.entries().items()} == {address: None}
    assert ad.uuid(address) == foreign


def test_name_that_another_request_of_the_batch_releases_can_be_taken(open_connector: Open, ad: Administrator) -> None:
    connector = open_connector()
    first, second = write(connector, *(create(f"cn={name},{ad.people}", sn=name) for name in ("a", "b")))
    write(connector, rename(first, f"cn=b,{ad.people}"), rename(second, f"cn=c,{ad.people}"))
    assert ad.uuid(f"cn=b,{ad.people}") == first.anchor
    (taken,) = connector.write([rename(first, f"cn=c,{ad.people}")])
    assert taken.error == "exists"


@pytest.mark.parametrize("count", [2, 3])
def test_entries_that_take_each_others_names_are_renamed(open_connector: Open, ad: Administrator, count: int) -> None:
    connector = open_connector()
    names = [f"cn=p{number},{ad.people}" for number in range(count)]
    made = write(connector, *(create(name, sn=name) for name in names))
    title = WriteChange("title", ChangeOp.SET, ("moved",))
    requests = [rename(each, names[(number + 1) % count], title) for number, each in enumerate(made)]
    write(connector, *requests, create(f"cn=other,{ad.people}", sn="other"))
    assert [ad.uuid(names[(number + 1) % count]) for number in range(count)] == [each.anchor for each in made]
    assert set(ad.entries()) == {*names, f"cn=other,{ad.people}"}, "no temporary name stays"
    assert all(ad.entries()[name]["title"] == ["moved"] for name in names)

    # An interrupted swap leaves one entry under a temporary name: the requests are repeated as uncertain ones.
    ad.rename(names[1], "cn=tenuto-interrupted")
    back = [
        replace(rename(each, name), address=names[(number + 1) % count], uncertain=True)
        for number, (each, name) in enumerate(zip(made, names, strict=True))
    ]
    write(open_connector(), *back)
    assert [ad.uuid(name) for name in names] == [each.anchor for each in made]
    assert set(ad.entries()) == {*names, f"cn=other,{ad.people}"}


def test_a42_refused_request_has_the_text_of_the_server_and_the_others_are_written(
    open_connector: Open, ad: Administrator
) -> None:
    requests = [create(f"cn=p{number},{ad.people}", sn="x") for number in range(4)]
    requests[1] = create(f"cn=p1,{ad.people}")  # sn is missing
    requests.append(create("not a dn", sn="x"))
    results = open_connector().write(requests)
    assert [each.is_ok for each in results] == [True, False, True, True, False]
    assert results[1].error == "refused"
    assert "requires attribute 'sn'" in (results[1].text or "")
    assert results[4].error == "invalid_address"
    assert len(ad.entries()) == 3


def test_a45_group_is_written_in_chunks_and_never_without_a_member(open_connector: Open, ad: Administrator) -> None:
    people = [f"cn=m{number:03},{ad.people}" for number in range(95)]
    connector = open_connector([PERSON, GROUP], max_values=40)
    write(connector, *(create(each, sn="m") for each in people))
    group = f"cn=group,{ad.people}"
    start = len(ad.log())
    (made,) = write(connector, create(group, "groupOfNames", member=people))
    assert members(ad, group) == people
    rows = [row["reqMod"] for row in ad.log()[start:]]
    sizes = [sum(each.startswith("member:+") for each in row) for row in rows]
    assert sizes == [40, 40, 15]

    def change(op: ChangeOp, *values: str) -> WriteRequest:
        return update(made, WriteChange("member", op, values), type_name="groupOfNames")

    before = len(ad.log("modify"))
    write(connector, change(ChangeOp.REMOVE, people[0]))
    write(connector, change(ChangeOp.SET, *people[1:94]))  # more than 20 values: only the difference is sent
    modified = ad.log("modify")[before:]
    assert [[each for each in row["reqMod"] if each.startswith("member")] for row in modified] == [
        [f"member:- {people[0]}"],
        [f"member:- {people[94]}"],
    ]
    uncertain = create(group, "groupOfNames", member=people)
    (adopted,) = connector.write([replace(uncertain, uncertain=True)])
    assert (adopted.is_ok, adopted.anchor) == (True, made.anchor)  # a set that an earlier attempt began
    assert members(ad, group) == people

    write(connector, change(ChangeOp.SET, people[1]))
    write(connector, change(ChangeOp.REMOVE, people[1]))
    assert members(ad, group) == ["cn=tenuto-placeholder"]
    (imported,) = read(connector, types=[GROUP])
    assert "member" not in imported.cells
    write(connector, change(ChangeOp.ADD, people[2]))
    assert members(ad, group) == [people[2]]
    write(connector, change(ChangeOp.CLEAR))
    assert members(ad, group) == ["cn=tenuto-placeholder"]
    write(connector, create(f"cn=empty,{ad.people}", "groupOfNames"))


def test_a45_new_group_with_5000_members_is_written_in_chunks_of_a_thousand(
    open_connector: Open, ad: Administrator
) -> None:
    people = [f"cn=m{number:04},{ad.people}" for number in range(5_000)]
    connector = open_connector([PERSON, GROUP])
    group = f"cn=group,{ad.people}"
    start = len(ad.log())
    write(connector, create(group, "groupOfNames", member=people))
    assert members(ad, group) == people
    sizes = [sum(each.startswith("member:+") for each in row["reqMod"]) for row in ad.log()[start:]]
    assert sizes == [1_000] * 5


def test_masked_number_keeps_the_bits_that_are_not_compared(open_connector: Open, ad: Administrator) -> None:
    masked = Attribute("employeeNumber", DataType.INTEGER, equality=Equality(EqualityKind.MASK, bits=0x2))
    person = ObjectType("inetOrgPerson", "entryUUID", {**PERSON.attributes, "employeeNumber": masked})
    connector = open_connector([person])
    (made,) = write(connector, create(f"cn=a,{ad.people}", sn="a", employeeNumber=66048))
    write(connector, update(made, WriteChange("employeeNumber", ChangeOp.SET, (514,))))
    assert ad.entries()[f"cn=a,{ad.people}"]["employeeNumber"] == ["66050"]


def test_requests_without_an_answer_are_repeated_once_after_a_lost_connection(
    slapd: Slapd, open_connector: Open, ad: Administrator
) -> None:
    with _Relay(slapd.port) as relay:
        connector = open_connector(url=f"ldap://localhost:{relay.port}")
        write(connector, create(f"cn=a,{ad.people}", sn="a"))
        relay.drop()
        write(connector, *(create(f"cn={name},{ad.people}", sn=name) for name in ("b", "c")))
    assert len(ad.entries()) == 3


HOSTILE = ("*)(uid=*", "a,ou=admins", "#x", " lead", "trail ", 'a"b+c;d<e>f\\g=h', "ü日", "\x01", "a\nb")


@pytest.mark.parametrize("text", HOSTILE)
def test_a24_hostile_names_are_one_value_of_dn_and_filter(open_connector: Open, ad: Administrator, text: str) -> None:
    connector = open_connector()
    address = dn.build([(dn.Pair("cn", text),), *dn.parse(ad.people)])
    (made,) = write(connector, create(address, sn="x", cn=text))
    ((found, values),) = ad.entries().items()
    assert dn.parse(found)[0][0].value.strip() == text.strip()
    assert len(dn.parse(found)) == 4
    ad.connection.search(ad.people, filters.equal("cn", text), attributes=["1.1"])
    assert [each["dn"] for each in ad.connection.response] == [found]
    target = f"cn=plain,{ad.people}"
    write(connector, rename(made, target))
    write(connector, rename(WriteResult(anchor=made.anchor, address=target), address))
    assert ad.uuid(found) == made.anchor
    assert values["cn"]


# --- entries that the account may not read --------------------------------------------------------------------------


@pytest.mark.usefixtures("assertions")
@pytest.mark.parametrize("container", ["nameless", "disclosed"])
def test_entry_whose_anchor_the_account_may_not_read_is_not_reported_as_deleted(
    open_connector: Open, ad: Administrator, container: str
) -> None:
    hidden, shared = f"ou={container},{ad.suffix}", f"ou=shared,{ad.suffix}"
    for each in (hidden, shared):
        ad.add(each, "organizationalUnit")
    leaver = ad.person("leaver", hidden)
    other = ad.person("other", shared)
    requests = [
        WriteRequest(ExportKind.DELETE, "inetOrgPerson", anchor, address)
        for anchor, address in ((leaver, f"cn=leaver,{hidden}"), (other, f"cn=other,{shared}"))
    ]
    clerk = open_connector(bind_dn="cn=clerk,dc=ad,dc=test", password={"secret": "reader"})
    refused, done = clerk.write(requests)  # one item does not concern the other
    assert (refused.outcome, done.outcome) == (WriteOutcome.REFUSED, WriteOutcome.OK)
    assert ad.uuid(f"cn=leaver,{hidden}") == leaver
    assert f"cn=other,{shared}" not in ad.entries()


def test_create_whose_later_part_is_refused_has_the_anchor_of_its_entry(
    open_connector: Open, ad: Administrator
) -> None:
    connector = open_connector([PERSON, GROUP], max_values=10)
    people = [f"cn=p{number},{ad.people}" for number in range(25)]
    group = f"cn=large,{ad.people}"
    request = create(group, "groupOfNames", member=[*people, "not a DN"])
    for uncertain in (False, True):  # the retry takes its own part for its own
        (refused,) = connector.write([replace(request, uncertain=uncertain)])
        assert refused.was_created, refused
        assert (refused.outcome, refused.anchor) == (WriteOutcome.REFUSED, ad.uuid(group))
    foreign = ad.person("foreign")
    (taken,) = connector.write([create(f"cn=foreign,{ad.people}", sn="ours")])
    assert (taken.error, taken.was_created, taken.anchor) == ("exists", False, foreign)
