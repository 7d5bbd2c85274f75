"""Acceptance scenarios on a real slapd that need a whole import or sync: A26, A27, A66, and a leaver with a grace."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import ConnectorContext, ImportedObject, ReadScope, WriteChange, WriteRequest
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import CLERK_LIMIT, PASSWORD, READER_PASSWORD, Slapd, running_slapd
from tests.identity.ldap.test_conformance import PERSON
from tests.identity.ldap.test_nightly_run import _master_key, definitions, directory_system
from tests.identity.ldap.test_reading import Open, names, open_connector, read
from tests.identity.scenario_site import ADA, ALAN, GRACE, Site
from tests.identity.tasks.test_system_tasks import housekeeping
from tests.support.waiting import eventually

__all__ = ["_master_key", "open_connector"]  # fixtures


async def apply_directory(site: Site, slapd: Slapd, **settings: Any) -> None:
    """Define one directory with people and groups."""
    await site.app.secrets.set("bind", PASSWORD)
    found = directory_system(slapd, "AD", "ad", {"cn": "text", "sn": "text", "title": "text"})
    found["settings"].update(settings)
    member = {"type": "reference", "to": "inetOrgPerson", "multi": True}
    attributes = {"entryUUID": {"type": "guid", "writable": False}, "cn": "text", "member": member}
    found["types"].append({"name": "groupOfNames", "anchor": "entryUUID", "attributes": attributes})
    await site.apply(yaml.safe_dump({"systems": [found]}))


async def members(site: Site) -> list[str]:
    database = await site.database()
    rows = await database.fetch_all("SELECT raw FROM tenuto_identity.connector_references ORDER BY raw")
    return [row["raw"].split(",")[0] for row in rows]


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
async def test_a66_group_that_the_server_changes_by_itself_is_read_again(
    site: Site, slapd: Slapd, ad: Administrator, delta: str
) -> None:
    people = [f"cn=u{number},{ad.people}" for number in range(1, 9)]
    for number in range(1, 9):
        ad.person(f"u{number}")
    ad.add(f"cn=all,{ad.people}", "groupOfNames", member=people)
    await apply_directory(site, slapd, delta=delta)
    assert (await site.run("AD", "Full Import")).changes == ["Added"] * 9
    assert await members(site) == [f"cn=u{number}" for number in range(1, 9)]
    written = len(ad.log())
    ad.delete(people[1])
    ad.rename(people[5], "cn=u6 renamed")
    assert {row["reqType"][0] for row in ad.log()[written:]} <= {"delete", "modrdn", "modify"}
    done = await site.run("AD", "Delta Import")
    assert (done.state, done.changes) == ("completed", ["Deleted", "Updated", "Updated"])
    assert await members(site) == ["cn=u1", "cn=u3", "cn=u4", "cn=u5", "cn=u6 renamed", "cn=u7", "cn=u8"]
    assert (await site.run("AD", "Delta Import")).items == []


async def test_a26_delta_without_a_server_fails_and_the_next_one_has_everything(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    await apply_directory(site, slapd, delta="accesslog")
    ad.person("a")
    await site.run("AD", "Full Import")
    ad.person("b")
    watermark = "(SELECT value FROM tenuto_identity.watermarks)"
    database = await site.database()
    before = await database.fetch_value(f"SELECT {watermark}::text")
    ad.close()
    with slapd.stopped():
        assert (await site.run("AD", "Delta Import")).state == "failed"
    assert await database.fetch_value(f"SELECT {watermark}::text") == before
    ad.person("c")
    assert (await site.run("AD", "Delta Import")).changes == ["Added", "Added"]


async def test_a26_log_that_the_server_has_purged_leads_to_a_full_import(site: Site) -> None:
    """slapd removes rows of its log that are older than a second, every second."""
    with running_slapd(("ad",), log_options="logpurge 00+00:00:01 00+00:00:01") as slapd:
        ad = Administrator(slapd, "ad")
        try:
            ad.reset()
            ad.person("a")
            await apply_directory(site, slapd, delta="accesslog")
            assert (await site.run("AD", "Full Import")).changes == ["Added"]
            ad.person("b")
            ad.delete(f"cn=a,{ad.people}")
            await eventually(lambda: not ad.log(), timeout=30, what="slapd has purged its log")
            ad.person("c")
            done = await site.run("AD", "Delta Import")
            assert (done.state, done.changes) == ("completed_with_warning", ["Added", "Added", "Deleted"])
            database = await site.database()
            problem = await database.fetch_value("SELECT problem FROM tenuto_identity.runs ORDER BY id DESC LIMIT 1")
            assert "watermark_lost" in problem
        finally:
            ad.close()


async def test_a28_pages_within_the_limits_of_the_server_are_complete_and_a_limited_search_fails(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    """2,500 entries, an account that may read 500 in one search, pages of 500."""
    add_people(slapd, 2_500)
    await site.app.secrets.set("reader", READER_PASSWORD)
    account = {"bind_dn": "cn=clerk,dc=ad,dc=test", "password": {"secret": "reader"}}
    await apply_directory(site, slapd, **account, page_size=CLERK_LIMIT)
    done = await site.run("AD", "Full Import")
    assert (done.state, len(done.changes), set(done.changes)) == ("completed", 2_500, {"Added"})

    await apply_directory(site, slapd, **account, page_size=CLERK_LIMIT, paged=False)
    done = await site.run("AD", "Full Import")
    assert (done.state, done.items) == ("failed", [])
    assert "size limit exceeded (4)" in (done.error or "")
    assert await site.count("connector_objects", "state = 'normal'") == 2_500, "no deletion is detected"


def add_people(slapd: Slapd, count: int) -> None:
    context = ConnectorContext((PERSON,), secrets={"bind": PASSWORD})
    connector = registry.open_connector("ldap", slapd.settings("ad"), context)
    requests = [
        WriteRequest(
            ExportKind.CREATE,
            PERSON.name,
            None,
            f"cn=p{number:04},ou=people,dc=ad,dc=test",
            (WriteChange("cn", ChangeOp.SET, (f"p{number:04}",)), WriteChange("sn", ChangeOp.SET, ("P",))),
        )
        for number in range(count)
    ]
    try:
        assert all(each.is_ok for each in connector.write(requests))
    finally:
        connector.close()


@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
def test_a27_change_during_a_read_is_in_this_delta_or_in_the_next(
    open_connector: Open, ad: Administrator, delta: str
) -> None:
    for name in ("a", "b"):
        ad.person(name)
    connector = open_connector(delta=delta)
    scope = ReadScope((PERSON,))
    first = connector.watermark(scope)
    ad.modify(f"cn=a,{ad.people}", title=["one"])
    second = connector.watermark(scope)  # as a run does, before it reads
    events = connector.read(scope, first)
    found = [next(events)]
    ad.modify(f"cn=b,{ad.people}", title=["two"])
    found += list(events)
    titles = {
        each.cells["title"][0]
        for each in (*found, *read(connector, second))
        if isinstance(each, ImportedObject) and "title" in each.cells
    }
    assert titles == {"one", "two"}
    full = connector.read(scope, None)
    third = connector.watermark(scope)
    seen = [next(full)]
    ad.modify(f"cn=b,{ad.people}", title=["three"])
    assert set(names([*seen, *full])) == {"a", "b"}
    assert "b" in names(read(connector, third))


async def test_leaver_keeps_the_accounts_for_the_grace_and_loses_them_after_it(
    site: Site, slapd: Slapd, ad: Administrator, ldap: Administrator
) -> None:
    await site.app.secrets.set("bind", PASSWORD)
    found = yaml.safe_load(definitions(site, slapd))
    found["metaverse"][0]["deletion"]["grace"] = "30d"
    await site.apply(yaml.safe_dump(found))
    await site.nightly()
    assert (len(ad.entries()), len(ldap.entries())) == (4, 4)
    site.write_hr(ADA, GRACE, ALAN)
    await site.nightly()
    assert (len(ad.entries()), len(ldap.entries())) == (4, 4)
    assert await site.count("metaverse_objects", "delete_after IS NOT NULL") == 1

    database = await site.database()
    await database.write_all(
        "UPDATE tenuto_identity.metaverse_objects SET delete_after = now() - interval '1 day'"
        " WHERE delete_after IS NOT NULL"
    )
    await housekeeping(site)
    await site.nightly()
    assert (len(ad.entries()), len(ldap.entries())) == (3, 3)
    assert not [each for each in (*ad.entries(), *ldap.entries()) if "dijkstra" in each.lower()]
    assert await site.count("pending_exports") == 0
