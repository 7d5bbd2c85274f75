"""Full and delta import: read a system page by page, write what differs, reconcile exports, detect deletions.

The watermark is taken before anything is read and stored with the end of the run, so no change is lost between two
imports. Deletions are detected only after a complete read, and obsoleted only if no guard holds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tenuto.model.work.tasks import OutcomeStatus
from tenuto.postgres.database import Connection
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    ReadComplete,
    ReadScope,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.model import dn
from tenuto_identity.model.decoding import DecodedObject, Decoding, address_key, decode_key, decode_object
from tenuto_identity.model.definitions.system_definitions import OnBadValue, OnLostWatermark, RunKind
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.guards import Consequence, GuardKind, TrippedGuard
from tenuto_identity.model.values import Document, fold_key, normalize_anchor
from tenuto_identity.runs.connector_opener import call_connector
from tenuto_identity.runs.import_reader import (
    PageReader,
    ReadObject,
    ReadPage,
    RefusedObject,
    index_key,
    refuse_duplicate,
)
from tenuto_identity.runs.imports.deletion_detector import DeletionDetector, describe_hold, obsolete_pending
from tenuto_identity.runs.imports.export_confirmation import ExportConfirmation
from tenuto_identity.runs.imports.moved_containers import MovedContainers
from tenuto_identity.runs.imports.recognition import Recognition
from tenuto_identity.runs.imports.seen_objects import SeenObjects
from tenuto_identity.runs.object_keys import object_match_keys
from tenuto_identity.runs.page_context import display_names, display_of
from tenuto_identity.runs.run_lifecycle import Page, Run, RunFailed
from tenuto_identity.store import definitions, objects, run_items, runs, sync_marks
from tenuto_identity.store.objects import (
    ChangedObject,
    ClassifiedObject,
    NewObject,
    PlacedObject,
    ReferenceRow,
    encode_json,
)
from tenuto_identity.store.sync_marks import MarkReason

MAX_LISTED_OBJECTS = 20
MAX_REFERRING = 20_000
REFERRING_PAGE = 500
"""Objects that one read by anchors asks for."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An imported object that is new or differs, with its stored state."""

    read: ReadObject
    stored: ClassifiedObject | None
    values: DecodedObject


