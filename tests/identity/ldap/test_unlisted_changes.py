"""What no source of changes lists: the content of containers that are moved, and read rights that are lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from tenuto_identity.connectors.ldap import directory
from tenuto_identity.connectors.ldap.protocol.client import Reply, Search
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, READER_PASSWORD, Slapd
from tests.identity.ldap.test_moving_entries import system, units
from tests.identity.ldap.test_nightly_run import _master_key
from tests.identity.ldap.test_reading import READER
from tests.identity.scenario_site import Site

__all__ = ["_master_key"]  # a fixture


@pytest.fixture(autouse=True)
async def _secrets(site: Site, _master_key: None) -> None:
    await site.app.secrets.set("bind", PASSWORD)
    await site.app.secrets.set("reader", READER_PASSWORD)


@pytest.mark.parametrize("selected_by", ["base", "containers"])
@pytest.mark.parametrize("target", ["other", "secret"])
@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_delta_import_deletes_what_is_in_a_container_that_was_moved_out_of_what_is_read(
    site: Site, slapd: Slapd, ad: Administrator, delta: str, target: str, selected_by: str
) -> None:
    first, other = units(ad, "first", target)  # the account of the system may not read ou=secret
    teams = [f"ou={name},{first}" for name in ("team", "staying", "renamed")]
    for team in teams:
        ad.add(team, "organizationalUnit")
        for number in range(2):
            ad.person(f"{team[3:5]}{number}", team)
    is_base = selected_by == "base"
    selected = {"base": [first]} if is_base else {"base": [ad.suffix]}
    await site.apply(system(slapd, *([] if is_base else [first]), delta=delta, **READER, **selected))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 6
    ad.rename(teams[0], "ou=team", other)
    ad.rename(teams[2], "ou=new name")
    done = await site.run("AD", "Delta Import")
    # The log names the move; without it, objects that are found nowhere may be there, and not readable any more.
    is_proven = delta == "accesslog" or target == "other"
    assert done.state == ("completed" if is_proven else "completed_with_warning"), done
    deleted = {"te0", "te1"} if is_proven else set()
    assert {each["display"] for each in done.items if each["change"] == "Deleted"} == deleted
    assert {each["display"] for each in done.items if each["change"] == "Updated"} == {"re0", "re1"}
    assert await site.count("connector_objects") == 6 - len(deleted)


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_delta_import_with_entries_that_leave_one_by_one_keeps_the_others_of_their_containers(
    site: Site, slapd: Slapd, ad: Administrator, delta: str
) -> None:
    first, second = units(ad, "first", "second")
    for name, container in (("a", first), ("b", first), ("c", second), ("leaves", first)):
        ad.person(name, container)
    await site.apply(system(slapd, delta=delta, base=[first, second], **READER))
    await site.run("AD", "Full Import")
    ad.rename(f"cn=leaves,{first}", "cn=leaves", ad.suffix)  # an entry without others below it
    ad.rename(f"cn=b,{first}", "cn=b", second)  # the sample of no container
    done = await site.run("AD", "Delta Import")
    assert (done.state, done.changes) == ("completed", ["Deleted", "Updated"])
    assert await site.count("connector_objects", "state = 'normal'") == 3


@pytest.mark.parametrize("target", ["people", "guarded"])
async def test_delta_import_reports_an_object_that_it_may_not_read_any_more_instead_of_deleting_it(
    site: Site, slapd: Slapd, ad: Administrator, target: str
) -> None:
    (guarded,) = units(ad, "guarded")
    readers = f"cn=readers,{ad.suffix}"
    reader = f"cn=reader,{ad.suffix}"
    ad.add(readers, "groupOfNames", member=reader)
    for name, container in (("a", guarded), ("gone", guarded), ("stays", guarded), ("mover", ad.people)):
        ad.person(name, container)
    await site.apply(system(slapd, delta="accesslog", **READER))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 4
    ad.modify(readers, member=[f"cn=clerk,{ad.suffix}"])  # the reader may not read the container any more
    ad.modify(f"cn=a,{guarded}", sn=["changed"])
    ad.delete(f"cn=gone,{guarded}")
    if target == "guarded":
        ad.rename(f"cn=mover,{ad.people}", "cn=mover", guarded)
    done = await site.run("AD", "Delta Import")
    lost = {each["display"] or each["anchor"] for each in done.items if each["error"] == "unreadable"}
    assert len(lost) == (2 if target == "guarded" else 1)
    assert done.state == "completed_with_warning"
    assert {each["display"] for each in done.items if each["change"] == "Deleted"} == {"gone"}
    assert await site.count("connector_objects", "state = 'normal'") == 3


async def test_delta_import_keeps_the_objects_of_a_container_that_it_may_not_read_any_more(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    (guarded,) = units(ad, "guarded")
    readers = f"cn=readers,{ad.suffix}"
    ad.add(readers, "groupOfNames", member=f"cn=reader,{ad.suffix}")
    for name, container in (("a", guarded), ("b", guarded), ("leaves", ad.people)):
        ad.person(name, container)
    await site.apply(system(slapd, delta="syncrepl", **READER))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 3
    ad.modify(readers, member=[f"cn=clerk,{ad.suffix}"])
    ad.delete(f"cn=leaves,{ad.people}")
    done = await site.run("AD", "Delta Import")
    assert (done.state, done.changes) == ("completed_with_warning", ["Deleted"])
    database = await site.database()
    problem = await database.fetch_value("SELECT problem FROM tenuto_identity.runs WHERE id = $1", done.id)
    assert "2 objects in 'ou=guarded,dc=ad,dc=test' were not reported as deleted and are not found" in problem
    assert await site.count("connector_objects", "state = 'normal'") == 2


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_delta_import_keeps_the_objects_of_a_container_that_is_not_readable_itself_any_more(
    site: Site, slapd: Slapd, ad: Administrator, delta: str
) -> None:
    first, other = units(ad, "first", "other")
    vault = f"ou=vault,{first}"
    readers = f"cn=readers,{ad.suffix}"
    ad.add(readers, "groupOfNames", member=f"cn=reader,{ad.suffix}")
    team = f"ou=team,{first}"
    for each in (vault, team):
        ad.add(each, "organizationalUnit")
    for name, container in (("a", vault), ("b", vault), ("leaves", first), ("moves", team)):
        ad.person(name, container)
    await site.apply(system(slapd, first, delta=delta, **READER))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 4
    ad.modify(readers, member=[f"cn=clerk,{ad.suffix}"])  # the account may read neither the container nor what is in it
    ad.delete(f"cn=leaves,{first}")
    ad.rename(team, "ou=team", other)
    done = await site.run("AD", "Delta Import")
    assert (done.state, done.changes) == ("completed_with_warning", ["Deleted", "Deleted"]), done
    assert {each["display"] for each in done.items if each["change"]} == {"leaves", "moves"}
    assert await site.count("connector_objects", "state = 'normal'") == 2


async def test_a29_full_import_that_may_read_no_entry_any_more_fails_and_deletes_nothing(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    (guarded,) = units(ad, "guarded")
    readers = f"cn=readers,{ad.suffix}"
    ad.add(readers, "groupOfNames", member=f"cn=reader,{ad.suffix}")
    for name in "ab":
        ad.person(name, guarded)
    await site.apply(system(slapd, base=[guarded], **READER))
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 2
    ad.modify(readers, member=[f"cn=clerk,{ad.suffix}"])  # a search succeeds, and returns nothing
    done = await site.run("AD", "Full Import")
    assert done.state == "failed"
    assert "nothing was read from 'AD', which had 2 objects" in (done.error or "")
    assert (done.changes, await site.count("connector_objects", "state = 'normal'")) == ([], 2)
    ad.modify(readers, member=[f"cn=reader,{ad.suffix}"])
    assert (await site.run("AD", "Full Import")).state == "completed"


async def test_delta_import_by_modify_timestamp_reads_only_what_was_changed(
    site: Site, slapd: Slapd, ad: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        ad.person(f"p{number}")
    await asyncio.to_thread(_wait_for_next_second, ad)
    await site.apply(system(slapd, delta="modify_timestamp"))
    await site.run("AD", "Full Import")
    read: list[str] = []
    checked = directory.check_complete

    def check_complete(reply: Reply, search: Search) -> None:
        """Note the entries of each reply."""
        read.extend(each.dn for each in reply.entries)
        checked(reply, search)

    monkeypatch.setattr(directory, "check_complete", check_complete)
    ad.modify(f"cn=p0,{ad.people}", title=["changed"])
    for _ in range(2):
        read.clear()
        done = await site.run("AD", "Delta Import")
        assert done.state == "completed_with_warning"  # it finds no deletions
        assert not [each for each in read if each.startswith("cn=p") and not each.startswith("cn=p0,")], len(read)
        assert f"cn=p0,{ad.people}" in read  # the newest second is read again: it may not have been over
    ad.modify(f"cn=p1,{ad.people}", sn=["changed"])
    assert (await site.run("AD", "Delta Import")).changes == ["Updated"]


def _wait_for_next_second(ad: Administrator) -> None:
    """Write until the timestamps of the server have another second than those of earlier entries."""
    container = f"ou=clock,{ad.suffix}"
    ad.add(container, "organizationalUnit")
    before = ad.timestamp(container)
    deadline = time.monotonic() + 10
    while ad.timestamp(container) == before:
        assert time.monotonic() < deadline
        ad.modify(container, description=["tick"])
