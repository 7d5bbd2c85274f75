"""Sync marks: which objects the next delta sync processes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from tenuto.postgres.database import Connection
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper
from tenuto_identity.model.value_class import value_class

SQL = load_statements(__file__)


class MarkReason(StrEnum):
    """Why an object is processed by the next delta sync."""

    IMPORTED = "imported"
    DELETED = "deleted"
    RULE = "rule"
    REFERENCE = "reference"
    REEVALUATION = "reevaluation"
    ERROR = "error"
    MANUAL = "manual"


@value_class
class SyncMark:
    """The mark of an object. It is deleted only with the stamp that was read."""

    object_id: int
    reason: MarkReason
    stamp: int
    attempts: int


_MARKS = RowMapper(SyncMark, SQL.load_marks_page, SQL.load_marks_with_reason, SQL.load_stamps)


async def draw_stamp(connection: Connection) -> int:
    """Return a stamp: marks that are set later have larger ones."""
    return int(await connection.fetchval(SQL.last_stamp))


async def load_marks_page(
    connection: Connection, system_number: int, after_id: int, until_stamp: int, limit: int
) -> list[SyncMark]:
    """Return the next marks of a system in order of object."""
    rows = await connection.fetch(SQL.load_marks_page, system_number, after_id, until_stamp, limit)
    return _MARKS.all(rows)


async def load_marks_since(
    connection: Connection, system_number: int, after_id: int, reason: MarkReason, since_stamp: int, limit: int
) -> list[SyncMark]:
    """Return the next marks with this reason that were set after a stamp was drawn."""
    rows = await connection.fetch(SQL.load_marks_with_reason, system_number, after_id, reason.value, since_stamp, limit)
    return _MARKS.all(rows)


async def load_marks(connection: Connection, object_ids: Sequence[int]) -> dict[int, SyncMark]:
    """Return the marks of these objects, by object."""
    return {each.object_id: each for each in _MARKS.all(await connection.fetch(SQL.load_stamps, object_ids))}


async def list_marked_systems(connection: Connection) -> list[int]:
    """Return the numbers of the systems with objects that the next delta sync processes."""
    return [row["number"] for row in await connection.fetch(SQL.list_marked_systems)]


async def count_marks(connection: Connection, system_number: int, until_stamp: int) -> int:
    return int(await connection.fetchval(SQL.count_marks, system_number, until_stamp))


async def insert_marks(
    connection: Connection, system_number: int, object_ids: Sequence[int], reason: MarkReason
) -> None:
    """Mark new objects, which have no mark yet."""
    if object_ids:
        await connection.copy_records_to_table(
            "sync_marks",
            columns=["object_id", "system_number", "reason"],
            records=((id, system_number, reason.value) for id in object_ids),
        )


async def set_marks(connection: Connection, objects: Sequence[tuple[int, int]], reason: MarkReason) -> None:
    """Mark objects, given as (id, system number); an existing mark gets a new stamp."""
    if objects:
        ordered = sorted(set(objects))
        await connection.execute(SQL.set_marks, [id for id, _ in ordered], [number for _, number in ordered], reason)


async def delete_marks(connection: Connection, marks: Sequence[SyncMark]) -> None:
    """Delete marks, unless they were set again since they were read."""
    if marks:
        await connection.execute(SQL.delete_marks, [mark.object_id for mark in marks], [mark.stamp for mark in marks])


async def delete_marks_of_objects(connection: Connection, object_ids: Sequence[int]) -> None:
    """Delete the marks of objects that are deleted."""
    if object_ids:
        await connection.execute(SQL.delete_marks_of_objects, object_ids)


async def mark_objects_of_type(connection: Connection, system_number: int, type_number: int) -> None:
    """Mark all objects of a type, because a rule has changed."""
    await connection.execute(SQL.mark_objects_of_type, system_number, type_number)


async def count_objects_of_type(connection: Connection, system_number: int, type_number: int) -> int:
    return int(await connection.fetchval(SQL.count_objects_of_type, system_number, type_number))


async def mark_referring(
    connection: Connection, joined_ids: Sequence[int], page_ids: Sequence[int], before_id: int | None
) -> None:
    """Mark the objects that refer to newly joined ones, except those of the page.

    A full sync gives ``before_id``, the first id that it has yet to process. From there on, only objects are marked
    that it may skip.
    """
    if joined_ids:
        await connection.execute(SQL.mark_referring, joined_ids, page_ids, before_id)


async def mark_joined_objects(connection: Connection, metaverse_ids: Sequence[int], reason: MarkReason) -> None:
    """Mark one joined object of each metaverse object, a source if there is one."""
    if metaverse_ids:
        await connection.execute(SQL.mark_joined_objects, metaverse_ids, reason.value)