@dataclass(slots=True)
class _PageWrites:
    """What one page writes."""

    new: list[NewObject] = field(default_factory=list)
    changed: list[ChangedObject] = field(default_factory=list)
    same: list[int] = field(default_factory=list)
    """Objects that are written in another way in the source, or have bad values, with the values that are stored."""
    fingerprints: dict[int, bytes] = field(default_factory=dict)
    removed_references: list[ReferenceRow] = field(default_factory=list)
    added_references: list[ReferenceRow] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    """Objects that changed; new ones are marked apart from them."""
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Fields of the items of objects, by object."""
    added: list[tuple[int, str, str, str | None, str]] = field(default_factory=list)
    """New objects without an error, see `Page.add_new_objects`."""
    types: dict[int, str] = field(default_factory=dict)
    """Object types of new and changed objects."""
    cleared: list[tuple[int, str, int]] = field(default_factory=list)
    """Values that were lost: object, attribute, type number."""
    returned: list[tuple[int, str]] = field(default_factory=list)
    """Attributes that have a value again: object, attribute."""
    seen: list[int] = field(default_factory=list)
    """Objects that exist in the source."""


@dataclass(frozen=True, slots=True)
class _WrittenPage:
    """The result of a page that is kept after its commit. The rest of the page is freed."""

    seen: Sequence[int]
    """The objects that exist in the source."""
    recognised: Sequence[int]
    unchanged: Sequence[int]
    """Ids of the unchanged objects, including the recognised ones."""


class ImportRun:
    """The processor of full and delta imports."""

    _counts_cleared = True
    """Values that are lost count for the guard of cleared values."""

    def __init__(self, run: Run, connector: Connector, decoding: Decoding | None = None) -> None:
        self._run = run
        self._connector = connector
        self._system = run.system
        definition = run.system.definition
        self._decoding = decoding or Decoding(rejects_bad_values=definition.on_bad_value is OnBadValue.REJECT)
        self._decode_key = decode_key(definition.types.values(), self._decoding)
        self._seen = SeenObjects()
        self._deletions = DeletionDetector(run, self._seen)
        self._confirmation = ExportConfirmation(run)
        self._has_clearings = False
        """Cleared values are recorded, by this run or by earlier ones."""
        self._renamed: set[int] = set()
        """Objects whose address changed in this run."""
        self._display_names = {name: display_names(each) for name, each in definition.types.items()}
        self._uses_keys = run.configuration.has_match_rules(run.system.name)
        self._has_provisioning = False
        self._has_unique_anchors = connector.capabilities.unique_anchors

    async def process(self) -> OutcomeStatus:
        """Run the import to its end."""
        run, profile = self._run, self._run.profile
        scope = ReadScope(
            tuple(self._system.definition.types.values()),
            self._system.definition.containers,
            partition=profile.partition or "",
        )
        await self._confirmation.begin()
        await self._load_state()
        taken_at = run.now()
        try:
            complete, is_delta, watermark = await self._read_all(scope)
        except (ConnectorError, RunFailed, asyncio.CancelledError):
            if not run.ctx.lease_lost:
                await self._hold_cleared()
            raise
        run.at("import_read")
        if is_delta:
            # guard: identity.held_deletions_are_adopted
            await self._deletions.adopt_held()
        can_look_up = self._has_unique_anchors and self._connector.capabilities.read_one
        guards = await self._deletions.detect(
            complete, is_delta, partial(self._read_anchors, scope) if can_look_up else None
        )
        is_held = any(guard.consequence is Consequence.HOLD for guard in guards)
        run.held = [guard.message for guard in guards]
        if not any(guard.kind in (GuardKind.DELETIONS, GuardKind.EMPTIED) for guard in guards):
            await obsolete_pending(run, run.id)
        if not is_delta:
            await self._confirmation.reconcile_missing(self._seen)
        run.at("import_ending")

        async def end(connection: Connection) -> None:
            if watermark is not None:
                await runs.store_watermark(
                    connection, self._system.number, scope.partition, watermark, taken_at, run.id
                )
            await definitions.store_decode_key(connection, self._system.number, self._decode_key)
            if is_delta:
                await runs.drop_adopted_deletions(connection, self._system.number, run.id)
            else:
                await runs.drop_pending_deletions_of_system(connection, self._system.number, run.id)
            if is_held:
                await runs.hold_system(connection, self._system.number, describe_hold(run, guards))
            else:
                await runs.clear_import_hold(connection, self._system.number)
                await runs.drop_pending_clearings(connection, self._system.number)

        return await run.finish(end)

    async def _load_state(self) -> None:
        number = self._system.number
        self._has_provisioning = await self._run.read(objects.has_provisioning, number)
        self._has_clearings = await self._run.read(runs.has_pending_clearings, number)

    async def _hold_cleared(self) -> None:
        """Hold the system if an incomplete import has cleared too many values: a sync would withdraw them."""
        guards = await self._deletions.measure_cleared()
        if guards:
            await self._run.write_page(_hold, self._run, guards, although_cancelled=True)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read_all(self, scope: ReadScope) -> tuple[ReadComplete, bool, Watermark | None]:
        """Read and write all pages; return what was read, whether it was a delta, and the watermark after it."""
        since = await self._find_watermark(scope.partition)
        if since is not None:
            returns_watermark = self._connector.capabilities.delta_returns_watermark
            watermark = None if returns_watermark else await call_connector(self._connector.watermark, scope)
            try:
                complete = await self._read_pages(scope, since)
                if complete.may_have_moved_containers:
                    await self._read_moved_containers(scope, complete.moved_containers)
                await self._read_referring(scope)
                return complete, True, complete.watermark if returns_watermark else watermark
            except WatermarkLost as error:
                if self._on_lost_watermark() is OnLostWatermark.FAIL:
                    raise
                self._run.warn(f"watermark_lost: {error.message}; a full import was made")
        watermark = await call_connector(self._connector.watermark, scope)
        return await self._read_pages(scope, None), False, watermark

    async def _read_moved_containers(self, scope: ReadScope, known: Sequence[str]) -> None:
        """Read the objects again whose container does not have them any more. Those that are not found count as deleted
        if they are found elsewhere, or if their container is one of those ``known`` to have been moved away. The others
        may be there, and the account may have lost the right to read them."""
        if not self._connector.capabilities.read_one:
            raise WatermarkLost("a container may have been moved out of what is read")
        moved = MovedContainers(self._run, self._connector, self._seen)
        for anchors in await moved.sample():
            await self._read_anchors(scope, anchors)
        containers = await moved.list_moved(self._deletions.is_read)
        async for page in moved.list_unseen(containers):
            await self._read_anchors(scope, [each.anchor for each in page])
        # One pass for all containers: each walks the objects of the system.
        by_container: dict[str, list[PlacedObject]] = {}
        async for page in moved.list_unseen(containers):
            for each in page:
                by_container.setdefault(each.container, []).append(each)
        for container, missing in by_container.items():
            gone = [each.id for each in missing]
            if not any(dn.is_below(container, each) for each in known):  # guard: identity.unmoved_container
                gone = await moved.find_elsewhere(scope, missing)
            # guard: identity.moved_containers_are_emptied
            await self._deletions.keep_missing(gone)
            if len(gone) < len(missing):
                self._run.warn(
                    f"{len(missing) - len(gone)} objects in {container!r} were not reported as deleted and are not"
                    " found; check the permissions of the account, and run a full import afterwards"
                )

    async def _read_referring(self, scope: ReadScope) -> None:
        """After a delta: read the objects again that refer to deleted or renamed ones.

        A directory changes such references by itself, without an entry in its log of changes."""
        if not self._has_references():
            return
        deleted = await self._run.read(runs.list_pending_deletions, self._run.id, 0, MAX_REFERRING)
        moved = sorted({*self._renamed, *deleted})
        found = await self._run.read(objects.find_referring, moved, MAX_REFERRING) if moved else []
        gone = set(deleted)
        anchors = [each.anchor for each in found if each.id not in self._seen and each.id not in gone]
        if not anchors:
            return
        if not self._connector.capabilities.read_one or len(deleted) + len(found) >= MAX_REFERRING:
            self._run.warn(
                f"{len(anchors)} objects refer to deleted or renamed ones and were not read again; run a full import"
            )
            return
        for start in range(0, len(anchors), REFERRING_PAGE):
            await self._read_anchors(scope, anchors[start : start + REFERRING_PAGE])

    def _has_references(self) -> bool:
        return any(
            attribute.is_reference
            for object_type in self._system.definition.types.values()
            for attribute in object_type.attributes.values()
        )

    async def _find_watermark(self, partition: str) -> Watermark | None:
        if self._run.profile.kind is not RunKind.DELTA_IMPORT:
            return None
        found = await self._run.read(runs.load_watermark, self._system.number, partition)
        if found is None:
            if self._on_lost_watermark() is OnLostWatermark.FAIL:
                raise RunFailed(
                    f"the system {self._system.name!r} has no watermark",
                    code="identity.import.no_watermark",
                    remedy="run a full import first",
                )
            self._run.warn("watermark_lost: there is no watermark; a full import was made")
        return found

    def _on_lost_watermark(self) -> OnLostWatermark:
        return self._run.profile.on_lost_watermark or self._system.definition.on_lost_watermark

    async def _read_anchors(self, scope: ReadScope, anchors: Sequence[str]) -> None:
        """Read single objects by their anchors."""
        await self._read_pages(replace(scope, anchors=tuple(anchors)), None)

    async def _read_pages(self, scope: ReadScope, since: Watermark | None) -> ReadComplete:
        reader = PageReader(self._connector, self._system, self._decode_key, self._run.profile.page_size)
        recognition = Recognition(self._system, self._decode_key, self._seen)
        try:
            await self._run.read(recognition.begin, reader)
            reader.start(scope, since)
            while True:
                self._run.raise_if_cancelled()
                read = await reader.next_page()
                for warning in read.warnings:
                    self._run.warn(warning)
                written = await self._run.write_page(self._write_page, read, recognition)
                # Only now: a page that is repeated must not find its own objects.
                self._seen.add_all(written.seen)
                recognition.learn(reader, read, written.recognised, written.unchanged)
                self._run.at("import_page_committed")
                if read.complete is not None:
                    return read.complete
        finally:
            await reader.close()

    # --- pages ------------------------------------------------------------------------------------------------------

    async def _write_page(
        self, connection: Connection, page: Page, read: ReadPage, recognition: Recognition
    ) -> _WrittenPage:
        """Write a page; return the objects that exist in the source."""
        recognised = await recognition.recognise(connection, read)
        classified = await self._classify(connection, recognised.page.objects)
        known = set(recognised.unchanged)
        # guard: identity.recognised_and_different
        if known and any(each.id in known for each in classified.values()):
            recognised = await recognition.make_all(read)
            classified = await self._classify(connection, recognised.page.objects)
        same, differing, duplicates = self._compare(recognised.page.objects, classified)
        unchanged = [*recognised.unchanged, *same]
        writes = _PageWrites(seen=list(unchanged))
        decoded = await asyncio.to_thread(self._decode, page, writes, differing) if differing else []
        await self._prepare(connection, writes, decoded)
        await self._write(connection, writes)
        page.counts.processed += len(unchanged) + len(decoded)
        await self._confirmation.reconcile(
            connection, writes.items, [*unchanged, *writes.same, *(each.id for each in writes.changed)]
        )
        await self._undo_duplicates(connection, page, [id for id, _ in duplicates])
        refused = [*recognised.page.refused, *(each for _, each in duplicates)]
        await self._note_refused(connection, page, writes, refused)
        await self._note_deleted(connection, read.deleted)
        await self._note_unreadable(connection, page, writes, read.unreadable)
        if self._system.row.held is not None:
            await runs.delete_pending_deletions_of_seen(connection, self._system.number, writes.seen)
        page.add_new_objects("Added", writes.added)
        for object_id, fields in writes.items.items():
            page.add_item(object_id=object_id, **fields)
        self._run.at("import_page_written")
        return _WrittenPage(writes.seen, recognised.unchanged, unchanged)

    async def _classify(self, connection: Connection, read: Sequence[ReadObject]) -> dict[int, ClassifiedObject]:
        """Return the stored objects by position; objects that wait for their first import are found by address."""
        if not read:
            return {}
        found = await objects.classify_objects(
            connection,
            self._system.number,
            [each.type_number for each in read],
            [each.anchor for each in read],
            [each.fingerprint for each in read],
        )
        stored = {each.position - 1: each for each in found}
        waiting = [
            (position, each) for position, each in enumerate(read) if position not in stored and each.address_key
        ]
        if self._has_provisioning and waiting:
            by_address = await objects.find_provisioning(
                connection,
                self._system.number,
                [each.type_number for _, each in waiting],
                [each.address_key or "" for _, each in waiting],
                [each.anchor for _, each in waiting],
            )
            for hit in by_address:
                stored[waiting[hit.position - 1][0]] = hit
        return stored

    def _compare(
        self, read: Sequence[ReadObject], classified: Mapping[int, ClassifiedObject]
    ) -> tuple[list[int], list[tuple[ReadObject, ClassifiedObject | None]], list[tuple[int, RefusedObject]]]:
        """Separate unchanged objects from new and different ones, and from those that an earlier page contained."""
        unchanged: list[int] = []
        differing: list[tuple[ReadObject, ClassifiedObject | None]] = []
        duplicates: list[tuple[int, RefusedObject]] = []
        for position, each in enumerate(read):
            stored = classified.get(position)
            if stored is None:
                differing.append((each, None))
            elif stored.id in self._seen and not self._has_unique_anchors:
                duplicates.append((stored.id, refuse_duplicate(each, [each])))
            elif stored.is_same and stored.state is ObjectState.NORMAL:
                unchanged.append(stored.id)
            else:
                differing.append((each, stored))
        return unchanged, differing, duplicates

    def _decode(
        self, page: Page, writes: _PageWrites, differing: Sequence[tuple[ReadObject, ClassifiedObject | None]]
    ) -> list[_Decoded]:
        decoded: list[_Decoded] = []
        for read, stored in differing:
            object_type = self._system.definition.types[read.type]
            old = stored.attributes if stored else None
            values = decode_object(object_type, read.cells, self._decoding, old=old)
            if values.is_rejected:
                page.counts.processed += 1
                page.add_item(
                    type=read.type,
                    anchor=read.anchor,
                    object_id=stored.id if stored else None,
                    **_describe_bad_values(read, values),
                )
                if stored is not None:
                    writes.seen.append(stored.id)
                continue
            decoded.append(_Decoded(read, stored, values))
        return decoded

    async def _prepare(self, connection: Connection, writes: _PageWrites, decoded: Sequence[_Decoded]) -> None:
        """Work out what a page writes: new and changed objects, their references, marks and items."""
        new = [each for each in decoded if each.stored is None]
        ids = iter(await objects.draw_object_ids(connection, len(new)))
        old_references = await self._load_references(connection, [each.stored.id for each in decoded if each.stored])
        for each in decoded:
            id = next(ids) if each.stored is None else each.stored.id
            writes.seen.append(id)
            writes.types[id] = each.read.type
            wanted = self._raw_references(each)
            if each.stored is None:
                self._prepare_new(writes, each, id)
                writes.added_references += [
                    ReferenceRow(id, attribute, raw_key, raw, None, None)
                    for (attribute, raw_key), raw in wanted.items()
                ]
                continue
            known = old_references.get(id, {})
            self._prepare_object(writes, each, id, wanted, known)
            writes.removed_references += [row for key, row in known.items() if key not in wanted]
            writes.added_references += [
                ReferenceRow(id, attribute, raw_key, raw, None, None)
                for (attribute, raw_key), raw in wanted.items()
                if (attribute, raw_key) not in known
            ]

    def _prepare_new(self, writes: _PageWrites, each: _Decoded, id: int) -> None:
        """Work out what is written for an object that is not stored yet."""
        read, attributes = each.read, each.values.attributes
        encoded = encode_json(attributes)
        display = display_of(attributes, names=self._display_names[read.type])
        writes.new.append(
            NewObject(
                id,
                self._system.number,
                read.type_number,
                read.anchor,
                read.address,
                read.address_key,
                read.container,
                ObjectState.NORMAL,
                attributes,
                _fingerprint_of(each),
                encoded_attributes=encoded,
            )
        )
        if each.values.errors:
            writes.items[id] = {
                "type": read.type,
                "anchor": read.anchor,
                "display": display,
                **_describe_bad_values(read, each.values),
                "change": "Added",
                "diff": {name: ((), values) for name, values in attributes.items()},
            }
        else:
            writes.added.append(
                (id, read.type, read.anchor, display, run_items.encode_added_values(attributes, encoded))
            )

    def _prepare_object(
        self,
        writes: _PageWrites,
        each: _Decoded,
        id: int,
        references: Mapping[tuple[int, str], str],
        old_references: Mapping[tuple[int, str], ReferenceRow],
    ) -> None:
        """Work out what is written for an object that is stored."""
        read, stored, attributes = each.read, each.stored, each.values.attributes
        assert stored is not None
        fields: dict[str, Any] = {"type": read.type, "anchor": read.anchor, "display": display_of(attributes)}
        if each.values.errors:
            fields.update(_describe_bad_values(read, each.values))
            writes.items[id] = fields
        diff = _diff(stored.attributes or {}, attributes)
        diff.update(self._reference_diff(references, old_references))
        if stored.address != read.address:
            diff["address"] = [_listed(stored.address), _listed(read.address)]
            self._renamed.add(id)
        writes.cleared += [(id, name, read.type_number) for name, (before, after) in diff.items() if not after]
        writes.returned += [(id, name) for name, (before, _) in diff.items() if not before]
        is_same = not diff and stored.state is ObjectState.NORMAL and stored.container == read.container
        if is_same:
            writes.same.append(id)
            if not each.values.errors:
                writes.fingerprints[id] = read.fingerprint
            return
        writes.changed.append(
            ChangedObject(
                id, read.anchor, read.address, read.address_key, read.container, attributes, _fingerprint_of(each)
            )
        )
        writes.marked.append(id)
        change = "Added" if stored.state is ObjectState.PROVISIONING else "Updated"
        writes.items[id] = {**fields, "change": change, "diff": diff}

    # --- references -------------------------------------------------------------------------------------------------

    def _raw_references(self, each: _Decoded) -> dict[tuple[int, str], str]:
        """Return the raw references of an object by (attribute number, key)."""
        if not each.values.references:
            return {}
        object_type = self._system.definition.types[each.read.type]
        numbers = self._run.configuration.attribute_numbers
        return {
            (numbers[name], index_key(address_key(raw, object_type))): raw
            for name, found in each.values.references.items()
            for raw in found
        }

    def _reference_diff(
        self, wanted: Mapping[tuple[int, str], str], stored: Mapping[tuple[int, str], ReferenceRow]
    ) -> dict[str, Any]:
        if wanted.keys() == stored.keys():
            return {}
        names = self._run.configuration.attribute_names
        attributes = {number for number, _ in wanted.keys() ^ stored.keys()}
        return {
            names[number]: [
                sorted(row.raw for (other, _), row in stored.items() if other == number),
                sorted(raw for (other, _), raw in wanted.items() if other == number),
            ]
            for number in sorted(attributes)
        }

    async def _load_references(
        self, connection: Connection, ids: Sequence[int]
    ) -> dict[int, dict[tuple[int, str], ReferenceRow]]:
        if not ids or not self._has_references():
            return {}
        found: dict[int, dict[tuple[int, str], ReferenceRow]] = {}
        for row in await objects.load_references(connection, ids):
            found.setdefault(row.object_id, {})[row.attribute_number, row.raw_key] = row
        return found

    async def _resolve(self, connection: Connection, rows: Sequence[ReferenceRow]) -> list[ReferenceRow]:
        """Return references with their targets, as far as these are known."""
        if not rows:
            return []
        types = self._reference_types()
        targets = await objects.find_reference_targets(
            connection,
            self._system.number,
            [row.raw_key for row in rows],
            [normalize_anchor(row.raw) for row in rows],
            [types.get(row.attribute_number, 0) for row in rows],
        )
        return [
            ReferenceRow(row.object_id, row.attribute_number, row.raw_key, row.raw, targets.get(position), None)
            for position, row in enumerate(rows)
        ]

    def _reference_types(self) -> dict[int, int]:
        """Return the type number that each reference attribute refers to."""
        numbers = self._run.configuration.attribute_numbers
        return {
            numbers[name]: self._system.type_numbers[attribute.to]
            for object_type in self._system.definition.types.values()
            for name, attribute in object_type.attributes.items()
            if attribute.to is not None and attribute.to in self._system.type_numbers
        }

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write(self, connection: Connection, writes: _PageWrites) -> None:
        now, number = self._run.now(), self._system.number
        await objects.insert_objects(connection, writes.new, now)
        await objects.update_objects(connection, writes.changed, now)
        await objects.update_fingerprints(connection, writes.fingerprints)
        await objects.delete_references(connection, writes.removed_references)
        added = await self._resolve(connection, writes.added_references)
        await objects.insert_references(connection, number, added)
        await sync_marks.insert_marks(connection, number, [each.id for each in writes.new], MarkReason.IMPORTED)
        await sync_marks.set_marks(connection, [(id, number) for id in writes.marked], MarkReason.IMPORTED)
        await self._note_cleared(connection, writes)
        written: list[NewObject | ChangedObject] = [*writes.new, *writes.changed]
        targets = [
            (key, each.id)
            for each in written
            for key in {each.address_key, index_key(fold_key(each.anchor or ""))}
            if key
        ]
        referring = await objects.resolve_waiting_references(connection, number, targets)
        marked = {*writes.marked, *(each.id for each in writes.new)}
        await sync_marks.set_marks(
            connection, [(id, number) for id in referring if id not in marked], MarkReason.REFERENCE
        )
        if self._uses_keys:
            await self._write_keys(connection, writes)

    async def _note_cleared(self, connection: Connection, writes: _PageWrites) -> None:
        """Record lost values with the page, so that they are counted although this run may not end."""
        if self._has_clearings:
            await runs.delete_returned_clearings(connection, writes.returned)
        if writes.cleared and self._counts_cleared:
            # guard: identity.cleared_values_are_recorded
            await runs.insert_pending_clearings(connection, self._system.number, writes.cleared)
            self._has_clearings = True

    async def _write_keys(self, connection: Connection, writes: _PageWrites) -> None:
        """Store the keys by which out rules find these objects."""
        written: list[NewObject | ChangedObject] = [*writes.new, *writes.changed]
        keys = {
            each.id: object_match_keys(self._run, self._system.name, writes.types[each.id], each.id, each.attributes)
            for each in written
        }
        await objects.replace_object_keys(connection, self._system.number, keys)

    # --- refused and deleted objects --------------------------------------------------------------------------------

    async def _note_refused(
        self, connection: Connection, page: Page, writes: _PageWrites, refused: Sequence[RefusedObject]
    ) -> None:
        """Record objects that are not imported. One whose anchor is known does not count as deleted."""
        known = [each for each in refused if each.anchor and each.type_number is not None]
        ids: dict[tuple[int, str], int] = {}
        if known:
            rows = await objects.classify_objects(
                connection,
                self._system.number,
                [each.type_number or 0 for each in known],
                [each.anchor or "" for each in known],
                [b""] * len(known),
            )
            for row in rows:
                each = known[row.position - 1]
                ids[each.type_number or 0, each.anchor or ""] = row.id
                writes.seen.append(row.id)
        for each in refused:
            page.counts.processed += 1
            page.add_item(
                error=each.error,
                message=each.message,
                type=each.type,
                anchor=each.anchor,
                object_id=ids.get((each.type_number or 0, each.anchor or "")),
            )

    async def _undo_duplicates(self, connection: Connection, page: Page, ids: Sequence[int]) -> None:
        """Take back what earlier pages of this run wrote about objects that occur again: none of them wins."""
        if not ids:
            return
        written = await run_items.load_changes_of_objects(connection, self._run.id, ids)
        added = [each.object_id for each in written if each.change == "Added"]
        rows = {row.id: row for row in await objects.load_objects(connection, ids)}
        restored: dict[int, dict[str, Any]] = {}
        for each in written:
            if each.change == "Added" or each.diff is None or each.object_id not in rows:
                continue
            attributes = dict(rows[each.object_id].attributes)
            references = self._reference_names(rows[each.object_id].type_number)
            for name, (before, _) in each.diff.items():
                if name not in references and name != "address":
                    attributes[name] = before
            restored[each.object_id] = {name: values for name, values in attributes.items() if values}
        await objects.restore_attributes(connection, restored)
        await runs.delete_clearings_of_objects(connection, list(restored))
        await sync_marks.delete_marks_of_objects(connection, added)
        await objects.delete_objects(connection, added)
        numbers = [each.number for each in written if each.change is not None]
        await run_items.refuse_items(connection, self._run.id, numbers, "the anchor occurs again later in the source")
        for each in written:
            if each.change is not None:
                page.counts.changes[each.change] -= 1
                page.counts.errors["duplicate_object"] += 1
                page.counts.error_objects += 1

    def _reference_names(self, type_number: int) -> set[str]:
        object_type = self._system.object_type(type_number)
        found = object_type.attributes.items() if object_type is not None else ()
        return {name for name, attribute in found if attribute.is_reference}

    async def _note_deleted(self, connection: Connection, deleted: Sequence[tuple[int, str]]) -> None:
        """Keep the deletions that a delta reports until all changes are read."""
        if not deleted:
            return
        rows = await objects.classify_objects(
            connection,
            self._system.number,
            [number for number, _ in deleted],
            [anchor for _, anchor in deleted],
            [b""] * len(deleted),
        )
        ids = [
            row.id for row in rows if row.state is not ObjectState.OBSOLETE and self._deletions.is_read(row.container)
        ]
        await runs.insert_pending_deletions(connection, self._run.id, ids)

    async def _note_unreadable(
        self, connection: Connection, page: Page, writes: _PageWrites, unreadable: Sequence[tuple[int, str]]
    ) -> None:
        """Record known objects that the account may not read any more. They do not count as deleted."""
        if not unreadable:
            return
        rows = await objects.classify_objects(
            connection,
            self._system.number,
            [number for number, _ in unreadable],
            [anchor for _, anchor in unreadable],
            [b""] * len(unreadable),
        )
        for row in rows:
            if row.state is not ObjectState.NORMAL or not self._deletions.is_read(row.container):
                continue
            number, anchor = unreadable[row.position - 1]
            writes.seen.append(row.id)
            page.counts.processed += 1
            page.add_item(
                error="unreadable",
                message="the object was changed, and the account may not read it any more; check its permissions, and"
                " run a full import afterwards",
                type=self._system.type_names[number],
                anchor=anchor,
                object_id=row.id,
            )


async def _hold(connection: Connection, page: Page, run: Run, guards: Sequence[TrippedGuard]) -> None:
    await runs.hold_system_if_free(connection, run.system.number, describe_hold(run, guards))


def _fingerprint_of(each: _Decoded) -> bytes | None:
    """An object with a bad value has none: it is decoded, and its error reported, by every import."""
    return None if each.values.errors else each.read.fingerprint


def _describe_bad_values(read: ReadObject, values: DecodedObject) -> dict[str, Any]:
    where = f" (line {read.line})" if read.line is not None else ""
    return {"error": "bad_value", "message": "; ".join(each.message for each in values.errors) + where}


def _diff(before: Document, after: Document) -> dict[str, Any]:
    return {
        name: [list(before.get(name, ())), list(after.get(name, ()))]
        for name in sorted({*before, *after})
        if list(before.get(name, ())) != list(after.get(name, ()))
    }


def _listed(value: str | None) -> list[str]:
    return [] if value is None else [value]
