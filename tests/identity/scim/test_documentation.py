"""The definitions of docs/how-to/connect-scim.md work as they are written, on a real service."""

from __future__ import annotations

import base64
import os
import re

import pytest
import yaml

from tenuto_identity.connectors import registry
from tests.docs.pages import ROOT, blocks
from tests.identity.scenario_site import Site
from tests.identity.scim.service import ENTERPRISE, TOKEN, Tenant

PAGE = ROOT / "docs/how-to/connect-scim.md"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_MASTER_KEY", base64.b64encode(os.urandom(32)).decode())
    monkeypatch.setenv("TENUTO_HTTP_ALLOWED_HOSTS", "127.0.0.1")


async def test_documented_scim_definitions_export_the_people_of_hr(site: Site, tenant: Tenant) -> None:
    (example,) = [each.text for each in blocks(PAGE) if each.language == "yaml"]
    documented = yaml.safe_load(example)
    documented["systems"][0]["settings"] |= {"url": tenant.url, "allow_unencrypted": True}
    whole = yaml.safe_load(site.definitions())
    whole["systems"][1:] = documented["systems"]
    whole["sync_rules"][1:] = documented["sync_rules"]
    await site.app.secrets.set("cloud-token", TOKEN)
    await site.apply(yaml.safe_dump(whole))
    for system, profile in (("HR", "Full Import"), ("HR", "Full Sync"), ("Cloud", "Export"), ("Cloud", "Full Import")):
        assert (await site.run(system, profile)).state == "completed"
    users = tenant.users()
    assert set(users) == {"ada.lovelace", "grace.hopper", "alan.turing", "edsger.dijkstra"}
    grace = users["grace.hopper"]
    assert (grace["name"]["givenName"], grace["active"], grace["title"]) == ("Grace", True, "Engineer")
    assert grace[ENTERPRISE]["manager"]["value"] == users["ada.lovelace"]["id"]
    assert await site.count("pending_exports") == 0


def test_documentation_names_every_setting_of_the_scim_connector() -> None:
    words = set(re.findall(r"[a-z_0-9]+", PAGE.read_text(encoding="utf-8")))
    assert set(registry.find_connector("scim").settings.model_fields) - words == set()
