"""The decisions of a synchronisation: projection, flow, confirmation, deletion.

Frozen values in, decisions out. The engine performs no input or output, reads no clock, draws no ids and raises no
exceptions except for programming errors. Every function takes ``trace=None`` and records its reasons in it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject, ObjectState, Origin
from tenuto_identity.model.rules.expressions import ExpressionFailed
from tenuto_identity.model.rules.mapping_evaluation import Note, NoteCode
from tenuto_identity.model.rules.scope import is_in_scope
from tenuto_identity.model.rules.sync_rules import OutOfScope, RuleSet, SyncRule, earlier
from tenuto_identity.model.rules.variables import object_variables
from tenuto_identity.model.schema import (
    ADDRESS,
    DeletionTrigger,
    MetaverseType,
    ObjectType,
)
from tenuto_identity.model.sync.decision_trace import Trace, add_if
from tenuto_identity.model.sync.pending_exports import (
    MAX_ATTEMPTS,
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    attribute_equality,
    state_of_changes,
)
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Document, EqualityKind, Value, canonical_values

# --- 1. projection --------------------------------------------------------------------------------------------------


@value_class
class Projection:
    """An object becomes a new metaverse object."""

    metaverse_type: str
    rule: SyncRule


def projection(object: ConnectorObject, rules: Sequence[SyncRule], *, trace: Trace | None = None) -> Projection | None:
    """Return the projection of an unjoined object that nothing matches.

    ``rules`` are the in rules of its type that it is in scope of, in order; the first with ``project`` decides.
    """
    if object.pinned or object.state is not ObjectState.NORMAL:
        return None
    found = next((rule for rule in rules if rule.project), None)
    add_if(trace, "projection", rule=found.name if found else None)
    return Projection(found.metaverse_type, found) if found else None


@value_class
class ScopedRules:
    """The in rules of an object that it is in scope of."""

    rules: tuple[SyncRule, ...]
    reevaluate_at: datetime | None = None
    notes: tuple[Note, ...] = ()
    """Scopes that could not be evaluated: the object must be left as it is."""


_NO_RULES = ScopedRules(())
_NORMAL = ObjectState.NORMAL
"""Names of the module are found faster than members of an enum, which is measurable here."""


def rules_in_scope(
    object: ConnectorObject, rules: RuleSet, now: datetime, *, trace: Trace | None = None
) -> ScopedRules:
    """Return the in rules that apply to an object. Only objects that were imported have any."""
    if object.state is not _NORMAL:
        return _NO_RULES
    inbound = rules.inbound(object.system, object.type)
    if trace is None and not rules.has_inbound_scope(object.system, object.type):
        return ScopedRules(inbound) if inbound else _NO_RULES
    variables = object_variables(object, rules.object_type(object.system, object.type))
    found: list[SyncRule] = []
    notes: list[Note] = []
    reevaluate_at: datetime | None = None
    for rule in inbound:
        result = is_in_scope(rule, variables, now, trace=trace)
        reevaluate_at = earlier(reevaluate_at, result.reevaluate_at)
        if result.error is not None:
            notes.append(scope_note(rule, result.error))
        if result.in_scope:
            found.append(rule)
    return ScopedRules(tuple(found), reevaluate_at, tuple(notes))


def scope_note(rule: SyncRule, error: ExpressionFailed) -> Note:
    """Return the note of a scope that could not be evaluated."""
    return Note(NoteCode.EXPRESSION_FAILED, "scope", rule.name, f"{rule.name}: scope: {error}")


# The second decision, inbound flow, is in `inbound_flow.py`.


# --- 3. confirmation at sync ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What is left of a pending export after comparing it with its object."""

    pending: PendingExport | None
    confirmed: tuple[Change, ...] = ()
    unconfirmed: tuple[Change, ...] = ()


