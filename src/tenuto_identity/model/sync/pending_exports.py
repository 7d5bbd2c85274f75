"""Pending exports: the changes still to be sent to a system or to be confirmed by it, merged and ordered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from tenuto_identity.model import dn
from tenuto_identity.model.schema import ADDRESS, ObjectType
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import EXACT, Equality, EqualityKind, Value, canonical_values

MAX_ATTEMPTS = 5
FIRST_DELAY = timedelta(minutes=2)
MAX_DELAY = timedelta(minutes=60)
_DN = Equality(EqualityKind.DN)
_IGNORE_CASE = Equality(EqualityKind.IGNORE_CASE)


class ExportKind(StrEnum):
    """What a pending export does with the object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class ExportState(StrEnum):
    """State of a pending export."""

    PENDING = "pending"
    EXECUTING = "executing"
    EXPORTED = "exported"
    UNCONFIRMED = "unconfirmed"
    FAILED = "failed"


class ChangeOp(StrEnum):
    """Operation of a change on one attribute."""

    SET = "set"
    ADD = "add"
    REMOVE = "remove"
    CLEAR = "clear"
    RENAME = "rename"
    """Sets the address."""


class ChangeState(StrEnum):
    """State of a change."""

    PENDING = "pending"
    EXPORTED = "exported"
    UNCONFIRMED = "unconfirmed"
    FAILED = "failed"


@value_class
class Change:
    """A change of one attribute. References are metaverse ids until the moment of export."""

    attribute: str
    op: ChangeOp
    values: tuple[Value, ...] = ()
    references: tuple[int, ...] = ()
    owned: bool = True
    """For ``set`` on a multi-valued attribute: further values in the system do not confirm it."""
    state: ChangeState = ChangeState.PENDING
    attempts: int = 0
    """How often the change was sent and not confirmed."""
    observed: tuple[Value, ...] | None = None
    """The values that an import found instead."""

    def has_same_effect(self, other: Change) -> bool:
        """Return whether two changes ask for the same."""
        return (
            self.attribute == other.attribute
            and self.op == other.op
            and set(self.values) == set(other.values)
            and set(self.references) == set(other.references)
        )


@value_class
class PendingExport:
    """The pending export of one connector space object."""

    object_id: int
    system: str
    metaverse_id: int | None
    kind: ExportKind
    changes: tuple[Change, ...] = ()
    queued_changes: tuple[Change, ...] = ()
    """Changes that arrived while the export was executing."""
    state: ExportState = ExportState.PENDING
    attempts: int = 0
    """How often the system refused it."""
    next_attempt_at: datetime | None = None
    uncertain: bool = False
    """A run ended without recording whether the request took effect."""
    deferred_reference_count: int = 0
    error: str | None = None
    foreign_anchor: str | None = None
    """Anchor of another object, for which the system refused a create (``exists``); empty if it is not known."""
    disables: bool = False
    """It disables an object whose metaverse object is out of scope or deleted."""


# --- stored form ----------------------------------------------------------------------------------------------------

_OPS = {op.value: op for op in ChangeOp}
_CHANGE_STATES = {state.value: state for state in ChangeState}
_PENDING = ChangeState.PENDING
"""A name of the module is found faster than a member of an enum; ``str(op)`` is faster than its ``value``."""


