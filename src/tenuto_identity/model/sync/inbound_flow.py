"""Inbound flow, the second decision of the sync engine: all attributes of a metaverse object from all contributions.

Pure like the rest of the engine: frozen values in, decisions out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import NamedTuple

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject, Origin
from tenuto_identity.model.rules.expression_values import (
    UniqueBases,
    Variables,
)
from tenuto_identity.model.rules.mapping_evaluation import Mapped, Note, NoteCode, copied_attribute, evaluate_mapping
from tenuto_identity.model.rules.sync_rules import AttributeMapping, RuleSet, SyncRule, earlier
from tenuto_identity.model.rules.variables import object_variables
from tenuto_identity.model.schema import (
    Attribute,
    MetaverseType,
    ObjectType,
)
from tenuto_identity.model.sync.decision_trace import Trace, add_if
from tenuto_identity.model.sync.engine import rules_in_scope
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import DataType, Document, Value

_REFERENCE, _TEXT = DataType.REFERENCE, DataType.TEXT


@value_class
class Contribution:
    """A joined object and an in rule that it is in scope of."""

    rule: SyncRule
    object: ConnectorObject
    object_type: ObjectType


class ValueChange(NamedTuple):
    """A change of one metaverse attribute, for the history: values, or ids of metaverse objects for references."""

    attribute: str
    before: tuple[Value, ...]
    after: tuple[Value, ...]


@value_class
class UniqueChoice:
    """An attribute that takes the first candidate that is free."""

    bases: UniqueBases
    rule_number: int
    object_id: int


@value_class
class Flow:
    """All attributes of a metaverse object, computed from all contributions."""

    values: Document
    references: Mapping[str, frozenset[int]]
    provenance: Mapping[str, tuple[int, int]]
    changes: tuple[ValueChange, ...]
    notes: tuple[Note, ...]
    reevaluate_at: datetime | None = None
    unique: Mapping[str, UniqueChoice] = field(default_factory=dict)
    """Attributes without a value that wait for a free candidate; `with_unique` sets them."""

    @property
    def errors(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.is_error)


def collect_contributions(
    metaverse_type: str,
    objects: Iterable[ConnectorObject],
    rules: RuleSet,
    now: datetime,
    *,
    trace: Trace | None = None,
) -> tuple[list[Contribution], datetime | None]:
    """Return the contributions of the objects joined to one metaverse object, and when scopes change."""
    found: list[Contribution] = []
    reevaluate_at: datetime | None = None
    for each in objects:
        scoped = rules_in_scope(each, rules, now, trace=trace)
        if scoped.reevaluate_at is not None:
            reevaluate_at = earlier(reevaluate_at, scoped.reevaluate_at)
        found.extend(
            Contribution(rule, each, rules.object_type(each.system, each.type))
            for rule in scoped.rules
            if rule.metaverse_type == metaverse_type
        )
    return found, reevaluate_at


def inbound_flow(
    metaverse_type: MetaverseType,
    current: MetaverseObject | None,
    contributions: Iterable[Contribution],
    now: datetime,
    *,
    trace: Trace | None = None,
) -> Flow:
    """Compute all attributes of a metaverse object from all contributions; the order of contributions is irrelevant.

    Per attribute, contributions are ordered by priority, rule number and object id; the first with a value wins. A
    missing value with ``null_is_value`` ends the search. Without a winner the attribute is cleared, unless a scheduled
    deletion freezes it. If the mapping of the winner fails, the old value stays.
    """
    return _compute_flow(metaverse_type, current, contributions, now, trace).result()


def inbound_values(metaverse_type: MetaverseType, contributions: Iterable[Contribution], now: datetime) -> Document:
    """Return the values of `inbound_flow` for a new metaverse object."""
    return _compute_flow(metaverse_type, None, contributions, now, None).values


def _compute_flow(
    metaverse_type: MetaverseType,
    current: MetaverseObject | None,
    contributions: Iterable[Contribution],
    now: datetime,
    trace: Trace | None,
) -> _FlowState:
    ordered = list(contributions)
    if len(ordered) > 1:
        ordered.sort(key=lambda each: (each.rule.number, each.object.id))
    state = _FlowState(metaverse_type, current, ordered, now, trace)
    attributes = _flow_plan(metaverse_type, ordered).attributes
    for attribute, ranked, copied, position in attributes:
        if attribute.type is _REFERENCE:
            state.flow_references(attribute, ranked)
        elif copied is None or trace is not None or not state.copy(attribute, ordered[position], copied):
            state.flow_values(attribute, ranked)
    if trace is not None:
        for attribute, ranked, _, _ in attributes:
            state.trace_losers(attribute, ranked, trace)
    return state


def with_unique(flow: Flow, attribute: str, value: str, metaverse_type: MetaverseType) -> Flow:
    """Return a flow whose unique attribute has the candidate that was free."""
    choice = flow.unique[attribute]
    remaining = {name: each for name, each in flow.unique.items() if name != attribute}
    assert metaverse_type.attributes[attribute].type.value == "text"
    return Flow(
        {**flow.values, attribute: [value]},
        flow.references,
        {**flow.provenance, attribute: (choice.rule_number, choice.object_id)},
        (*flow.changes, ValueChange(attribute, (), (value,))),
        flow.notes,
        flow.reevaluate_at,
        remaining,
    )


_Ranked = Sequence[tuple[AttributeMapping, int, str | None]]
"""Mappings in order of rank: each with the position of its contribution, and the attribute if it is only copied."""


class _FlowPlan:
    """The mappings of each attribute in order of rank, for one combination of rules.

    Measured (`identity`, full sync): ranking them again for every object took a quarter of the flow.
    """

    def __init__(self, metaverse_type: MetaverseType, contributions: Sequence[Contribution]) -> None:
        self._made_for = metaverse_type, [(each.rule, each.object_type) for each in contributions]
        """Keeps them alive: the plan is found by their identities."""
        by_target: dict[str, list[tuple[AttributeMapping, int, str | None]]] = {}
        for position, each in enumerate(contributions):
            for mapping in each.rule.mappings:
                target = metaverse_type.attributes.get(mapping.to)
                if target is not None:
                    copied = copied_attribute(mapping, target, each.object_type.attributes, cleans=True)
                    by_target.setdefault(mapping.to, []).append((mapping, position, copied))
        # The contributions are in order of rule number and object id; sorting keeps it within a priority.
        self.attributes: list[tuple[Attribute, _Ranked, str | None, int]] = []
        """Each with the attribute that its first mapping copies, if it does, and the position of the contribution."""
        for name, attribute in metaverse_type.attributes.items():
            ranked = sorted(by_target.get(name, ()), key=lambda each: each[0].priority)
            _, position, copied = ranked[0] if ranked else (None, 0, None)
            self.attributes.append((attribute, ranked, copied, position))


_MAX_PLANS = 200
_flow_plans: dict[tuple[int, ...], _FlowPlan] = {}


def _flow_plan(metaverse_type: MetaverseType, contributions: Sequence[Contribution]) -> _FlowPlan:
    key = (id(metaverse_type), *(part for each in contributions for part in (id(each.rule), id(each.object_type))))
    found = _flow_plans.get(key)
    if found is None:
        if len(_flow_plans) >= _MAX_PLANS:
            _flow_plans.clear()
        found = _flow_plans[key] = _FlowPlan(metaverse_type, contributions)
    return found


class _FlowState:
    """Collects the result of `inbound_flow`."""

    def __init__(
        self,
        metaverse_type: MetaverseType,
        current: MetaverseObject | None,
        contributions: Sequence[Contribution],
        now: datetime,
        trace: Trace | None,
    ) -> None:
        self._contributions = contributions
        self._now = now
        self._trace = trace
        self._type = metaverse_type
        self._current = current
        self._is_frozen = current is not None and current.deletion_scheduled_at is not None
        self._old_values: Document = current.attributes if current else {}
        self._old_references = current.references if current else {}
        self._old_provenance = current.provenance if current else {}
        self.values: dict[str, list[Value]] = {}
        """Values without those of ``unique``."""
        self._references: dict[str, frozenset[int]] = {}
        self._provenance: dict[str, tuple[int, int]] = {}
        self._notes: list[Note] = []
        self._unique: dict[str, UniqueChoice] = {}
        self._variables: dict[int, Variables] = {}
        """Variables by object, shared by its mappings: each attribute is decoded once."""
        self._reevaluate_at: datetime | None = None

    def flow_values(self, attribute: Attribute, ranked: _Ranked) -> None:
        name = attribute.name
        for mapping, position, copied in ranked:
            contribution = self._contributions[position]
            if copied is not None and self._trace is None and self.copy(attribute, contribution, copied):
                return
            mapped = self._evaluate(attribute, mapping, contribution)
            if mapped.reevaluate_at is not None:
                self._reevaluate_at = earlier(self._reevaluate_at, mapped.reevaluate_at)
            if self._trace is not None:
                self._trace_contribution(name, mapping, contribution, mapped)
            if mapped.note is not None:
                self._notes.append(mapped.note)
            source = (contribution.rule.number, contribution.object.id)
            if mapped.has_failed:  # guard: identity.failed_mapping_in
                self._keep(name, "the mapping failed; the old value stays")
                return
            if mapped.unique is not None:
                self._take_unique(name, mapped.unique, source)
                return
            if mapped.values:
                self.values[name] = list(mapped.values)
                self._provenance[name] = source
                add_if(self._trace, "winner", attribute=name, rule=contribution.rule.name, object_id=source[1])
                return
            if mapping.null_is_value:
                add_if(self._trace, "winner", attribute=name, rule=contribution.rule.name, cleared=True)
                return
        self._without_winner(name)

    def copy(self, attribute: Attribute, contribution: Contribution, copied: str) -> bool:
        """Copy a single value, which is the common case; return False if the general code must decide.

        `test_flow_with_a_trace_equals_the_flow_without_one` compares them: the general code records a trace.
        """
        found = contribution.object.attributes.get(copied, ())
        if len(found) != 1:
            return False
        value = found[0]
        if attribute.type is _TEXT and isinstance(value, str):
            value = value.strip()
        if value == "":
            return False
        self.values[attribute.name] = [value]
        self._provenance[attribute.name] = (contribution.rule.number, contribution.object.id)
        return True

    def _trace_contribution(
        self, name: str, mapping: AttributeMapping, contribution: Contribution, mapped: Mapped
    ) -> None:
        add_if(
            self._trace,
            "contribution",
            attribute=name,
            rule=contribution.rule.name,
            system=contribution.object.system,
            object_id=contribution.object.id,
            priority=mapping.priority,
            expression=mapping.value.text if mapping.value else None,
            source=mapping.source,
            inputs=self._inputs(mapping, contribution),
            values=list(mapped.values) if mapped.unique is None else list(mapped.unique.bases),
            note=mapped.note.message if mapped.note else None,
        )

    def _evaluate(self, attribute: Attribute, mapping: AttributeMapping, contribution: Contribution) -> Mapped:
        source, object_type = contribution.object, contribution.object_type
        variables = self._variables.get(source.id)
        if variables is None:
            variables = self._variables[source.id] = object_variables(source, object_type)
        return evaluate_mapping(
            mapping,
            contribution.rule,
            attribute,
            source.attributes,
            object_type.attributes,
            variables,
            self._now,
            cleans=True,
        )

    def _inputs(self, mapping: AttributeMapping, contribution: Contribution) -> dict[str, object]:
        if self._trace is None or mapping.value is None:
            return {}
        variables = object_variables(contribution.object, contribution.object_type)
        return {name: variables[name] for name in sorted(mapping.value.names) if name != "value"}

    def _take_unique(self, name: str, bases: UniqueBases, source: tuple[int, int]) -> None:
        if old := self._old_values.get(name):
            # The value stays for as long as the attribute has one, even if the candidates change.
            self.values[name] = list(old)
            self._provenance[name] = source
        else:
            self._unique[name] = UniqueChoice(bases, *source)
        add_if(self._trace, "winner", attribute=name, object_id=source[1], unique=True)

    def _without_winner(self, name: str) -> None:
        if self._is_frozen:  # guard: identity.frozen_values
            self._keep(name, "a scheduled deletion freezes the value")
        elif self._current is not None and name not in self._old_provenance and self._has_own_values():
            self._keep(name, "no rule contributed the value")
        elif self._old_values.get(name) or self._old_references.get(name):
            add_if(self._trace, "winner", attribute=name, cleared=True, reason="no contribution has a value")

    def _has_own_values(self) -> bool:
        return self._current is not None and self._current.origin is Origin.INTERNAL

    def _keep(self, name: str, reason: str) -> None:
        if name in self._old_values:
            self.values[name] = list(self._old_values[name])
        if name in self._old_references:
            self._references[name] = self._old_references[name]
        if name in self._old_provenance:
            self._provenance[name] = self._old_provenance[name]
        add_if(self._trace, "winner", attribute=name, kept=True, reason=reason)

    def flow_references(self, attribute: Attribute, ranked: _Ranked) -> None:
        name = attribute.name
        for mapping, position, _ in ranked:
            contribution = self._contributions[position]
            raw = contribution.object.references.get(mapping.source or "", ())
            resolved = frozenset(each.metaverse_id for each in raw if each.metaverse_id is not None)
            unresolved = sum(1 for each in raw if each.metaverse_id is None)
            if self._trace is not None:
                self._trace_references(name, mapping, contribution)
            if not raw and not mapping.null_is_value:
                continue
            self._take_references(attribute, contribution, resolved, unresolved)
            return
        self._without_winner(name)

    def _trace_references(self, name: str, mapping: AttributeMapping, contribution: Contribution) -> None:
        raw = contribution.object.references.get(mapping.source or "", ())
        add_if(
            self._trace,
            "contribution",
            attribute=name,
            rule=contribution.rule.name,
            system=contribution.object.system,
            object_id=contribution.object.id,
            priority=mapping.priority,
            source=mapping.source,
            references=sorted({each.metaverse_id for each in raw if each.metaverse_id is not None}),
            unresolved=[each.raw for each in raw if each.metaverse_id is None],
        )

    def trace_losers(self, attribute: Attribute, ranked: _Ranked, trace: Trace) -> None:
        """Record the contributions that were not asked for, because one before them won. They decide nothing."""
        traced = sum(1 for facts in trace.find("contribution") if facts["attribute"] == attribute.name)
        for mapping, position, _ in ranked[traced:]:
            contribution = self._contributions[position]
            if attribute.type is DataType.REFERENCE:
                self._trace_references(attribute.name, mapping, contribution)
            else:
                mapped = self._evaluate(attribute, mapping, contribution)
                self._trace_contribution(attribute.name, mapping, contribution, mapped)

    def _take_references(
        self, attribute: Attribute, contribution: Contribution, resolved: frozenset[int], unresolved: int
    ) -> None:
        name = attribute.name
        if unresolved:  # guard: identity.unresolved_references
            # A target that is not joined yet holds back removals, so that values do not come and go.
            old = self._old_references.get(name, frozenset())
            resolved = resolved | old if attribute.multi else resolved or old
            message = f"{unresolved} reference{'s' if unresolved > 1 else ''} of {name} not resolved"
            self._notes.append(Note(NoteCode.UNRESOLVED_REFERENCE, name, contribution.rule.name, message, unresolved))
        if len(resolved) > 1 and not attribute.multi:
            message = f"{name} takes one reference, and {contribution.rule.name} gives {len(resolved)}"
            self._notes.append(Note(NoteCode.SEVERAL_VALUES, name, contribution.rule.name, message, len(resolved)))
            self._keep(name, "several references for a single-valued attribute")
            return
        if resolved:
            self._references[name] = resolved
            self._provenance[name] = (contribution.rule.number, contribution.object.id)
        add_if(self._trace, "winner", attribute=name, rule=contribution.rule.name, object_id=contribution.object.id)

    def result(self) -> Flow:
        changes: list[ValueChange] = []
        is_same = self.values == self._old_values and self._references == self._old_references
        if not self._old_values and not self._old_references:  # a new object; the general code gives the same
            names = [name for name in self._type.attributes if name in self.values or name in self._references]
            changes = [
                ValueChange(name, (), tuple(self.values.get(name, ())) or tuple(sorted(self._references[name])))
                for name in names
            ]
            is_same = True
        for name in () if is_same else self._type.attributes:
            before = tuple(self._old_values.get(name, ())) or tuple(sorted(self._old_references.get(name, ())))
            after = tuple(self.values.get(name, ())) or tuple(sorted(self._references.get(name, ())))
            if before != after:
                changes.append(ValueChange(name, before, after))
        return Flow(
            values=self.values,
            references=self._references,
            provenance=self._provenance,
            changes=tuple(changes),
            notes=tuple(self._notes),
            reevaluate_at=self._reevaluate_at,
            unique=self._unique,
        )
