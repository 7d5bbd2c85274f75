"""What somebody asked for, on the record: written in the very transaction that does it.

Whoever acts for a person or a key says so with `on_record`. From then on the database writes the entry together with
the first thing that is changed; what changes nothing leaves no entry, and no change is kept without its entry. The entry
is linked into the chain a moment later (`store.audit`), because a chain that everybody waits for would make all wait.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from tenuto.ids import new_id
from tenuto.model.access import Actor
from tenuto.store.statements import beside

SQL = beside(__file__)

_WRITES = re.compile(r"\b(INSERT INTO|DELETE FROM)\b|\bUPDATE tenuto\.", re.IGNORECASE)


@dataclass(slots=True)
class Deed:
    """Something that is being done, and by whom."""

    actor: Actor
    action: str
    source: str
    """From where: an address, ``cli``, ``code``."""
    target: str | None = None
    reason: str | None = None
    request_id: str | None = None
    before: Any = None
    after: Any = None
    request_key: RequestKey | None = None
    id: UUID = field(default_factory=new_id)
    """Of the entry: should it be written twice because a reply was lost, it is there once."""
    written: bool = False


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What makes a request that is sent twice be done once: kept in the transaction that does it."""

    actor: str
    key: str
    fingerprint: bytes
    subject: UUID


_under_way: ContextVar[Deed | None] = ContextVar("tenuto_deed", default=None)


@contextmanager
def on_record(deed: Deed) -> Iterator[Deed]:
    """Whatever is changed inside the block goes on the record as this deed."""
    token = _under_way.set(deed)
    try:
        yield deed
    finally:
        _under_way.reset(token)


def tell(*, target: str | None = None, before: Any = None, after: Any = None, reason: str | None = None) -> None:
    """Add what only those know who do it. Before it is committed; does nothing if nobody asked for a record."""
    deed = _under_way.get()
    if deed is None or deed.written:
        return
    deed.target = target or deed.target
    deed.before = deed.before if before is None else before
    deed.after = deed.after if after is None else after
    deed.reason = reason or deed.reason


def to_be_written() -> Deed | None:
    """The deed whose entry is still to be written."""
    deed = _under_way.get()
    return None if deed is None or deed.written else deed


@lru_cache(maxsize=1024)
def changes_something(statement: str) -> bool:
    """Whether a statement writes."""
    return _WRITES.search(statement) is not None


async def write_down(connection: Any, deed: Deed) -> bool:
    """Write the entry in the transaction that is open; False if nothing was changed in it."""
    written = await connection.fetchval(
        SQL.write_audit,
        deed.id,
        deed.actor.type,
        deed.actor.id,
        deed.actor.name,
        deed.source,
        deed.request_id,
        deed.action,
        deed.target,
        deed.reason,
        _json(deed.before),
        _json(deed.after),
    )
    if written and deed.request_key is not None:
        key = deed.request_key
        await connection.execute(SQL.keep_request, key.actor, key.key, key.fingerprint, key.subject)
    return bool(written)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)
