"""Matching: which metaverse object an unjoined object belongs to, and which unjoined object a metaverse object has.

Keys are folded values compared for equality; there are no wildcards. Null and blank values never match. Two hits are
ambiguous: matching stops and never guesses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject
from tenuto_identity.model.rules.expressions import ExpressionFailed, RuleClock, Variables
from tenuto_identity.model.rules.sync_rules import MatchRule, SyncRule
from tenuto_identity.model.rules.variables import object_variables
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.decision_trace import Trace, add_if
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import BadValue, Document, Value, canonical_value, fold_key


@value_class
class MatchAttempt:
    """One matching rule applied to one object: the keys to look up."""

    rule: SyncRule
    match: MatchRule
    keys: Mapping[str, Value]
    """Folded key → value. Empty: the object has no value, so the attempt cannot match."""


@value_class
class Candidate:
    """A metaverse object that has a key."""

    metaverse_id: int
    values: Document
    joined_object_id: int | None = None
    """The object of the same system that it is joined to, unless that object is disconnected in this page."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Exactly one metaverse object matches."""

    metaverse_id: int
    rule: SyncRule
    match: MatchRule


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Several metaverse objects match; the error of the item is ``ambiguous_match``."""

    metaverse_ids: tuple[int, ...]
    rule: SyncRule
    match: MatchRule


@dataclass(frozen=True, slots=True)
class AlreadyJoined:
    """The only match is joined to another object of the system; the error of the item is ``already_joined``."""

    metaverse_id: int
    object_id: int
    rule: SyncRule
    match: MatchRule


MatchResult = Joined | Ambiguous | AlreadyJoined | None
"""None: nothing matches."""
MatchIndex = Mapping[tuple[str, str], Sequence[Candidate]]
"""(metaverse attribute, folded key) → metaverse objects of one type that have it."""


def match_attempts(
    object: ConnectorObject,
    object_type: ObjectType,
    rules: Iterable[SyncRule],
    metaverse_attributes: Mapping[str, Attribute],
    now: datetime,
) -> tuple[MatchAttempt, ...]:
    """Return the attempts for an object, in rule order. ``rules`` are in and out rules of its type and system."""
    variables = object_variables(object, object_type)
    return tuple(
        MatchAttempt(
            rule, match, _object_keys(match, object, variables, metaverse_attributes, RuleClock(now, rule.zone))
        )
        for rule in rules
        for match in rule.match
    )


def find_match(attempts: Iterable[MatchAttempt], candidates: MatchIndex, *, trace: Trace | None = None) -> MatchResult:
    """Return the metaverse object that an unjoined object belongs to, or why there is none."""
    for attempt in attempts:
        hits = {
            candidate.metaverse_id: candidate
            for key, value in attempt.keys.items()
            for candidate in candidates.get((attempt.match.metaverse, key), ())
            if not attempt.match.exact_case or value in candidate.values.get(attempt.match.metaverse, ())
        }
        add_if(
            trace,
            "match",
            rule=attempt.rule.name,
            attribute=attempt.match.metaverse,
            keys=sorted(attempt.keys),
            hits=sorted(hits),
            reason=_reason(attempt, hits),
        )
        if len(hits) > 1:  # guard: identity.match_ambiguous
            return Ambiguous(tuple(sorted(hits)), attempt.rule, attempt.match)
        for candidate in hits.values():
            if candidate.joined_object_id is not None:  # guard: identity.match_joined_once
                return AlreadyJoined(candidate.metaverse_id, candidate.joined_object_id, attempt.rule, attempt.match)
            return Joined(candidate.metaverse_id, attempt.rule, attempt.match)
    return None


def _reason(attempt: MatchAttempt, hits: Mapping[int, Candidate]) -> str:
    if not attempt.keys:
        return "the object has no value"
    if not hits:
        return "no metaverse object has this value"
    if len(hits) > 1:
        return "several metaverse objects have this value"
    joined = next(iter(hits.values())).joined_object_id
    return "matched" if joined is None else f"the metaverse object is joined to object {joined} already"


def metaverse_keys(values: Document, attributes: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the keys of a metaverse object that are stored in ``match_keys``, by attribute."""
    found: dict[str, frozenset[str]] = {}
    for attribute in attributes:
        keys = frozenset(key for value in values.get(attribute, ()) if (key := fold_key(value)))
        if keys:
            found[attribute] = keys
    return found


def object_keys(attempts: Iterable[MatchAttempt]) -> frozenset[tuple[str, str]]:
    """Return the keys (metaverse attribute, folded key) of an unjoined object, for the lookup by a metaverse object."""
    return frozenset((attempt.match.metaverse, key) for attempt in attempts for key in attempt.keys)


@dataclass(frozen=True, slots=True)
class UnjoinedMatch:
    """Exactly one unjoined object of a target matches a metaverse object."""

    object_id: int
    match: MatchRule


@dataclass(frozen=True, slots=True)
class UnjoinedAmbiguous:
    """Several unjoined objects of a target match; nothing is provisioned, because one of them may be the right one."""

    object_ids: tuple[int, ...]
    match: MatchRule


def find_unjoined(
    metaverse: MetaverseObject,
    rule: SyncRule,
    unjoined: Mapping[tuple[str, str], Sequence[tuple[int, Value]]],
    *,
    taken: Collection[int] = (),
    trace: Trace | None = None,
) -> UnjoinedMatch | UnjoinedAmbiguous | None:
    """Return the unjoined object of the rule's system that a metaverse object matches.

    ``unjoined`` maps (metaverse attribute, folded key) of the system's unjoined objects to (object id, value). Objects
    in ``taken`` were joined to other metaverse objects meanwhile.
    """
    for match in rule.match:
        values = metaverse.attributes.get(match.metaverse, ())
        hits = {
            object_id
            for value in values
            if (key := fold_key(value))
            for object_id, other in unjoined.get((match.metaverse, key), ())
            if object_id not in taken and (not match.exact_case or other == value)
        }
        add_if(trace, "match_target", rule=rule.name, attribute=match.metaverse, hits=sorted(hits))
        if len(hits) > 1:  # guard: identity.match_target_ambiguous
            return UnjoinedAmbiguous(tuple(sorted(hits)), match)
        if hits:
            return UnjoinedMatch(hits.pop(), match)
    return None


def _object_keys(
    match: MatchRule,
    object: ConnectorObject,
    variables: Variables,
    metaverse_attributes: Mapping[str, Attribute],
    clock: RuleClock,
) -> dict[str, Value]:
    attribute = metaverse_attributes.get(match.metaverse)
    if attribute is None:
        return {}
    if match.object is not None:
        values: Iterable[Any] = object.attributes.get(match.object, ())
    else:
        assert match.value is not None
        try:
            values = match.value.evaluate(variables, clock).as_list()
        except ExpressionFailed:
            values = ()
    keys: dict[str, Value] = {}
    for value in values:
        try:
            converted = canonical_value(value, attribute.type)
        except BadValue:
            continue
        if key := fold_key(converted):  # guard: identity.match_blank
            keys[key] = converted
    return keys
