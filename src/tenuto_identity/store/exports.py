"""Pending exports: read, merged under row locks, claimed for sending, recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json, to_json

from tenuto.postgres.database import Connection, Database, Row
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, RowMapper
from tenuto_identity.model.json_integers import ChangesAsText, LongId
from tenuto_identity.model.sync.pending_exports import (
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    decode_changes,
    encode_changes,
    export_phase,
)
from tenuto_identity.store.transaction_settings import fetch_all

SQL = load_statements(__file__)


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """A pending export as interfaces show it."""

    object_id: LongId
    system: str
    anchor: str | None
    address: str | None
    metaverse_id: LongId | None
    display: str | None
    kind: ExportKind
    state: ExportState
    changes: Annotated[list[dict[str, Any]], FromColumn(from_json), ChangesAsText]
    attempts: int
    next_attempt_at: datetime | None
    deferred_reference_count: int
    error: str | None
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class ExportCount:
    """How many exports of a system have a kind and state, and how many of them may be sent now."""

    kind: ExportKind
    state: ExportState
    export_count: int
    due_count: int
    unapproved_count: int
    """Deletes, and updates that disable, which a guard may hold."""


@dataclass(frozen=True, slots=True)
class ClaimedExport:
    """A claimed export and its place in the order of sending."""

    pending: PendingExport
    phase: int
    depth: int


_RECORDS = RowMapper(ExportRecord, SQL.list_exports)
_COUNTS = RowMapper(ExportCount, SQL.count_exports)


async def load_exports(
    connection: Connection, object_ids: Sequence[int], systems: Mapping[int, str]
) -> dict[int, PendingExport]:
    """Return the pending exports of objects, by object. ``systems`` are names by number."""
    return _by_object(await connection.fetch(SQL.load_exports, object_ids), systems)


async def lock_exports(
    connection: Connection, object_ids: Sequence[int], systems: Mapping[int, str]
) -> dict[int, PendingExport]:
    """Lock the pending exports of objects in order of object, and return them."""
    return _by_object(await connection.fetch(SQL.lock_exports, sorted(object_ids)), systems)


async def lock_queued_changes(connection: Connection, object_ids: Sequence[int]) -> dict[int, tuple[Change, ...]]:
    """Lock the exports of objects in order of object; return the changes that arrived while they were sent, if any."""
    rows = await connection.fetch(SQL.lock_queued_changes, sorted(object_ids))
    return {id: decode_changes(from_json(queued)) for id, queued in rows if queued is not None}


async def has_exports_to_confirm(connection: Connection, system_number: int) -> bool:
    """Return whether an import of the system can confirm anything."""
    return bool(await connection.fetchval(SQL.has_exports_to_confirm, system_number))


async def load_exports_to_confirm(
    connection: Connection, object_ids: Sequence[int], systems: Mapping[int, str]
) -> dict[int, PendingExport]:
    """Lock and return the exports of imported objects that are not executing, by object."""
    return _by_object(await connection.fetch(SQL.load_exports_to_confirm, sorted(object_ids)), systems)


async def list_exported(
    connection: Connection, system_number: int, after_id: int, limit: int
) -> list[tuple[int, ExportKind]]:
    """Return the next exports of a system that wait for confirmation, as (object, kind)."""
    rows = await connection.fetch(SQL.list_exported, system_number, after_id, limit)
    return [(row["object_id"], ExportKind(row["kind"])) for row in rows]


async def write_exports(
    connection: Connection,
    exports: Sequence[PendingExport],
    system_numbers: Mapping[str, int],
    depths: Mapping[int, int],
    now: datetime,
) -> None:
    """Insert or replace pending exports. ``depths`` are the positions within a phase, by object."""
    if not exports:
        return
    ordered = sorted(exports, key=lambda each: each.object_id)
    await connection.execute(
        SQL.write_exports,
        [each.object_id for each in ordered],
        [system_numbers[each.system] for each in ordered],
        [each.metaverse_id for each in ordered],
        [each.kind.value for each in ordered],
        [encode_pending_changes(each.changes) for each in ordered],
        [encode_pending_changes(each.queued_changes) if each.queued_changes else None for each in ordered],
        [export_phase(each) for each in ordered],
        [depths.get(each.object_id, 0) for each in ordered],
        [each.state.value for each in ordered],
        [each.attempts for each in ordered],
        [each.next_attempt_at for each in ordered],
        [each.uncertain for each in ordered],
        [each.deferred_reference_count for each in ordered],
        [each.error for each in ordered],
        [each.disables for each in ordered],
        now,
        [each.foreign_anchor for each in ordered],
    )


async def insert_exports(
    connection: Connection,
    exports: Sequence[PendingExport],
    system_numbers: Mapping[str, int],
    depths: Mapping[int, int],
    now: datetime,
) -> None:
    """Insert pending exports of new objects, which have none yet."""
    if exports:
        await connection.copy_records_to_table(
            "pending_exports",
            columns=[
                "object_id", "system_number", "metaverse_id", "kind", "changes", "phase", "depth", "state",
                "changed_at",
            ],
            records=(
                (
                    each.object_id, system_numbers[each.system], each.metaverse_id, each.kind,
                    encode_pending_changes(each.changes), export_phase(each), depths.get(each.object_id, 0),
                    each.state, now,
                )
                for each in exports
            ),
        )  # fmt: skip


async def delete_exports(connection: Connection, object_ids: Sequence[int]) -> None:
    if object_ids:
        await connection.execute(SQL.delete_exports, sorted(object_ids))


async def release_uncertain_exports(connection: Connection, system_number: int, run_id: UUID) -> list[int]:
    """Release exports that an ended run had claimed; return their objects."""
    rows = await connection.fetch(SQL.release_uncertain_exports, system_number, run_id)
    return [row["object_id"] for row in rows]


async def claim_exports(
    connection: Connection,
    system_number: int,
    phase: int,
    after: tuple[int, int],
    now: datetime,
    limit: int,
    run_id: UUID,
    systems: Mapping[int, str],
    *,
    holds_deletes: bool = False,
    only: Sequence[int] | None = None,
) -> list[ClaimedExport]:
    """Claim the next exports of a phase after (depth, object), in the order of sending; ``only`` those of objects.

    With ``holds_deletes``, deletes and updates that disable are claimed only if they are approved."""
    rows = await connection.fetch(
        SQL.claim_exports, system_number, phase, *after, now, limit, run_id, holds_deletes, only
    )
    claimed = [ClaimedExport(_to_export(row, systems), row["phase"], row["depth"]) for row in rows]
    return sorted(claimed, key=lambda each: (each.phase, each.depth, each.pending.object_id))


async def approve_deletes(connection: Connection, system_number: int) -> int:
    """Approve the deletes, and updates that disable, which wait now; return their number."""
    return len(await connection.fetch(SQL.approve_deletes, system_number))


async def count_exports(connection: Connection, system_number: int, now: datetime) -> list[ExportCount]:
    """Count the pending exports of a system by kind and state."""
    return _COUNTS.all(await connection.fetch(SQL.count_exports, system_number, now))


async def lock_exports_to_retry(
    connection: Connection, system_number: int, after_id: int, limit: int, systems: Mapping[int, str]
) -> list[PendingExport]:
    """Lock and return the next exports that failed or wait for another attempt."""
    rows = await connection.fetch(SQL.retry_exports, system_number, after_id, limit)
    return [_to_export(row, systems) for row in rows]


async def list_exports(
    database: Database, system: str | None, state: str | None, after_id: int, limit: int, *, errors_only: bool = False
) -> list[ExportRecord]:
    """Return pending exports in order of object."""
    return _RECORDS.all(await fetch_all(database, SQL.list_exports, system, state, after_id, limit, errors_only))


def _by_object(rows: Sequence[Row], systems: Mapping[int, str]) -> dict[int, PendingExport]:
    return {row["object_id"]: _to_export(row, systems) for row in rows}


def _to_export(row: Row, systems: Mapping[int, str]) -> PendingExport:
    queued = row["queued_changes"]
    return PendingExport(
        object_id=row["object_id"],
        system=systems[row["system_number"]],
        metaverse_id=row["metaverse_id"],
        kind=ExportKind(row["kind"]),
        changes=decode_changes(from_json(row["changes"])),
        queued_changes=() if queued is None else decode_changes(from_json(queued)),
        state=ExportState(row["state"]),
        attempts=row["attempts"],
        next_attempt_at=row["next_attempt_at"],
        uncertain=row["uncertain"],
        deferred_reference_count=row["deferred_reference_count"],
        error=row["error"],
        foreign_anchor=row["foreign_anchor"],
        disables=row["disables"],
    )


_SET, _PENDING = ChangeOp.SET, ChangeState.PENDING
_MAX_STARTS = 2_000
_starts: dict[str, bytes] = {}
"""By attribute: the JSON of a change that sets it, up to the values."""


def encode_pending_changes(changes: Iterable[Change]) -> str:
    """Return the changes as JSON text, equal to the JSON of `encode_changes`.

    Measured (`identity`, full sync of new people): concatenating the JSON of changes that only set values, such as
    those of new objects, takes half of the time. `test_json_of_changes_is_that_of_their_stored_form` compares both.
    """
    return (b"[" + b",".join([_encode_pending(change) for change in changes]) + b"]").decode()


def _encode_pending(change: Change) -> bytes:
    is_plain = (
        change.op is _SET
        and change.values
        and change.state is _PENDING
        and change.owned
        and not change.references
        and not change.attempts
        and change.observed is None
    )
    if not is_plain:
        return to_json(encode_changes([change])[0])
    start = _starts.get(change.attribute)
    if start is None:
        if len(_starts) >= _MAX_STARTS:
            _starts.clear()
        start = _starts[change.attribute] = b'{"attribute":' + to_json(change.attribute) + b',"op":"set","values":'
    return start + to_json(change.values) + b"}"
