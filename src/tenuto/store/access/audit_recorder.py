"""What somebody asked for, on the record: written in the very transaction that does it.

Whoever acts for a person or a key says so with `on_record`. From then on the database writes the entry together with
the first thing that is changed; what changes nothing leaves no entry, and no change is kept without its entry. The
entry is linked into the chain a moment later (`store.access.audit_log`), because a chain all wait for would make all slow.
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

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.actors import Actor
from tenuto.model.secrets import masked
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_NAMED = 5
_LONGEST_TARGET = 500
"""In characters: entries are found by their target, and what an index can hold is bounded."""
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
    changed_nothing: bool = False
    """Said by who does it: what was asked for was so already. A row that was only held is no change."""
    parts: list[tuple[str, Any, Any]] = field(default_factory=list)
    """Of one that changes several things at once: each with what it was and what it became."""

    def begin_anew(self) -> None:
        """The next thing that the same person does in the same breath: an entry of its own."""
        self.id, self.written, self.request_key = new_id(), False, None
        self.target = self.before = self.after = None

    def begin(self) -> None:
        """A transaction begins, perhaps for the second time: what was said in the last one does not count."""
        self.changed_nothing = False
        self.parts.clear()


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


def is_asked_for() -> bool:
    """Whether what is done here goes on somebody's record."""
    return _under_way.get() is not None


def tell(*, target: str | None = None, before: Any = None, after: Any = None, reason: str | None = None) -> None:
    """Add what only those know who do it. Before it is committed; does nothing if nobody asked for a record.

    Whoever is on record with one thing and goes on to the next (``dead-letter retry A B``) has an entry for each.
    """
    deed = _under_way.get()
    if deed is None:
        return
    if deed.written:
        if target is None or target == deed.target:
            return
        deed.begin_anew()
    deed.target = target or deed.target
    deed.before = deed.before if before is None else before
    deed.after = deed.after if after is None else after
    deed.reason = reason or deed.reason


def tell_part(target: str, before: Any, after: Any, reason: str | None = None) -> None:
    """Add one thing that is changed, of perhaps several. Inside the transaction that changes it."""
    if (deed := to_be_written()) is not None:
        deed.parts.append((target, before, after))
        deed.reason = reason or deed.reason


@contextmanager
def off_record() -> Iterator[None]:
    """What is changed inside the block is nobody's deed, such as bringing the schema up to date on the way."""
    token = _under_way.set(None)
    try:
        yield
    finally:
        _under_way.reset(token)


def changed_nothing() -> None:
    """Say that in this transaction nothing is changed, though rows are held in it: it leaves no entry."""
    if (deed := to_be_written()) is not None:
        deed.changed_nothing = True


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
    if deed.changed_nothing:
        return False
    written = await connection.fetchval(SQL.write_audit, *entry_of(deed))
    if written and deed.request_key is not None:
        key = deed.request_key
        kept = await connection.fetchval(SQL.keep_request, key.actor, key.key, key.fingerprint, key.subject)
        if kept is None:  # and with it goes whatever was about to be done
            raise done_elsewhere()
    return bool(written)


def entry_of(deed: Deed) -> tuple[Any, ...]:
    """An entry as the statements that write one take it."""
    target, before, after = _summed_up(deed)
    deed.target = target
    actor = deed.actor
    return (
        deed.id, actor.type, actor.id, actor.name, deed.source, deed.request_id, deed.action, target, deed.reason,
        _json(before), _json(after),
    )  # fmt: skip


def done_elsewhere() -> Conflict:
    """Somebody was quicker with the same request."""
    return Conflict(
        "a request with this key has just been done", field="Idempotency-Key", remedy="send it again for its answer"
    )


def _summed_up(deed: Deed) -> tuple[str | None, Any, Any]:
    """Target, before and after of the whole."""
    if not deed.parts:
        return deed.target, deed.before, deed.after
    if len(deed.parts) == 1:
        return deed.parts[0]
    named = [target for target, _, _ in deed.parts]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    before = [{"target": target, "is": was} for target, was, _ in deed.parts]
    after = [{"target": target, "is": now} for target, _, now in deed.parts]
    return ", ".join(named[:_NAMED])[:_LONGEST_TARGET] + more, before, after


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(masked(value), ensure_ascii=False, default=str)
