"""Matching by folded keys: one hit joins, several are ambiguous, blank values never match."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject
from tenuto_identity.model.rules.expressions import compile_expression
from tenuto_identity.model.rules.sync_rules import Direction, MatchRule, SyncRule
from tenuto_identity.model.rules.variables import object_kinds
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.decision_trace import Trace
from tenuto_identity.model.sync.matcher import (
    AlreadyJoined,
    Ambiguous,
    Candidate,
    Joined,
    MatchResult,
    UnjoinedAmbiguous,
    UnjoinedMatch,
    find_match,
    find_unjoined,
    match_attempts,
    metaverse_keys,
    object_keys,
)
from tenuto_identity.model.values import DataType
from tests.identity.model.strategies import NOW

USER = ObjectType(
    "user",
    "id",
    {
        "id": Attribute("id"),
        "mail": Attribute("mail"),
        "number": Attribute("number"),
        "aliases": Attribute("aliases", multi=True),
    },
)
ATTRIBUTES = {"mail": Attribute("mail"), "login": Attribute("login"), "number": Attribute("number", DataType.INTEGER)}
PEOPLE = {
    1: {"mail": ["ada@example.org"], "login": ["a_b"], "number": [7]},
    2: {"mail": ["grace@example.org"], "login": ["axb"], "number": [8]},
    3: {"mail": ["STRASSE@example.org"], "login": ["50%"]},
    4: {"mail": ["both@example.org"]},
    5: {"mail": ["Both@example.org"]},
}


def rule(*matches: MatchRule, number: int = 1) -> SyncRule:
    return SyncRule(number, f"rule {number}", Direction.OUT, "AD", "user", "person", match=matches)


def user(**values: Any) -> ConnectorObject:
    attributes = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return ConnectorObject(7, "AD", "user", "a", attributes=attributes)


def candidates(joined: dict[int, int] | None = None) -> dict[tuple[str, str], list[Candidate]]:
    found: dict[tuple[str, str], list[Candidate]] = {}
    for identity, values in PEOPLE.items():
        person = MetaverseObject(identity, "person", values)  # type: ignore[arg-type]
        for attribute, keys in metaverse_keys(person.attributes, ATTRIBUTES).items():
            for key in keys:
                candidate = Candidate(identity, person.attributes, (joined or {}).get(identity))
                found.setdefault((attribute, key), []).append(candidate)
    return found


def match(
    found: ConnectorObject, *rules: SyncRule, joined: dict[int, int] | None = None, trace: Trace | None = None
) -> MatchResult:
    return find_match(match_attempts(found, USER, rules, ATTRIBUTES, NOW), candidates(joined), trace=trace)


MAIL = MatchRule("mail", object="mail")


@pytest.mark.parametrize(
    ("found", "match_rule", "expected"),
    [
        (user(mail="ADA@Example.org "), MAIL, 1),
        (user(mail="straße@example.org"), MAIL, 3),
        (user(mail="ada@example.com"), MAIL, None),
        (user(), MAIL, None),
        (user(mail="  "), MAIL, None),
        (user(mail="%"), MAIL, None),
        (user(mail="ada@example.or_"), MAIL, None),
        (user(mail="a_b"), MatchRule("login", object="mail"), 1),
        (user(mail="axb"), MatchRule("login", object="mail"), 2),
        (user(mail="50%"), MatchRule("login", object="mail"), 3),
        (user(mail="50x"), MatchRule("login", object="mail"), None),
        (user(number="007"), MatchRule("number", object="number"), 1),
        (user(number="seven"), MatchRule("number", object="number"), None),
        (user(mail="ADA@example.org"), MatchRule("mail", object="mail", exact_case=True), None),
        (user(mail="ada@example.org"), MatchRule("mail", object="mail", exact_case=True), 1),
        (user(aliases=["x", "Grace@example.org"]), MatchRule("mail", object="aliases"), 2),
    ],
)
def test_object_matches_by_the_folded_value(
    found: ConnectorObject, match_rule: MatchRule, expected: int | None
) -> None:
    result = match(found, rule(match_rule))
    assert (result.metaverse_id if isinstance(result, Joined) else result) == expected


def test_expression_can_be_matched() -> None:
    expression = compile_expression('mail + "@example.org"', object_kinds(USER))
    assert isinstance(match(user(mail="ada"), rule(MatchRule("mail", value=expression))), Joined)
    assert match(user(), rule(MatchRule("mail", value=expression))) is None


def test_several_hits_are_ambiguous_and_stop_the_search() -> None:
    both = user(mail="both@example.org", number="7")
    result = match(both, rule(MAIL, MatchRule("number", object="number")))
    assert isinstance(result, Ambiguous)
    assert result.metaverse_ids == (4, 5)


def test_match_that_is_joined_to_another_object_is_reported() -> None:
    result = match(user(mail="ada@example.org"), rule(MAIL), joined={1: 99})
    assert isinstance(result, AlreadyJoined)
    assert (result.metaverse_id, result.object_id) == (1, 99)


def test_matching_rules_are_tried_in_order() -> None:
    found = user(mail="unknown@example.org", number="8")
    result = match(found, rule(MAIL), rule(MatchRule("number", object="number"), number=2))
    assert isinstance(result, Joined)
    assert result.rule.number == 2


def test_trace_says_why_each_rule_did_not_match() -> None:
    trace = Trace()
    match(user(mail="x@example.org"), rule(MatchRule("number", object="number"), MAIL), trace=trace)
    assert [each["reason"] for each in trace.find("match")] == [
        "the object has no value",
        "no metaverse object has this value",
    ]


def test_metaverse_object_finds_its_unjoined_object() -> None:
    person = MetaverseObject(1, "person", {"mail": ["Ada@example.org"]})
    found = rule(MAIL)
    attempts = match_attempts(user(mail="ADA@EXAMPLE.ORG"), USER, [found], ATTRIBUTES, NOW)
    keys = object_keys(attempts)
    assert keys == {("mail", "ada@example.org")}
    assert isinstance(find_unjoined(person, found, {key: [(7, "ADA@EXAMPLE.ORG")] for key in keys}), UnjoinedMatch)
    assert isinstance(find_unjoined(person, found, {key: [(7, "x"), (8, "y")] for key in keys}), UnjoinedAmbiguous)
    assert find_unjoined(MetaverseObject(1, "person"), found, {("mail", ""): [(7, "")]}) is None


@pytest.mark.parametrize("value", ["", "  ", "\u00a0"])
def test_blank_value_has_no_key(value: str) -> None:
    (attempt,) = match_attempts(user(mail=value), USER, [rule(MAIL)], ATTRIBUTES, NOW)
    assert not attempt.keys


def test_unjoined_object_is_taken_once() -> None:
    person = MetaverseObject(1, "person", {"mail": ["ada@example.org"]})
    unjoined: dict[tuple[str, str], list[tuple[int, Any]]] = {("mail", "ada@example.org"): [(7, "x"), (8, "y")]}
    found = find_unjoined(person, rule(MAIL), unjoined, taken={7})
    assert isinstance(found, UnjoinedMatch)
    assert found.object_id == 8
    assert find_unjoined(person, rule(MAIL), unjoined, taken={7, 8}) is None
