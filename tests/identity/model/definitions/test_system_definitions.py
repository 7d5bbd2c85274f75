"""Definitions of systems, metaverse types and sync rules: what is accepted, and how errors name their field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tenuto.errors import Invalid
from tenuto_identity.model.definitions.rule_definitions import bind_rule, bind_rules, check_metaverse_type, parse_rule
from tenuto_identity.model.definitions.system_definitions import RunKind, parse_metaverse_type, parse_system
from tenuto_identity.model.rules.sync_rules import OutOfScope, RuleSet
from tenuto_identity.model.schema import DeletionTrigger, Writable
from tenuto_identity.model.sync.guards import GuardKind
from tenuto_identity.model.values import DataType, EqualityKind

EXAMPLE = """
systems:
  - name: HR
    connector: csv
    settings: {path: hr/people.csv, encoding: utf-8}
    types:
      - name: person
        anchor: employee_id
        attributes: {employee_id: text, first: text, last: text, mail: text, department: text, title: text,
                     manager: {type: reference, to: person}, starts: date, ends: date,
                     phones: {type: text, multi: true}}
    guards: {deletions: 20%, at_least: 10}
    run_profiles: [{name: Full Import, kind: full_import}, {name: Full Sync, kind: full_sync}]
  - name: AD
    connector: ldap
    types:
      - name: inetOrgPerson
        anchor: entryUUID
        attributes: {entryUUID: {type: guid, writable: false}, cn: text, sn: text, mail: text, title: text,
                     manager: {type: reference, to: inetOrgPerson}}
metaverse:
  - type: person
    attributes: {employee_id: text, first: text, last: text, login: text, display: text, mail: text, department: text,
                 title: text, manager: {type: reference, to: person}, starts: date, ends: date,
                 phones: {type: text, multi: true}}
    deletion: {rule: authoritative_source, sources: [HR], grace: 30d}
sync_rules:
  - name: HR people in
    in: {system: HR, type: person, to: person}
    project: true
    map:
      same: [employee_id, first, last, mail, department, title, manager, starts, ends]
      display: {value: 'first + " " + last'}
      login: {value: 'unique(slug(first) + "." + slug(last))'}
  - name: AD people out
    out: {from: person, system: AD, type: inetOrgPerson}
    scope: 'starts <= today() and (ends == none or ends >= today())'
    match: [{object: mail, metaverse: mail}]
    provision: true
    on_out_of_scope: delete
    map:
      same: [mail, title, manager]
      sn: last
      address: {value: 'dn("cn", display, "ou", department, "ou=people,dc=ad,dc=test")'}