def confirm_at_sync(
    object: ConnectorObject, pending: PendingExport, object_type: ObjectType, *, trace: Trace | None = None
) -> Confirmation:
    """Drop the changes that the object shows, for a pending export whose import has already taken place.

    Exports that wait for their import (``exported``), or that are being sent, are left alone.
    """
    if pending.state not in (ExportState.UNCONFIRMED, ExportState.FAILED) or pending.kind is ExportKind.DELETE:
        return Confirmation(pending)
    confirmed, left = [], []
    for change in pending.changes:
        was_sent = change.state in (ChangeState.UNCONFIRMED, ChangeState.FAILED, ChangeState.EXPORTED)
        if was_sent and change_confirmed(object, change, object_type):
            confirmed.append(change)
        else:
            left.append(
                replace(change, state=ChangeState.UNCONFIRMED) if change.state is ChangeState.EXPORTED else change
            )
    add_if(trace, "confirmation", confirmed=[each.attribute for each in confirmed])
    if not left:
        return Confirmation(None, tuple(confirmed))
    changes = tuple(left)
    remaining = replace(pending, changes=changes, state=state_of_changes(changes)) if confirmed else pending
    return Confirmation(remaining, tuple(confirmed), changes)


# --- 4. deletion rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """The metaverse object stays."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeleteNow:
    """The metaverse object is deleted in this page."""


@dataclass(frozen=True, slots=True)
class DeleteAfter:
    """The metaverse object is deleted after the grace period."""

    grace: timedelta


DeletionDecision = Keep | DeleteNow | DeleteAfter


def deletion_rule(
    metaverse_type: MetaverseType,
    origin: Origin,
    disconnected: str,
    remaining: Collection[str],
    *,
    trace: Trace | None = None,
) -> DeletionDecision:
    """Decide about a metaverse object from which the object of a system was disconnected.

    ``remaining`` are the names of the systems that it is still joined to.
    """
    decision = _decide_deletion(metaverse_type, origin, disconnected, remaining)
    add_if(
        trace,
        "deletion",
        disconnected=disconnected,
        remaining=sorted(remaining),
        decision=type(decision).__name__,
        reason=decision.reason if isinstance(decision, Keep) else metaverse_type.deletion.trigger.value,
    )
    return decision


def _decide_deletion(
    metaverse_type: MetaverseType, origin: Origin, disconnected: str, remaining: Collection[str]
) -> DeletionDecision:
    rule = metaverse_type.deletion
    if origin is Origin.INTERNAL:
        return Keep("created by a template, not by a projection")
    match rule.trigger:
        case DeletionTrigger.NEVER:
            return Keep("the rule of the type is never")
        case DeletionTrigger.LAST_CONNECTOR:
            if remaining:
                return Keep(f"still joined in {', '.join(sorted(remaining))}")
        case DeletionTrigger.AUTHORITATIVE_SOURCE:
            if disconnected not in rule.sources:
                return Keep(f"{disconnected} is not an authoritative source")
            if rule.all_sources and (left := rule.sources & set(remaining)):
                return Keep(f"still joined in {', '.join(sorted(left))}")
    return DeleteAfter(rule.grace) if rule.grace else DeleteNow()


def is_cancelled_by(metaverse_type: MetaverseType, current: MetaverseObject, joined_system: str) -> bool:
    """Return whether a join cancels the scheduled deletion, because it reverses what triggered it."""
    if current.deletion_scheduled_at is None:
        return False
    rule = metaverse_type.deletion
    if rule.trigger is not DeletionTrigger.AUTHORITATIVE_SOURCE:
        return True
    if joined_system not in rule.sources:
        return False
    return rule.all_sources or current.deletion_system in (None, joined_system)


# --- 5. applying changes --------------------------------------------------------------------------------------------


