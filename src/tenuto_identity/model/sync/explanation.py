"""The explanation of one identity, or of an object that is not joined: the decisions of a sync, with their reasons.

The decisions are made by the functions that a sync uses, with a trace; nothing is decided here. Values of sensitive
attributes are replaced unless the caller may see them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tenuto_identity.model.json_integers import LongId
from tenuto_identity.model.objects import ConnectorObject, MetaverseObject
from tenuto_identity.model.rules.sync_rules import RuleSet
from tenuto_identity.model.schema import ADDRESS
from tenuto_identity.model.sync.decision_trace import Trace
from tenuto_identity.model.sync.engine import imported_values, projection, rules_in_scope
from tenuto_identity.model.sync.inbound_flow import collect_contributions, inbound_flow
from tenuto_identity.model.sync.matcher import MatchAttempt, MatchIndex, find_match
from tenuto_identity.model.sync.outbound import Target, expected_values, stage_exports
from tenuto_identity.model.sync.pending_exports import Change

HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class TermExplanation:
    """One condition of a scope, with the values it was evaluated for."""

    term: str
    inputs: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class ScopeExplanation:
    """Whether a rule applies, term by term."""

    rule: str
    expression: str | None
    in_scope: bool
    terms: tuple[TermExplanation, ...] = ()
    error: str | None = None
    reevaluate_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ContributionExplanation:
    """What one joined object supplies for an attribute, in rank order."""

    rule: str
    system: str
    object_id: LongId
    priority: int
    expression: str | None
    source: str | None
    inputs: Mapping[str, Any]
    values: tuple[Any, ...]
    note: str | None
    wins: bool


@dataclass(frozen=True, slots=True)
class AttributeExplanation:
    """One attribute of a metaverse object: its value, where it comes from, and the contributions that lost."""

    name: str
    values: tuple[Any, ...]
    contributions: tuple[ContributionExplanation, ...]
    reason: str | None = None
    """Why the value stays although no contribution won, or why there is none."""
    is_reference: bool = False
    """The values are ids of metaverse objects."""


@dataclass(frozen=True, slots=True)
class SourceExplanation:
    """A joined object and the in rules that apply to it."""

    system: str
    object_id: LongId
    anchor: str | None
    join_kind: str | None
    state: str
    scopes: tuple[ScopeExplanation, ...]


@dataclass(frozen=True, slots=True)
class TargetAttributeExplanation:
    """One attribute of a target: what is desired, expected, imported and pending."""

    name: str
    rule: str | None
    desired: tuple[Any, ...]
    expected: tuple[Any, ...]
    imported: tuple[Any, ...]
    pending: tuple[Mapping[str, Any], ...] = ()
    """Changes with operation, values, state, attempts and the values that an import found instead."""
    is_reference: bool = False
    """The values are ids of metaverse objects."""


@dataclass(frozen=True, slots=True)
class TargetExplanation:
    """What a target shows and what it is sent."""

    system: str
    object_id: LongId | None
    anchor: str | None
    address: str
    action: str
    """What a sync would do now: ``nothing``, ``update``, ``provision`` …"""
    scopes: tuple[ScopeExplanation, ...]
    attributes: tuple[TargetAttributeExplanation, ...]
    export_kind: str | None = None
    export_state: str | None = None
    attempts: int = 0
    next_attempt_at: datetime | None = None
    deferred_reference_count: int = 0
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentityExplanation:
    """Why a metaverse object is as it is."""

    id: LongId
    type: str
    sources: tuple[SourceExplanation, ...]
    attributes: tuple[AttributeExplanation, ...]
    targets: tuple[TargetExplanation, ...]
    deletion_scheduled_at: datetime | None = None
    delete_after: datetime | None = None
    deletion_system: str | None = None
    reevaluate_at: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchExplanation:
    """One matching rule that was tried."""

    rule: str
    attribute: str
    keys: tuple[str, ...]
    hits: tuple[LongId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ObjectExplanation:
    """Why an object is not joined."""

    system: str
    object_id: LongId
    anchor: str | None
    type: str
    scopes: tuple[ScopeExplanation, ...]
    matches: tuple[MatchExplanation, ...]
    projected_by: str | None
    """The rule that would project it."""
    pinned: bool


# --- explaining -----------------------------------------------------------------------------------------------------


def explain_identity(
    metaverse: MetaverseObject,
    joined: Iterable[ConnectorObject],
    targets: Iterable[Target],
    rules: RuleSet,
    now: datetime,
    *,
    reveals: bool = False,
) -> IdentityExplanation:
    """Explain a metaverse object, with the objects joined to it and one `Target` for each system with out rules."""
    metaverse_type = rules.metaverse_types[metaverse.type]
    objects = sorted(joined, key=lambda each: (each.system, each.id))
    mask = _Mask(rules, reveals)
    trace = Trace()
    contributions, scopes_at = collect_contributions(metaverse.type, objects, rules, now)
    flow = inbound_flow(metaverse_type, metaverse, contributions, now, trace=trace)
    return IdentityExplanation(
        id=metaverse.id,
        type=metaverse.type,
        sources=tuple(_explain_source(each, rules, now, mask) for each in objects),
        attributes=tuple(
            replace(
                _explain_attribute(name, flow.values, flow.references, trace, mask), is_reference=attribute.is_reference
            )
            for name, attribute in metaverse_type.attributes.items()
        ),
        targets=tuple(_explain_target(metaverse, target, rules, now, mask) for target in targets),
        deletion_scheduled_at=metaverse.deletion_scheduled_at,
        delete_after=metaverse.delete_after,
        deletion_system=metaverse.deletion_system,
        reevaluate_at=min(filter(None, (scopes_at, flow.reevaluate_at)), default=None),
        notes=tuple(note.message for note in flow.notes) if reveals or not mask.hidden else (),
    )


def explain_object(
    object: ConnectorObject,
    attempts: Sequence[MatchAttempt],
    candidates: Mapping[str, MatchIndex],
    rules: RuleSet,
    now: datetime,
    *,
    reveals: bool = False,
) -> ObjectExplanation:
    """Explain why an object is not joined. ``candidates`` are by metaverse type."""
    trace = Trace()
    for attempt in attempts:
        find_match([attempt], candidates.get(attempt.rule.metaverse_type, {}), trace=trace)
    scoped = rules_in_scope(object, rules, now)
    projecting = projection(object, scoped.rules)
    mask = _Mask(rules, reveals)
    return ObjectExplanation(
        system=object.system,
        object_id=object.id,
        anchor=object.anchor,
        type=object.type,
        scopes=_explain_source(object, rules, now, mask).scopes,
        matches=tuple(
            MatchExplanation(
                facts["rule"],
                facts["attribute"],
                tuple(HIDDEN if facts["attribute"] in mask.hidden else key for key in facts["keys"]),
                tuple(facts["hits"]),
                facts["reason"],
            )
            for facts in trace.find("match")
        ),
        projected_by=projecting.rule.name if projecting else None,
        pinned=object.pinned,
    )


def sensitive_attributes(rules: RuleSet) -> frozenset[str]:
    """Return the names of attributes whose values only administrators may see."""
    attributes = [each.attributes for each in rules.object_types.values()]
    attributes += [each.attributes for each in rules.metaverse_types.values()]
    return frozenset(name for found in attributes for name, attribute in found.items() if attribute.sensitive)


class _Mask:
    """Replaces values of sensitive attributes, also where they are inputs of expressions."""

    def __init__(self, rules: RuleSet, reveals: bool) -> None:
        self.hidden = frozenset[str]() if reveals else sensitive_attributes(rules)

    def values(self, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(HIDDEN if name in self.hidden else _plain(value) for value in values)

    def message(self, text: str | None) -> str | None:
        """Return a message, which can quote any value; hidden if an attribute is sensitive."""
        return HIDDEN if text and self.hidden else text

    def inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: HIDDEN if name in self.hidden and value is not None else _plain(value)
            for name, value in inputs.items()
        }

    def computed(self, name: str, inputs: Mapping[str, Any], values: Iterable[Any]) -> tuple[Any, ...]:
        """Return the values of an expression; they are hidden if one of its inputs is."""
        if name in self.hidden or self.hidden & set(inputs):
            return tuple(HIDDEN for _ in values)
        return tuple(_plain(value) for value in values)


def _plain(value: Any) -> Any:
    """Return a value as plain data."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value