def encode_changes(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Return changes as the JSON of the column ``changes``; fields with their default value are left out."""
    return [_encode_change(change) for change in changes]


def decode_changes(stored: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Return changes from the JSON of the column ``changes``."""
    return tuple(
        Change(
            attribute=each["attribute"],
            op=_OPS[each["op"]],
            values=tuple(each.get("values", ())),
            references=tuple(each.get("references", ())),
            owned=each.get("owned", True),
            state=_CHANGE_STATES[each.get("state", "pending")],
            attempts=each.get("attempts", 0),
            observed=tuple(each["observed"]) if "observed" in each else None,
        )
        for each in stored
    )


def _encode_change(change: Change) -> dict[str, Any]:
    stored: dict[str, Any] = {"attribute": change.attribute, "op": str(change.op)}
    if change.values:
        stored["values"] = list(change.values)
    if change.references:
        stored["references"] = list(change.references)
    if not change.owned:
        stored["owned"] = False
    if change.state is not _PENDING:
        stored["state"] = change.state.value
    if change.attempts:
        stored["attempts"] = change.attempts
    if change.observed is not None:
        stored["observed"] = list(change.observed)
    return stored


# --- merging --------------------------------------------------------------------------------------------------------


def merge_changes(earlier: Sequence[Change], later: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes that have the effect of both lists in order. Associative; the newest change wins.

    A ``set``, ``clear`` or ``rename`` replaces what was planned for its attribute. ``add`` and ``remove`` are combined
    value by value. A change that is not altered keeps its state and attempts.
    """
    merged: list[Change] = []
    for attribute in _attributes_in_order(earlier, later):
        before = [change for change in earlier if change.attribute == attribute]
        after = [change for change in later if change.attribute == attribute]
        merged.extend(_merge_attribute(attribute, before, after))
    return tuple(merged)


def restage_changes(
    pending: Sequence[Change], computed: Sequence[Change], evaluated: frozenset[str] | None = None
) -> tuple[Change, ...]:
    """Return the changes of a pending export after a new evaluation of its object.

    ``computed`` are the differences between desired and expected values, ``evaluated`` the attributes that were
    compared (None: all). A change that was sent and waits for its confirmation stays, because the expected values
    contain it; a new difference in the same attribute is added after it. A change that was not sent, was not confirmed
    or has failed is replaced, and keeps its state and attempts if the new one is equal.
    """
    kept: list[Change] = []
    earlier_by_attribute: dict[str, list[Change]] = {}
    computed_attributes = {change.attribute for change in computed}
    for change in pending:
        if (evaluated is not None and change.attribute not in evaluated) or (
            change.state is ChangeState.EXPORTED
            and not (change.attribute in computed_attributes and _replaces(computed, change.attribute))
        ):
            kept.append(change)
        else:
            earlier_by_attribute.setdefault(change.attribute, []).append(change)
    for change in computed:
        same = next(
            (old for old in earlier_by_attribute.get(change.attribute, ()) if old.has_same_effect(change)), None
        )
        keeps = same is not None and same.state is not ChangeState.EXPORTED
        kept.append(same if keeps and same is not None else change)
    return tuple(kept)


def _replaces(computed: Sequence[Change], attribute: str) -> bool:
    return any(
        change.attribute == attribute and change.op not in (ChangeOp.ADD, ChangeOp.REMOVE) for change in computed
    )


def _attributes_in_order(*lists: Sequence[Change]) -> list[str]:
    return list(dict.fromkeys(change.attribute for changes in lists for change in changes))


_Item = tuple[str, Value]
"""A value or a reference of a change: ("v", value) or ("r", metaverse id)."""


def _items(change: Change) -> frozenset[_Item]:
    return frozenset([("v", value) for value in change.values] + [("r", target) for target in change.references])


def _merge_attribute(attribute: str, before: Sequence[Change], after: Sequence[Change]) -> list[Change]:
    if not after:
        return list(before)
    whole: Change | None = None
    """The last change that sets the whole attribute."""
    added: frozenset[_Item] = frozenset()
    removed: frozenset[_Item] = frozenset()
    content: frozenset[_Item] = frozenset()
    for change in [*before, *after]:
        items = _items(change)
        if change.op is ChangeOp.ADD:
            content, added, removed = content | items, added | items, removed - items
        elif change.op is ChangeOp.REMOVE:
            content, added, removed = content - items, added - items, removed | items
        else:
            whole, content, added, removed = change, items, frozenset(), frozenset()
    if whole is not None:
        op = ChangeOp.RENAME if whole.op is ChangeOp.RENAME else ChangeOp.SET if content else ChangeOp.CLEAR
        results = [_with_items(Change(attribute, op, owned=whole.owned), content)]
    else:
        results = []
        if removed:
            results.append(_with_items(Change(attribute, ChangeOp.REMOVE), removed))
        if added:
            results.append(_with_items(Change(attribute, ChangeOp.ADD), added))
    return [_keep_progress(result, [*after, *before]) for result in results]


def _with_items(change: Change, items: frozenset[_Item]) -> Change:
    return replace(
        change,
        values=tuple(canonical_values(value for kind, value in items if kind == "v")),
        references=tuple(sorted(int(target) for kind, target in items if kind == "r")),
    )


def _keep_progress(result: Change, known: Sequence[Change]) -> Change:
    return next((change for change in known if change.has_same_effect(result)), result)


def withdraw(pending: PendingExport) -> PendingExport | None:
    """Return what remains if nothing more is to be sent: only changes that were sent and wait for confirmation."""
    remaining = tuple(change for change in pending.changes if change.state is ChangeState.EXPORTED)
    if pending.kind is ExportKind.DELETE or not remaining:
        return None
    return replace(pending, kind=ExportKind.UPDATE, changes=remaining, queued_changes=(), state=ExportState.EXPORTED)


# --- order ----------------------------------------------------------------------------------------------------------


class Phase:
    """Phases of an export, in the order in which they are sent."""

    CREATE = 0
    RENAME = 1
    UPDATE = 2
    DEFERRED = 3
    DELETE = 4


def export_phase(pending: PendingExport) -> int:
    """Return the phase in which a pending export is sent."""
    if pending.kind is ExportKind.CREATE:
        return Phase.CREATE
    if pending.kind is ExportKind.DELETE:
        return Phase.DELETE
    if any(change.op is ChangeOp.RENAME for change in pending.changes):
        return Phase.RENAME
    return Phase.DEFERRED if pending.deferred_reference_count else Phase.UPDATE


def export_depth(kind: ExportKind, address: str) -> int:
    """Return the position within a phase: parents before children, for deletes children before parents."""
    levels = dn.depth(address)
    return -levels if kind is ExportKind.DELETE else levels


def order_exports(exports: Iterable[tuple[PendingExport, str]]) -> list[PendingExport]:
    """Return pending exports with their addresses in the order in which they are sent."""
    keyed = sorted(
        exports, key=lambda each: (export_phase(each[0]), export_depth(each[0].kind, each[1]), each[0].object_id)
    )
    return [pending for pending, _ in keyed]


# --- results of the export ------------------------------------------------------------------------------------------


def retry_delay(attempts: int) -> timedelta:
    """Return the delay after the n-th refusal: 2, 4, 8 … 60 minutes."""
    return min(FIRST_DELAY * (1 << max(min(attempts, 10) - 1, 0)), MAX_DELAY)


def record_exported(
    pending: PendingExport, *, deferred: frozenset[tuple[str, int]] = frozenset(), confirmed: bool = False
) -> PendingExport | None:
    """Return a pending export after its request succeeded, with the queued changes merged; None if nothing is left.

    ``deferred`` are the references (attribute, metaverse id) that could not be resolved and were not sent.
    ``confirmed`` is for connectors whose success is the confirmation.
    """
    sent: list[Change] = []
    for change in pending.changes:
        late = tuple(target for target in change.references if (change.attribute, target) in deferred)
        if change.state is ChangeState.FAILED:
            sent.append(change)
            continue
        references = tuple(target for target in change.references if target not in late)
        if not confirmed and (change.values or references or not late):
            sent.append(replace(change, references=references, state=ChangeState.EXPORTED, observed=None))
        if late:
            op = (
                ChangeOp.SET if change.op is ChangeOp.SET and len(late) == len(change.references) == 1 else ChangeOp.ADD
            )
            sent.append(Change(change.attribute, op, references=late))
    if pending.kind is ExportKind.DELETE:
        return None if confirmed else replace(pending, state=ExportState.EXPORTED, uncertain=False, error=None)
    if is_delete_queued(pending):
        return _queued_delete(pending)
    changes = _append_queued(tuple(sent), pending.queued_changes)
    if not changes and (confirmed or pending.changes):
        return None
    return replace(
        pending,
        kind=ExportKind.UPDATE,  # the object exists now
        changes=changes,
        queued_changes=(),
        state=state_of_changes(changes) if changes else ExportState.EXPORTED,
        attempts=0,
        next_attempt_at=None,
        uncertain=False,
        deferred_reference_count=sum(len(change.references) for change in changes if _is_deferred(change, deferred)),
        error=None,
        foreign_anchor=None,
    )


def _is_deferred(change: Change, deferred: frozenset[tuple[str, int]]) -> bool:
    return change.state is ChangeState.PENDING and any(
        (change.attribute, target) in deferred for target in change.references
    )


def _append_queued(sent: tuple[Change, ...], queued: tuple[Change, ...]) -> tuple[Change, ...]:
    """Return the sent changes followed by the queued ones that ask for something else."""
    unsent = tuple(change for change in sent if change.state is not ChangeState.EXPORTED)
    exported = tuple(change for change in sent if change.state is ChangeState.EXPORTED)
    news = tuple(
        change for change in merge_changes(unsent, queued) if not any(change.has_same_effect(old) for old in exported)
    )
    replaced = {change.attribute for change in news if change.op in (ChangeOp.SET, ChangeOp.CLEAR, ChangeOp.RENAME)}
    return (*(change for change in exported if change.attribute not in replaced), *news)


QUEUED_DELETE = Change(ADDRESS, ChangeOp.CLEAR)
"""In ``queued_changes``: delete the object once the request that is being sent has ended."""


def is_delete_queued(pending: PendingExport) -> bool:
    """Return whether a delete arrived while the export was executing."""
    return any(change.has_same_effect(QUEUED_DELETE) for change in pending.queued_changes)


def _queued_delete(pending: PendingExport) -> PendingExport:
    return PendingExport(
        pending.object_id,
        pending.system,
        pending.metaverse_id,
        ExportKind.DELETE,
        foreign_anchor=pending.foreign_anchor,
    )


def is_foreign(pending: PendingExport, anchor: str | None) -> bool:
    """Return whether a request would reach another object than the one that the system refused to create: the object
    has no anchor, or an import that did not know the refusal gave it that of the other object."""
    if pending.kind is ExportKind.CREATE or pending.foreign_anchor is None:
        return False
    return anchor is None or pending.foreign_anchor in (anchor, "")


def record_refused(
    pending: PendingExport,
    error: str,
    now: datetime,
    *,
    foreign_anchor: str | None = None,
    was_created: bool = False,
) -> PendingExport | None:
    """Return a pending export after the system refused it: retried later, or failed after the fifth refusal.

    None if the object is to be removed: it is to be deleted, and was never created. ``foreign_anchor`` is that of
    another object that has the address. ``was_created``: the system created the object and refused a later part."""
    if pending.kind is ExportKind.CREATE:
        # What may have taken effect stays uncertain: the answer to a repetition is not about it.
        # guard: identity.refused_create_is_uncertain
        pending = replace(pending, uncertain=pending.uncertain or was_created)
        if foreign_anchor is not None:
            pending = replace(pending, foreign_anchor=foreign_anchor)
    if is_delete_queued(pending):
        return _delete_after_refusal(pending)
    attempts = pending.attempts + 1
    has_failed = attempts >= MAX_ATTEMPTS  # guard: identity.refused_attempts
    return replace(
        pending,
        changes=merge_changes(pending.changes, pending.queued_changes),
        queued_changes=(),
        state=ExportState.FAILED if has_failed and not pending.queued_changes else ExportState.PENDING,
        attempts=0 if pending.queued_changes else attempts,
        next_attempt_at=None if has_failed else now + retry_delay(attempts),
        uncertain=pending.uncertain and pending.kind is ExportKind.CREATE,
        error=error,
    )


def _delete_after_refusal(pending: PendingExport) -> PendingExport | None:
    # guard: identity.refused_create_is_not_deleted
    if pending.kind is ExportKind.CREATE and not pending.uncertain:
        return None
    return _queued_delete(pending)


def record_missing_dependency(
    pending: PendingExport, error: str, now: datetime, *, was_created: bool = False
) -> PendingExport | None:
    """Return a pending export whose parent or target does not exist yet. No attempt is counted. None as for
    `record_refused`."""
    if pending.kind is ExportKind.CREATE:
        pending = replace(pending, uncertain=pending.uncertain or was_created)
    if is_delete_queued(pending):
        return _delete_after_refusal(pending)
    return replace(
        pending,
        changes=merge_changes(pending.changes, pending.queued_changes),
        queued_changes=(),
        state=ExportState.PENDING,
        next_attempt_at=now + FIRST_DELAY,
        uncertain=pending.uncertain and pending.kind is ExportKind.CREATE,
        error=error,
    )


def retry(pending: PendingExport) -> PendingExport:
    """Return a pending export that is sent again from the first attempt, because a user asked for it."""
    return replace(
        pending,
        changes=tuple(
            change if change.state is ChangeState.EXPORTED else replace(change, state=ChangeState.PENDING, attempts=0)
            for change in pending.changes
        ),
        state=ExportState.PENDING,
        attempts=0,
        next_attempt_at=None,
        error=None,
    )


def state_of_changes(changes: Sequence[Change]) -> ExportState:
    """Return the state of a pending export that is not executing, from the states of its changes."""
    states = {change.state for change in changes}
    for found, state in (
        (ChangeState.PENDING, ExportState.PENDING),
        (ChangeState.UNCONFIRMED, ExportState.UNCONFIRMED),
        (ChangeState.EXPORTED, ExportState.EXPORTED),
    ):
        if found in states:
            return state
    return ExportState.FAILED if states else ExportState.PENDING


def sendable_changes(pending: PendingExport) -> tuple[Change, ...]:
    """Return the changes that the next request contains: those not sent yet, or sent and not confirmed."""
    return tuple(change for change in pending.changes if change.state in (ChangeState.PENDING, ChangeState.UNCONFIRMED))


def attribute_equality(object_type: ObjectType, attribute: str) -> Equality:
    """Return the equality of an attribute of an object type; addresses that are DNs are compared as DNs."""
    if attribute == ADDRESS:
        return _DN if object_type.address_is_dn else _IGNORE_CASE
    found = object_type.attributes.get(attribute)
    return found.equality if found else EXACT
