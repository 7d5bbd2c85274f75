"""Sync rules: scope, matching, projection or provisioning, mappings, and what happens out of scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tenuto_identity.model.schema import MetaverseType, ObjectType

if TYPE_CHECKING:
    from tenuto_identity.model.rules.expressions import Expression

DEFAULT_PRIORITY = 100


class Direction(StrEnum):
    """Whether a rule flows into the metaverse or out of it."""

    IN = "in"
    OUT = "out"


class OutOfScope(StrEnum):
    """What happens to a joined object whose rule no longer applies."""

    REMAIN = "remain"
    DISCONNECT = "disconnect"
    DELETE = "delete"
    DISABLE = "disable"
    """One last update by the mappings of ``on_out_of_scope``, then disconnect."""


class MissingInput(StrEnum):
    """What an expression yields if one of its inputs has no value."""

    NO_VALUE = "no_value"
    ERROR = "error"


class TextCase(StrEnum):
    """Case that text is converted to."""

    LOWER = "lower"
    UPPER = "upper"
    TITLE = "title"


@dataclass(frozen=True, slots=True)
class Clean:
    """Clean-up of text on the way in, in the order: trim, collapse, case, blank test."""

    trim: bool = True
    collapse: bool = False
    case: TextCase | None = None
    blank_is_null: bool = True


DEFAULT_CLEAN = Clean()


@dataclass(frozen=True, slots=True)
class AttributeMapping:
    """How one attribute flows. Exactly one of ``source`` and ``value`` is set."""

    to: str
    source: str | None = None
    """Name of the attribute that is copied."""
    value: Expression | None = None
    priority: int = DEFAULT_PRIORITY
    null_is_value: bool = False
    """A missing value wins as well: it clears the attribute instead of leaving it to the next contribution."""
    missing: MissingInput = MissingInput.NO_VALUE
    for_each: str | None = None
    """Multi-valued attribute: the expression is evaluated once per value, with the variable ``value``."""
    clean: Clean = DEFAULT_CLEAN
    first_sorted: bool = False
    """Of several values for a single-valued attribute take the first in order, instead of refusing them."""
    only_on_create: bool = False
    enforce: bool = True


@dataclass(frozen=True, slots=True)
class MatchRule:
    """One attempt of matching: a value of the object equals a value of the metaverse object."""

    metaverse: str
    object: str | None = None
    value: Expression | None = None
    exact_case: bool = False


@dataclass(frozen=True)
class SyncRule:
    """A sync rule. Rules are processed in order of their number."""

    number: int
    name: str
    direction: Direction
    system: str
    object_type: str
    metaverse_type: str
    scope: Expression | None = None
    match: tuple[MatchRule, ...] = ()
    project: bool = False
    provision: bool = False
    owned: bool = False
    """Objects that the rule joined may be deleted, as if Tenuto had provisioned them."""
    on_out_of_scope: OutOfScope = OutOfScope.DISCONNECT
    disable_mappings: tuple[AttributeMapping, ...] = ()
    mappings: tuple[AttributeMapping, ...] = ()
    zone: str = "UTC"
    enabled: bool = True

    @cached_property
    def mapping_by_target(self) -> Mapping[str, AttributeMapping]:
        """Mappings by the attribute that they set."""
        return {mapping.to: mapping for mapping in self.mappings}


@dataclass(frozen=True)
class RuleSet:
    """The rules and types that a run began with."""

    rules: tuple[SyncRule, ...]
    """In order of their number."""
    metaverse_types: Mapping[str, MetaverseType]
    object_types: Mapping[tuple[str, str], ObjectType]
    """(system name, type name) → object type."""
    _cache: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """Results of the methods: rules do not change."""

    def inbound(self, system: str, object_type: str) -> tuple[SyncRule, ...]:
        """Return the enabled in rules of an object type, in order."""
        key = ("in", system, object_type)
        found: tuple[SyncRule, ...] | None = self._cache.get(key)
        if found is None:
            found = self._cache[key] = tuple(
                rule
                for rule in self.rules
                if rule.enabled
                and rule.direction is Direction.IN
                and rule.system == system
                and rule.object_type == object_type
            )
        return found

    def has_inbound_scope(self, system: str, object_type: str) -> bool:
        """Return whether one of the rules of `inbound` has a scope."""
        key = ("in scope", system, object_type)
        found: bool | None = self._cache.get(key)
        if found is None:
            found = self._cache[key] = any(rule.scope is not None for rule in self.inbound(system, object_type))
        return found

    def outbound(self, metaverse_type: str) -> tuple[SyncRule, ...]:
        """Return the enabled out rules of a metaverse type, in order."""
        key = ("out", metaverse_type)
        found: tuple[SyncRule, ...] | None = self._cache.get(key)
        if found is None:
            found = self._cache[key] = tuple(
                rule
                for rule in self.rules
                if rule.enabled and rule.direction is Direction.OUT and rule.metaverse_type == metaverse_type
            )
        return found

    def outbound_by_system(self, metaverse_type: str) -> Mapping[str, Sequence[SyncRule]]:
        """Return the enabled out rules of a metaverse type by system."""
        key = ("out by system", metaverse_type)
        found: dict[str, tuple[SyncRule, ...]] | None = self._cache.get(key)
        if found is None:
            found = self._cache[key] = {}
            for rule in self.outbound(metaverse_type):
                found[rule.system] = (*found.get(rule.system, ()), rule)
        return found

    def object_type(self, system: str, name: str) -> ObjectType:
        """Return an object type of a system."""
        return self.object_types[system, name]

    def matched_attributes(self, metaverse_type: str) -> frozenset[str]:
        """Return the metaverse attributes whose values must be in ``match_keys``: for matching and for ``unique``."""
        key = ("matched", metaverse_type)
        known: frozenset[str] | None = self._cache.get(key)
        if known is not None:
            return known
        found: set[str] = set()
        for rule in self.rules:
            if rule.metaverse_type == metaverse_type:
                found.update(match.metaverse for match in rule.match)
                found.update(
                    mapping.to for mapping in rule.mappings if mapping.value is not None and mapping.value.is_unique
                )
        result = self._cache[key] = frozenset(found)
        return result

    def matched_type(self, metaverse_type: str) -> MetaverseType:
        """Return a metaverse type reduced to the attributes that matching compares."""
        key = ("matched type", metaverse_type)
        found: MetaverseType | None = self._cache.get(key)
        if found is None:
            whole = self.metaverse_types[metaverse_type]
            names = {
                match.metaverse for rule in self.rules if rule.metaverse_type == metaverse_type for match in rule.match
            }
            attributes = {name: each for name, each in whole.attributes.items() if name in names}
            found = self._cache[key] = replace(whole, attributes=attributes)
        return found


def earlier(*instants: datetime | None) -> datetime | None:
    """Return the earliest of the instants that are known."""
    found: datetime | None = None
    for instant in instants:
        if instant is not None and (found is None or instant < found):
            found = instant
    return found