def _explain_source(each: ConnectorObject, rules: RuleSet, now: datetime, mask: _Mask) -> SourceExplanation:
    trace = Trace()
    rules_in_scope(each, rules, now, trace=trace)
    return SourceExplanation(
        each.system,
        each.id,
        each.anchor,
        each.join_kind.value if each.join_kind else None,
        each.state.value,
        _explain_scopes(trace, mask),
    )


def _explain_scopes(trace: Trace, mask: _Mask) -> tuple[ScopeExplanation, ...]:
    return tuple(
        ScopeExplanation(
            facts["rule"],
            facts["expression"],
            facts.get("in_scope", False),
            tuple(
                TermExplanation(term["term"], mask.inputs(term["inputs"]), _plain(term["result"]))
                for term in facts.get("terms", ())
            ),
            mask.message(facts.get("error")),
            facts.get("reevaluate_at"),
        )
        for facts in trace.find("scope")
    )


def _explain_attribute(
    name: str,
    values: Mapping[str, Sequence[Any]],
    references: Mapping[str, frozenset[int]],
    trace: Trace,
    mask: _Mask,
) -> AttributeExplanation:
    winner = next((facts for facts in trace.find("winner") if facts["attribute"] == name), {})
    contributions = tuple(
        ContributionExplanation(
            rule=facts["rule"],
            system=facts["system"],
            object_id=facts["object_id"],
            priority=facts["priority"],
            expression=facts.get("expression"),
            source=facts.get("source"),
            inputs=mask.inputs(facts.get("inputs", {})),
            values=mask.computed(name, facts.get("inputs", {}), facts.get("values", facts.get("references", ()))),
            note=facts.get("note") if not mask.hidden else None,
            wins=facts["object_id"] == winner.get("object_id") and facts["rule"] == winner.get("rule", facts["rule"]),
        )
        for facts in trace.find("contribution")
        if facts["attribute"] == name
    )
    shown = values.get(name) or sorted(references.get(name, ()))
    return AttributeExplanation(name, mask.values(name, shown), contributions, winner.get("reason"))


