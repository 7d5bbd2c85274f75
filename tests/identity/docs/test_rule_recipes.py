"""The recipes of the guide of sync rules fit together with the example of the guide."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from tenuto_identity.model.definitions.rule_definitions import bind_rule, parse_rule
from tenuto_identity.model.definitions.system_definitions import parse_metaverse_type, parse_system
from tests.docs.pages import ROOT, blocks, text_without_blocks

PAGE = ROOT / "docs" / "how-to" / "sync-rules.md"
REFERENCE = {"type": "reference", "to": "person"}
DIRECTORY = {
    "name": "Directory",
    "connector": "ldap",
    "types": [
        {
            "name": "inetOrgPerson",
            "anchor": "entryUUID",
            "attributes": {
                "entryUUID": "guid",
                **dict.fromkeys(("cn", "sn", "uid", "mail", "title", "employeeNumber", "departmentNumber"), "text"),
                "manager": {"type": "reference", "to": "inetOrgPerson"},
                "phones": {"type": "text", "multi": True},
            },
        },
        {
            "name": "groupOfNames",
            "anchor": "entryUUID",
            "attributes": {
                "entryUUID": "guid",
                "cn": "text",
                "member": {"type": "reference", "to": "inetOrgPerson", "multi": True},
            },
        },
    ],
}
AD = {
    "name": "AD",
    "connector": "ldap",
    "types": [
        {
            "name": "user",
            "preset": "ad",
            "anchor": "objectGUID",
            "attributes": {
                "objectGUID": "guid",
                "cn": "text",
                "employeeID": "text",
                "userAccountControl": "integer",
            },
        }
    ],
}
PHONES = {
    "name": "Phones",
    "connector": "csv",
    "types": [{"name": "line", "anchor": "number", "attributes": {"number": "text", "employee_id": "text"}}],
}


def documents() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the example of the page, and its recipes."""
    found = [yaml.safe_load(each.text) for each in blocks(PAGE) if each.language == "yaml"]
    return found[0], [each for each in found[1:] if "run_profiles" not in each]


def test_recipes_of_rule_guide_bind_to_the_types_they_name() -> None:
    example, recipes = documents()
    systems = {each["name"]: parse_system(each) for each in (*example["systems"], DIRECTORY, AD, PHONES)}
    types = {each["type"]: each for each in copy.deepcopy(example["metaverse"])}
    types["person"]["attributes"]["title"] = "text"
    inward, outward = example["sync_rules"]
    outward = {
        **outward,
        "out": {"from": "person", "system": "Directory", "type": "inetOrgPerson"},
        "map": {"cn": "display"},
    }
    count = 0
    for recipe in recipes:
        for each in recipe.get("metaverse", ()):
            types.setdefault(each["type"], each)
        parsed = {name: parse_metaverse_type(each) for name, each in types.items()}
        rules = list(recipe.get("sync_rules", ()))
        if not rules:  # a part of a rule
            is_inward = {"login", "phones"} & set(recipe.get("map", ()))
            rules = [{**(inward if is_inward else outward), **recipe}]
        for rule in rules:
            bind_rule(parse_rule(rule), 1, systems, parsed)
            count += 1
    assert count == text_without_blocks(PAGE).split("## Recipes")[1].count("\n**")
