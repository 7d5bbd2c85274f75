"""Acceptance scenario A62: every change of identity synchronisation has its audit entry, with its author and reason."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import yaml

from tenuto.model.access.actors import Actor
from tenuto_identity.extension import Identity
from tests.identity.scenario_site import PEOPLE, Site

TEMPLATE = {
    "name": "staff",
    "objects": [{"type": "person", "count": 2, "attributes": {"employee_id": {"sequence": 1}}}],
}


async def test_a62_every_change_has_one_audit_entry_with_its_target_and_reason(site: Site) -> None:
    await site.apply(yaml.safe_dump({**yaml.safe_load(site.definitions()), "templates": [TEMPLATE]}))
    many = [f"{2000 + n},F{n},L{n},f{n}@example.org,Staff,,,2020-01-01," for n in range(40)]
    site.write_hr(*PEOPLE, *many)
    site.ad.behave(refuse={"cn=F1 L1,ou=Staff,ou=people,dc=ad,dc=test": "refused"})
    site.ad.put("user", "stray", {"cn": "Stray"}, address="cn=stray,dc=ad,dc=test")
    for system, profile in (("HR", "Full Import"), ("HR", "Full Sync"), ("AD", "Export"), ("AD", "Full Import")):
        await site.run(system, profile)
    identity = site.app.extensions.identity
    (ada,) = await identity.identities(text="lovelace")
    (edsger,) = await identity.identities(text="dijkstra")
    account = next(each for each in await identity.objects(system="AD") if each.metaverse_id == edsger.id)
    made: dict[str, str] = {}

    async def make(action: str, target: str, change: Awaitable[Any], *, is_task: bool = False) -> None:
        """Make a change; it has exactly one entry."""
        known = {entry.id for entry in await site.app.audit.list(limit=200)}
        result = await change
        if is_task:
            await site.app.wait(result, 60)
        entries = [entry for entry in await site.app.audit.list(limit=200) if entry.id not in known]
        found = [entry for entry in entries if entry.action.startswith("identity.")]
        assert [entry.action for entry in found] == [action]
        assert target in str(found[0].target), found
        assert (found[0].actor_name, bool(found[0].reason)) == ("barbara", True)
        made[action] = target

    acting = site.app.acting_as(Actor.user("barbara"), reason="because").extensions.identity
    await make("identity.run.start", "HR", acting.run("HR", "Full Import"), is_task=True)
    await make("identity.preview.start", "AD", acting.preview(system="AD", profile="Export"), is_task=True)
    await make("identity.system.check", "HR", acting.check("HR"), is_task=True)
    await make("identity.system.discover", "HR", acting.discover("HR"), is_task=True)
    await make("identity.object.sync", "HR", acting.sync_one("HR", "1001"), is_task=True)
    await make("identity.template.run", "staff", acting.run_template("staff"), is_task=True)
    await make("identity.exports.retry", "AD", acting.retry("AD"))
    await make("identity.object.unjoin", "AD", acting.unjoin("AD", account.anchor))
    await make("identity.object.join", "AD", acting.join("AD", account.anchor, edsger.id))
    await make("identity.object.unpin", "AD", acting.unpin("AD", account.anchor))
    await make("identity.identity.forget", str(ada.id), acting.forget(ada.id, reason="asked for it"))
    site.write_hr(*PEOPLE)
    assert (await site.run("HR", "Full Import")).state == "completed_with_error"
    await make("identity.hold.approve", "HR", acting.approve("HR", reason="sold"))
    await make("identity.system.disable", "LDAP", acting.set_enabled("LDAP", enabled=False))
    await make("identity.system.enable", "LDAP", acting.set_enabled("LDAP", enabled=True))
    await make("identity.system.clear", "LDAP", acting.clear("LDAP"), is_task=True)
    await make("identity.system.delete", "LDAP", acting.delete_system("LDAP"), is_task=True)
    assert set(made) == {each.name for each in Identity().audit_actions()}
