"""Which objects a full sync may skip: those about which it would decide exactly what the last sync decided.

An object is settled if nothing has changed that the decisions about it depend on: its own version, the objects joined
to the same metaverse object, pending exports, references, the instants of dated rules, and the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.value_class import value_class

ENGINE_VERSION = 1
"""Increased when the engine decides differently about the same objects and rules: nothing is skipped after that."""
_KEY_FACTOR = 6_364_136_223_846_793_005
_KEY_MASK = 2**63 - 1


@value_class
class JoinedFacts:
    """An object that is joined to the metaverse object, without its values."""

    object_id: int
    system_number: int
    type_number: int
    state: ObjectState
    version: int
    evaluated_version: int | None
    """The version that the last sync decided about; None if there was none."""
    evaluated_rules: int | None
    evaluated_engine: int | None
    evaluated_joins: int | None
    """`joined_key` of all objects that were joined to the metaverse object when the last sync decided."""
    mark_reason: str | None
    has_export: bool


@value_class
class ObjectFacts:
    """An object of a full sync, without its values."""

    object_id: int
    metaverse_type: int | None
    """Number of the type of its metaverse object; None for an unjoined object."""
    is_due: bool
    """A dated rule may have another result now."""
    is_deletion_scheduled: bool
    has_unresolved: bool
    """It refers to an object that does not exist or is not joined."""
    joined: Sequence[JoinedFacts]
    """All objects that are joined to its metaverse object, itself among them."""


@dataclass(frozen=True, slots=True)
class SettledRules:
    """What the definitions of a run say about skipping."""

    rules_version: int
    contributors: frozenset[tuple[int, int]]
    """(system, object type) of objects that in rules apply to."""
    targets: Mapping[int, frozenset[int]]
    """Metaverse type → systems that out rules apply to."""


def is_settled(facts: ObjectFacts, rules: SettledRules) -> bool:
    """Return whether a sync of this object would change nothing and report nothing."""
    if facts.metaverse_type is None or facts.is_due or facts.is_deletion_scheduled or facts.has_unresolved:
        return False
    # A target without an object may have an unjoined one that matches now.
    systems = {each.system_number for each in facts.joined}
    if not rules.targets.get(facts.metaverse_type, frozenset()) <= systems:
        return False
    key = joined_key(each.object_id for each in facts.joined)
    return all(_is_joined_settled(each, facts.object_id, key, rules) for each in facts.joined)


def joined_key(object_ids: Iterable[int]) -> int:
    """Return a number below 2^63 that stands for a set of joined objects.

    An object that is deleted or disconnected while a sync decides is not found by its version, because it is no longer
    joined. The key of those that remain differs from the key that the sync stored."""
    key = 0
    for id in sorted(object_ids):
        key = (key * _KEY_FACTOR + id) & _KEY_MASK
    return key


def _is_joined_settled(each: JoinedFacts, object_id: int, key: int, rules: SettledRules) -> bool:
    if each.state is not ObjectState.NORMAL or each.has_export:
        return False
    is_evaluated = (
        each.version == each.evaluated_version
        and each.evaluated_rules == rules.rules_version  # guard: identity.skip_same_rules
        and each.evaluated_engine == ENGINE_VERSION
        and each.evaluated_joins == key  # guard: identity.skip_same_joins
    )
    if each.object_id == object_id or (each.system_number, each.type_number) in rules.contributors:
        return is_evaluated and each.mark_reason is None
    # An object of a target, from which nothing flows. Without a mark, only exports have changed it since, and they are
    # confirmed. The mark of an import stays until a sync of that system; this sync has decided about that version.
    return each.mark_reason is None or (each.mark_reason == "imported" and is_evaluated)


def select_unsettled(
    facts: Iterable[ObjectFacts], rules: SettledRules, limit: int
) -> tuple[list[int], int, int | None]:
    """Return the next objects that must be processed, how many objects were looked at, and the last of these."""
    chosen: list[int] = []
    count, last = 0, None
    for each in facts:
        if not is_settled(each, rules):
            if len(chosen) == limit:
                break
            chosen.append(each.object_id)
        count, last = count + 1, each.object_id
    return chosen, count, last
