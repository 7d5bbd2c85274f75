"""Deletions that an import finds: objects that it has not seen, and the guards that may hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Connection
from tenuto_identity.connectors.contract import ReadComplete
from tenuto_identity.model.containers import is_selected
from tenuto_identity.model.dn import normalize_or_fold
from tenuto_identity.model.sync.guards import (
    Consequence,
    GuardKind,
    GuardLimit,
    GuardLimits,
    GuardMeasurement,
    TrippedGuard,
    evaluate_guards,
)
from tenuto_identity.runs.imports.seen_objects import SeenObjects
from tenuto_identity.runs.page_context import display_of
from tenuto_identity.runs.run_lifecycle import Page, Run, RunFailed
from tenuto_identity.store import exports, objects, runs, sync_marks
from tenuto_identity.store.sync_marks import MarkReason

DELETION_PAGE_SIZE = 5_000
ID_PAGE_SIZE = 20_000
LOOK_UP_PAGE_SIZE = 500


class DeletionDetector:
    """Finds the objects of a system that were deleted in the source, and measures them for the guards."""

    def __init__(self, run: Run, seen: SeenObjects) -> None:
        """``seen`` are the objects that the import has read so far."""
        self._run = run
        self._system = run.system
        self._seen = seen

    async def detect(
        self,
        complete: ReadComplete,
        is_delta: bool,
        look_up: Callable[[Sequence[str]], Awaitable[None]] | None = None,
    ) -> tuple[TrippedGuard, ...]:
        """Find the objects that were deleted in the source, and evaluate the guards. ``look_up`` reads objects by
        their anchors: a missing object that it finds was moved between two searches of the read."""
        run = self._run
        # A delta counts the objects only if its deletions can trip a guard: its cost follows the changes.
        counts = [] if is_delta else await run.read(objects.count_objects, self._system.number)
        total = sum(each.object_count for each in counts)
        await self._keep_seen()
        if not is_delta:
            if total and not self._seen.count:
                raise RunFailed(
                    f"nothing was read from {self._system.name!r}, which had {total} objects",
                    code="identity.import.empty_source",
                    remedy="check the source and the permission to read it; nothing was changed",
                )
            await self._find_missing(complete)
            if look_up is not None:
                await self._look_up_missing(look_up)
        run.at("import_deletions_found")
        expected = await run.read(runs.count_expected_deletions, run.id)
        pending = await run.read(runs.count_pending_deletions, run.id)
        measures: list[GuardMeasurement] = []
        deleted: Counter[tuple[str, str | None]] = Counter()
        for row in pending:
            deleted[self._system.type_names[row.type_number], row.container] += row.object_count
        for row in expected:
            deleted[self._system.type_names[row.type_number], row.container] -= row.object_count
        if is_delta and self._can_trip(deleted):
            counts = await run.read(objects.count_objects, self._system.number)
        measures += self._deletion_measures(deleted, counts)
        measures += await self._clearing_measures()
        tripped = evaluate_guards(measures, self._system.guards(run.profile))
        if is_delta and not tripped:  # it must not let pass what a stricter run holds
            tripped = evaluate_guards(measures, self._held_limits())  # guard: identity.held_limits
        return tripped

    def _held_limits(self) -> GuardLimits:
        """Return the limits of this run, with those by which an import holds the system."""
        own, held = self._system.guards(self._run.profile), self._system.row.held
        if held is None or held.get("deletes_only") or held.get("approved"):
            return own
        limits = {
            GuardKind(each["kind"]): GuardLimit(each["limit_percent"], each["limit_count"])
            for each in held.get("guards", ())
        }
        return GuardLimits(own.default, {**(own.by_kind or {}), **limits})

    async def adopt_held(self) -> None:
        """Take over what an earlier import found deleted and a guard holds: a delta does not report it again."""
        await self._run.write_page(_adopt_held, self._system.number, self._run.id)

    async def measure_cleared(self) -> tuple[TrippedGuard, ...]:
        """Evaluate the guard of cleared values alone."""
        return evaluate_guards(await self._clearing_measures(), self._system.guards(self._run.profile))

    def _can_trip(self, deleted: Mapping[tuple[str, str | None], int]) -> bool:
        """Return whether so many objects of a type were deleted that a guard may trip."""
        gone: Counter[str] = Counter()
        for (name, _), count in deleted.items():
            gone[name] += max(count, 0)
        at_least = min(
            limits.limit(kind).at_least
            for limits in (self._system.guards(self._run.profile), self._held_limits())
            for kind in (GuardKind.DELETIONS, GuardKind.EMPTIED)
        )
        # guard: identity.delta_deletions_are_measured
        return any(count >= max(at_least, 1) for count in gone.values())

    def _deletion_measures(
        self, deleted: Mapping[tuple[str, str | None], int], counts: Sequence[objects.ObjectCount]
    ) -> list[GuardMeasurement]:
        totals: Counter[str] = Counter()
        by_container: Counter[tuple[str, str]] = Counter()
        gone: Counter[str] = Counter()
        gone_in: Counter[tuple[str, str]] = Counter()
        for row in counts:
            name = self._system.type_names[row.type_number]
            totals[name] += row.object_count
            by_container[name, row.container or ""] += row.object_count
        for (name, container), count in deleted.items():
            gone[name] += max(count, 0)
            gone_in[name, container or ""] += max(count, 0)
        measures = [GuardMeasurement(GuardKind.DELETIONS, name, gone[name], totals[name]) for name in sorted(gone)]
        measures += [
            GuardMeasurement(GuardKind.EMPTIED, name, gone[name], totals[name]) for name in sorted(gone) if gone[name]
        ]
        if len({container for _, container in by_container}) > 1:
            measures += [
                GuardMeasurement(kind, f"{name} in {container}", count, by_container[name, container])
                for (name, container), count in sorted(gone_in.items())
                for kind in (GuardKind.DELETIONS, GuardKind.EMPTIED)
                if count
            ]
        return measures

    async def _clearing_measures(self) -> list[GuardMeasurement]:
        """Measure attributes that lost their value, in this import or in earlier ones that nothing has let pass. The
        total is counted only where the guard can trip."""
        limit = self._system.guards(self._run.profile).limit(GuardKind.CLEARING)
        measures: list[GuardMeasurement] = []
        for each in await self._run.read(runs.count_pending_clearings, self._system.number):
            name, count = self._system.type_names.get(each.type_number), each.object_count
            if name is None or count < max(limit.at_least, 1):
                continue
            left = await self._run.read(
                objects.count_with_value, self._system.number, each.type_number, each.attribute, whole_tables=True
            )
            measures.append(GuardMeasurement(GuardKind.CLEARING, f"{name}.{each.attribute}", count, count + left))
        return measures

    async def _find_missing(self, complete: ReadComplete) -> None:
        """Walk the objects of the system in order of id, and keep those that were not seen and could have been."""
        types = {self._system.type_numbers[name] for name in complete.types if name in self._system.type_numbers}
        containers = None if complete.containers is None else _normalized(complete.containers)
        selections = self._system.definition.containers
        after = 0
        while ids := await self._run.read(objects.list_normal_ids, self._system.number, after, ID_PAGE_SIZE):
            after = ids[-1]
            unseen = self._seen.without_seen(ids)
            missing = [
                each.id
                for each in (await self._run.read(objects.load_places, unseen) if unseen else ())
                if each.type_number in types
                and (containers is None or _is_within(each.container, containers))
                and is_selected(each.container or "", selections)
            ]
            if missing:
                await self.keep_missing(missing)

    async def _keep_seen(self) -> None:
        """Drop the reported deletions of objects that this run has read.

        A source may have an ended and an active row of a person, or report an object as deleted in one container and
        as changed in another. The watermark is older than the read, so a later deletion is in the next delta."""
        after = 0
        while ids := await self._run.read(runs.list_pending_deletions, self._run.id, after, ID_PAGE_SIZE):
            after = ids[-1]
            await self._drop_seen(ids)

    async def _drop_seen(self, ids: Sequence[int]) -> None:
        found = [id for id in ids if id in self._seen]  # guard: identity.seen_objects_are_not_deleted
        if found:
            await self._run.write_page(_delete_pending, self._run.id, found)

    async def _look_up_missing(self, look_up: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Read the missing objects by their anchors, and keep those that are found."""
        after = 0
        while True:
            ids = await self._run.read(runs.list_pending_deletions, self._run.id, after, LOOK_UP_PAGE_SIZE)
            if not ids:
                return
            after = ids[-1]
            await look_up([each.anchor for each in await self._run.read(objects.load_objects, ids) if each.anchor])
            await self._drop_seen(ids)

    def is_read(self, container: str | None) -> bool:
        """Return whether this run reads a container; objects of other containers never count as deleted."""
        if container is None:
            return True
        partition = self._run.profile.partition
        if partition and not _is_within(container, _normalized([partition])):
            return False
        return is_selected(container, self._system.definition.containers)

    async def keep_missing(self, ids: Sequence[int]) -> None:
        """Keep objects as pending deletions of this run."""
        await self._run.write_page(_insert_pending, self._run.id, ids)