def _explain_target(
    metaverse: MetaverseObject, target: Target, rules: RuleSet, now: datetime, mask: _Mask
) -> TargetExplanation:
    trace = Trace()
    metaverse_type = rules.metaverse_types[metaverse.type]
    staged = stage_exports(metaverse, metaverse_type, target, now, before=metaverse, trace=trace)
    found, pending = target.object, target.pending
    desired = {facts["attribute"]: facts for facts in trace.find("desired")}
    names = dict.fromkeys([*desired, *(change.attribute for change in pending.changes)] if pending else desired)
    attributes: list[TargetAttributeExplanation] = []
    object_type = target.object_types.get(found.type if found is not None else staged.object_type)
    known = object_type.attributes if object_type is not None else {}
    if found is not None and object_type is not None:
        imported, expected = imported_values(found), expected_values(found, pending, object_type)
        for name in names:
            facts = desired.get(name, {})
            attributes.append(
                TargetAttributeExplanation(
                    name,
                    facts.get("rule"),
                    mask.values(name, facts.get("values", ())),
                    mask.values(name, _values_of(expected, name)),
                    mask.values(name, _values_of(imported, name)),
                    tuple(
                        _explain_change(change, mask)
                        for change in (pending.changes if pending else ())
                        if change.attribute == name
                    ),
                    name in known and known[name].is_reference,
                )
            )
    else:
        attributes = [
            TargetAttributeExplanation(
                name,
                facts.get("rule"),
                mask.values(name, facts["values"]),
                (),
                (),
                is_reference=name in known and known[name].is_reference,
            )
            for name, facts in desired.items()
        ]
    return TargetExplanation(
        system=target.system,
        object_id=found.id if found else None,
        anchor=found.anchor if found else None,
        address=found.address if found else staged.address,
        action=staged.action.value,
        scopes=_explain_scopes(trace, mask),
        attributes=tuple(attributes),
        export_kind=pending.kind.value if pending else None,
        export_state=pending.state.value if pending else None,
        attempts=pending.attempts if pending else 0,
        next_attempt_at=pending.next_attempt_at if pending else None,
        deferred_reference_count=pending.deferred_reference_count if pending else 0,
        error=mask.message(pending.error) if pending else None,
        notes=tuple(note.message for note in staged.notes) if not mask.hidden else (),
    )


def _values_of(values: Any, name: str) -> Sequence[Any]:
    if name == ADDRESS:
        return [values.address] if values.address else []
    return values.attributes.get(name) or sorted(values.references.get(name, ()))


def _explain_change(change: Change, mask: _Mask) -> dict[str, Any]:
    return {
        "op": change.op.value,
        "values": list(mask.values(change.attribute, change.values or change.references)),
        "state": change.state.value,
        "attempts": change.attempts,
        "observed": None if change.observed is None else list(mask.values(change.attribute, change.observed)),
    }