"""


def load(text: str = EXAMPLE) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def bind(whole: dict[str, Any]) -> RuleSet:
    systems = {each.name: each for each in map(parse_system, whole["systems"])}
    types = {each.name: each for each in map(parse_metaverse_type, whole["metaverse"])}
    for each in types.values():
        check_metaverse_type(each, systems, types)
    return bind_rules(enumerate(map(parse_rule, whole["sync_rules"]), 1), systems, types)


def test_example_of_the_specification_is_accepted() -> None:
    rules = bind(load())
    inbound, outbound = rules.rules
    assert inbound.project
    assert {mapping.to for mapping in inbound.mappings} >= {"employee_id", "display", "login", "manager"}
    assert inbound.mapping_by_target["login"].value is not None
    assert inbound.mapping_by_target["login"].value.is_unique
    assert outbound.on_out_of_scope is OutOfScope.DELETE
    assert outbound.scope is not None
    assert outbound.scope.uses_clock
    assert outbound.scope.names == {"starts", "ends"}
    assert rules.object_type("AD", "inetOrgPerson").address_is_dn
    assert rules.matched_attributes("person") == {"mail", "login"}
    system = parse_system(load()["systems"][0])
    assert system.run_profiles["Full Import"].kind is RunKind.FULL_IMPORT
    assert system.guards.limit(GuardKind.DELETIONS).percent == 20
    assert system.types["person"].attributes["starts"].type is DataType.DATE
    person = parse_metaverse_type(load()["metaverse"][0])
    assert person.deletion.trigger is DeletionTrigger.AUTHORITATIVE_SOURCE
    assert person.deletion.grace is not None
    assert person.deletion.grace.days == 30
    assert person.display == "display"


def test_attribute_options_are_read() -> None:
    system = parse_system(
        {
            "name": "AD",
            "connector": "memory",
            "types": [
                {
                    "name": "user",
                    "anchor": "guid",
                    "preset": "ad",
                    "address_format": "dn",
                    "attributes": {
                        "guid": {"type": "guid", "writable": False},
                        "userAccountControl": "integer",
                        "accountExpires": "integer",
                        "cn": "text",
                        "created": {"type": "datetime", "equality": {"kind": "instant", "precision": "60s"}},
                        "pin": {"type": "text", "equality": "write_only", "sensitive": True},
                    },
                }
            ],
        }
    )
    attributes = system.types["user"].attributes
    assert attributes["guid"].writable is Writable.NO
    assert attributes["userAccountControl"].equality.are_equal([514], [546])
    assert attributes["accountExpires"].equality.are_equal([0], [9223372036854775807])
    assert attributes["cn"].equality.kind is EqualityKind.IGNORE_CASE
    assert attributes["created"].equality.precision_seconds == 60
    assert attributes["pin"].sensitive


REFUSED_SYSTEMS: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", {"conector": "csv"}, "conector", "did you mean connector?"),
    (
        "unknown type",
        {"types": [{"name": "p", "anchor": "a", "attributes": {"a": "txt"}}]},
        "types[0].attributes.a.type",
        "did you mean text?",
    ),
    (
        "anchor missing",
        {"types": [{"name": "p", "anchor": "idd", "attributes": {"id": "text"}}]},
        "types[0].anchor",
        "did you mean id?",
    ),
    (
        "anchor multi",
        {"types": [{"name": "p", "anchor": "id", "attributes": {"id": {"type": "text", "multi": True}}}]},
        "types[0].anchor",
        "one value",
    ),
    (
        "credential",
        {"types": [{"name": "p", "anchor": "id", "attributes": {"id": "text", "unicodePwd": "binary"}}]},
        "types[0].attributes.unicodePwd",
        "credentials are not",
    ),
    (
        "reserved",
        {"types": [{"name": "p", "anchor": "id", "attributes": {"id": "text", "address": "text"}}]},
        "types[0].attributes.address",
        "rename",
    ),
    (
        "reference without to",
        {"types": [{"name": "p", "anchor": "id", "attributes": {"id": "text", "boss": "reference"}}]},
        "types[0].attributes.boss",
        "add to",
    ),
    (
        "reference to nothing",
        {
            "types": [
                {"name": "p", "anchor": "id", "attributes": {"id": "text", "boss": {"type": "reference", "to": "q"}}}
            ]
        },
        "types[0].attributes.boss.to",
        "known are p",
    ),
    ("no types", {"types": []}, "types", "list the object types"),
    (
        "profile kind",
        {"run_profiles": [{"name": "x", "kind": "fullimport"}]},
        "run_profiles[0].kind",
        "did you mean full_import?",
    ),
    (
        "profile twice",
        {"run_profiles": [{"name": "x", "kind": "export"}, {"name": "x", "kind": "export"}]},
        "run_profiles[1].name",
        "",
    ),
    (
        "limit on import",
        {"run_profiles": [{"name": "x", "kind": "full_import", "limit": 3}]},
        "run_profiles[0].limit",
        "",
    ),
    ("percent", {"guards": {"deletions": "many"}}, "guards.deletions", "write 20%"),
    ("guard name", {"guards": {"deletion": "20%"}}, "guards.deletion", "did you mean deletions?"),
    (
        "mask without bits",
        {"types": [{"name": "p", "anchor": "id", "attributes": {"id": {"type": "text", "equality": "mask"}}}]},
        "types[0].attributes.id.equality.bits",
        "bits: 2",
    ),
]


@pytest.mark.parametrize(
    ("change", "field", "remedy"), [each[1:] for each in REFUSED_SYSTEMS], ids=[each[0] for each in REFUSED_SYSTEMS]
)
def test_system_with_an_error_is_refused_with_its_field(change: dict[str, Any], field: str, remedy: str) -> None:
    valid = {"name": "S", "connector": "csv", "types": [{"name": "p", "anchor": "id", "attributes": {"id": "text"}}]}
    parse_system(valid)
    with pytest.raises(Invalid) as caught:
        parse_system({**valid, **change})
    assert caught.value.field == field
    assert remedy in (caught.value.remedy or "")


REFUSED_RULES: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("misspelt attribute", 0, {"map": {"same": ["fist"]}}, "map.same[0]", "did you mean first?"),
    ("misspelt name", 0, {"map": {"display": {"value": "frist + last"}}}, "map.display.value", "did you mean first?"),
    (
        "misspelt function",
        0,
        {"map": {"display": {"value": "lowr(first)"}}},
        "map.display.value",
        "did you mean lower?",
    ),
    ("misspelt source", 0, {"map": {"display": "frst"}}, "map.display.from", "did you mean first?"),
    ("list for a single value", 0, {"map": {"title": {"value": "phones"}}}, "map.title.value", "first"),
    ("boolean for a date", 0, {"map": {"starts": {"value": "first == last"}}}, "map.starts.value", ""),
    ("reference in expression", 0, {"map": {"title": {"value": "manager"}}}, "map.title.value", ""),
    ("computed reference", 0, {"map": {"manager": {"value": "first"}}}, "map.manager.value", "write from"),
    ("text into reference", 0, {"map": {"manager": "first"}}, "map.manager.from", "references"),
    ("unknown system", 0, {"in": {"system": "Hr", "type": "person", "to": "person"}}, "in.system", "did you mean HR?"),
    ("unknown type", 0, {"in": {"system": "HR", "type": "persn", "to": "person"}}, "in.type", "did you mean person?"),
    (
        "unknown metaverse type",
        0,
        {"in": {"system": "HR", "type": "person", "to": "persons"}},
        "in.to",
        "did you mean person?",
    ),
    ("both directions", 0, {"out": {"from": "person", "system": "AD", "type": "inetOrgPerson"}}, "in", "either"),
    ("delete in", 0, {"on_out_of_scope": "delete"}, "on_out_of_scope", "remain or disconnect"),
    ("provision in", 0, {"provision": True}, "provision", "remove"),
    ("read-only", 1, {"map": {"entryUUID": "login"}}, "map.entryUUID", "remove"),
    ("scope is a text", 1, {"scope": "first"}, "scope", "condition"),
    ("match on reference", 1, {"match": [{"object": "manager", "metaverse": "mail"}]}, "match[0].object", ""),
    ("match unknown", 1, {"match": [{"object": "mial", "metaverse": "mail"}]}, "match[0].object", "did you mean mail?"),
    ("unique out", 1, {"map": {"sn": {"value": "unique(last)"}}}, "map.sn.value", ""),
    ("unique inside", 0, {"map": {"login": {"value": "lower(unique(last))"}}}, "map.login.value", "outermost"),
    ("mapped twice", 1, {"map": {"same": ["mail"], "mail": "login"}}, "map.mail", "remove one"),
    ("zone", 1, {"zone": "Europe/Berln"}, "zone", "Europe/Berlin"),
    (
        "for_each",
        0,
        {"map": {"phones": {"for_each": "phone", "value": "trim(value)"}}},
        "map.phones.for_each",
        "phones",
    ),
    ("priority out", 1, {"map": {"sn": {"from": "last", "priority": 3}}}, "map.sn.priority", ""),
]


@pytest.mark.parametrize(
    ("rule", "change", "field", "remedy"), [each[1:] for each in REFUSED_RULES], ids=[each[0] for each in REFUSED_RULES]
)
def test_rule_with_an_error_is_refused_with_its_field(
    rule: int, change: dict[str, Any], field: str, remedy: str
) -> None:
    whole = load()
    bind(whole)
    systems = {each.name: each for each in map(parse_system, whole["systems"])}
    types = {each.name: each for each in map(parse_metaverse_type, whole["metaverse"])}
    with pytest.raises(Invalid) as caught:
        bind_rule(parse_rule({**whole["sync_rules"][rule], **change}), 1, systems, types)
    assert caught.value.field == field
    assert remedy in f"{caught.value.message} {caught.value.remedy}"


def test_deletion_rule_names_existing_systems() -> None:
    whole = load()
    whole["metaverse"][0]["deletion"]["sources"] = ["Hr"]
    with pytest.raises(Invalid, match="did you mean HR"):
        bind(whole)


def test_disable_has_its_own_mappings() -> None:
    whole = load()
    whole["sync_rules"][1]["on_out_of_scope"] = {"disable": {"title": {"value": '"left"'}}}
    rule = bind(whole).rules[1]
    assert rule.on_out_of_scope is OutOfScope.DISABLE
    assert [mapping.to for mapping in rule.disable_mappings] == ["title"]
