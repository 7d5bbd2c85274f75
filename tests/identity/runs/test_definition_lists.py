"""Definitions as files: planned and applied with schedules, versioned, located errors, changes by operators."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
import yaml

from tenuto.cli.definitions.plans import plan_document
from tenuto.errors import Conflict, Invalid
from tenuto_identity.store.definitions import DefinitionKind
from tests.identity.scenario_site import Site
from tests.support.errors import raises_code

SCHEDULE = """
schedules:
  - name: Nightly HR Sync
    cron: "0 2 * * *"
    steps:
      - {kind: run_profile, name: HR import, arguments: {system: HR, profile: Full Import}}
      - {kind: run_profile, name: HR sync, arguments: {system: HR, profile: Full Sync}}
      - - {kind: run_profile, name: AD export, arguments: {system: AD, profile: Export}}
        - {kind: run_profile, name: LDAP export, arguments: {system: LDAP, profile: Export}}
      - - {kind: run_profile, name: AD import, arguments: {system: AD, profile: Full Import}}
        - {kind: run_profile, name: LDAP import, arguments: {system: LDAP, profile: Full Import}}
"""


@pytest.fixture(autouse=True)
def _master_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are encrypted with this key."""
    key = tmp_path / "master.key"
    key.touch(0o600)
    key.write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("TENUTO_MASTER_KEY_FILE", str(key))


async def test_definitions_and_the_schedule_that_uses_them_are_applied_together(site: Site) -> None:
    planned = await site.apply(site.definitions() + SCHEDULE)
    assert planned.has_changes
    assert not (await site.apply(site.definitions() + SCHEDULE)).has_changes
    schedule = await site.app.schedules.get("Nightly HR Sync")
    steps = [step for _, _, step in schedule.plan.enumerate_steps()]
    assert [step.limit_key for step in steps[:2]] == ["identity:HR", "identity:HR"]
    fired = await site.app.schedules.run("Nightly HR Sync")
    assert fired.execution_id is not None
    done = await site.app.executions.wait(fired.execution_id, 60)
    assert done.state == "completed"
    assert len(site.ad.objects("user")) == 4
    assert await site.count("pending_exports") == 0


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("same: [mail, title]", "same: [mail, titel]", None, "sync_rules[2].map"),
        ("connector: csv", "connector: cvs", "identity.connector.unknown", "systems[0].connector"),
        ("system: LDAP, type: account", "system: LDPA, type: account", None, "sync_rules[2].out.system"),
        ("sources: [HR]", "sources: [HRR]", None, "metaverse[0].deletion.sources"),
    ],
)
async def test_misspelt_name_is_refused_with_its_place_and_a_suggestion(
    site: Site, old: str, new: str, code: str | None, place: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await site.apply(site.definitions().replace(old, new))
    assert place in str(refused.value.field)
    assert "identity.yaml, line" in str(refused.value.field)
    assert "did you mean" in str(refused.value.remedy).lower() or code == refused.value.code
    assert await site.count("systems") == 0


async def test_step_with_an_unknown_profile_is_refused(site: Site) -> None:
    await site.apply(site.definitions())
    with raises_code("identity.profile.not_found", Invalid):
        await site.apply(SCHEDULE.replace("profile: Full Sync", "profile: Full Snc"))


async def test_step_with_a_profile_that_its_file_does_not_declare_is_refused(site: Site) -> None:
    with raises_code("identity.profile.not_found", Invalid):
        await site.apply(site.definitions() + SCHEDULE.replace("profile: Full Sync", "profile: Full Snc"))
    assert await site.count("systems") == 0


async def test_container_that_is_no_dn_is_refused(site: Site) -> None:
    text = site.definitions().replace("connector: memory", "connector: memory\n    containers: [people]", 1)
    with pytest.raises(Invalid, match="not a DN") as refused:
        await site.apply(text)
    assert "containers[0]" in str(refused.value.field)


async def test_change_has_a_version_and_raises_the_version_of_the_rules(site: Site) -> None:
    await site.apply(site.definitions())
    database = await site.database()
    query = "SELECT rules_version FROM tenuto_identity.configuration"
    before = await database.fetch_value(query)
    await site.apply(site.definitions().replace("cn: display\n      uid: login", "cn: last\n      uid: login"))
    assert await database.fetch_value(query) == before + 1
    versions = await site.app.extensions.identity.versions(DefinitionKind.SYNC_RULE, "LDAP people out")
    assert [each.version for each in versions] == [2, 1]
    assert versions[0].definition is not None
    assert versions[0].definition["map"]["cn"] == "last"


async def test_anchor_cannot_change_while_the_system_has_objects(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    with raises_code("identity.definition.anchor_changed", Invalid):
        await site.apply(site.definitions().replace("anchor: employee_id", "anchor: mail"))


async def test_removing_a_system_from_the_file_does_not_delete_it(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    await site.apply(SCHEDULE)
    assert len(await site.app.extensions.identity.systems()) == 3
    with raises_code("identity.system.in_use", Conflict):
        await site.apply(SCHEDULE, prune=True)


async def test_export_profile_with_preview_is_refused_and_a_stored_one_sends_nothing(site: Site) -> None:
    await site.apply(site.definitions())
    preview = site.definitions().replace("name: Export, kind: export}", "name: Export, kind: export, preview: true}")
    assert preview != site.definitions()
    with raises_code("identity.definition.preview_unsupported"):
        await site.apply(preview)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    database = await site.database()
    await database.fetch_all(
        "UPDATE tenuto_identity.systems SET definition = replace(definition::text,"
        """ '"kind": "export"', '"kind": "export", "preview": true')::jsonb RETURNING name"""
    )
    refused = await site.run("AD", "Export")
    assert refused.state == "failed"
    assert "preview: true" in str(refused.error)
    assert site.ad.objects("user") == {}


async def test_plan_names_secrets_and_never_their_values(site: Site) -> None:
    await site.app.secrets.set("ad-bind", "canary-5931")
    whole = yaml.safe_load(site.definitions())
    settings = {"url": "ldaps://localhost", "base": "dc=ad,dc=test", "bind_dn": "cn=x,dc=ad,dc=test"}
    whole["systems"][1].update(connector="ldap", settings={**settings, "password": {"secret": "ad-bind"}})
    planned = await site.apply(yaml.safe_dump(whole))
    shown = json.dumps(plan_document(planned), default=str)
    assert '"secret": "ad-bind"' in shown
    assert "canary-5931" not in shown
    for table in ("systems", "definition_versions"):
        assert await site.count(table, "definition::text LIKE '%canary-5931%'") == 0
    assert "canary-5931" not in str(await site.app.audit.list())