# --- deleted identities ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PastChange:
    """A change of a metaverse object, or of an object that was joined to it, from the history."""

    run_id: UUID
    system: str | None
    profile: str | None
    at: datetime | None
    subject: str
    """``identity`` or ``object``."""
    change: str | None
    anchor: str | None
    diff: Mapping[str, Sequence[Any]]
    """``{attribute: [before, after]}``"""


@dataclass(frozen=True, slots=True)
class PastAttribute:
    """The last value of an attribute, and the run that set it."""

    name: str
    values: tuple[Any, ...]
    run_id: UUID | None = None
    """None if the run is past the retention."""
    system: str | None = None
    profile: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PastObject:
    """An object that was joined, and what last happened to it."""

    system: str | None
    anchor: str | None
    change: str | None
    run_id: UUID
    at: datetime | None


@dataclass(frozen=True, slots=True)
class DeletedExplanation:
    """A metaverse object that was deleted, as far as the history reaches."""

    id: LongId
    type: str | None
    display: str | None
    deleted_by_run: UUID | None
    """The run that deleted it; None if a task did, or the run is past the retention."""
    system: str | None
    profile: str | None
    deleted_at: datetime | None
    attributes: tuple[PastAttribute, ...]
    objects: tuple[PastObject, ...]


def explain_deleted(
    id: int, type_name: str | None, display: str | None, history: Sequence[PastChange], *, hidden: Collection[str] = ()
) -> DeletedExplanation:
    """Explain a deleted metaverse object by its history, which begins with the newest change."""
    own = [each for each in history if each.subject == "identity"]
    deletion = own[0] if own and not any(after for _, after in own[0].diff.values()) else None
    values: dict[str, PastAttribute] = {}
    for each in reversed(own):
        for name, (_, after) in each.diff.items():
            if each is not deletion:
                values[name] = PastAttribute(
                    name,
                    (HIDDEN,) if name in hidden and after else tuple(after),
                    each.run_id,
                    each.system,
                    each.profile,
                    each.at,
                )
    for name, (before, _) in deletion.diff.items() if deletion else ():
        if name not in values:
            values[name] = PastAttribute(name, (HIDDEN,) if name in hidden else tuple(before))
    objects: dict[tuple[str | None, str | None], PastObject] = {}
    for each in history:
        if each.subject == "object":
            objects.setdefault(
                (each.system, each.anchor), PastObject(each.system, each.anchor, each.change, each.run_id, each.at)
            )
    return DeletedExplanation(
        id,
        type_name,
        display,
        deletion.run_id if deletion else None,
        deletion.system if deletion else None,
        deletion.profile if deletion else None,
        deletion.at if deletion else None,
        tuple(each for _, each in sorted(values.items()) if each.values),
        tuple(objects.values()),
    )


# --- text -----------------------------------------------------------------------------------------------------------


def referenced_ids(explanation: IdentityExplanation) -> list[int]:
    """Return the metaverse objects that an explanation names by id."""
    found = {explanation.id}
    for attribute in explanation.attributes:
        if attribute.is_reference:
            values = [attribute.values, *(each.values for each in attribute.contributions)]
            found.update(value for each in values for value in each if isinstance(value, int))
    for target in explanation.targets:
        for each in target.attributes:
            if each.is_reference:
                found.update(value for value in (*each.desired, *each.expected, *each.imported) if type(value) is int)
    return sorted(found)


