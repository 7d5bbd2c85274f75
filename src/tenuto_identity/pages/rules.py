"""Page of sync rules: who wins each attribute, where it is sent, and each rule with its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto.definitions.document_writer import write_yaml
from tenuto.errors import Conflict
from tenuto.extension import PageRequest
from tenuto.web.components.extension_kit import Action, FilterField, Listing, path_of
from tenuto_identity.model.rules.attribute_flow import AttributeFlow, RuleDescription
from tenuto_identity.model.rules.sync_rules import Direction
from tenuto_identity.pages.page_query import choice_of, operations
from tenuto_identity.store.definitions import DefinitionKind

MAX_RULES = 500
OUT_OF_SCOPE = {
    "remain": "stays joined, and nothing flows",
    "disconnect": "is disconnected and stays in the system",
    "delete": "is deleted in the system",
    "disable": "gets one last update, and is disconnected",
}
_SYNC_KINDS = ("full_sync", "delta_sync")


@dataclass(frozen=True, slots=True)
class TypeFlows:
    """The attributes of one metaverse type."""

    name: str
    flows: Sequence[AttributeFlow]
    unused: Sequence[str]
    """Attributes that no rule reads or sets."""


@dataclass(frozen=True, slots=True)
class RuleCard:
    """One rule."""

    rule: RuleDescription
    path: str
    """Page of its system."""
    creates: str
    out_of_scope: str
    version: int
    origin: str
    definition: str
    """As YAML."""
    preview: Action | None
    """Previews the sync of the system; None if it has no run profile for one."""


@dataclass(frozen=True, slots=True)
class RulesPage:
    listing: Listing
    types: Sequence[TypeFlows]
    rules: Sequence[RuleCard]
    problem: str
    """Why this version cannot read the definitions; empty if it can."""


async def load_rules(request: PageRequest) -> RulesPage:
    systems = [each.name for each in await operations(request).systems(limit=MAX_RULES)]
    system = choice_of(request, "system", systems)
    problem = ""
    flows: Sequence[AttributeFlow] = ()
    rules: Sequence[RuleDescription] = ()
    try:
        flows = await operations(request).attribute_flows(system=system or None)
        rules = await operations(request).rules(system=system or None)
    except Conflict as error:
        problem = error.message
    found = await operations(request).definitions(DefinitionKind.SYNC_RULE, limit=MAX_RULES)
    stored = {each.name: each for each in found}
    declared = await operations(request).definitions(DefinitionKind.SYSTEM, limit=MAX_RULES)
    profiles = {each.name: _sync_profile(each.definition) for each in declared}
    cards = [
        RuleCard(
            each,
            path_of("identity", "systems", each.system),
            _creates(each),
            OUT_OF_SCOPE.get(each.on_out_of_scope, each.on_out_of_scope),
            stored[each.name].version,
            stored[each.name].origin,
            write_yaml(stored[each.name].definition),
            _preview(each.system, profiles.get(each.system)),
        )
        for each in rules
        if each.name in stored
    ]
    listing = Listing(
        "Sync rules",
        cards,
        "/identity/rules",
        filters=[FilterField("system", "System", system, tuple((each, each) for each in systems))],
    )
    return RulesPage(listing, _by_type(flows), cards, problem)


def _by_type(flows: Sequence[AttributeFlow]) -> list[TypeFlows]:
    types: dict[str, list[AttributeFlow]] = {}
    for each in flows:
        types.setdefault(each.type, []).append(each)
    return [
        TypeFlows(
            name,
            [each for each in found if each.contributions or each.targets],
            [each.attribute for each in found if not each.contributions and not each.targets],
        )
        for name, found in types.items()
    ]


def _creates(rule: RuleDescription) -> str:
    if rule.direction is Direction.IN:
        return "an identity is created" if rule.creates else "the object stays without an identity"
    return "an object is created in the system" if rule.creates else "nothing is created"


def _sync_profile(definition: Mapping[str, Any]) -> str | None:
    """Return the run profile that applies the rules of a system: a full sync if there is one."""
    profiles = {each.get("kind"): each.get("name") for each in definition.get("run_profiles", ())}
    return next((profiles[kind] for kind in _SYNC_KINDS if kind in profiles), None)


def _preview(system: str, profile: str | None) -> Action | None:
    if profile is None:
        return None
    return Action(
        "identity_previews_create",
        f"Preview {profile}",
        body={"system": system, "profile": profile},
        done="The preview was started. Nothing is changed or sent.",
        goto="/identity/previews/{preview_id}",
        style="small",
    )
