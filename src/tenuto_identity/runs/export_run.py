"""Export: send pending exports in batches, in the order creates, renames, updates, deferred references, deletes.

A batch is claimed in one transaction, sent without one, and recorded in another. Exports that an ended run had claimed
are uncertain: they are sent again, which every connector allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    ReferenceForm,
    WriteChange,
    WriteOutcome,
    WriteRequest,
    WriteResult,
    refused,
    target_address,
)
from tenuto_identity.model import dn
from tenuto_identity.model.containers import is_selected
from tenuto_identity.model.decoding import address_key, canonical_anchor
from tenuto_identity.model.objects import ConnectorObject
from tenuto_identity.model.schema import ObjectType
from tenuto_identity.model.sync.engine import apply_pending, imported_values
from tenuto_identity.model.sync.guards import GuardKind, GuardMeasurement, TrippedGuard, evaluate_guards
from tenuto_identity.model.sync.pending_exports import (
    Change,
    ChangeOp,
    ExportKind,
    ExportState,
    PendingExport,
    Phase,
    export_depth,
    is_foreign,
    record_exported,
    record_missing_dependency,
    record_refused,
    sendable_changes,
)
from tenuto_identity.runs.connector_opener import finish_call
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.runs.page_context import display_of, to_connector_objects
from tenuto_identity.runs.run_lifecycle import Page, Run
from tenuto_identity.store import exports, objects, run_items, runs, sync_marks
from tenuto_identity.store.objects import ReferenceRow, TargetAddress, WrittenObject
from tenuto_identity.store.sync_marks import MarkReason

_PHASES = (Phase.CREATE, Phase.RENAME, Phase.UPDATE, Phase.DEFERRED, Phase.DELETE)
_BEFORE_ALL = (-32768, 0)


@dataclass(slots=True)
class _Sending:
    """A claimed export with everything that its request needs."""

    pending: PendingExport
    object: ConnectorObject
    object_type: ObjectType
    sent: tuple[Change, ...]
    """The changes of the request; references that are deferred are left out."""
    deferred: frozenset[tuple[str, int]]
    resolved: Mapping[int, str]
    """Metaverse object → address or anchor in this system."""
    request: WriteRequest | None
    """None if all that is left to send are deferred references."""
    is_foreign: bool = False
    """The request would reach another object than the one that was to be created; it is refused and not sent."""

    @property
    def is_sent(self) -> bool:
        return self.request is not None and not self.is_foreign


@dataclass(frozen=True, slots=True)
class _Batch:
    sendings: list[_Sending]
    targets: Mapping[int, TargetAddress]
    last: tuple[int, int]
    """Place of the last claimed export within its phase."""


class ExportRun:
    """The processor of exports."""

    def __init__(self, run: Run, connector: Connector, *, only: Sequence[int] | None = None) -> None:
        """``only`` limits the export to these objects."""
        self._run = run
        self._only = only
        self._system = run.system
        self._connector = connector
        self._batch_size = run.profile.batch_size or connector.capabilities.write_batch
        self._left = run.profile.limit
        self._tripped: tuple[TrippedGuard, ...] = ()
        """Guards that hold deletes."""
        self._deferred: dict[int, int] = {}
        self._deferring_items: dict[int, tuple[UUID, int]] = {}
        """Objects with deferred references → run and number of their item, in this run or a lost attempt of it."""

    async def process(self) -> OutcomeStatus:
        """Run the export to its end."""
        run = self._run
        if not self._connector.capabilities.export:
            raise ConnectorError("not_writable", f"the connector of {self._system.name!r} cannot write")
        if run.profile.preview:  # a definition that was stored before it was refused: nothing must be sent
            raise ConnectorError(
                "preview",
                f"the run profile {run.profile.name!r} has preview: true, so that nothing is sent",
                remedy="remove it from the definition, and use `tenuto identity preview`",
            )
        await run.write_page(self._release)
        self._deferring_items = await run.read(run_items.load_deferring, run.record.task_id, run.id)
        holds_deletes = await self._check_deletes()
        for phase in _PHASES:
            await self._send_phase(phase, holds_deletes=holds_deletes)
        run.at("export_ending")
        if deferred := sum(self._deferred.values()):
            run.warn(f"{deferred} references are deferred, because their targets do not exist in {self._system.name}")

        async def end(connection: Connection) -> None:
            if holds_deletes:
                await runs.hold_system(connection, self._system.number, self._describe_hold())
            elif (self._system.row.held or {}).get("deletes_only"):
                await runs.clear_hold(connection, self._system.number)

        return await run.finish(end)

    async def _release(self, connection: Connection, page: Page) -> None:
        await exports.release_uncertain_exports(connection, self._system.number, self._run.id)

    async def _check_deletes(self) -> bool:
        """Evaluate the guard on deletes and updates that disable; return whether it holds those not approved."""
        now = self._run.now()
        counts = await self._run.read(exports.count_exports, self._system.number, now)
        waiting = (ExportState.PENDING, ExportState.UNCONFIRMED)
        deletes = sum(each.unapproved_count for each in counts if each.state in waiting)
        if not deletes:
            return False
        stored = await self._run.read(objects.count_objects, self._system.number)
        total = sum(each.object_count for each in stored)
        measure = GuardMeasurement(GuardKind.EXPORT_DELETES, self._system.name, deletes, max(total, deletes))
        self._tripped = evaluate_guards([measure], self._system.guards(self._run.profile))
        self._run.held += [guard.message for guard in self._tripped]
        return bool(self._tripped)

    def _describe_hold(self) -> dict[str, Any]:
        return {
            "run": str(self._run.id),
            "at": self._run.now().isoformat(),
            "message": "; ".join(self._run.held),
            "deletes_only": True,
            "guards": [guard.to_json() for guard in self._tripped],
        }

    # --- batches ----------------------------------------------------------------------------------------------------

    async def _send_phase(self, phase: int, *, holds_deletes: bool) -> None:
        after = _BEFORE_ALL
        while self._left is None or self._left > 0:
            size = self._batch_size if self._left is None else min(self._batch_size, self._left)
            batch = await self._run.write_page(self._claim, phase, after, size, holds_deletes)
            if batch is None:
                return
            after = batch.last
            self._run.at("export_claimed")
            requests = [each.request for each in batch.sendings if each.is_sent and each.request is not None]
            is_cancelled, results = await self._call(requests)
            self._run.at("export_sent")
            # What was sent is recorded also when the run is cancelled: otherwise the next export would send it again.
            # guard: identity.cancelled_batch
            await self._run.write_page(self._record, batch, results, although_cancelled=is_cancelled)
            self._run.raise_if_cancelled()
            self._run.at("export_recorded")
            if self._left is not None:
                self._left -= len(requests)

    async def _claim(
        self,
        connection: Connection,
        page: Page,
        phase: int,
        after: tuple[int, int],
        size: int,
        holds_deletes: bool,
    ) -> _Batch | None:
        configuration = self._run.configuration
        claimed = await exports.claim_exports(
            connection,
            self._system.number,
            phase,
            after,
            self._run.now(),
            size,
            self._run.id,
            configuration.system_names,
            holds_deletes=holds_deletes,
            only=self._only,
        )
        if not claimed:
            return None
        ids = [each.pending.object_id for each in claimed]
        rows = await objects.load_objects(connection, ids)
        references = await objects.load_references(connection, ids)
        found = to_connector_objects(configuration, rows, references)
        targets = {
            target for each in claimed for change in sendable_changes(each.pending) for target in change.references
        }
        addresses = await objects.load_addresses(connection, self._system.number, sorted(targets))
        last = claimed[-1]
        sendings = [
            self._prepare(each.pending, found[each.pending.object_id], addresses)
            for each in claimed
            if each.pending.object_id in found
        ]
        return _Batch(sendings, addresses, (last.depth, last.pending.object_id))

    def _prepare(
        self, pending: PendingExport, found: ConnectorObject, addresses: Mapping[int, TargetAddress]
    ) -> _Sending:
        """Make the request of an export: replace references by addresses or anchors, and leave out deferred ones."""
        object_type = self._system.definition.types[found.type]
        sendable = () if pending.kind is ExportKind.DELETE else sendable_changes(pending)
        resolved: dict[int, str] = {}
        deferred: set[tuple[str, int]] = set()
        for change in sendable:
            for target in change.references:
                text = self._reference_text(addresses.get(target))
                if text is not None:
                    resolved[target] = text
                elif change.op is not ChangeOp.REMOVE:
                    deferred.add((change.attribute, target))
        sent: list[Change] = []
        changes: list[WriteChange] = []
        for change in sendable:
            left = tuple(target for target in change.references if (change.attribute, target) not in deferred)
            if change.references and not left and not change.values:
                continue
            sent.append(change if len(left) == len(change.references) else replace(change, references=left))
            values = (*change.values, *(resolved[target] for target in left if target in resolved))
            changes.append(WriteChange(change.attribute, change.op, values))
        reaches_other = is_foreign(pending, found.anchor)  # guard: identity.foreign_object_is_not_exported
        needs_request = bool(changes) or pending.kind is not ExportKind.UPDATE
        request = WriteRequest(pending.kind, found.type, found.anchor, found.address, tuple(changes), pending.uncertain)
        return _Sending(
            pending,
            found,
            object_type,
            tuple(sent),
            frozenset(deferred),
            resolved,
            request if needs_request else None,
            reaches_other,
        )

    def _reference_text(self, target: TargetAddress | None) -> str | None:
        """Return how a reference is written; None while its target does not exist, or is about to be renamed."""
        if target is None or target.pending_kind == ExportKind.CREATE:
            return None
        if self._connector.capabilities.references is ReferenceForm.ANCHOR:
            return target.anchor
        if target.is_renamed:
            return None
        return target.address or target.anchor

    async def _call(self, requests: Sequence[WriteRequest]) -> tuple[bool, list[WriteResult]]:
        """Send requests in a thread; return whether the run was cancelled meanwhile, and the results.

        If the connector raises, the requests stay uncertain and the run fails."""
        reachable = [each for each in requests if self._is_reachable(each)]
        is_cancelled, results = False, list[WriteResult]()
        if reachable:
            is_cancelled, results = await finish_call(self._connector.write, reachable)
        if len(results) != len(reachable):
            raise ConnectorError(
                "invalid_results",
                f"the connector returned {len(results)} results for {len(reachable)} requests",
                remedy="report it to the author of the connector",
            )
        if len(reachable) == len(requests):
            return is_cancelled, results
        answers = iter(results)
        return is_cancelled, [
            next(answers)
            if self._is_reachable(each)
            else refused(
                "out_of_reach",
                f"{target_address(each)!r} is in none of the selected containers; select its container, or change the"
                " mapping of the address",
            )
            for each in requests
        ]

    def _is_reachable(self, request: WriteRequest) -> bool:
        """Return whether an object is in a selected container, also after it is renamed; others are never imported."""
        selections = self._system.definition.containers
        if not selections or not self._system.definition.types[request.type].address_is_dn:
            return True
        try:
            containers = {dn.parent(each) for each in {request.address, target_address(request)} if each}
            return all(is_selected(each, selections) for each in containers)
        except dn.InvalidDn:
            return True  # the connector refuses it

    # --- recording --------------------------------------------------------------------------------------------------

    async def _record(self, connection: Connection, page: Page, batch: _Batch, results: Sequence[WriteResult]) -> None:
        now = self._run.now()
        ids = [each.pending.object_id for each in batch.sendings]
        answers = iter(results)
        answered = [(each, self._answer(each, answers)) for each in batch.sendings]
        answered, replaced = await self._lock(connection, answered)
        queued = await exports.lock_queued_changes(connection, ids)
        remaining: list[PendingExport] = []
        finished: list[int] = []
        written: list[WrittenObject] = []
        gone: list[_Sending] = []
        confirmed: list[_Sending] = []
        never_created: list[int] = []
        merged: dict[tuple[UUID, int], list[dict[str, Any]]] = {}
        for each, result in answered:
            pending = each.pending
            if pending.queued_changes or pending.object_id in queued:
                pending = replace(pending, queued_changes=queued.get(pending.object_id, ()))
            after = self._settle(each, pending, result)
            if after is None:
                finished.append(pending.object_id)
                if not result.is_ok:
                    never_created.append(pending.object_id)
            else:
                remaining.append(after)
            if result.was_created and not result.is_ok:
                written.append(replace(self._written(each, result), attributes=None))
            if result.is_ok and each.request is not None:
                written.append(self._written(each, result))
                if self._confirms and pending.kind is ExportKind.DELETE:
                    gone.append(each)
                elif self._confirms:
                    confirmed.append(each)
            self._add_item(page, each, result, merged)
        await run_items.append_changes(connection, merged)
        await self._delete_objects(connection, replaced)
        await self._write_objects(connection, written, confirmed, batch.targets)
        await exports.delete_exports(connection, finished)
        depths = {each.pending.object_id: self._depth(each) for each in batch.sendings}
        await exports.write_exports(connection, remaining, self._run.configuration.system_numbers, depths, now)
        await self._remove(connection, gone)
        await self._delete_objects(connection, never_created)

    @staticmethod
    def _answer(each: _Sending, answers: Iterator[WriteResult]) -> WriteResult:
        """Return the result of a request: the next answer, if it was sent."""
        if each.is_sent:
            return next(answers)
        if each.request is None:
            return WriteResult()
        return refused(
            "foreign_object",
            f"there is another object at {each.object.address!r}, which is not changed; whether the own one was created"
            " is not known: delete it in the system if it was, then disconnect it",
        )

    async def _lock(
        self, connection: Connection, answered: Sequence[tuple[_Sending, WriteResult]]
    ) -> tuple[list[tuple[_Sending, WriteResult]], list[int]]:
        """Lock the objects of a batch. Return the results, and objects that are the same ones as created objects.

        An import that did not recognise a created object has stored it as another one, whose place the created one
        takes; if that other one is joined, the create is refused."""
        anchors: dict[int, tuple[int, str]] = {}
        for each, result in answered:
            if each.pending.kind is ExportKind.CREATE and result.anchor and (result.is_ok or result.was_created):
                number = self._system.type_numbers[each.object.type]
                anchors[each.object.id] = number, canonical_anchor(result.anchor, each.object_type)
        stored = await objects.find_anchored(connection, self._system.number, list(anchors.values()))
        same = {id: stored[key] for id, key in anchors.items() if stored.get(key, id) != id}
        locked = await objects.lock_objects(connection, [*(each.object.id for each, _ in answered), *same.values()])
        joined = {id for id, other in same.items() if other in locked and locked[other].metaverse_id is not None}
        # guard: identity.created_object_is_imported
        replaced = [other for id, other in same.items() if other in locked and id not in joined]
        return [
            (each, self._refuse_joined(result) if each.object.id in joined else result) for each, result in answered
        ], replaced

    @staticmethod
    def _refuse_joined(result: WriteResult) -> WriteResult:
        text = f"the object {result.anchor!r} at this address is joined to another metaverse object"
        return refused("exists", text, anchor=result.anchor)

    @property
    def _confirms(self) -> bool:
        return self._connector.capabilities.confirms_immediately

    def _settle(self, each: _Sending, pending: PendingExport, result: WriteResult) -> PendingExport | None:
        """Return the pending export after its request."""
        now = self._run.now()
        match result.outcome:
            case WriteOutcome.OK if each.request is None:
                self._deferred[pending.object_id] = len(each.deferred)
                return replace(
                    pending,
                    state=ExportState.PENDING,
                    deferred_reference_count=len(each.deferred),
                    uncertain=False,
                )
            case WriteOutcome.OK:
                self._deferred.pop(pending.object_id, None)
                if each.deferred:
                    self._deferred[pending.object_id] = len(each.deferred)
                return record_exported(pending, deferred=each.deferred, confirmed=self._confirms)
            case WriteOutcome.REFUSED:
                foreign = None
                if result.error == "exists" and not result.was_created:
                    foreign = canonical_anchor(result.anchor, each.object_type) if result.anchor else ""
                error = f"{result.error or 'refused'}: {result.text or ''}"
                return record_refused(pending, error, now, foreign_anchor=foreign, was_created=result.was_created)
            case WriteOutcome.MISSING:
                error = f"{result.error or 'missing'}: {result.text or ''}"
                return record_missing_dependency(pending, error, now, was_created=result.was_created)

    def _depth(self, each: _Sending) -> int:
        return export_depth(each.pending.kind, each.object.address)

    def _written(self, each: _Sending, result: WriteResult) -> WrittenObject:
        """Return what the system answered: anchor and address, and the values if the write is its confirmation."""
        renamed = next((str(change.values[0]) for change in each.sent if change.op is ChangeOp.RENAME), None)
        address = result.address or renamed
        anchor = canonical_anchor(result.anchor, each.object_type) if result.anchor else None
        attributes = None
        if self._confirms and each.pending.kind is not ExportKind.DELETE:
            after = apply_pending(imported_values(each.object), each.sent, each.object_type)
            attributes = dict(after.attributes)
            known = anchor or each.object.anchor
            if known and each.object_type.anchor not in attributes:
                attributes[each.object_type.anchor] = [known]
        return WrittenObject(
            each.pending.object_id,
            anchor,
            address,
            index_key(address_key(address, each.object_type)) if address else None,
            attributes,
        )

    async def _write_objects(
        self,
        connection: Connection,
        written: Sequence[WrittenObject],
        confirmed: Sequence[_Sending],
        targets: Mapping[int, TargetAddress],
    ) -> None:
        await objects.record_written(connection, written, self._run.now())
        numbers = self._run.configuration.attribute_numbers
        replaced: list[tuple[int, int]] = []
        rows: list[ReferenceRow] = []
        for each in confirmed:
            attributes = each.object_type.attributes
            changed = {change.attribute for change in each.sent}
            names = sorted(name for name in changed if name in attributes and attributes[name].is_reference)
            if not names:
                continue
            after = apply_pending(imported_values(each.object), each.sent, each.object_type)
            for name in names:
                replaced.append((each.object.id, numbers[name]))
                for target in after.references.get(name, ()):
                    found, raw = targets.get(target), each.resolved.get(target)
                    if found is not None and raw is not None:
                        key = index_key(address_key(raw, each.object_type))
                        rows.append(ReferenceRow(each.object.id, numbers[name], key, raw, found.id, target))
        await objects.replace_references_of_attributes(connection, self._system.number, replaced, rows)

    async def _remove(self, connection: Connection, gone: Sequence[_Sending]) -> None:
        """Remove objects whose deletion the system confirmed at once; joined ones are left to the next sync."""
        joined = [each.object.id for each in gone if each.object.metaverse_id is not None]
        unjoined = [each.object.id for each in gone if each.object.metaverse_id is None]
        await objects.mark_obsolete(connection, joined, self._run.now())
        await self._delete_objects(connection, unjoined)
        await sync_marks.set_marks(connection, [(id, self._system.number) for id in joined], MarkReason.DELETED)

    @staticmethod
    async def _delete_objects(connection: Connection, ids: Sequence[int]) -> None:
        """Delete objects from the tables, with what belongs to them."""
        await objects.delete_objects(connection, ids)
        await exports.delete_exports(connection, ids)
        await sync_marks.delete_marks_of_objects(connection, ids)

    def _add_item(
        self, page: Page, each: _Sending, result: WriteResult, merged: dict[tuple[UUID, int], list[dict[str, Any]]]
    ) -> None:
        """Add the item of an object. References that were deferred and are sent by the same run belong to its item:
        they are noted in ``merged``, by run and number of the item."""
        if each.request is None:
            return
        known = self._deferring_items.get(each.object.id)
        if known is not None and result.is_ok:
            merged[known] = _describe_changes(each.request)
            return
        page.counts.processed += 1
        detail: dict[str, Any] = {"kind": each.pending.kind.value}
        if each.sent:
            detail["changes"] = _describe_changes(each.request)
        if each.deferred:
            detail["deferred"] = sorted({attribute for attribute, _ in each.deferred})
        is_delete = each.pending.kind is ExportKind.DELETE
        number = page.add_item(
            change=("Deprovisioned" if is_delete else "Exported") if result.is_ok else None,
            error=None if result.is_ok else result.error or "refused",
            message=None if result.is_ok else result.text,
            object_id=each.object.id,
            metaverse_id=each.object.metaverse_id,
            type=each.object.type,
            anchor=result.anchor or each.object.anchor,
            display=display_of(each.object.attributes) or each.object.address or None,
            detail=detail,
        )
        if each.deferred and result.is_ok:
            self._deferring_items[each.object.id] = self._run.id, number


def _describe_changes(request: WriteRequest) -> list[dict[str, Any]]:
    return [
        {"attribute": change.attribute, "op": change.op.value, "values": list(change.values)}
        for change in request.changes
    ]
