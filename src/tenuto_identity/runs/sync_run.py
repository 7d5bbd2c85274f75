"""Full and delta sync: process the objects of a system page by page, and write metaverse and pending exports.

A page is decided in memory on what was read, outside of row locks. Its transaction locks the rows that it writes, and
is decided again if one of them has changed since. After the last page, objects whose references could not be resolved
before their targets were joined are processed again until there is no progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection
from tenuto_identity.model.decoding import address_key, canonical_anchor
from tenuto_identity.model.definitions.system_definitions import RunKind
from tenuto_identity.model.objects import ConnectorObject, JoinKind, ObjectState
from tenuto_identity.model.sync.guards import GuardKind, allowed_count
from tenuto_identity.model.sync.inbound_flow import with_unique
from tenuto_identity.model.sync.matcher import metaverse_keys
from tenuto_identity.model.sync.outbound import StageAction, StagedExport
from tenuto_identity.model.sync.pending_exports import PendingExport, export_depth
from tenuto_identity.model.sync.settled_objects import SettledRules, joined_key, select_unsettled
from tenuto_identity.model.values import fold_key
from tenuto_identity.runs.definition_snapshot import Configuration
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.runs.object_keys import rebuild_object_keys
from tenuto_identity.runs.page_context import PageContext, display_of, load_page_context, to_connector_objects
from tenuto_identity.runs.run_lifecycle import Page, PageConflict, Run
from tenuto_identity.runs.sync_decisions import (
    DeletionBudget,
    IdentityState,
    PageDecision,
    UnjoinedObjects,
    apply_flow,
    decide_inbound,
    decide_outbound,
    display_of_identity,
    is_evaluated,
)
from tenuto_identity.runs.unique_values import UniqueAttribute, choose_unique
from tenuto_identity.store import evaluated_objects, exports, metaverse, objects, run_items, runs, sync_marks
from tenuto_identity.store.evaluated_objects import Evaluation
from tenuto_identity.store.metaverse import IdentityWrite, MatchKey, MetaverseReference
from tenuto_identity.store.objects import JoinWrite, NewObject, ObjectRow, encode_json
from tenuto_identity.store.runs import EarlierDeletions
from tenuto_identity.store.sync_marks import MarkReason

MAX_REFERENCE_ROUNDS = 20
SCAN_PAGES = 5
"""A page of a full sync looks at so many times its size of objects, where most of them are settled and skipped."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a page, and how many were looked at to find them."""

    rows: list[ObjectRow]
    looked_at: int
    last_id: int | None = None
    """Id of the last object of the page; None for an empty page."""

    @classmethod
    def of_rows(cls, rows: list[ObjectRow]) -> Selection:
        """Return a selection of objects that are all processed."""
        return cls(rows, len(rows), rows[-1].id if rows else None)


LoadPage = Callable[[Connection], Awaitable[Selection]]


@dataclass(frozen=True, slots=True)
class _PageResult:
    """The result of a page that is kept after its commit. The rest of the page is freed."""

    last_id: int | None
    """Id of the last object of the page; None for an empty page."""
    ids: Sequence[int] = ()
    """The objects that were processed."""
    unresolved_count: int = 0


