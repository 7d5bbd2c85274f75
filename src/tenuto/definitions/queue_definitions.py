"""Plan and apply of the queues in definition files.

Planning changes nothing. Applying is part of the transaction that applies the other definitions. It raises `Conflict`
if a queue has changed since the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tenuto.definitions.definition_files import DeclaredQueue
from tenuto.definitions.versioned_definitions import CHANGING_EFFECTS, ChangeContext, Effect
from tenuto.errors import Conflict
from tenuto.model.definitions.queues import QueueDecision, apply_declaration, withdraw_declaration
from tenuto.postgres.database import Connection, Database
from tenuto.store.definitions import queues
from tenuto.store.definitions.queues import StoredQueue

_MAX_DECLARED = 10_000


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The effect of one queue of the files."""

    entry: DeclaredQueue
    effect: Effect
    current: StoredQueue | None
    decision: QueueDecision
    notes: Sequence[str]

    @property
    def key(self) -> str:
        return self.entry.name

    @property
    def differences(self) -> Mapping[str, tuple[Any, Any]]:
        """The options that change, as (stored, declared)."""
        before = (self.current or StoredQueue(self.key)).settings
        return {name: (getattr(before, name), getattr(self.decision.after, name)) for name in self.decision.changed}


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Changes that applying the queues of definition files would make."""

    changes: Sequence[QueueChange] = ()
    undeclared: Sequence[StoredQueue] = ()
    """Declared by a file before, and not by these files."""
    deleted: Sequence[StoredQueue] = ()
    """With ``prune``: the undeclared queues. Their declared options get the defaults."""

    @property
    def has_changes(self) -> bool:
        return bool(self.deleted) or any(change.effect in CHANGING_EFFECTS for change in self.changes)

    @property
    def changed_names(self) -> list[str]:
        """Names of the queues whose settings change."""
        changed = [change.key for change in self.changes if change.effect in CHANGING_EFFECTS]
        return [*changed, *(each.name for each in self.deleted)]


async def plan_queues(database: Database, declared: Sequence[DeclaredQueue], *, prune: bool = False) -> QueuePlan:
    """Return what the queues of the files would change."""
    names = [each.name for each in declared]
    stored = await database.transaction(lambda connection: queues.load_queues(connection, names, _MAX_DECLARED))
    changes = [_plan_queue(each, stored.get(each.name)) for each in declared]
    undeclared = [each for name, each in stored.items() if name not in names]
    return QueuePlan(changes, undeclared, undeclared if prune else ())


def _plan_queue(entry: DeclaredQueue, current: StoredQueue | None) -> QueueChange:
    before = current or StoredQueue(entry.name)
    decision = apply_declaration(before.settings, before.declared, entry.options)
    notes = []
    if decision.kept:
        named = ", ".join(decision.kept)
        notes.append(f"{named}: changed by an operator, and the declaration is unchanged: kept as it is")
    if decision.replaced:
        named = ", ".join(decision.replaced)
        notes.append(f"{named}: changed by an operator since it was declared: the file replaces that change")
    effect: Effect = "unchanged"
    if current is None:
        effect = "created"
    elif decision.changed:
        effect = "changed"
    elif decision.kept:
        effect = "kept"
    return QueueChange(entry, effect, current, decision, notes)


async def apply_queues_in_tx(connection: Connection, planned: QueuePlan, context: ChangeContext) -> None:
    """Apply a plan, or raise `Conflict` if a queue has changed since."""
    states = list(_planned_states(planned))
    if not states:
        return
    names = [state.before.name for state in states]
    stored = await queues.lock_queues(connection, names)
    if all(state.is_reached(stored[state.before.name]) for state in states):
        return  # by an earlier attempt whose acknowledgement was lost, or nothing has to be changed
    for state in states:
        if stored[state.before.name] != state.before:  # guard: queues.changed_since_plan
            raise Conflict(
                f"the queue {state.before.name!r} has changed since the plan was made",
                code="definition.changed_since_plan",
                remedy="make a new plan and review it",
            )
    for state in states:
        if state.is_reached(state.before):
            continue
        context.add_change(
            f"queue {state.before.name}",
            {**asdict(state.before.settings), "declared": state.before.declared},
            {**asdict(state.decision.after), "declared": state.declared},
        )
        await queues.save_queue(connection, state.before, state.decision.after, state.declared, by=context.actor.name)
    await queues.delete_unset_queues(connection, names)


@dataclass(frozen=True, slots=True)
class _PlannedState:
    """A queue before and after a plan is applied."""

    before: StoredQueue
    decision: QueueDecision
    declared: Mapping[str, Any] | None

    def is_reached(self, stored: StoredQueue) -> bool:
        return stored.settings == self.decision.after and stored.declared == self.declared


def _planned_states(planned: QueuePlan) -> Iterable[_PlannedState]:
    for change in planned.changes:
        yield _PlannedState(change.current or StoredQueue(change.key), change.decision, change.entry.options)
    for each in planned.deleted:
        yield _PlannedState(each, withdraw_declaration(each.settings, each.declared or {}), None)