@value_class
class TargetValues:
    """Values of an object of a target: imported, expected or desired."""

    attributes: Document
    references: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Metaverse ids of the targets that are known."""
    address: str = ""


def imported_values(object: ConnectorObject) -> TargetValues:
    """Return the values of an object as they were imported."""
    references = {
        name: frozenset(each.metaverse_id for each in found if each.metaverse_id is not None)
        for name, found in object.references.items()
    }
    return TargetValues(object.attributes, {name: ids for name, ids in references.items() if ids}, object.address)


def apply_pending(current: TargetValues, changes: Iterable[Change], object_type: ObjectType) -> TargetValues:
    """Return the values after changes: removals, then additions. Idempotent; values equal by attribute are the same."""
    attributes = {name: list(values) for name, values in current.attributes.items()}
    references = dict(current.references)
    address = current.address
    in_order = sorted(changes, key=lambda change: change.op is ChangeOp.ADD)
    for change in in_order:
        name = change.attribute
        if change.op is ChangeOp.RENAME or name == ADDRESS:
            address = str(change.values[0]) if change.values else address
            continue
        attribute = object_type.attributes.get(name)
        if attribute is not None and attribute.is_reference:
            references[name] = _apply_to_set(references.get(name, frozenset()), change)
            continue
        old = attributes.get(name, [])
        match change.op:
            case ChangeOp.SET:
                new = list(change.values)
            case ChangeOp.CLEAR:
                new = []
            case ChangeOp.REMOVE:
                equality = attribute_equality(object_type, name)
                keys = equality.keys(change.values)
                new = [value for value in old if equality.key(value) not in keys]
            case _:
                equality = attribute_equality(object_type, name)
                known = equality.keys(old)
                new = old + [value for value in change.values if equality.key(value) not in known]
        attributes[name] = canonical_values(new)
    return TargetValues(
        {name: values for name, values in attributes.items() if values},
        {name: ids for name, ids in references.items() if ids},
        address,
    )


def _apply_to_set(old: frozenset[int], change: Change) -> frozenset[int]:
    ids = frozenset(change.references)
    match change.op:
        case ChangeOp.SET:
            return ids
        case ChangeOp.ADD:
            return old | ids
        case ChangeOp.REMOVE:
            return old - ids
        case _:
            return frozenset()


# --- 6. out of scope ------------------------------------------------------------------------------------------------


def out_of_scope_action(
    object: ConnectorObject, rules: Sequence[SyncRule], *, trace: Trace | None = None
) -> OutOfScope:
    """Return what happens to a joined object that no in rule applies to: the first enabled rule of its type decides."""
    found = next(
        (rule for rule in rules if rule.enabled and rule.system == object.system and rule.object_type == object.type),
        None,
    )
    action = found.on_out_of_scope if found else OutOfScope.DISCONNECT
    add_if(trace, "out_of_scope", rule=found.name if found else None, action=action.value)
    return action


# --- 7. reconciliation ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What an import says about a pending export."""

    pending: PendingExport | None
    confirmed: tuple[Change, ...] = ()
    unconfirmed: tuple[Change, ...] = ()
    """Changes that the object does not show, with sent and observed values."""

    @property
    def has_changed(self) -> bool:
        return bool(self.confirmed or self.unconfirmed or self.pending is None)