class SyncRun:
    """The processor of full and delta syncs."""

    def __init__(self, run: Run, page_size: int) -> None:
        self._run = run
        self._system = run.system
        self._configuration = run.configuration
        self._page_size = run.profile.page_size or page_size
        self._identity_totals: dict[str, int] | None = None
        """Metaverse objects by type; counted when the first one would be deleted."""
        self._needs_totals = False
        self._earlier = EarlierDeletions()
        self._unresolved: dict[int, int] = {}
        self._since_stamp = 0

    async def process(self) -> OutcomeStatus:
        """Run the sync to its end."""
        run = self._run
        for system in self._configuration.systems.values():
            await rebuild_object_keys(run, system)
        self._since_stamp = await run.read(sync_marks.draw_stamp)
        self._earlier = await run.read(runs.load_earlier_deletions, run.record)
        if run.profile.kind is RunKind.FULL_SYNC:
            await self._sync_all()
        else:
            await self._sync_marked()
        await self._sync_references()
        return await self._finish()

    async def _finish(self, also: Callable[[Connection], Awaitable[None]] | None = None) -> OutcomeStatus:
        run = self._run
        run.at("sync_ending")
        if postponed := self._earlier.postponed_count + run.counts.postponed_count:
            run.held.append(
                f"{postponed} metaverse objects would be deleted beyond the limit of the guard"
                f" {GuardKind.IDENTITY_DELETIONS.value}; their deletion is scheduled for one day later"
            )
        if unresolved := sum(self._unresolved.values()):
            run.warn(f"{unresolved} references are not resolved")
        return await run.finish(also)

    async def _load_totals(self, connection: Connection) -> None:
        counts = await metaverse.count_identities(connection)
        names = self._configuration.metaverse_type_names
        self._identity_totals = {
            names[number]: count + self._earlier.deleted_count(names[number])
            for number, count in counts.items()
            if number in names
        }

    def _take_deletion(self, page_deleted: dict[str, int], type_name: str) -> bool:
        """Take one deletion from what the guard allows in all attempts of this run. The page is repeated if that is
        not known yet."""
        if self._identity_totals is None:
            self._needs_totals = True
            raise PageConflict
        limit = self._system.guards(self._run.profile).limit(GuardKind.IDENTITY_DELETIONS)
        allowed = allowed_count(self._identity_totals.get(type_name, 0), limit)
        # guard: identity.deletions_of_attempts
        earlier = self._earlier.deleted_count(type_name)
        if earlier + self._run.counts.deleted_identities[type_name] + page_deleted.get(type_name, 0) >= allowed:
            return False
        page_deleted[type_name] = page_deleted.get(type_name, 0) + 1
        return True

    # --- selection --------------------------------------------------------------------------------------------------

    async def _sync_all(self) -> None:
        """Process every object of the system in order of id; continue after the last page of a lost attempt."""
        cursor: int | None = self._run.record.cursor or 0
        number, size = self._system.number, self._page_size
        rules = settled_rules(self._configuration)
        scanned = size
        while cursor is not None:

            async def load(connection: Connection, after: int = cursor) -> Selection:
                nonlocal scanned
                if self._run.profile.evaluate_all:
                    return Selection.of_rows(await objects.load_objects_page(connection, number, after, size))
                facts = await evaluated_objects.load_facts(connection, number, after, scanned, self._run.now())
                chosen, looked_at, last_id = select_unsettled(facts, rules, size)
                rows = await objects.load_objects(connection, chosen) if chosen else []
                # Facts beyond a full page are read again by the next one: look further only where most are skipped.
                # Measured with the benchmark identity, full sync of new people.
                scanned = size if 2 * len(chosen) > looked_at else SCAN_PAGES * size
                return Selection(rows, looked_at, last_id)

            cursor = await self._process_page(load, cursor_after=True)

    async def _sync_marked(self) -> None:
        """Process the marked objects of the system. Marks set while the run is active are left to the next one."""
        cursor = 0
        until = self._since_stamp
        while True:
            marks = await self._run.read(
                sync_marks.load_marks_page, self._system.number, cursor, until, self._page_size
            )
            if not marks:
                return
            cursor = marks[-1].object_id
            ids = [mark.object_id for mark in marks]

            await self._process_page(load_all(ids))
            self._run.at("sync_marks_page")

    async def _sync_references(self) -> None:
        """Process objects again whose references point at objects that were joined after them."""
        since = self._since_stamp
        for _ in range(MAX_REFERENCE_ROUNDS):
            until = await self._run.read(sync_marks.draw_stamp)
            cursor, found_any = 0, False
            while True:
                marks = await self._run.read(
                    sync_marks.load_marks_since,
                    self._system.number,
                    cursor,
                    MarkReason.REFERENCE,
                    since,
                    self._page_size,
                )
                marks = [mark for mark in marks if mark.stamp <= until]
                if not marks:
                    break
                found_any = True
                cursor = marks[-1].object_id
                ids = [mark.object_id for mark in marks]
                await self._process_page(load_all(ids), is_repeated=True)
                self._run.at("sync_reference_page")
            if not found_any:
                return
            since = until

    # --- pages ------------------------------------------------------------------------------------------------------

    async def _process_page(
        self, load: LoadPage, *, cursor_after: bool = False, is_repeated: bool = False
    ) -> int | None:
        """Process a page; return the last object that was looked at, None if there was none."""
        page_deleted: dict[str, int] = {}

        async def work(connection: Connection, page: Page) -> _PageResult:
            page_deleted.clear()
            if self._needs_totals and self._identity_totals is None:
                await self._load_totals(connection)
            selected = await load(connection)
            rows = selected.rows
            if not is_repeated:
                page.counts.processed += selected.looked_at
            if not rows:
                return _PageResult(selected.last_id)
            decision = await self._decide_and_write(connection, page, rows, page_deleted)
            page.counts.deleted_identities.update(page_deleted)
            page.counts.postponed_count += sum(decision.postponed.values())
            self._run.at("sync_page_written")
            return _PageResult(selected.last_id, [row.id for row in rows], decision.unresolved_count)

        result = await self._run.write_page(work, get_cursor=lambda found: found.last_id if cursor_after else None)
        if result.ids:
            self._note_unresolved(result)
            self._run.at("sync_page_committed")
        return result.last_id

    async def _decide_and_write(
        self, connection: Connection, page: Page, rows: Sequence[ObjectRow], page_deleted: dict[str, int]
    ) -> PageDecision:
        now = self._run.now()
        context = await load_page_context(connection, self._configuration, self._system.name, rows, now)
        loaded_exports = dict(context.exports)
        budget = DeletionBudget(lambda type_name: self._take_deletion(page_deleted, type_name))
        decision = await asyncio.to_thread(decide_inbound, self._configuration, context, now, self._initiator(), budget)
        await self._choose_unique(connection, decision)
        unjoined = await self._find_unjoined(connection, decision)
        await asyncio.to_thread(decide_outbound, self._configuration, context, decision, unjoined, now)
        writer = PageWriter(self._run, context, decision, unjoined, loaded_exports, now)
        await writer.write(connection, page)
        return decision

    def _initiator(self) -> dict[str, Any]:
        actor = self._run.record.initiator
        return {"type": actor.type.value, "id": actor.id, "name": actor.name, "run": str(self._run.id)}

    def _note_unresolved(self, result: _PageResult) -> None:
        for id in result.ids:
            self._unresolved.pop(id, None)
        if result.unresolved_count:
            self._unresolved[result.ids[0]] = result.unresolved_count

    # --- lookups between the phases ---------------------------------------------------------------------------------

    async def _choose_unique(self, connection: Connection, decision: PageDecision) -> None:
        """Give attributes with ``unique`` the first candidate that is free in the metaverse and in the page."""
        waiting = [state for state in decision.identities.values() if state.flow is not None and state.flow.unique]
        if not waiting:
            return
        numbers = self._configuration
        places = [(state, attribute) for state in waiting if state.flow for attribute in state.flow.unique]
        chosen = await choose_unique(
            connection,
            [
                UniqueAttribute(
                    numbers.metaverse_type_numbers[state.type.name],
                    numbers.attribute_numbers[attribute],
                    state.flow.unique[attribute].bases,
                )
                for state, attribute in places
                if state.flow is not None
            ],
        )
        for (state, attribute), value in zip(places, chosen, strict=True):
            assert state.flow is not None
            if value is None:
                for result in state.results[:1]:
                    result.error, result.keeps_mark = "expression_failed", True
                    result.message = f"{attribute}: all candidates of unique are taken"
            else:
                apply_flow(state, with_unique(state.flow, attribute, value, state.type))

    async def _find_unjoined(self, connection: Connection, decision: PageDecision) -> UnjoinedObjects:
        """Look up the unjoined objects of targets that metaverse objects of the page may match."""
        configuration = self._configuration
        wanted: dict[tuple[int, int, str], tuple[str, str, str]] = {}
        for state in decision.identities.values():
            if state.is_deleted or state.is_frozen:
                continue
            present = {each.system for each in state.joined.values()}
            for rule in configuration.rules.outbound(state.type.name):
                if rule.system in present:
                    continue
                for match in rule.match:
                    for value in state.current.attributes.get(match.metaverse, ()):
                        if key := fold_key(value):
                            place = (
                                configuration.system_numbers[rule.system],
                                configuration.attribute_numbers[match.metaverse],
                                index_key(key),
                            )
                            wanted[place] = (rule.system, match.metaverse, key)
        if not wanted:
            return UnjoinedObjects({}, {})
        hits = await objects.find_unjoined_by_keys(connection, list(wanted))
        ids = sorted({object_id for found in hits.values() for object_id, _ in found})
        rows = await objects.load_objects(connection, ids)
        references = await objects.load_references(connection, ids)
        return UnjoinedObjects(
            {wanted[place]: found for place, found in hits.items()},
            to_connector_objects(configuration, rows, references),
        )