async def _insert_pending(connection: Connection, page: Page, run_id: UUID, ids: Sequence[int]) -> None:
    await runs.insert_pending_deletions(connection, run_id, ids)


async def _adopt_held(connection: Connection, page: Page, system_number: int, run_id: UUID) -> None:
    await runs.adopt_held_deletions(connection, system_number, run_id)


async def _delete_pending(connection: Connection, page: Page, run_id: UUID, ids: Sequence[int]) -> None:
    await runs.delete_pending_deletions(connection, run_id, ids)


def describe_hold(run: Run, guards: Sequence[TrippedGuard]) -> dict[str, Any]:
    """Return what is stored about a hold: the run, and the guards that hold."""
    holding = [guard for guard in guards if guard.consequence is Consequence.HOLD]
    return {
        "run": str(run.id),
        "at": run.now().isoformat(),
        "message": "; ".join(guard.message for guard in holding),
        "guards": [guard.to_json() for guard in holding],
    }


async def obsolete_pending(run: Run, run_id: Any) -> None:
    """Mark the objects that a run found deleted as obsolete, page by page: those of this run, or of an approved one."""
    while True:
        ids = await run.read(runs.list_pending_deletions, run_id, 0, DELETION_PAGE_SIZE)
        if not ids:
            return
        await run.write_page(_obsolete_page, run, run_id, ids)
        run.at("import_deletion_page_committed")