def reconcile(
    object: ConnectorObject | None,
    pending: PendingExport,
    object_type: ObjectType,
    *,
    trace: Trace | None = None,
) -> Reconciled:
    """Compare a pending export with its imported object, attribute by attribute.

    ``object`` is None if a complete read did not find it. Confirmed changes are dropped. Others are sent again; after
    the fifth attempt they have failed. A create whose object now has an anchor becomes an update; an object that was
    sent and is not found is created again.
    """
    if pending.state not in (ExportState.EXPORTED, ExportState.UNCONFIRMED, ExportState.PENDING, ExportState.FAILED):
        return Reconciled(pending)
    if pending.kind is ExportKind.DELETE:
        return _reconcile_delete(object, pending)
    confirmed: list[Change] = []
    unconfirmed: list[Change] = []
    left: list[Change] = []
    for change in pending.changes:
        if change.state not in (ChangeState.EXPORTED, ChangeState.UNCONFIRMED, ChangeState.FAILED):
            left.append(change)
        elif object is not None and change_confirmed(object, change, object_type):
            confirmed.append(change)
        elif change.state is ChangeState.EXPORTED:
            failed = change.attempts + 1 >= MAX_ATTEMPTS  # guard: identity.unconfirmed_attempts
            rejected = replace(
                change,
                attempts=change.attempts + 1,
                state=ChangeState.FAILED if failed else ChangeState.UNCONFIRMED,
                observed=_observed(object, change) if object is not None else (),
            )
            unconfirmed.append(rejected)
            left.append(rejected)
        else:
            left.append(change)
        add_if(trace, "reconcile", attribute=change.attribute, confirmed=bool(confirmed and confirmed[-1] is change))
    kind = pending.kind
    if object is None:
        kind = ExportKind.CREATE  # it was sent and does not exist: create it again
    elif kind is ExportKind.CREATE and object.anchor is not None:
        kind = ExportKind.UPDATE
    if not left:
        return Reconciled(None, tuple(confirmed), tuple(unconfirmed))
    changes = tuple(left)
    if not confirmed and not unconfirmed and kind is pending.kind:
        return Reconciled(pending)
    remaining = replace(pending, kind=kind, changes=changes, state=state_of_changes(changes), uncertain=False)
    return Reconciled(remaining, tuple(confirmed), tuple(unconfirmed))


def _reconcile_delete(object: ConnectorObject | None, pending: PendingExport) -> Reconciled:
    if object is None:
        return Reconciled(None)
    if pending.state is not ExportState.EXPORTED:
        return Reconciled(pending)
    attempts = pending.attempts + 1
    failed = attempts >= MAX_ATTEMPTS
    still_there = Change(ADDRESS, ChangeOp.CLEAR, attempts=attempts, observed=(object.address,))
    state = ExportState.FAILED if failed else ExportState.UNCONFIRMED
    return Reconciled(replace(pending, attempts=attempts, state=state), (), (still_there,))


def _observed(object: ConnectorObject, change: Change) -> tuple[Value, ...]:
    if change.attribute == ADDRESS:
        return (object.address,)
    if change.attribute in object.references:
        return tuple(each.raw for each in object.references[change.attribute])
    return tuple(object.attributes.get(change.attribute, ()))


# --- 8. confirmation of one change ----------------------------------------------------------------------------------


def change_confirmed(object: ConnectorObject, change: Change, object_type: ObjectType) -> bool:
    """Return whether an imported object shows a change, by its operation and the equality of its attribute.

    Further values do not matter for ``add``; for ``set`` only on a multi-valued attribute that the rule does not own.
    """
    equality = attribute_equality(object_type, change.attribute)
    if equality.kind is EqualityKind.WRITE_ONLY:
        return change.state is not ChangeState.PENDING
    if change.attribute == ADDRESS:
        return not change.values or equality.key(object.address) == equality.key(change.values[0])
    attribute = object_type.attributes.get(change.attribute)
    allows_more = attribute is not None and attribute.multi and not change.owned
    sent: frozenset[Hashable] = equality.keys(change.values)
    shown: frozenset[Hashable] = equality.keys(object.attributes.get(change.attribute, ()))
    has_raw = False
    if attribute is not None and attribute.is_reference:
        found = object.references.get(change.attribute, ())
        sent = frozenset(change.references)
        shown = frozenset(each.metaverse_id for each in found if each.metaverse_id is not None)
        has_raw = any(each.metaverse_id is None for each in found)
    match change.op:
        case ChangeOp.SET:
            return (
                sent <= shown
                if allows_more or (has_raw and attribute is not None and attribute.multi)
                else sent == shown
            )
        case ChangeOp.ADD:
            return sent <= shown
        case ChangeOp.REMOVE:
            return not sent & shown
        case ChangeOp.CLEAR | ChangeOp.RENAME:
            return not shown
