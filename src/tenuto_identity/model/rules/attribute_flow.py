"""What the sync rules say about each attribute: which contributions compete in which order, and where it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tenuto_identity.model.rules.sync_rules import (
    DEFAULT_CLEAN,
    AttributeMapping,
    Clean,
    Direction,
    MatchRule,
    MissingInput,
    RuleSet,
    SyncRule,
)


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One mapping of a rule."""

    rule: str
    system: str
    object_type: str
    attribute: str
    """The attribute that the mapping sets."""
    origin: str
    """The attribute that is copied, or the expression."""
    is_expression: bool
    priority: int | None
    """Of a contribution to an identity; None for what is sent to a system."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttributeFlow:
    """An attribute of identities: where its value comes from, and where it goes."""

    type: str
    """The metaverse type."""
    attribute: str
    data_type: str
    contributions: tuple[FlowStep, ...]
    """In the order in which they win: the first with a value."""
    targets: tuple[FlowStep, ...]


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """A sync rule in words."""

    name: str
    direction: Direction
    system: str
    object_type: str
    metaverse_type: str
    is_enabled: bool
    scope: str | None
    """None: every object."""
    zone: str
    matches: tuple[str, ...]
    """In the order in which they are tried."""
    creates: bool
    """Whether the rule projects an identity, or provisions an object, where nothing matches."""
    owned: bool
    on_out_of_scope: str
    mappings: tuple[FlowStep, ...]
    disable_mappings: tuple[FlowStep, ...]


def describe_flows(rules: RuleSet) -> list[AttributeFlow]:
    """Return the flow of all attributes by metaverse type and name; `engine.inbound_flow` uses the same order."""
    return [flow for name in sorted(rules.metaverse_types) for flow in _flows_of(rules, name)]


def _flows_of(rules: RuleSet, type_name: str) -> Iterator[AttributeFlow]:
    enabled = [rule for rule in rules.rules if rule.enabled and rule.metaverse_type == type_name]
    for attribute in sorted(rules.metaverse_types[type_name].attributes.values(), key=lambda each: each.name):
        found = [
            (rule.mapping_by_target[attribute.name].priority, rule.number, rule)
            for rule in enabled
            if rule.direction is Direction.IN and attribute.name in rule.mapping_by_target
        ]
        yield AttributeFlow(
            type_name,
            attribute.name,
            attribute.type.value,
            tuple(_describe(rule, rule.mapping_by_target[attribute.name]) for _, _, rule in sorted(found)),
            tuple(
                _describe(rule, mapping)
                for rule in enabled
                if rule.direction is Direction.OUT
                for mapping in rule.mappings
                if attribute.name in _inputs(mapping)
            ),
        )


def describe_rules(rules: Iterable[SyncRule]) -> list[RuleDescription]:
    """Return rules in words, in the order in which they are processed."""
    return [
        RuleDescription(
            rule.name,
            rule.direction,
            rule.system,
            rule.object_type,
            rule.metaverse_type,
            rule.enabled,
            rule.scope.text if rule.scope else None,
            rule.zone,
            tuple(_describe_match(each) for each in rule.match),
            rule.project if rule.direction is Direction.IN else rule.provision,
            rule.owned,
            rule.on_out_of_scope.value,
            tuple(_describe(rule, each) for each in rule.mappings),
            tuple(_describe(rule, each) for each in rule.disable_mappings),
        )
        for rule in rules
    ]


def _inputs(mapping: AttributeMapping) -> frozenset[str]:
    """Return the names of the attributes that a mapping reads."""
    if mapping.value is None:
        return frozenset({mapping.source or ""})
    return mapping.value.names | ({mapping.for_each} if mapping.for_each else frozenset())


def _describe(rule: SyncRule, mapping: AttributeMapping) -> FlowStep:
    is_inbound = rule.direction is Direction.IN
    return FlowStep(
        rule.name,
        rule.system,
        rule.object_type,
        mapping.to,
        mapping.value.text if mapping.value is not None else mapping.source or "",
        mapping.value is not None,
        mapping.priority if is_inbound else None,
        tuple(_notes(mapping, is_inbound=is_inbound)),
    )


def _describe_match(match: MatchRule) -> str:
    origin = match.value.text if match.value is not None else match.object or ""
    return f"{origin} = {match.metaverse}{', exact case' if match.exact_case else ''}"


def _notes(mapping: AttributeMapping, *, is_inbound: bool) -> Iterator[str]:
    if mapping.for_each:
        yield f"for each value of {mapping.for_each}"
    if mapping.missing is MissingInput.ERROR:
        yield "a missing input is an error"
    if mapping.null_is_value:
        yield "wins without a value, too, and clears the attribute"
    if mapping.first_sorted:
        yield "the first of several values"
    if is_inbound:
        yield from _cleaning(mapping.clean)
    else:
        if mapping.only_on_create:
            yield "only on create"
        if not mapping.enforce:
            yield "drift is not corrected"


def _cleaning(clean: Clean) -> Iterator[str]:
    if clean == DEFAULT_CLEAN:
        return
    if not clean.trim:
        yield "not trimmed"
    if clean.collapse:
        yield "spaces collapsed"
    if clean.case is not None:
        yield f"{clean.case.value} case"
    if not clean.blank_is_null:
        yield "blank is a value"
