"""Results of runs: one item per object with a change or an error, and the values before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic_core import from_json

from tenuto.postgres.database import Connection, Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import FromColumn, RowMapper
from tenuto_identity.model.json_integers import LongId
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import Document
from tenuto_identity.store.objects import encode_json
from tenuto_identity.store.transaction_settings import fetch_all

SQL = load_statements(__file__)
_NAME_END, _VALUES_END = '":[', '],"'


@value_class
class Item:
    """The result of a run for one object, or its error."""

    number: LongId
    object_id: LongId | None = None
    metaverse_id: LongId | None = None
    type: str | None = None
    anchor: str | None = None
    display: str | None = None
    change: str | None = None
    error: str | None = None
    message: str | None = None
    detail: Annotated[dict[str, Any] | None, FromColumn(from_json)] = None


@value_class
class ChangeRecord:
    """The values of one object before and after: ``{attribute: [before, after]}``."""

    item_number: int
    subject: str
    """``object`` or ``identity``."""
    subject_id: int
    diff: Mapping[str, Any] | str
    """A text is the diff as JSON."""


_ITEMS = RowMapper(Item, SQL.list_items)


async def write_items(
    connection: Connection, run_id: UUID, items: Sequence[Item], changes: Sequence[ChangeRecord]
) -> None:
    """Write items and the changes behind them."""
    if items:
        await connection.copy_records_to_table(
            "items",
            columns=[
                "run_id", "number", "object_id", "metaverse_id", "type", "anchor", "display", "change", "error",
                "message", "detail",
            ],
            records=(
                (
                    run_id, each.number, each.object_id, each.metaverse_id, each.type, each.anchor, each.display,
                    each.change, each.error, each.message, None if each.detail is None else encode_json(each.detail),
                )
                for each in items
            ),
        )  # fmt: skip
    if changes:
        await connection.copy_records_to_table(
            "changes",
            columns=["run_id", "item_number", "subject", "subject_id", "diff"],
            records=(
                (
                    run_id, each.item_number, each.subject, each.subject_id,
                    each.diff if type(each.diff) is str else encode_json(each.diff),
                )
                for each in changes
            ),
        )  # fmt: skip


def encode_added_values(values: Document, encoded: str) -> str:
    """Return the diff of new values, ``{name: [[], values]}``, as JSON; ``encoded`` is the JSON of the values.

    Measured (`identity`, import of new people): three times as fast as encoding the diff. The delimiters of names and
    values are replaced in the JSON text; a diff whose values contain a delimiter is encoded.
    """
    count = len(values)
    if not count or encoded.count(_NAME_END) != count or encoded.count(_VALUES_END) != count - 1:
        return encode_json({name: ((), found) for name, found in values.items()})
    return encoded.replace(_NAME_END, '":[[],[').replace(_VALUES_END, ']],"')[:-1] + "]}"


@dataclass(frozen=True, slots=True)
class WrittenChange:
    """What a run has written about an object."""

    object_id: int
    number: int
    change: str | None
    diff: Annotated[dict[str, Any] | None, FromColumn(from_json)]


_WRITTEN = RowMapper(WrittenChange, SQL.load_changes_of_objects)


async def load_changes_of_objects(
    connection: Connection, run_id: UUID, object_ids: Sequence[int]
) -> list[WrittenChange]:
    """Return what a run has written about these objects so far."""
    return _WRITTEN.all(await connection.fetch(SQL.load_changes_of_objects, run_id, object_ids))


async def refuse_items(connection: Connection, run_id: UUID, numbers: Sequence[int], message: str) -> None:
    """Turn items of changes into errors: the objects occur again in a later page."""
    await connection.execute(SQL.refuse_items, run_id, numbers, message)
    await connection.execute(SQL.delete_changes, run_id, numbers)


async def list_items(
    database: Database,
    run_id: UUID,
    after: int,
    limit: int,
    *,
    errors_only: bool = False,
    change: str | None = None,
    error: str | None = None,
) -> list[Item]:
    """Return the items of a run in order; page with ``after``."""
    return _ITEMS.all(await fetch_all(database, SQL.list_items, run_id, after, errors_only, limit, change, error))


async def erase_history(connection: Connection, metaverse_id: int) -> tuple[int, int]:
    """Erase the history of an identity and of all objects that were ever joined to it; return the numbers of changes
    and items. Reads all items, so it is for single identities."""
    rows = await connection.fetch(SQL.list_objects_of_identity, metaverse_id)
    ids = [row["object_id"] for row in rows]
    changes = await connection.execute(SQL.erase_changes, metaverse_id, ids)
    items = await connection.execute(SQL.erase_items, metaverse_id, ids)
    return int(changes.split()[-1]), int(items.split()[-1])


async def load_deferring(connection: Connection, task_id: UUID, run_id: UUID) -> dict[int, tuple[UUID, int]]:
    """Return the items of lost attempts of an export whose objects have deferred references, by object."""
    rows = await connection.fetch(SQL.load_deferring, task_id, run_id)
    return {row["object_id"]: (row["run_id"], row["number"]) for row in rows}


async def append_changes(connection: Connection, changes: Mapping[tuple[UUID, int], Sequence[Any]]) -> None:
    """Add changes that were sent later to the details of items, given by run and number."""
    if changes:
        await connection.execute(
            SQL.append_changes,
            [run_id for run_id, _ in changes],
            [number for _, number in changes],
            [encode_json(each) for each in changes.values()],
        )
