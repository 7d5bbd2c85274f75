"""Acceptance scenarios of explanations (A56)."""

from __future__ import annotations

import pytest

from tenuto.errors import NotFound
from tenuto_identity.model.sync.explanation import (
    IdentityExplanation,
    ObjectExplanation,
    format_identity,
    format_object,
)
from tests.identity.scenario_site import Site


async def test_a56_identity_is_explained_from_source_to_target(site: Site) -> None:
    await site.nightly()
    found = await site.app.extensions.identity.explain("HR", "1002")
    assert isinstance(found, IdentityExplanation)
    attributes = {each.name: each for each in found.attributes}
    (display,) = attributes["display"].contributions
    assert display.wins
    assert (display.rule, display.expression) == ("HR people in", 'first + " " + last')
    assert display.inputs == {"first": "Grace", "last": "Hopper"}
    assert attributes["display"].values == ("Grace Hopper",)
    targets = {each.system: each for each in found.targets}
    assert targets["AD"].action == "nothing"
    title = next(each for each in targets["AD"].attributes if each.name == "title")
    assert title.desired == title.expected == title.imported == ("Engineer",)
    assert "joined HR 1002" in format_identity(found)


async def test_a56_refused_export_shows_its_error_and_next_attempt(site: Site) -> None:
    site.ad.behave(refuse={"*": "schema violation"})
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    await site.run("AD", "Export")
    found = await site.app.extensions.identity.explain("HR", "1001")
    assert isinstance(found, IdentityExplanation)
    target = next(each for each in found.targets if each.system == "AD")
    assert (target.export_kind, target.export_state, target.attempts) == ("create", "pending", 1)
    assert target.next_attempt_at is not None
    assert "schema violation" in format_identity(found)


async def test_a56_unjoined_object_shows_why_no_rule_matched(site: Site) -> None:
    await site.nightly()
    site.ad.put("user", "stray", {"cn": "Stray", "mail": "stray@example.org"}, address="cn=stray,dc=test")
    await site.run("AD", "Full Import")
    found = await site.app.extensions.identity.explain("AD", "stray")
    assert isinstance(found, ObjectExplanation)
    assert [(each.rule, each.reason) for each in found.matches] == [
        ("AD people out", "no metaverse object has this value")
    ]
    assert "not joined" in format_object(found)


async def test_explaining_an_unknown_object_suggests_names(site: Site) -> None:
    await site.run("HR", "Full Import")
    with pytest.raises(NotFound, match="did you mean HR"):
        await site.app.extensions.identity.explain("Hr", "1001")
    with pytest.raises(NotFound, match="no object with the anchor"):
        await site.app.extensions.identity.explain("HR", "9999")
