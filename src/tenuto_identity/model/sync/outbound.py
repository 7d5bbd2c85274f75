"""Outbound staging: what each target must be sent so that it shows what the metaverse says.

Desired values come from the out rules, expected values are the imported ones overlaid by what was sent and not yet
confirmed. Their difference is the pending export.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from enum import StrEnum

from tenuto_identity.model.objects import ConnectorObject, JoinKind, MetaverseObject, ObjectState
from tenuto_identity.model.rules.expression_values import (
    Variables,
)
from tenuto_identity.model.rules.mapping_evaluation import Note, NoteCode, copied_attribute, evaluate_mapping
from tenuto_identity.model.rules.scope import is_in_scope
from tenuto_identity.model.rules.sync_rules import AttributeMapping, OutOfScope, SyncRule, earlier
from tenuto_identity.model.rules.variables import metaverse_variables
from tenuto_identity.model.schema import ADDRESS, Attribute, MetaverseType, ObjectType, Writable
from tenuto_identity.model.sync.decision_trace import Trace
from tenuto_identity.model.sync.drift import NO_DRIFT, Drift, detect_drift
from tenuto_identity.model.sync.engine import TargetValues, apply_pending, imported_values, scope_note
from tenuto_identity.model.sync.matcher import UnjoinedAmbiguous, UnjoinedMatch, find_unjoined
from tenuto_identity.model.sync.pending_exports import (
    QUEUED_DELETE,
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    attribute_equality,
    restage_changes,
    state_of_changes,
    withdraw,
)
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import DataType, EqualityKind, Value

_ADDRESS_ATTRIBUTE = Attribute(ADDRESS)
_REFERENCE, _ALWAYS_WRITABLE, _SET = DataType.REFERENCE, Writable.YES, ChangeOp.SET
"""Names of the module are found faster than members of an enum, which is measurable here."""

# --- desired values -------------------------------------------------------------------------------------------------


@value_class
class DesiredObject:
    """Values that a target object should have."""

    values: TargetValues
    mappings: Mapping[str, AttributeMapping]
    """Mappings by attribute of the target; the first rule that maps an attribute decides."""
    failed: frozenset[str] = frozenset()
    """Attributes whose mapping failed: they are left as they are."""
    notes: tuple[Note, ...] = ()
    reevaluate_at: datetime | None = None


class MappingPlan:
    """The mappings of one target that are evaluated: for each attribute that of the first rule that maps it."""

    def __init__(
        self,
        metaverse_type: MetaverseType,
        mappings: Iterable[tuple[SyncRule, AttributeMapping]],
        object_type: ObjectType,
    ) -> None:
        self.metaverse_type = metaverse_type
        self.object_type = object_type
        self.by_attribute: dict[str, AttributeMapping] = {}
        self.entries: list[tuple[SyncRule, AttributeMapping, Attribute, str | None]] = []
        """Each with the attribute of the metaverse object if its value is only copied."""
        for rule, mapping in mappings:
            name = mapping.to
            target = _ADDRESS_ATTRIBUTE if name == ADDRESS else object_type.attributes.get(name)
            if target is None or name in self.by_attribute:
                continue
            self.by_attribute[name] = mapping
            copied = None
            if name != ADDRESS and not target.is_reference:
                copied = copied_attribute(mapping, target, metaverse_type.attributes, cleans=False)
            self.entries.append((rule, mapping, target, copied))


_MAX_PLANS = 200
_plans: dict[tuple[int, ...], tuple[MappingPlan, Sequence[SyncRule]]] = {}
"""Plans by the identities of what they are made for, and the rules, which stay alive with them."""


def mapping_plan(metaverse_type: MetaverseType, rules: Sequence[SyncRule], object_type: ObjectType) -> MappingPlan:
    """Return the plan of the mappings of rules, which is made once."""
    key = (id(metaverse_type), id(object_type), *map(id, rules))
    found = _plans.get(key)
    if found is None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        mappings = [(rule, mapping) for rule in rules for mapping in rule.mappings]
        found = _plans[key] = MappingPlan(metaverse_type, mappings, object_type), tuple(rules)
    return found[0]


def desired_values(
    metaverse: MetaverseObject, plan: MappingPlan, now: datetime, *, trace: Trace | None = None
) -> DesiredObject:
    """Evaluate the out mappings of a metaverse object for one target."""
    attributes: dict[str, Sequence[Value]] = {}
    references: dict[str, frozenset[int]] = {}
    failed: set[str] = set()
    notes: list[Note] = []
    address = ""
    reevaluate_at: datetime | None = None
    variables: Variables | None = None
    for rule, mapping, target, copied in plan.entries:
        name = mapping.to
        if copied is not None and trace is None:
            values = metaverse.attributes.get(copied, ())
            if len(values) == 1:  # the common case; `test_desired_values_with_a_trace_…` compares it with the others
                attributes[name] = values
                continue
        if target.type is _REFERENCE:
            if found := metaverse.references.get(mapping.source or "", frozenset()):
                references[name] = found
            _trace_desired(trace, rule, mapping, sorted(found))
            continue
        if variables is None:  # all rules are of one system
            variables = metaverse_variables(metaverse, plan.metaverse_type, rule.system)
        mapped = evaluate_mapping(
            mapping,
            rule,
            target,
            metaverse.attributes,
            plan.metaverse_type.attributes,
            variables,
            now,
            cleans=False,
        )
        if mapped.reevaluate_at is not None:
            reevaluate_at = earlier(reevaluate_at, mapped.reevaluate_at)
        if mapped.note is not None:
            notes.append(mapped.note)
        if mapped.has_failed:
            failed.add(name)
        elif name == ADDRESS:
            address = str(mapped.values[0]) if mapped.values else ""
        elif mapped.values:
            attributes[name] = list(mapped.values)
        _trace_desired(trace, rule, mapping, mapped.values, mapped.note)
    return DesiredObject(
        TargetValues(attributes, references, address),
        plan.by_attribute,
        frozenset(failed),
        tuple(notes),
        reevaluate_at,
    )


def _trace_desired(
    trace: Trace | None,
    rule: SyncRule,
    mapping: AttributeMapping,
    values: Sequence[Value],
    note: Note | None = None,
) -> None:
    if trace is not None:
        trace.add(
            "desired",
            system=rule.system,
            rule=rule.name,
            attribute=mapping.to,
            expression=mapping.value.text if mapping.value else None,
            source=mapping.source,
            values=list(values),
            note=note.message if note else None,
        )


def expected_values(object: ConnectorObject, pending: PendingExport | None, object_type: ObjectType) -> TargetValues:
    """Return the imported values overlaid by the changes that were sent, or are being sent, and are not confirmed."""
    imported = imported_values(object)
    if pending is None:
        return imported
    sent = [
        change
        for change in pending.changes
        if change.state is ChangeState.EXPORTED
        or (pending.state is ExportState.EXECUTING and change.state is not ChangeState.FAILED)
    ]
    return apply_pending(imported, sent, object_type) if sent else imported


# --- changes --------------------------------------------------------------------------------------------------------


def compute_changes(
    desired: DesiredObject, expected: TargetValues, object_type: ObjectType, *, creating: bool = False
) -> tuple[Change, ...]:
    """Return the changes that turn the expected values into the desired ones; none if they are equal."""
    changes: list[Change] = []
    wanted_values, shown_values = desired.values.attributes, expected.attributes
    wanted_references, shown_references = desired.values.references, expected.references
    for name, mapping in desired.mappings.items():
        if (
            name in shown_values
            and wanted_values.get(name) == shown_values[name]
            and name not in wanted_references
            and name not in shown_references
        ):
            continue  # equal in every sense; the common case
        if name in desired.failed:  # guard: identity.failed_mapping_out
            continue
        if name == ADDRESS:
            changes.extend(_address_change(desired, expected, object_type, creating))
            continue
        attribute = object_type.attributes[name]
        if attribute.writable is not _ALWAYS_WRITABLE and (
            attribute.writable is Writable.NO or (not creating and attribute.writable is Writable.ON_CREATE)
        ):
            continue
        if not creating and mapping.only_on_create:
            continue
        if attribute.type is _REFERENCE:
            wanted, shown = wanted_references.get(name, frozenset()), shown_references.get(name, frozenset())
            changes.extend(_reference_changes(attribute, mapping, wanted, shown, creating))
        elif creating and name in wanted_values and name not in shown_values:  # the common case of a new object
            changes.append(Change(name, _SET, tuple(wanted_values[name]), (), mapping.enforce))
        else:
            changes.extend(
                _value_changes(attribute, mapping, wanted_values.get(name, ()), shown_values.get(name, ()), creating)
            )
    return tuple(changes)


def _address_change(
    desired: DesiredObject, expected: TargetValues, object_type: ObjectType, creating: bool
) -> Iterable[Change]:
    wanted = desired.values.address
    if creating or not wanted or desired.mappings[ADDRESS].only_on_create:
        return
    equality = attribute_equality(object_type, ADDRESS)
    if equality.key(wanted) != equality.key(expected.address):
        yield Change(ADDRESS, ChangeOp.RENAME, (wanted,))


def _value_changes(
    attribute: Attribute, mapping: AttributeMapping, wanted: Sequence[Value], shown: Sequence[Value], creating: bool
) -> Iterable[Change]:
    equality, name = attribute.equality, attribute.name
    if bool(wanted) == bool(shown) and (not wanted or equality.are_equal(wanted, shown)):
        return
    if not attribute.multi or creating:
        if wanted:
            yield Change(name, ChangeOp.SET, tuple(wanted), owned=mapping.enforce)
        else:
            yield Change(name, ChangeOp.CLEAR)
        return
    shown_keys, wanted_keys = equality.keys(shown), equality.keys(wanted)
    removed = tuple(value for value in shown if equality.key(value) not in wanted_keys)
    added = tuple(value for value in wanted if equality.key(value) not in shown_keys)
    if removed:
        yield Change(name, ChangeOp.REMOVE, removed)
    if added:
        yield Change(name, ChangeOp.ADD, added)


def _reference_changes(
    attribute: Attribute, mapping: AttributeMapping, wanted: frozenset[int], shown: frozenset[int], creating: bool
) -> Iterable[Change]:
    if wanted == shown:
        return
    name = attribute.name
    if not attribute.multi or creating:
        if wanted:
            yield Change(name, ChangeOp.SET, references=tuple(sorted(wanted)), owned=mapping.enforce)
        else:
            yield Change(name, ChangeOp.CLEAR)
        return
    if shown - wanted:
        yield Change(name, ChangeOp.REMOVE, references=tuple(sorted(shown - wanted)))
    if wanted - shown:
        yield Change(name, ChangeOp.ADD, references=tuple(sorted(wanted - shown)))


# --- staging --------------------------------------------------------------------------------------------------------


class StageAction(StrEnum):
    """What a sync does with the object of a target."""

    NOTHING = "nothing"
    PROVISION = "provision"
    """Create a connector space object in state ``provisioning`` with `StagedExport.address`, and a pending create."""
    JOIN = "join"
    """Join the unjoined object `StagedExport.object_id` and update it."""
    UPDATE = "update"
    DELETE = "delete"
    """Stage a pending delete; the object stays joined until it is gone, unless the metaverse object is deleted."""
    DISCONNECT = "disconnect"
    """Unjoin; the entry stays in the system."""
    WITHDRAW = "withdraw"
    """Remove the pending export (or keep what was sent); the object stays joined."""
    REMOVE = "remove"
    """The object was never created in the system: remove it and its pending export."""


@value_class
class StagedExport:
    """The decision about one target of one metaverse object."""

    action: StageAction
    system: str
    object_type: str = ""
    object_id: int | None = None
    """None for a new object: its id is drawn by the writer, who sets it in `pending`."""
    address: str = ""
    pending: PendingExport | None = None
    """The pending export afterwards; None: there is none."""
    changes: tuple[Change, ...] = ()
    """Changes staged now, for the item."""
    rule: SyncRule | None = None
    drift: Drift = NO_DRIFT
    notes: tuple[Note, ...] = ()
    error: str | None = None
    """``ambiguous_match``: nothing was provisioned, because several unjoined objects match."""
    reevaluate_at: datetime | None = None

    @property
    def writes(self) -> bool:
        """Whether the writer has anything to write for this target."""
        return self.action is not StageAction.NOTHING or bool(self.drift.reported)


@value_class
class Target:
    """One system as seen from a metaverse object: what is known before staging."""

    system: str
    rules: Sequence[SyncRule]
    """Enabled out rules of the metaverse type for this system, in order."""
    object_types: Mapping[str, ObjectType]
    object: ConnectorObject | None = None
    """The joined object."""
    pending: PendingExport | None = None
    unjoined: Mapping[tuple[str, str], Sequence[tuple[int, Value]]] = field(default_factory=dict)
    """Keys of unjoined objects, see `matcher.find_unjoined`."""
    unjoined_objects: Mapping[int, ConnectorObject] = field(default_factory=dict)
    taken: Collection[int] = ()
    """Unjoined objects that other metaverse objects of the page were joined to."""


def stage_exports(
    metaverse: MetaverseObject,
    metaverse_type: MetaverseType,
    target: Target,
    now: datetime,
    *,
    before: MetaverseObject | None = None,
    all_changed: bool = False,
    is_deleted: bool = False,
    trace: Trace | None = None,
) -> StagedExport:
    """Decide what one target of a metaverse object must be sent: provision, join, update, deprovision or withdraw.

    ``before`` is the metaverse object before this sync: differences that it does not explain are drift.
    ``all_changed`` says that the rule changed, so that no difference is drift. ``is_deleted`` says that the metaverse
    object is being deleted.
    """
    variables: Variables | None = None
    in_scope: list[SyncRule] = []
    reevaluate_at: datetime | None = None
    for rule in () if is_deleted else target.rules:
        if rule.scope is None and trace is None:
            in_scope.append(rule)
            continue
        if variables is None:
            variables = metaverse_variables(metaverse, metaverse_type, target.system)
        result = is_in_scope(rule, variables, now, trace=trace)
        reevaluate_at = earlier(reevaluate_at, result.reevaluate_at)
        if result.error is not None:
            note = scope_note(rule, result.error)
            return StagedExport(StageAction.NOTHING, target.system, pending=target.pending, notes=(note,), rule=rule)
        if result.in_scope:
            in_scope.append(rule)
    stage = _Stage(metaverse, metaverse_type, target, now, before, all_changed, trace)
    if target.object is not None:
        same_type = [rule for rule in in_scope if rule.object_type == target.object.type]
        staged = stage.update(target.object, same_type) if same_type else stage.leave(target.object, is_deleted)
    elif in_scope:
        staged = stage.find_or_provision(in_scope)
    else:
        staged = StagedExport(StageAction.NOTHING, target.system)
    if reevaluate_at is not None:
        staged = replace(staged, reevaluate_at=earlier(reevaluate_at, staged.reevaluate_at))
    if trace is not None:
        trace.add(
            "export",
            system=target.system,
            action=staged.action.value,
            rule=staged.rule.name if staged.rule else None,
            changes=[
                (change.attribute, change.op.value, list(change.values or change.references))
                for change in staged.changes
            ],
        )
    return staged


class _Stage:
    """Staging of one metaverse object for one target."""

    def __init__(
        self,
        metaverse: MetaverseObject,
        metaverse_type: MetaverseType,
        target: Target,
        now: datetime,
        before: MetaverseObject | None,
        all_changed: bool,
        trace: Trace | None,
    ) -> None:
        self._metaverse = metaverse
        self._type = metaverse_type
        self._target = target
        self._now = now
        self._before = before
        self._all_changed = all_changed
        self._trace = trace

    def find_or_provision(self, rules: Sequence[SyncRule]) -> StagedExport:
        system = self._target.system
        for rule in rules:
            target = self._target
            match find_unjoined(self._metaverse, rule, target.unjoined, taken=target.taken, trace=self._trace):
                case UnjoinedMatch(object_id=object_id):
                    found = self._target.unjoined_objects[object_id]
                    same_type = [each for each in rules if each.object_type == found.type] or [rule]
                    staged = self.update(found, same_type, is_new=True)
                    return replace(staged, action=StageAction.JOIN, object_id=object_id, rule=rule)
                case UnjoinedAmbiguous(object_ids=object_ids):
                    return StagedExport(
                        StageAction.NOTHING,
                        system,
                        rule=rule,
                        error="ambiguous_match",
                        notes=(
                            Note(
                                NoteCode.SEVERAL_VALUES,
                                rule.match[0].metaverse,
                                rule.name,
                                f"objects {', '.join(map(str, object_ids))} of {system} match; nothing is provisioned",
                                len(object_ids),
                            ),
                        ),
                    )
                case None:
                    pass
        provisioning = next((rule for rule in rules if rule.provision), None)
        if provisioning is None:
            return StagedExport(StageAction.NOTHING, system)
        return self._provision(provisioning, [rule for rule in rules if rule.object_type == provisioning.object_type])

    def _provision(self, rule: SyncRule, rules: Sequence[SyncRule]) -> StagedExport:
        object_type = self._target.object_types[rule.object_type]
        desired = self._desired(rules, object_type)
        address = desired.values.address
        if ADDRESS in desired.failed or (object_type.address_is_dn and not address):
            note = Note(NoteCode.EXPRESSION_FAILED, ADDRESS, rule.name, f"{rule.name}: the new object has no address")
            return StagedExport(
                StageAction.NOTHING,
                self._target.system,
                rule=rule,
                notes=(*desired.notes, note) if ADDRESS not in desired.failed else desired.notes,
                reevaluate_at=desired.reevaluate_at,
            )
        changes = compute_changes(desired, TargetValues({}), object_type, creating=True)
        pending = PendingExport(0, self._target.system, self._metaverse.id, ExportKind.CREATE, changes)
        return StagedExport(
            StageAction.PROVISION,
            self._target.system,
            rule.object_type,
            None,
            address,
            pending,
            changes,
            rule,
            notes=desired.notes,
            reevaluate_at=desired.reevaluate_at,
        )

    def _desired(
        self, rules: Sequence[SyncRule], object_type: ObjectType, metaverse: MetaverseObject | None = None
    ) -> DesiredObject:
        trace = self._trace if metaverse is None else None
        plan = mapping_plan(self._type, rules, object_type)
        return desired_values(metaverse or self._metaverse, plan, self._now, trace=trace)

    def update(self, target: ConnectorObject, rules: Sequence[SyncRule], *, is_new: bool = False) -> StagedExport:
        object_type = self._target.object_types[target.type]
        desired = self._desired(rules, object_type)
        pending = self._target.pending
        if pending is not None and pending.kind is ExportKind.DELETE:
            if pending.state in (ExportState.EXECUTING, ExportState.EXPORTED):
                # The delete was sent: once the import confirms it, the object is provisioned again.
                return self._unchanged(target, desired)
            pending = None
        creating = pending is not None and pending.kind is ExportKind.CREATE and not _was_sent(pending)
        expected = TargetValues({}) if creating else expected_values(target, pending, object_type)
        computed = compute_changes(desired, expected, object_type, creating=creating)
        drift = self._sort(target, computed, desired, rules, object_type, pending, is_new or creating)
        after = self._restage(target, pending, drift.staged, desired, creating)
        is_same = after == self._target.pending
        action = StageAction.NOTHING if is_same else StageAction.UPDATE if after else StageAction.WITHDRAW
        return StagedExport(
            action,
            self._target.system,
            target.type,
            target.id,
            desired.values.address if creating else target.address,
            after,
            () if is_same else drift.staged,
            rules[0],
            drift,
            desired.notes,
            reevaluate_at=desired.reevaluate_at,
        )

    def _unchanged(self, target: ConnectorObject, desired: DesiredObject) -> StagedExport:
        return StagedExport(
            StageAction.NOTHING,
            self._target.system,
            target.type,
            target.id,
            target.address,
            self._target.pending,
            notes=desired.notes,
            reevaluate_at=desired.reevaluate_at,
        )

    def _sort(
        self,
        target: ConnectorObject,
        computed: tuple[Change, ...],
        desired: DesiredObject,
        rules: Sequence[SyncRule],
        object_type: ObjectType,
        pending: PendingExport | None,
        is_new: bool,
    ) -> Drift:
        """Separate drift from the changes that the metaverse explains."""
        if not computed:
            return NO_DRIFT
        changed = (
            None if is_new or self._all_changed or self._before is None else self._changed(desired, rules, object_type)
        )
        outstanding = frozenset(change.attribute for change in pending.changes) if pending else frozenset()
        kept = [
            change
            for change in computed
            if changed is None
            or change.attribute in changed
            or attribute_equality(object_type, change.attribute).kind is not EqualityKind.WRITE_ONLY
        ]
        return detect_drift(
            target,
            kept,
            desired.mappings,
            changed=changed,
            outstanding=outstanding,
            contributed=self._contributed_by(target, desired),
            trace=self._trace,
        )

    def _changed(self, desired: DesiredObject, rules: Sequence[SyncRule], object_type: ObjectType) -> frozenset[str]:
        """Return the attributes whose desired value differs from the one before this sync."""
        assert self._before is not None
        earlier_desired = self._desired(rules, object_type, self._before).values
        values = desired.values
        return frozenset(
            name
            for name in desired.mappings
            if (values.address != earlier_desired.address if name == ADDRESS else False)
            or list(values.attributes.get(name, ())) != list(earlier_desired.attributes.get(name, ()))
            or values.references.get(name) != earlier_desired.references.get(name)
        )

    def _contributed_by(self, target: ConnectorObject, desired: DesiredObject) -> frozenset[str]:
        """Return the attributes of the target whose value comes from the target itself."""
        own = {name for name, (_, object_id) in self._metaverse.provenance.items() if object_id == target.id}
        return frozenset(name for name, mapping in desired.mappings.items() if mapping.source in own)

    def _restage(
        self,
        target: ConnectorObject,
        pending: PendingExport | None,
        staged: tuple[Change, ...],
        desired: DesiredObject,
        creating: bool,
    ) -> PendingExport | None:
        if pending is None:
            if not staged:
                return None
            return PendingExport(target.id, self._target.system, self._metaverse.id, ExportKind.UPDATE, staged)
        if pending.state is ExportState.EXECUTING:
            return replace(pending, queued_changes=staged)
        evaluated = frozenset(desired.mappings) - desired.failed
        changes = restage_changes(pending.changes, staged, evaluated)
        if changes == pending.changes:
            return pending
        if not changes and not creating:
            return None
        is_new_change = any(
            change.state is ChangeState.PENDING and not any(change.has_same_effect(old) for old in pending.changes)
            for change in changes
        )
        return replace(
            pending,
            changes=changes,
            disables=False,
            state=state_of_changes(changes),
            attempts=0 if is_new_change else pending.attempts,
            next_attempt_at=None if is_new_change else pending.next_attempt_at,
            error=None if is_new_change else pending.error,
        )

    # --- leaving ----------------------------------------------------------------------------------------------------

    def leave(self, target: ConnectorObject, is_deleted: bool) -> StagedExport:
        """Stage what follows for an object whose metaverse object is out of scope or deleted."""
        rule = next((each for each in self._target.rules if each.object_type == target.type), None)
        pending = self._target.pending
        action = rule.on_out_of_scope if rule else OutOfScope.DISCONNECT
        if rule is None and not is_deleted:
            # No out rule ever applied: the system is a source, or its rules were removed.
            return StagedExport(
                StageAction.NOTHING, self._target.system, target.type, target.id, target.address, pending
            )
        if target.state is ObjectState.PROVISIONING and (pending is None or _was_never_sent(pending)):
            if action is OutOfScope.REMAIN and not is_deleted:
                return self._leave(StageAction.NOTHING, target, pending, rule)
            return self._leave(StageAction.REMOVE, target, None, rule)
        if action is OutOfScope.DELETE and self._may_delete(target, rule):
            return self._delete(target, rule)
        if action is OutOfScope.DISABLE and rule is not None:
            return self._disable(target, rule, is_deleted)
        if action is OutOfScope.REMAIN and not is_deleted:
            return self._leave(StageAction.NOTHING, target, pending, rule)
        remaining = withdraw(pending) if pending else None
        return self._leave(StageAction.DISCONNECT, target, remaining, rule)

    def _leave(
        self, action: StageAction, target: ConnectorObject, pending: PendingExport | None, rule: SyncRule | None
    ) -> StagedExport:
        return StagedExport(action, self._target.system, target.type, target.id, target.address, pending, rule=rule)

    def _may_delete(self, target: ConnectorObject, rule: SyncRule | None) -> bool:
        # guard: identity.only_own_objects_deleted
        return target.join_kind is JoinKind.PROVISIONED or (rule is not None and rule.owned)

    def _delete(self, target: ConnectorObject, rule: SyncRule | None) -> StagedExport:
        pending = self._target.pending
        if pending is not None and pending.kind is ExportKind.DELETE:
            return self._leave(StageAction.NOTHING, target, pending, rule)
        if pending is not None and pending.state is ExportState.EXECUTING:
            delete = replace(pending, queued_changes=(QUEUED_DELETE,))
        else:
            delete = PendingExport(
                target.id,
                self._target.system,
                self._metaverse.id,
                ExportKind.DELETE,
                foreign_anchor=pending.foreign_anchor if pending is not None else None,
            )
        return self._leave(StageAction.DELETE, target, delete, rule)

    def _disable(self, target: ConnectorObject, rule: SyncRule, is_deleted: bool) -> StagedExport:
        object_type = self._target.object_types[target.type]
        mappings = [(rule, mapping) for mapping in rule.disable_mappings]
        plan = MappingPlan(self._type, mappings, object_type)
        desired = desired_values(self._metaverse, plan, self._now, trace=self._trace)
        pending = self._target.pending
        if pending is not None and pending.kind is ExportKind.DELETE:
            pending = None
        computed = compute_changes(desired, expected_values(target, pending, object_type), object_type)
        if pending is not None and pending.state is not ExportState.EXECUTING:
            pending = withdraw(pending)
        after = self._restage(target, pending, computed, desired, creating=False)
        if after is not None and computed:
            after = replace(after, disables=True)  # guard: identity.disabling_is_counted
        if after is not None and not is_deleted:
            same = after == self._target.pending
            action = StageAction.NOTHING if same else StageAction.UPDATE
            return replace(self._leave(action, target, after, rule), changes=() if same else computed)
        return replace(self._leave(StageAction.DISCONNECT, target, after, rule), changes=computed)


def _was_sent(pending: PendingExport) -> bool:
    return pending.state in (ExportState.EXECUTING, ExportState.EXPORTED) or any(
        change.state is ChangeState.EXPORTED for change in pending.changes
    )


def _was_never_sent(pending: PendingExport) -> bool:
    """Return whether the system certainly does not have the object: every attempt was refused, or there was none."""
    return (
        pending.kind is ExportKind.CREATE
        and pending.state in (ExportState.PENDING, ExportState.FAILED)
        and not pending.uncertain  # guard: identity.uncertain_create
        and all(change.state in (ChangeState.PENDING, ChangeState.FAILED) for change in pending.changes)
    )
