"""Tasks that differ only in their id and input, as COPY takes them in.

What all of them share is put into COPY's binary form once and not once per row: of a bulk of small tasks that is half
the client's work. Nothing is decided here; what a column means is known to whoever fills it.

Many rows in one parameter each: how columns are sent to a statement that unnests them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any
from uuid import UUID

from tenuto.postgres.database import Connection

_AT_ONCE = 250
"""So many rows are sent before the next are made: the server reads them meanwhile."""

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_TEXT_OID = 25
_int16, _int32, _int64 = Struct("!h").pack, Struct("!i").pack, Struct("!q").pack


def _json(text: str) -> bytes:
    return b"\x01" + text.encode()


def _instant(value: datetime) -> bytes:
    return _int64((value - _EPOCH) // timedelta(microseconds=1))


def _texts(values: Sequence[str]) -> bytes:
    head = _int32(1) + _int32(0) + _int32(_TEXT_OID) + _int32(len(values)) + _int32(1)  # one dimension, no NULL
    return head + b"".join(_sized(value.encode()) for value in values)


def _uuid(value: UUID) -> bytes:
    return value.bytes


_FORM: Mapping[str, Callable[[Any], bytes]] = {
    "rank": _int16, "limit_max": _int32, "run_at": _instant, "policy": _json, "tags": _texts,
    "parent_id": _uuid, "manifest_id": _uuid, "batch_id": _uuid,
}  # fmt: skip
"""The columns that are not text."""

_AS_MOST_ARE = {"state": "queued", "queue": "default", "rank": 0, "kind": "job", "policy": "{}"}
"""The defaults of the table: what is so is not sent."""


def _sized(field: bytes) -> bytes:
    return _int32(len(field)) + field


async def copy_alike(
    connection: Connection,
    shared: Mapping[str, Any],
    ids: Sequence[UUID],
    inputs: Sequence[str],
    sent: Callable[[], object] = lambda: None,
) -> None:
    """Create a task for each id and input. What is as in most tasks is left to the database.

    ``sent`` is called as soon as there is only the database to wait for.
    """
    given = {
        column: value for column, value in shared.items() if value is not None and value != _AS_MOST_ARE.get(column)
    }
    tail = b"".join(_sized(_FORM.get(column, str.encode)(value)) for column, value in given.items())

    async def rows() -> AsyncIterator[bytes]:
        head, between = _int16(3 + len(given)) + _int32(16), _int32(16)
        yield _SIGNATURE
        for at in range(0, len(ids), _AT_ONCE):
            some: list[bytes] = []
            for id, text in zip(ids[at : at + _AT_ONCE], inputs[at : at + _AT_ONCE], strict=True):
                key, value = id.bytes, _json(text)
                some += head, key, between, key, _int32(len(value)), value, tail
            yield b"".join(some)
        yield _END
        sent()

    await connection.copy_to_table(
        "tasks", schema_name="tenuto", columns=["id", "activity_id", "input", *given], source=rows(), format="binary"
    )


Excluded = Collection[tuple[UUID, int]]
"""Some schedules or manifests, each by id and version: one that has been changed since is not excluded any more."""


def columns_of(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows, turned: one list for every column."""
    return [list(column) for column in zip(*rows, strict=True)]


def ids_and_versions(excluded: Excluded) -> tuple[list[UUID], list[int]]:
    """The same of those that are excluded, of whom there may be none."""
    return [id for id, _ in excluded], [version for _, version in excluded]


def array_literal(values: list[str]) -> str:
    """Texts as an array within an array, which the driver cannot send."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def array_literals(column: Iterable[list[str] | None]) -> list[str | None]:
    """A whole column of such."""
    return [None if values is None else array_literal(values) for values in column]