def format_identity(explanation: IdentityExplanation, names: Mapping[int, str | None] = MappingProxyType({})) -> str:
    """Return an explanation as text for a terminal. ``names`` are those of metaverse objects, by id."""

    def show(values: Iterable[Any], is_reference: bool) -> str:
        if not is_reference:
            return ", ".join(map(str, values))
        return ", ".join(f"{names[each]} ({each})" if names.get(each) else str(each) for each in values)

    lines = [f"{explanation.type} {explanation.id}{f' {name}' if (name := names.get(explanation.id)) else ''}"]
    if explanation.delete_after is not None:
        by = f", because {explanation.deletion_system} disconnected" if explanation.deletion_system else ""
        lines.append(f"  deletion scheduled for {explanation.delete_after.isoformat()}{by}")
    if explanation.reevaluate_at is not None:
        lines.append(f"  evaluated again at {explanation.reevaluate_at.isoformat()}")
    for source in explanation.sources:
        lines.append(f"joined {source.system} {source.anchor or '-'} ({source.join_kind or 'joined'}, {source.state})")
        lines.extend(_format_scopes(source.scopes))
    for attribute in explanation.attributes:
        shown = show(attribute.values, attribute.is_reference) or "no value"
        lines.append(f"{attribute.name} = {shown}" + (f"  ({attribute.reason})" if attribute.reason else ""))
        for each in attribute.contributions:
            origin = each.expression or f"from {each.source}"
            given = ", ".join(f"{name}={value!r}" for name, value in each.inputs.items())
            result = show(each.values, attribute.is_reference) or each.note or "no value"
            lines.append(
                f"  {'*' if each.wins else ' '} {each.priority} {each.system} {each.rule}: {origin}"
                f"{f' [{given}]' if given else ''} -> {result}"
            )
    for target in explanation.targets:
        lines.append(f"target {target.system} {target.anchor or '-'} {target.address}: {target.action}")
        lines.extend(_format_scopes(target.scopes))
        if target.export_kind is not None:
            due = f", next attempt {target.next_attempt_at.isoformat()}" if target.next_attempt_at else ""
            lines.append(
                f"  pending {target.export_kind}: {target.export_state}, {target.attempts} refused attempts{due}"
                f"{f', {target.error}' if target.error else ''}"
            )
        if target.deferred_reference_count:
            lines.append(f"  {target.deferred_reference_count} deferred references")
        lines.extend(_format_target_attribute(each, show) for each in target.attributes)
    return "\n".join(lines)


def format_deleted(explanation: DeletedExplanation) -> str:
    """Return the explanation of a deleted metaverse object as text for a terminal."""
    named = f" {explanation.display}" if explanation.display else ""
    lines = [f"{explanation.type or 'identity'} {explanation.id}{named}: deleted"]
    if explanation.deleted_by_run is not None:
        lines[0] += f" by {explanation.profile} of {explanation.system}, run {explanation.deleted_by_run}"
        lines[0] += f", {explanation.deleted_at.isoformat()}" if explanation.deleted_at else ""
    for each in explanation.objects:
        when = f", {each.at.isoformat()}" if each.at else ""
        lines.append(f"joined {each.system or '-'} {each.anchor or '-'}: {each.change}, run {each.run_id}{when}")
    for attribute in explanation.attributes:
        by = f"  (by {attribute.profile} of {attribute.system}, run {attribute.run_id})" if attribute.run_id else ""
        lines.append(f"{attribute.name} = {', '.join(map(str, attribute.values))}{by}")
    return "\n".join(lines)


def format_object(explanation: ObjectExplanation) -> str:
    """Return the explanation of an unjoined object as text for a terminal."""
    lines = [f"{explanation.system} {explanation.type} {explanation.anchor or '-'}: not joined"]
    if explanation.pinned:
        lines.append("  a user decided that it is not joined")
    lines.extend(_format_scopes(explanation.scopes))
    lines.extend(
        f"  {each.rule}: {each.attribute} {', '.join(each.keys) or '-'}: {each.reason}" for each in explanation.matches
    )
    if not explanation.matches:
        lines.append("  no rule has a match")
    projecting = explanation.projected_by
    lines.append(f"  projected by {projecting}" if projecting else "  no rule in scope projects it")
    return "\n".join(lines)


def _format_scopes(scopes: Iterable[ScopeExplanation]) -> Iterable[str]:
    for scope in scopes:
        yield f"  {'in scope' if scope.in_scope else 'out of scope'} of {scope.rule}" + (
            f": {scope.error}" if scope.error else ""
        )
        for term in scope.terms:
            given = ", ".join(f"{name}={value!r}" for name, value in term.inputs.items())
            yield f"    {term.term} -> {term.result} [{given}]"


def _format_target_attribute(each: TargetAttributeExplanation, show: Callable[[Iterable[Any], bool], str]) -> str:
    def text(values: Sequence[Any]) -> str:
        return show(values, each.is_reference) or "-"

    pending = "; ".join(
        f"{change['op']} {text(change['values'])} ({change['state']}"
        + (f", observed {text(change['observed'])}" if change["observed"] is not None else "")
        + ")"
        for change in each.pending
    )
    return (
        f"  {each.name}: desired {text(each.desired)}, expected {text(each.expected)}, imported {text(each.imported)}"
        + (f", pending {pending}" if pending else "")
    )