async def _obsolete_page(connection: Connection, page: Page, run: Run, run_id: Any, ids: Sequence[int]) -> None:
    """Mark joined objects obsolete and remove the others at once. An item records each."""
    number, now = run.system.number, run.now()
    rows = {each.id: each for each in await objects.load_objects(connection, ids)}
    joined = [id for id, row in rows.items() if row.metaverse_id is not None]
    unjoined = [id for id, row in rows.items() if row.metaverse_id is None]
    removed = [
        *await objects.mark_obsolete(connection, joined, now),
        *await objects.delete_objects(connection, unjoined),
    ]
    await exports.delete_exports(connection, ids)
    await sync_marks.delete_marks_of_objects(connection, unjoined)
    await sync_marks.set_marks(connection, [(id, number) for id in joined], MarkReason.DELETED)
    for each in removed:
        page.add_item(
            change="Deleted",
            object_id=each.id,
            metaverse_id=rows[each.id].metaverse_id,
            type=run.system.type_names.get(each.type_number),
            anchor=each.anchor,
            display=display_of(each.attributes),
            diff={name: [list(values), []] for name, values in each.attributes.items()},
        )
    page.counts.processed += len(removed)
    await runs.delete_pending_deletions(connection, run_id, ids)


def _normalized(containers: Iterable[str]) -> tuple[str, ...]:
    return tuple(normalize_or_fold(each) for each in containers)


def _is_within(container: str | None, containers: Sequence[str]) -> bool:
    """Return whether a container is one of these, or below one of them."""
    found = normalize_or_fold(container or "")
    return any(not each or found == each or found.endswith(f",{each}") for each in containers)
