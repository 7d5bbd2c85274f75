"""Decisions of a sync page: a pure function of its page context, in two phases.

`decide_inbound` joins, projects and disconnects objects and computes the metaverse objects. `decide_outbound` stages
the exports; between them the run looks up unique values and unjoined objects of targets. An exception while deciding
one object gives it the error ``unhandled`` and leaves it as it is; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tenuto_identity.model.objects import ConnectorObject, JoinKind, MetaverseObject, ObjectState, Reference
from tenuto_identity.model.rules.mapping_evaluation import NoteCode
from tenuto_identity.model.rules.sync_rules import OutOfScope, earlier
from tenuto_identity.model.schema import MetaverseType
from tenuto_identity.model.sync.engine import (
    DeleteAfter,
    DeleteNow,
    confirm_at_sync,
    deletion_rule,
    is_cancelled_by,
    out_of_scope_action,
    projection,
    rules_in_scope,
)
from tenuto_identity.model.sync.inbound_flow import Flow, collect_contributions, inbound_flow, inbound_values
from tenuto_identity.model.sync.matcher import AlreadyJoined, Ambiguous, Candidate, Joined, find_match, metaverse_keys
from tenuto_identity.model.sync.outbound import StageAction, StagedExport, Target, stage_exports
from tenuto_identity.model.sync.pending_exports import PendingExport
from tenuto_identity.model.values import Value
from tenuto_identity.runs.definition_snapshot import Configuration
from tenuto_identity.runs.page_context import PageContext, display_of
from tenuto_identity.store.sync_marks import MarkReason

DELETION_POSTPONEMENT = timedelta(days=1)
"""Deletions beyond what the guard allows in one run are scheduled for so much later."""


@dataclass(slots=True)
class ObjectResult:
    """What the page decided about one of its objects; becomes an item if there is a change or an error."""

    change: str | None = None
    error: str | None = None
    message: str | None = None
    metaverse_id: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    keeps_mark: bool = False
    """The object is in error: it stays marked and is processed again."""


@dataclass(slots=True)
class IdentityState:
    """A metaverse object while the page is decided."""

    id: int
    type: MetaverseType
    before: MetaverseObject | None
    """None for a new one."""
    current: MetaverseObject
    joined: dict[int, ConnectorObject]
    """Objects that are joined after the page, by id."""
    deletion_initiator: Mapping[str, Any] | None = None
    is_deleted: bool = False
    is_frozen: bool = False
    """Nothing flows: an object is out of scope and remains joined, or the scope could not be evaluated."""
    is_rescheduled: bool = False
    """The deletion was scheduled, or a scheduled one cancelled."""
    flow: Flow | None = None
    all_changed: bool = False
    reevaluate_at: datetime | None = None
    results: list[ObjectResult] = field(default_factory=list)
    """Results of the objects of the page that are or were joined."""
    staged: list[StagedExport] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        return self.before is None


@dataclass(slots=True)
class PageDecision:
    """What a page changes."""

    results: dict[int, ObjectResult] = field(default_factory=dict)
    identities: dict[int, IdentityState] = field(default_factory=dict)
    joins: dict[int, tuple[int | None, JoinKind | None]] = field(default_factory=dict)
    """Object → metaverse object and kind of join; None for a disconnected object."""
    deleted_objects: set[int] = field(default_factory=set)
    exports: dict[int, PendingExport | None] = field(default_factory=dict)
    """Object → its pending export afterwards; None: it is removed."""
    object_reevaluations: dict[int, datetime | None] = field(default_factory=dict)
    """Unjoined objects → when their scope changes."""
    unresolved_count: int = 0
    postponed: dict[str, int] = field(default_factory=dict)
    """Deletions that the guard postponed, by metaverse type."""


@dataclass(frozen=True, slots=True)
class DeletionBudget:
    """How many metaverse objects of a type the page may delete at once, before the guard postpones the rest."""

    take: Callable[[str], bool]


def decide_inbound(
    configuration: Configuration,
    context: PageContext,
    now: datetime,
    initiator: Mapping[str, Any],
    budget: DeletionBudget,
) -> PageDecision:
    """Join, project and disconnect the objects of a page, and compute the metaverse objects."""
    return _InboundPage(configuration, context, now, initiator, budget).decide()


class _InboundPage:
    def __init__(
        self,
        configuration: Configuration,
        context: PageContext,
        now: datetime,
        initiator: Mapping[str, Any],
        budget: DeletionBudget,
    ) -> None:
        self._configuration = configuration
        self._rules = configuration.rules
        self._context = context
        self._now = now
        self._initiator = initiator
        self._budget = budget
        self._decision = PageDecision()
        self._free_ids = iter(context.free_ids)
        self._disconnected: dict[int, list[str]] = {}
        """Metaverse object → systems whose objects were disconnected in this page."""
        self._disconnected_ids: set[int] = set()
        self._candidates: dict[tuple[str, str, str], list[Candidate]] = dict(context.candidates)
        self._keys_of: dict[int, list[tuple[str, str, str]]] = {}
        """Metaverse object → its keys among the candidates."""
        for key, found in context.candidates.items():
            for candidate in found:
                self._keys_of.setdefault(candidate.metaverse_id, []).append(key)

    def decide(self) -> PageDecision:
        page = [self._context.objects[id] for id in self._context.page_ids if id in self._context.objects]
        for each in page:
            self._isolate(each, self._confirm)
        for each in page:
            if each.state is ObjectState.OBSOLETE:
                self._isolate(each, self._remove)
        for each in page:
            if each.state is not ObjectState.OBSOLETE:
                self._isolate(each, self._connect)
        self._resolve_references_of_page()
        self._decide_deletions()
        for state in self._decision.identities.values():
            self._isolate_identity(state, self._flow)
        return self._decision

    def _result(self, object_id: int) -> ObjectResult:
        return self._decision.results.setdefault(object_id, ObjectResult())

    def _isolate(self, each: ConnectorObject, step: Callable[[ConnectorObject], None]) -> None:
        try:
            step(each)
        except Exception as error:  # noqa: BLE001 — one object must not stop the others; its item names the error
            result = self._result(each.id)
            result.error, result.message = "unhandled", f"{type(error).__name__}: {error}"
            result.keeps_mark = True

    def _isolate_identity(self, state: IdentityState, step: Callable[[IdentityState], None]) -> None:
        try:
            step(state)
        except Exception as error:  # noqa: BLE001 — as above
            state.is_frozen = True
            for result in state.results:
                result.error, result.message = "unhandled", f"{type(error).__name__}: {error}"
                result.keeps_mark = True

    def _identity(self, metaverse_id: int) -> IdentityState:
        found = self._decision.identities.get(metaverse_id)
        if found is None:
            stored = self._context.identities[metaverse_id]
            row = self._context.identity_rows[metaverse_id]
            found = IdentityState(
                metaverse_id,
                self._rules.metaverse_types[stored.type],
                stored,
                stored,
                {id: self._context.objects[id] for id in self._context.joined.get(metaverse_id, ())},
                row.deletion_initiator,
            )
            self._decision.identities[metaverse_id] = found
        return found

    # --- pass 1 -----------------------------------------------------------------------------------------------------

    def _confirm(self, each: ConnectorObject) -> None:
        """Drop pending changes that the object shows already."""
        pending = self._context.exports.get(each.id)
        if pending is None or each.state is ObjectState.OBSOLETE:
            return
        confirmed = confirm_at_sync(each, pending, self._rules.object_type(each.system, each.type))
        if confirmed.pending != pending:
            self._set_export(each.id, confirmed.pending)

    def _set_export(self, object_id: int, pending: PendingExport | None) -> None:
        self._decision.exports[object_id] = pending
        if pending is None:
            self._context.exports.pop(object_id, None)
        else:
            self._context.exports[object_id] = pending

    def _remove(self, each: ConnectorObject) -> None:
        """Remove an object that was deleted in its system, and disconnect it."""
        self._decision.deleted_objects.add(each.id)
        if each.metaverse_id is None:
            return
        state = self._identity(each.metaverse_id)
        result = self._result(each.id)
        result.metaverse_id = state.id
        state.results.append(result)
        if out_of_scope_action(each, self._rules.inbound(each.system, each.type)) is OutOfScope.REMAIN:
            state.joined.pop(each.id, None)
            state.is_frozen = True
            result.change = "Disconnected"
            return
        result.change = "Disconnected"
        self._disconnect(each, state)

    def _disconnect(self, each: ConnectorObject, state: IdentityState) -> None:
        state.joined.pop(each.id, None)
        self._decision.joins[each.id] = (None, None)
        self._disconnected.setdefault(state.id, []).append(each.system)
        self._disconnected_ids.add(each.id)

    # --- pass 2 -----------------------------------------------------------------------------------------------------

    def _connect(self, each: ConnectorObject) -> None:
        """Decide the scope of an object, and join or project it."""
        inbound = self._rules.inbound(each.system, each.type)
        scoped = rules_in_scope(each, self._rules, self._now)
        result = self._result(each.id)
        mark = self._context.marks.get(each.id)
        if each.metaverse_id is not None:
            state = self._identity(each.metaverse_id)
            state.results.append(result)
            state.all_changed = state.all_changed or (mark is not None and mark.reason is MarkReason.RULE)
            result.metaverse_id = state.id
        if scoped.notes:
            result.error, result.message = scoped.notes[0].code.value, scoped.notes[0].message
            result.keeps_mark = True
            if each.metaverse_id is not None:
                self._identity(each.metaverse_id).is_frozen = True
            return
        if each.metaverse_id is not None:
            # guard: identity.pinned_join
            if inbound and not scoped.rules and each.state is ObjectState.NORMAL and not each.pinned:
                self._leave_scope(each, result, is_marked=mark is not None)
            return
        self._decision.object_reevaluations[each.id] = scoped.reevaluate_at
        if each.pinned or each.state is not ObjectState.NORMAL:
            return
        if not self._join(each, result) and (found := projection(each, scoped.rules)) is not None:
            self._project(each, found.metaverse_type, result)

    def _leave_scope(self, each: ConnectorObject, result: ObjectResult, *, is_marked: bool) -> None:
        assert each.metaverse_id is not None
        state = self._identity(each.metaverse_id)
        if out_of_scope_action(each, self._rules.inbound(each.system, each.type)) is OutOfScope.REMAIN:
            state.is_frozen = True
            result.change = "OutOfScopeRetained" if is_marked else None
            return
        result.change = "DisconnectedOutOfScope"
        self._disconnect(each, state)

    def _join(self, each: ConnectorObject, result: ObjectResult) -> bool:
        """Join an object to the metaverse object that it matches; return whether matching decided about it."""
        for attempt in self._context.attempts.get(each.id, ()):
            index = {
                (attempt.match.metaverse, key): self._free_candidates(
                    (attempt.rule.metaverse_type, attempt.match.metaverse, key)
                )
                for key in attempt.keys
            }
            match find_match([attempt], index):
                case Joined(metaverse_id=metaverse_id):
                    self._join_to(each, metaverse_id, result)
                    return True
                case Ambiguous(metaverse_ids=ids):
                    result.error, result.keeps_mark = "ambiguous_match", True
                    listed = ", ".join(map(str, ids))
                    result.message = f"{attempt.rule.name}: {len(ids)} metaverse objects match: {listed}"
                    return True
                case AlreadyJoined(metaverse_id=metaverse_id, object_id=object_id):
                    result.error, result.keeps_mark = "already_joined", True
                    other = self._context.objects.get(object_id)
                    name = repr(other.anchor) if other is not None and other.anchor else f"object {object_id}"
                    result.message = (
                        f"{attempt.rule.name}: the metaverse object {metaverse_id} is joined to {name} of"
                        f" {each.system} already"
                    )
                    return True
                case None:
                    pass
        return False

    def _free_candidates(self, key: tuple[str, str, str]) -> Sequence[Candidate]:
        """Return the candidates of a key, without joins that this page has ended."""
        return [
            replace(found, joined_object_id=None) if found.joined_object_id in self._disconnected_ids else found
            for found in self._candidates.get(key, ())
        ]

    def _join_to(self, each: ConnectorObject, metaverse_id: int, result: ObjectResult) -> None:
        state = self._identity(metaverse_id)
        joined = _with(each, each.references, metaverse_id, JoinKind.JOINED)
        state.joined[each.id] = joined
        state.results.append(result)
        state.all_changed = True
        self._decision.joins[each.id] = (metaverse_id, JoinKind.JOINED)
        self._decision.object_reevaluations.pop(each.id, None)
        self._take_candidate(metaverse_id, each.id)
        result.change, result.metaverse_id = "Joined", metaverse_id
        if is_cancelled_by(state.type, state.current, each.system):
            state.current = replace(state.current, deletion_scheduled_at=None, delete_after=None, deletion_system=None)
            state.deletion_initiator = None
            state.is_rescheduled = True
            result.detail["deletion_cancelled"] = True

    def _take_candidate(self, metaverse_id: int, object_id: int) -> None:
        for key in self._keys_of.get(metaverse_id, ()):
            self._candidates[key] = [
                replace(each, joined_object_id=object_id) if each.metaverse_id == metaverse_id else each
                for each in self._candidates[key]
            ]

    def _project(self, each: ConnectorObject, type_name: str, result: ObjectResult) -> None:
        metaverse_id = next(self._free_ids)
        metaverse_type = self._rules.metaverse_types[type_name]
        joined = _with(each, each.references, metaverse_id, JoinKind.PROJECTED)
        state = IdentityState(
            metaverse_id,
            metaverse_type,
            None,
            MetaverseObject(metaverse_id, type_name),
            {each.id: joined},
            results=[result],
            all_changed=True,
        )
        self._decision.identities[metaverse_id] = state
        self._decision.joins[each.id] = (metaverse_id, JoinKind.PROJECTED)
        self._decision.object_reevaluations.pop(each.id, None)
        result.change, result.metaverse_id = "Projected", metaverse_id
        self._add_candidates(state, each)

    def _add_candidates(self, state: IdentityState, each: ConnectorObject) -> None:
        """Let later objects of the page match a metaverse object that the page projects."""
        # Only the attributes that matching compares: the whole flow follows when all joins of the page are known.
        matched = self._rules.matched_type(state.type.name)
        if not matched.attributes:
            return
        contributions, _ = collect_contributions(state.type.name, state.joined.values(), self._rules, self._now)
        values = inbound_values(matched, contributions, self._now)
        for attribute, keys in metaverse_keys(values, matched.attributes).items():
            for key in keys:
                place = state.type.name, attribute, key
                self._candidates[place] = [*self._candidates.get(place, ()), Candidate(state.id, values, each.id)]
                self._keys_of.setdefault(state.id, []).append(place)

    # --- references, deletions, flow --------------------------------------------------------------------------------

    def _resolve_references_of_page(self) -> None:
        """Let references to objects of this page know the joins that the page made and ended."""
        joins = self._decision.joins
        if not joins:
            return
        for state in self._decision.identities.values():
            for id, each in state.joined.items():
                if any(ref.target_id in joins for found in each.references.values() for ref in found):
                    references = {
                        name: tuple([self._with_join(ref) for ref in found]) for name, found in each.references.items()
                    }
                    state.joined[id] = _with(each, references, each.metaverse_id, each.join_kind)

    def _with_join(self, reference: Reference) -> Reference:
        if reference.target_id not in self._decision.joins:
            return reference
        joined_to = self._decision.joins[reference.target_id or 0][0]
        return Reference(reference.raw, reference.target_id, joined_to)

    def _decide_deletions(self) -> None:
        """Apply the deletion rule to metaverse objects from which an object was disconnected."""
        for metaverse_id, systems in self._disconnected.items():
            state = self._decision.identities[metaverse_id]
            remaining = {each.system for each in state.joined.values()}
            for system in systems:
                if system in remaining:  # another object of the system took its place
                    continue
                match deletion_rule(state.type, state.current.origin, system, remaining):
                    case DeleteNow():
                        if self._budget.take(state.type.name):
                            state.is_deleted = True
                            self._note_deletion(state, "deleted")
                        else:
                            self._decision.postponed[state.type.name] = (
                                self._decision.postponed.get(state.type.name, 0) + 1
                            )
                            self._schedule(state, system, DELETION_POSTPONEMENT)
                    case DeleteAfter(grace=grace):
                        self._schedule(state, system, grace)
                    case _:
                        pass

    def _schedule(self, state: IdentityState, system: str, grace: timedelta) -> None:
        if state.current.deletion_scheduled_at is not None:
            return
        state.current = replace(
            state.current,
            deletion_scheduled_at=self._now,
            delete_after=self._now + grace,
            deletion_system=system,
        )
        state.deletion_initiator = {**self._initiator, "system": system}
        state.is_rescheduled = True
        self._note_deletion(state, "scheduled")

    def _note_deletion(self, state: IdentityState, what: str) -> None:
        for result in state.results:
            if result.change in ("Disconnected", "DisconnectedOutOfScope"):
                result.detail["identity"] = what

    def _flow(self, state: IdentityState) -> None:
        if state.is_deleted or state.is_frozen:
            return
        contributions, scopes_at = collect_contributions(state.type.name, state.joined.values(), self._rules, self._now)
        flow = inbound_flow(state.type, state.current if state.before else None, contributions, self._now)
        state.flow = flow
        state.reevaluate_at = earlier(scopes_at, flow.reevaluate_at)
        apply_flow(state, flow)
        for note in flow.notes:
            if note.code is NoteCode.UNRESOLVED_REFERENCE:
                self._decision.unresolved_count += note.count
        if flow.notes and (errors := flow.errors):
            for result in state.results[:1]:
                if result.error is None:
                    result.error, result.message = errors[0].code.value, "; ".join(each.message for each in errors)
                    result.keeps_mark = True
        if not flow.notes:
            return
        missing = [note.message for note in flow.notes if note.code is NoteCode.MISSING_INPUT]
        if missing and state.results and (flow.changes or state.is_new):
            state.results[0].detail["notes"] = missing


def _with(
    each: ConnectorObject,
    references: Mapping[str, tuple[Reference, ...]],
    metaverse_id: int | None,
    join_kind: JoinKind | None,
) -> ConnectorObject:
    """Return an object with these references and this join; faster than `replace`, which is measurable here."""
    return ConnectorObject(
        each.id,
        each.system,
        each.type,
        each.anchor,
        each.address,
        each.attributes,
        references,
        each.state,
        metaverse_id,
        join_kind,
        each.pinned,
        each.drift_reported,
    )


def apply_flow(state: IdentityState, flow: Flow) -> None:
    """Set the values of a metaverse object to those of a flow."""
    state.flow = flow
    current = state.current
    if flow.changes or flow.provenance != current.provenance:
        state.current = MetaverseObject(  # faster than `replace`, which is measurable here
            current.id,
            current.type,
            flow.values,
            flow.references,
            flow.provenance,
            current.origin,
            current.deletion_scheduled_at,
            current.delete_after,
            current.deletion_system,
        )


# --- outbound -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnjoinedObjects:
    """Unjoined objects of targets that metaverse objects of the page may match."""

    keys: Mapping[tuple[str, str, str], Sequence[tuple[int, Value]]]
    """(system, metaverse attribute, key) → (object, value)."""
    objects: Mapping[int, ConnectorObject]

    def of_system(self, system: str) -> dict[tuple[str, str], Sequence[tuple[int, Value]]]:
        return {(attribute, key): found for (name, attribute, key), found in self.keys.items() if name == system}


def decide_outbound(
    configuration: Configuration,
    context: PageContext,
    decision: PageDecision,
    unjoined: UnjoinedObjects,
    now: datetime,
) -> None:
    """Stage the exports of all metaverse objects of a page, in every target."""
    by_system = {system: unjoined.of_system(system) for system in {name for name, _, _ in unjoined.keys}}
    taken: set[int] = set()
    for state in decision.identities.values():
        if state.is_frozen:
            continue
        try:
            staged = _stage_identity(configuration, context, state, by_system, unjoined, taken, now)
        except Exception as error:  # noqa: BLE001 — one identity must not stop the others; its item names the error
            for result in state.results:
                result.error, result.message = "unhandled", f"{type(error).__name__}: {error}"
                result.keeps_mark = True
            continue
        state.staged = staged
        for each in staged:
            _note_staged(state, each)
    _finish_results(context, decision)


def _stage_identity(
    configuration: Configuration,
    context: PageContext,
    state: IdentityState,
    unjoined_by_system: Mapping[str, Mapping[tuple[str, str], Sequence[tuple[int, Value]]]],
    unjoined: UnjoinedObjects,
    taken: set[int],
    now: datetime,
) -> list[StagedExport]:
    rules = configuration.rules
    outbound = rules.outbound_by_system(state.type.name)
    objects = {each.system: each for each in state.joined.values()}
    staged: list[StagedExport] = []
    for system in dict.fromkeys([*outbound, *objects]):
        system_rules = outbound.get(system, ())
        if not system_rules and not state.is_deleted:
            continue
        found = objects.get(system)
        target = Target(
            system,
            system_rules,
            configuration.systems[system].definition.types,
            found,
            context.exports.get(found.id) if found is not None else None,
            unjoined_by_system.get(system, {}),
            unjoined.objects,
            taken,
        )
        before = state.before if state.before is not None and not state.is_deleted else None
        result = stage_exports(
            state.current,
            state.type,
            target,
            now,
            before=before,
            all_changed=state.all_changed,
            is_deleted=state.is_deleted,
        )
        if result.action is StageAction.JOIN and result.object_id is not None:
            taken.add(result.object_id)
        state.reevaluate_at = earlier(state.reevaluate_at, result.reevaluate_at)
        staged.append(result)
    return staged


def _note_staged(state: IdentityState, staged: StagedExport) -> None:
    """Write into the item what was staged for a target."""
    if not state.results:
        return
    result = state.results[0]
    if staged.action is not StageAction.NOTHING:
        detail = result.detail.setdefault("exports", {})
        text = str(staged.action)
        if staged.changes:
            text += f": {', '.join(sorted({change.attribute for change in staged.changes}))}"
        detail[staged.system] = text
    errors = [note for note in staged.notes if note.is_error] if staged.notes else []
    if result.error is None and (staged.error is not None or errors):
        result.error = staged.error or errors[0].code.value
        result.message = "; ".join(note.message for note in staged.notes)
        result.keeps_mark = True
    if staged.drift.corrections or staged.drift.reported:
        drift = result.detail.setdefault("drift", {})
        drift[staged.system] = {
            "corrected": sorted({change.attribute for change in staged.drift.corrections}),
            "reported": sorted({change.attribute for change in staged.drift.reported}),
        }


def _finish_results(context: PageContext, decision: PageDecision) -> None:
    """Name the change of each object whose item does not have one yet."""
    for state in decision.identities.values():
        changed = [change.attribute for change in state.flow.changes] if state.flow else []
        for result in state.results:
            if changed and result is state.results[0]:
                result.detail["attributes"] = changed
                result.change = result.change or "AttributeFlow"
            if result.change is None and result.detail.get("drift"):
                result.change = "DriftCorrected"
            if result.change is None and result.detail.get("exports"):
                result.change = "AttributeFlow"
            if result.change is None and state.is_rescheduled:
                result.change = "ScheduledForDeletion"


def is_evaluated(state: IdentityState) -> bool:
    """Return whether a page has decided about a metaverse object completely: the same inputs give the same decision
    without an error, a note or a change."""
    return (
        not state.is_deleted
        and not state.is_frozen
        and state.flow is not None
        and not state.flow.unique
        and not any(note.code is not NoteCode.MISSING_INPUT for note in state.flow.notes)
        and not any(result.error is not None or result.keeps_mark for result in state.results)
    )


def display_of_identity(state: IdentityState) -> str | None:
    """Return the text that stands for a metaverse object."""
    return display_of(state.current.attributes, state.type.display)