def settled_rules(configuration: Configuration) -> SettledRules:
    """Return what the definitions say about skipping objects."""
    rules = configuration.rules
    return SettledRules(
        configuration.rules_version,
        frozenset(
            (system.number, number)
            for system in configuration.systems.values()
            for name, number in system.type_numbers.items()
            if rules.inbound(system.name, name)
        ),
        {
            number: frozenset(configuration.system_numbers[system] for system in rules.outbound_by_system(name))
            for name, number in configuration.metaverse_type_numbers.items()
        },
    )


def load_all(ids: Sequence[int]) -> LoadPage:
    """Return the function that loads these objects as a page."""

    async def load(connection: Connection) -> Selection:
        return Selection.of_rows(await objects.load_objects(connection, ids))

    return load


class PageWriter:
    """Writes the decision of a page in the order of locks: metaverse objects, objects, exports, all others."""

    def __init__(
        self,
        run: Run,
        context: PageContext,
        decision: PageDecision,
        unjoined: UnjoinedObjects,
        loaded_exports: dict[int, PendingExport],
        now: datetime,
    ) -> None:
        self._run = run
        self._configuration = run.configuration
        self._context = context
        self._decision = decision
        self._unjoined = unjoined
        self._loaded_exports = loaded_exports
        self._now = now
        self._new_objects: list[NewObject] = []
        self._joins: dict[int, JoinWrite] = {}
        self._removed: set[int] = set(decision.deleted_objects)
        self._exports: dict[int, PendingExport | None] = dict(decision.exports)
        self._addresses: dict[int, str] = {}
        self._encoded: dict[int, str] = {}
        """Values of new metaverse objects as JSON."""

    async def write(self, connection: Connection, page: Page) -> None:
        await self._plan(connection)
        await self._lock(connection)
        deleted = [state.id for state in self._decision.identities.values() if state.is_deleted]
        await self._write_identities(connection)
        # An identity has one object in a system: objects that leave it come before those that replace them.
        await self._remove_objects(connection)
        joins = [self._joins[id] for id in sorted(self._joins) if id not in self._removed]
        await objects.write_joins(connection, [each for each in joins if each.metaverse_id is None], self._now)
        await objects.insert_objects(connection, self._new_objects, self._now)
        await objects.write_joins(connection, [each for each in joins if each.metaverse_id is not None], self._now)
        await self._write_exports(connection, page)
        referring = await metaverse.delete_identities(connection, deleted, self._now)
        await self._write_marks(connection, referring)
        await evaluated_objects.store_evaluations(connection, self._evaluations(), self._configuration.rules_version)
        self._write_items(page)

    # --- what is written --------------------------------------------------------------------------------------------

    async def _plan(self, connection: Connection) -> None:
        """Turn staged exports into objects, joins and pending exports."""
        provisioned: list[tuple[IdentityState, StagedExport]] = []
        for state in self._decision.identities.values():
            for staged in state.staged:
                if staged.action is StageAction.PROVISION:
                    provisioned.append((state, staged))
                else:
                    self._plan_staged(state, staged)
        for id, (metaverse_id, join_kind) in self._decision.joins.items():
            self._set_join(id, metaverse_id, join_kind)
        for id, reevaluate_at in self._decision.object_reevaluations.items():
            if reevaluate_at is not None and id not in self._joins:
                self._set_join(id, None, None, reevaluate_at)
        await self._plan_provisioned(connection, provisioned)

    async def _plan_provisioned(
        self, connection: Connection, provisioned: Sequence[tuple[IdentityState, StagedExport]]
    ) -> None:
        ids = await objects.draw_object_ids(connection, len(provisioned))
        for id, (state, staged) in zip(ids, provisioned, strict=True):
            system = self._configuration.systems[staged.system]
            object_type = system.definition.types[staged.object_type]
            assert staged.pending is not None
            anchor = next(
                (
                    str(change.values[0])
                    for change in staged.pending.changes
                    if change.attribute == object_type.anchor and change.values
                ),
                None,
            )
            self._new_objects.append(
                NewObject(
                    id,
                    system.number,
                    system.type_numbers[staged.object_type],
                    canonical_anchor(anchor, object_type) if anchor else None,
                    staged.address or None,
                    index_key(address_key(staged.address, object_type)) if staged.address else None,
                    None,
                    ObjectState.PROVISIONING,
                    {},
                    metaverse_id=state.id,
                    join_kind=JoinKind.PROVISIONED,
                )
            )
            pending = staged.pending
            self._exports[id] = PendingExport(id, pending.system, pending.metaverse_id, pending.kind, pending.changes)
            self._addresses[id] = staged.address

    def _plan_staged(self, state: IdentityState, staged: StagedExport) -> None:
        id = staged.object_id
        if id is None:
            return
        self._addresses[id] = staged.address
        if staged.drift.reported or (
            id in self._context.objects and self._context.objects[id].drift_reported - staged.drift.unenforced
        ):
            found = self._context.objects[id]
            self._set_join(id, found.metaverse_id, found.join_kind, drift=staged.drift.unenforced)
        match staged.action:
            case StageAction.NOTHING:
                return
            case StageAction.JOIN:
                self._set_join(id, state.id, JoinKind.JOINED)
            case StageAction.DISCONNECT:
                self._set_join(id, None, None)
            case StageAction.REMOVE:
                self._removed.add(id)
            case _:
                pass
        self._exports[id] = staged.pending

    def _set_join(
        self,
        id: int,
        metaverse_id: int | None,
        join_kind: JoinKind | None,
        reevaluate_at: datetime | None = None,
        drift: Iterable[str] | None = None,
    ) -> None:
        known = self._object(id)
        reported = sorted(drift if drift is not None else known.drift_reported)
        self._joins[id] = JoinWrite(id, metaverse_id, join_kind, reported, reevaluate_at)

    def _object(self, id: int) -> ConnectorObject:
        return self._context.objects.get(id) or self._unjoined.objects[id]

    # --- locks ------------------------------------------------------------------------------------------------------

    async def _lock(self, connection: Connection) -> None:
        """Lock the rows that are written, and raise `PageConflict` if one has changed since it was read."""
        versions = {id: row.version for id, row in self._context.identity_rows.items()}
        written = [state.id for state in self._decision.identities.values() if self._is_written(state)]
        found = await metaverse.lock_identities(connection, [id for id in written if id in versions])
        if any(found.get(id) != versions[id] for id in written if id in versions):
            raise PageConflict
        new = {each.id for each in self._new_objects}
        touched = sorted(({*self._joins, *self._removed, *self._exports}) - new)
        locked = await objects.lock_objects(connection, touched)
        for id in touched:
            known = self._context.object_versions.get(id)
            row = locked.get(id)
            if row is None or (known is not None and row.version != known):
                raise PageConflict
            if known is None and row.metaverse_id is not None:  # an unjoined object that was joined meanwhile
                raise PageConflict
        stored = await exports.lock_exports(connection, touched, self._configuration.system_names)
        # guard: identity.export_unchanged
        if any(stored.get(id) != self._loaded_exports.get(id) for id in self._exports if id not in new):
            raise PageConflict

    def _is_written(self, state: IdentityState) -> bool:
        if state.is_new or state.is_deleted or state.is_rescheduled:
            return True
        row = self._context.identity_rows[state.id]
        return (
            bool(state.flow and state.flow.changes)
            or (state.before is not None and state.current.provenance != state.before.provenance)
            or (not state.is_frozen and state.reevaluate_at != row.reevaluate_at)
        )

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write_identities(self, connection: Connection) -> None:
        states = [
            state
            for state in self._decision.identities.values()
            if self._is_written(state) and not (state.is_deleted and state.is_new)
        ]
        new = [self._identity_write(state) for state in states if state.is_new]
        changed = [self._identity_write(state) for state in states if not state.is_new and not state.is_deleted]
        await metaverse.insert_identities(connection, new, self._now)
        await metaverse.update_identities(connection, changed, self._now)
        removed: list[MetaverseReference] = []
        added: list[MetaverseReference] = []
        new_keys: dict[int, list[MatchKey]] = {}
        changed_keys: dict[int, list[MatchKey]] = {}
        for state in states:
            if state.is_deleted:
                continue
            self._diff_references(state, removed, added)
            keys = self._match_keys(state)
            if state.is_new:
                new_keys[state.id] = keys
            elif keys != self._match_keys_before(state):
                changed_keys[state.id] = keys
        await metaverse.write_references(connection, removed, added)
        await metaverse.replace_keys(connection, new_keys, are_new=True)
        await metaverse.replace_keys(connection, changed_keys)

    def _identity_write(self, state: IdentityState) -> IdentityWrite:
        current = state.current
        return IdentityWrite(
            state.id,
            self._configuration.metaverse_type_numbers[state.type.name],
            current.attributes,
            current.provenance,
            display_of_identity(state),
            current.origin,
            current.deletion_scheduled_at,
            current.delete_after,
            state.deletion_initiator,
            state.reevaluate_at,
            self._encode_new(state) if state.is_new else None,
        )

    def _encode_new(self, state: IdentityState) -> str:
        """Return the values of a new metaverse object as JSON, which its history is made of, too."""
        encoded = self._encoded[state.id] = encode_json(state.current.attributes)
        return encoded

    def _diff_references(
        self, state: IdentityState, removed: list[MetaverseReference], added: list[MetaverseReference]
    ) -> None:
        numbers = self._configuration.attribute_numbers
        before = state.before.references if state.before else {}
        for name in {*before, *state.current.references}:
            old, new = before.get(name, frozenset()), state.current.references.get(name, frozenset())
            rule = state.current.provenance.get(name, (0, 0))[0]
            removed += [
                MetaverseReference(
                    state.id, numbers[name], target, self._context.reference_rules.get((state.id, name, target), 0)
                )
                for target in old - new
            ]
            added += [MetaverseReference(state.id, numbers[name], target, rule) for target in sorted(new - old)]

    def _match_keys(self, state: IdentityState) -> list[MatchKey]:
        return self._keys_of(state, state.current.attributes)

    def _match_keys_before(self, state: IdentityState) -> list[MatchKey]:
        return self._keys_of(state, state.before.attributes if state.before else {})

    def _keys_of(self, state: IdentityState, attributes: Any) -> list[MatchKey]:
        configuration = self._configuration
        type_number = configuration.metaverse_type_numbers[state.type.name]
        found = metaverse_keys(attributes, configuration.rules.matched_attributes(state.type.name))
        return sorted(
            (type_number, configuration.attribute_numbers[name], index_key(key))
            for name, keys in found.items()
            for key in keys
        )

    async def _write_exports(self, connection: Connection, page: Page) -> None:
        written = {id: each for id, each in self._exports.items() if each is not None and id not in self._removed}
        deleted = [id for id in self._exports if id not in written and id in self._loaded_exports]
        deleted += [id for id in self._removed if id not in self._exports]
        await exports.delete_exports(connection, deleted)
        depths = {
            id: export_depth(each.kind, self._addresses.get(id) or self._known_address(id))
            for id, each in written.items()
        }
        new = {each.id for each in self._new_objects}
        numbers = self._configuration.system_numbers
        changed = [each for id, each in written.items() if id not in new]
        await exports.insert_exports(connection, [written[id] for id in sorted(new)], numbers, depths, self._now)
        await exports.write_exports(connection, changed, numbers, depths, self._now)
        for each in written.values():
            if each.object_id not in self._loaded_exports:
                page.counts.exports[each.system] += 1

    def _known_address(self, id: int) -> str:
        found = self._context.objects.get(id) or self._unjoined.objects.get(id)
        return found.address if found is not None else ""

    async def _remove_objects(self, connection: Connection) -> None:
        removed = sorted(self._removed)
        await objects.delete_objects(connection, removed)
        await sync_marks.delete_marks_of_objects(connection, removed)

    async def _write_marks(self, connection: Connection, referring: Sequence[int]) -> None:
        """Delete the marks of processed objects, and mark what must be processed again."""
        number = self._run.system.number
        results = self._decision.results
        done = [
            mark
            for id, mark in self._context.marks.items()
            if id not in self._removed and not (id in results and results[id].keeps_mark)
        ]
        await sync_marks.delete_marks(connection, done)
        failed = [(id, number) for id, result in results.items() if result.keeps_mark and id not in self._removed]
        await sync_marks.set_marks(connection, failed, MarkReason.ERROR)
        joined = [id for id, write in self._joins.items() if write.metaverse_id is not None]
        is_full = self._run.profile.kind is RunKind.FULL_SYNC
        first = min(self._context.page_ids) if is_full and self._context.page_ids else None
        await sync_marks.mark_referring(connection, joined, self._context.page_ids, first)
        await sync_marks.mark_joined_objects(connection, referring, MarkReason.REFERENCE)

    def _evaluations(self) -> list[Evaluation]:
        """Return what the page has decided about completely: versions and joins as they are afterwards."""
        found: list[Evaluation] = []
        versions, joined = self._context.object_versions, self._joined_afterwards()
        for state in self._decision.identities.values():
            if not is_evaluated(state):
                continue
            key = joined_key(joined[state.id])
            found += [
                Evaluation(id, versions[id] + (id in self._joins), key)
                for id, each in state.joined.items()
                if each.state is ObjectState.NORMAL and id in versions
            ]
        return found

    def _joined_afterwards(self) -> dict[int, list[int]]:
        """Return the objects that are joined to each metaverse object of the page when it is written."""
        removed, joins, before = self._removed, self._joins, self._context.joined_ids
        joined = {
            id: [each for each in before.get(id, ()) if each not in removed and each not in joins]
            for id in self._decision.identities
        }
        for id, write in joins.items():
            if write.metaverse_id in joined and id not in removed:
                joined[write.metaverse_id].append(id)
        for each in self._new_objects:
            if each.metaverse_id in joined:
                joined[each.metaverse_id].append(each.id)
        return joined

    # --- items ------------------------------------------------------------------------------------------------------

    def _write_items(self, page: Page) -> None:
        states = {
            result_id: state
            for state in self._decision.identities.values()
            for result_id in (id(result) for result in state.results)
        }
        for object_id, result in self._decision.results.items():
            if result.change is None and result.error is None:
                continue
            each = self._context.objects[object_id]
            state = states.get(id(result))
            display = display_of_identity(state) if state is not None else display_of(each.attributes)
            number = page.add_item(
                change=result.change,
                error=result.error,
                object_id=object_id,
                metaverse_id=result.metaverse_id,
                type=each.type,
                anchor=each.anchor,
                display=display,
                message=result.message,
                detail=result.detail or None,
            )
            if state is not None and result is state.results[0]:
                page.add_change(number, "identity", state.id, self._identity_diff(state))

    def _identity_diff(self, state: IdentityState) -> dict[str, Any] | str:
        if state.id in self._encoded and state.flow is not None and state.flow.changes:
            # A new object: the code below gives the same, see
            # `test_history_of_projected_identities_has_all_values_and_references`.
            values = run_items.encode_added_values(state.current.attributes, self._encoded[state.id])
            if not (references := state.current.references):
                return values
            others = encode_json({name: ((), sorted(found)) for name, found in references.items()})
            return f"{values[:-1]},{others[1:]}" if state.current.attributes else others
        if state.is_deleted and state.before is not None:
            return {name: [list(values), []] for name, values in state.before.attributes.items()}
        if state.flow is None:
            return {}
        return {change.attribute: (change.before, change.after) for change in state.flow.changes}
