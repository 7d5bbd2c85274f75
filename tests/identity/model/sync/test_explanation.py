"""Explanations: the reasons behind each value, each target and each missing join."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from tenuto_identity.model.objects import ConnectorObject, JoinKind, MetaverseObject
from tenuto_identity.model.rules.sync_rules import RuleSet
from tenuto_identity.model.sync.explanation import (
    HIDDEN,
    IdentityExplanation,
    explain_identity,
    explain_object,
    format_identity,
    format_object,
)
from tenuto_identity.model.sync.matcher import match_attempts
from tenuto_identity.model.sync.outbound import Target
from tenuto_identity.model.sync.pending_exports import (
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
)
from tests.identity.model.definitions.test_system_definitions import EXAMPLE, bind

NOW = datetime(2026, 3, 14, 12, tzinfo=UTC)


def rules(**changes: Any) -> RuleSet:
    whole = yaml.safe_load(EXAMPLE)
    whole["metaverse"][0]["attributes"]["title"] = {"type": "text", "sensitive": True}
    whole["sync_rules"].append(
        {
            "name": "AD people in",
            "in": {"system": "AD", "type": "inetOrgPerson", "to": "person"},
            "map": {"mail": {"from": "mail", "priority": 5}, "display": {"value": "cn", "priority": 200}},
        }
    )
    return bind(whole)


HR = ConnectorObject(
    1,
    "HR",
    "person",
    "1001",
    attributes={
        "employee_id": ["1001"], "first": ["Ada"], "last": ["Lovelace"], "mail": ["ada@example.org"],
        "title": ["Director"], "department": ["Research"], "starts": ["2020-01-01"], "ends": ["2026-03-16"],
    },
    metaverse_id=9,
    join_kind=JoinKind.PROJECTED,
)  # fmt: skip
AD = ConnectorObject(
    2,
    "AD",
    "inetOrgPerson",
    "g2",
    "cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test",
    {"cn": ["Ada L."], "sn": ["Lovelace"], "mail": ["ada@corp.example"], "title": ["Boss"]},
    metaverse_id=9,
    join_kind=JoinKind.PROVISIONED,
)
PENDING = PendingExport(
    2,
    "AD",
    9,
    ExportKind.UPDATE,
    (Change("title", ChangeOp.SET, ("Director",), state=ChangeState.UNCONFIRMED, attempts=2, observed=("Boss",)),),
    state=ExportState.UNCONFIRMED,
    next_attempt_at=NOW,
    deferred_reference_count=1,
    error="the value of Director is refused",
)
IDENTITY = MetaverseObject(
    9,
    "person",
    {
        "employee_id": ["1001"], "first": ["Ada"], "last": ["Lovelace"], "display": ["Ada Lovelace"],
        "mail": ["ada@corp.example"], "title": ["Director"], "department": ["Research"], "login": ["ada.lovelace"],
        "starts": ["2020-01-01"], "ends": ["2026-03-16"],
    },
)  # fmt: skip


def explained(*, reveals: bool = True) -> IdentityExplanation:
    found = rules()
    target = Target(
        "AD", found.outbound("person"), {"inetOrgPerson": found.object_type("AD", "inetOrgPerson")}, AD, PENDING
    )
    return explain_identity(IDENTITY, [AD, HR], [target], found, NOW, reveals=reveals)


def test_contributions_are_in_rank_order_with_the_winner() -> None:
    attributes = {each.name: each for each in explained().attributes}
    mail = attributes["mail"].contributions
    assert [(each.system, each.priority, each.wins) for each in mail] == [("AD", 5, True), ("HR", 100, False)]
    display = attributes["display"].contributions
    assert display[0].expression == 'first + " " + last'
    assert display[0].inputs == {"first": "Ada", "last": "Lovelace"}
    assert display[0].values == ("Ada Lovelace",)
    assert display[0].wins


def test_scope_is_explained_term_by_term() -> None:
    (scope,) = explained().targets[0].scopes
    assert scope.in_scope
    assert [(term.term, term.result) for term in scope.terms] == [
        ("starts <= today()", True),
        ("ends == none", False),
        ("ends >= today()", True),
    ]
    assert scope.terms[0].inputs == {"starts": "2020-01-01"}
    assert scope.reevaluate_at == datetime(2026, 3, 17, tzinfo=UTC)


def test_target_shows_desired_expected_imported_and_pending_values() -> None:
    (target,) = explained().targets
    title = next(each for each in target.attributes if each.name == "title")
    assert (title.desired, title.expected, title.imported) == (("Director",), ("Boss",), ("Boss",))
    (change,) = title.pending
    assert (change["values"], change["observed"], change["attempts"]) == (["Director"], ["Boss"], 2)
    assert (target.export_state, target.next_attempt_at, target.deferred_reference_count) == ("unconfirmed", NOW, 1)


@pytest.mark.parametrize("reveals", [True, False])
def test_sensitive_values_are_shown_only_to_callers_who_may_see_them(reveals: bool) -> None:
    found = explained(reveals=reveals)
    text = json.dumps(asdict(found), default=str) + format_identity(found)
    assert ("Director" in text) is reveals
    assert ("Boss" in text) is reveals
    assert (HIDDEN in text) is not reveals
    assert "Lovelace" in text


def test_explanation_is_readable_text() -> None:
    text = format_identity(explained())
    for part in (
        "person 9",
        "joined HR 1001 (projected, normal)",
        "display = Ada Lovelace",
        "* 100 HR HR people in: first + \" \" + last [first='Ada', last='Lovelace'] -> Ada Lovelace",
        "target AD g2",
        "ends == none -> False",
        "title: desired Director, expected Boss, imported Boss, pending set Director (unconfirmed, observed Boss)",
        "1 deferred references",
    ):
        assert part in text, text


def test_unjoined_object_shows_the_rules_that_were_tried() -> None:
    found = rules()
    stray = replace(AD, metaverse_id=None, join_kind=None)
    attempts = match_attempts(
        stray,
        found.object_type("AD", "inetOrgPerson"),
        found.outbound("person"),
        found.metaverse_types["person"].attributes,
        NOW,
    )
    explanation = explain_object(stray, attempts, {}, found, NOW)
    (match,) = explanation.matches
    assert (match.attribute, match.keys, match.reason) == (
        "mail",
        ("ada@corp.example",),
        "no metaverse object has this value",
    )
    assert explanation.projected_by is None
    text = format_object(explanation)
    assert "not joined" in text
    assert "no rule in scope projects it" in text
