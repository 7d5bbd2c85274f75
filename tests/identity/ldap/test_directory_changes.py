"""Changes that a real directory makes while it is read, or by itself (A27, A66)."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import ConnectorContext, ImportedObject, ReadScope
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, Slapd
from tests.identity.ldap.test_conformance import PERSON
from tests.identity.ldap.test_nightly_run import directory_system
from tests.identity.scenario_site import Site


@pytest.fixture(autouse=True)
def _master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are encrypted with this key."""
    key = tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))


@pytest.mark.parametrize("first_read", ["full", "delta"])
@pytest.mark.parametrize("delta", ["accesslog", "syncrepl"])
def test_a27_change_while_a_directory_is_read_is_in_this_read_or_in_the_next(
    slapd: Slapd, ad: Administrator, delta: str, first_read: str
) -> None:
    context = ConnectorContext((PERSON,), secrets={"bind": PASSWORD})
    connector = registry.open_connector("ldap", slapd.settings("ad", delta=delta, page_size=2), context)
    scope = ReadScope((PERSON,))
    try:
        before = connector.watermark(scope)
        for name in "abcdef":
            ad.person(name, title="old")
        watermark = connector.watermark(scope)
        reading = connector.read(scope, None if first_read == "full" else before)
        events = [next(reading)]
        for name in "abcdef":  # the read has begun, and most entries are not read yet
            ad.modify(f"cn={name},{ad.people}", title=["new"])
        events += list(reading)
        events += list(connector.read(scope, watermark))
    finally:
        connector.close()
    titles = {each.address: each.cells["title"] for each in events if isinstance(each, ImportedObject)}
    assert set(titles.values()) == {("new",)}
    assert len(titles) == 6


def definitions(slapd: Slapd) -> str:
    """Return people and groups of one directory, projected."""
    manager = {"type": "reference", "to": "inetOrgPerson"}
    system = directory_system(slapd, "AD", "ad", {"cn": "text", "sn": "text", "manager": manager})
    member = {"type": "reference", "to": "inetOrgPerson", "multi": True}
    system["types"].append(
        {
            "name": "groupOfNames",
            "anchor": "entryUUID",
            "attributes": {"entryUUID": {"type": "guid", "writable": False}, "cn": "text", "member": member},
        }
    )
    whole: dict[str, Any] = {
        "systems": [system],
        "metaverse": [
            {"type": "person", "attributes": {"cn": "text"}},
            {
                "type": "team",
                "attributes": {"cn": "text", "member": {"type": "reference", "to": "person", "multi": True}},
            },
        ],
        "sync_rules": [
            {
                "name": "People in",
                "in": {"system": "AD", "type": "inetOrgPerson", "to": "person"},
                "project": True,
                "map": {"same": ["cn"]},
            },
            {
                "name": "Groups in",
                "in": {"system": "AD", "type": "groupOfNames", "to": "team"},
                "project": True,
                "map": {"same": ["cn", "member"]},
            },
        ],
    }
    return yaml.safe_dump(whole)


async def test_a66_references_that_the_directory_changes_by_itself_are_read_again(
    site: Site, slapd: Slapd, ad: Administrator
) -> None:
    await site.app.secrets.set("bind", PASSWORD)
    await site.apply(definitions(slapd))
    for number in range(1, 9):
        ad.person(f"u{number}")
    members = [f"cn=u{number},{ad.people}" for number in range(1, 9)]
    ad.add(f"cn=all,{ad.people}", "groupOfNames", member=members)
    await site.run("AD", "Full Import")
    await site.run("AD", "Full Sync")

    async def referred() -> tuple[list[str], int]:
        (group,) = await site.app.extensions.identity.objects(system="AD", type="groupOfNames")
        (team,) = await site.app.extensions.identity.identities(type="team")
        return sorted(group.reference_values["member"]), len(team.reference_ids["member"])

    assert await referred() == (sorted(members), 8)
    ad.delete(members[1])
    ad.rename(members[5], "cn=v6")
    run = await site.run("AD", "Delta Import")
    assert run.state == "completed", run
    left = sorted([*(each for each in members if each not in (members[1], members[5])), f"cn=v6,{ad.people}"])
    assert (await referred())[0] == left
    sync = await site.run("AD", "Full Sync")
    assert sync.errors == []
    assert await referred() == (left, 7)
    assert (await site.run("AD", "Delta Import")).items == []
